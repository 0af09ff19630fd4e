from __future__ import annotations

import re
from datetime import UTC, datetime, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.errors import WrongUse
from rmq_store.utils.times import TIME_PATTERN, format_time, ms_of, parse_duration, parse_time

FEBRUARY_29_MS = 1_709_222_399_000
"""2024-02-29T15:59:59Z."""


class NoOffset(tzinfo):
    """A zone that does not know its offset: such a time is naive."""

    def utcoffset(self, moment: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, moment: datetime | None) -> None:
        return None


SAME_MOMENT = [
    "1709222399000",
    " 1709222399000 ",
    "2024-02-29T15:59:59Z",
    "2024-02-29T15:59:59.000Z",
    "2024-02-29 15:59:59+00:00",
    "2024-02-29T23:59:59+08:00",
    "20240229235959+0800",
    "20240229155959Z",
]


@pytest.mark.parametrize("text", SAME_MOMENT)
def test_one_moment_in_every_way_to_write_it(text: str) -> None:
    assert parse_time(text) == FEBRUARY_29_MS


@pytest.mark.parametrize("ms", [0, -1, 1, 86_400_000, 1_795_126_108_814, 2**63 - 1])
def test_a_whole_number_is_epoch_milliseconds(ms: int) -> None:
    assert parse_time(str(ms)) == ms


def test_milliseconds_are_kept() -> None:
    assert parse_time("2024-02-29T15:59:59.007Z") == FEBRUARY_29_MS + 7


@pytest.mark.parametrize("text", ["2024-02-29T15:59:59", "2024-02-29 15:59", "20240229155959"])
def test_a_time_without_a_zone_is_refused_and_the_zone_asked_for(text: str) -> None:
    with pytest.raises(WrongUse, match="has no zone: add Z"):
        parse_time(text)


@pytest.mark.parametrize("text", ["", "now", "yesterday", "2024-02-30T00:00:00Z", "2024-02-29", "1.5e12", "12:00Z"])
def test_what_names_no_moment_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="invalid time"):
        parse_time(text)


@pytest.mark.parametrize(
    "text",
    [
        "2026-10-03 046Z",
        "2026-10-03T170438Z9",
        "2026-10-03T17:04:38.Z",
        "2026-10-03T170438.5.3Z",
        "2026-10-03T1704,2870-11:00",
        "20261003170438-2272",
        "2026-10-03T17:04:38+24:00",
    ],
)
def test_what_python_would_read_by_guessing_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="invalid time"):
        parse_time(text)


def test_thirteen_digits_below_0_are_milliseconds_and_no_date() -> None:
    assert parse_time("-1709222399000") == -1_709_222_399_000


@pytest.mark.parametrize("time", [datetime(2024, 2, 29, 15, 59, 59, tzinfo=UTC), FEBRUARY_29_MS])
def test_a_time_from_python_is_a_datetime_with_a_zone_or_milliseconds(time: Any) -> None:
    assert ms_of(time) == FEBRUARY_29_MS


@pytest.mark.parametrize(
    ("time", "says"),
    [
        (1_709_222_399, r"looks like seconds: .*three digits more \(1709222399000\)"),
        (20_240_229_155_959, "has no zone"),
        (datetime.fromisoformat("2024-02-29"), "has no zone"),
        (datetime(2024, 2, 29, tzinfo=NoOffset()), "has no zone"),
        (2**63, "does not fit into 64-bit milliseconds"),
        (-(10**400), "does not fit into 64-bit milliseconds"),
        (True, "invalid time True: give a datetime with a zone, or epoch milliseconds"),
        (1.5e12, "invalid time"),
        ("2024-02-29T15:59:59Z", "invalid time"),
        (None, "invalid time"),
    ],
)
def test_what_is_no_time_of_python_is_refused(time: Any, says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        ms_of(time)


def test_a_number_of_which_python_makes_no_text_is_refused_too() -> None:
    with pytest.raises(WrongUse, match="does not fit into 64-bit milliseconds"):
        ms_of(10**5000)


@st.composite
def nearly_times(draw: st.DrawFn) -> str:
    """Texts that ``TIME_PATTERN`` takes, with a slip of the pen."""
    text = draw(st.from_regex(TIME_PATTERN))
    place = draw(st.integers(0, len(text)))
    return text[:place] + draw(st.text("0123456789TZ:+-., z", max_size=2)) + text[place + draw(st.integers(0, 2)) :]


NO_DAY = re.compile(r"\s*(0000|[0-9]{4}-?(02-?(29|3[01])|(04|06|09|11)-?31))")


@given(nearly_times())
def test_the_pattern_takes_what_can_be_read_but_for_the_calendar_and_64_bits(text: str) -> None:
    try:
        parse_time(text)
        refusal = None
    except WrongUse as error:
        refusal = str(error)
    if re.search(TIME_PATTERN, text) is None:
        assert refusal is not None
    else:
        assert refusal is None or NO_DAY.match(text) or "does not fit into 64-bit" in refusal


@pytest.mark.parametrize(
    "text",
    [*SAME_MOMENT, "0", "-1", "1709222399000", "2024-02-29T15:59:59,007Z", "2024-02-29T15Z", "20240229235959+08"],
)
def test_the_pattern_takes_every_way_to_write_a_time(text: str) -> None:
    assert re.search(TIME_PATTERN, text)
    parse_time(text)


def test_seconds_are_refused_because_as_milliseconds_they_would_mean_1970() -> None:
    with pytest.raises(WrongUse, match=r"looks like seconds.*1709222399000"):
        parse_time("1709222399")


def test_a_number_beyond_64_bits_is_refused() -> None:
    with pytest.raises(WrongUse, match="does not fit into 64-bit"):
        parse_time(str(2**63))


@given(st.integers(min_value=-62_135_596_800_000, max_value=253_402_300_799_999))
def test_what_is_shown_is_read_back_as_the_same_moment(ms: int) -> None:
    assert parse_time(format_time(ms)) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90s", 90_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("3d", 259_200_000),
        (" 1d2h3m4s5ms ", 93_784_005),
        ("0s", 0),
    ],
)
def test_a_time_span_is_read(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "90", "s", "-5s", "1.5h", "5 s", "1m1h", "soon", "1s1s", "٣s"])
def test_what_is_no_time_span_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="invalid duration"):
        parse_duration(text)


def test_a_moment_beyond_the_calendar_is_shown_as_its_number() -> None:
    assert format_time(2**62) == str(2**62)
