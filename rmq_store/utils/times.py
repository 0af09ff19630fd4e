"""Times and durations as people and scripts write them, for every command and parameter, in UTC milliseconds.

A time is one of

- epoch milliseconds: a whole number, also 0 and negative;
- ISO 8601 with a zone, or RocketMQ's ``yyyyMMddHHmmss`` with a zone (``parse_consume_timestamp``).

A time without a zone is refused, because it does not say which clock it is from. So are ten digits, which are seconds:
as milliseconds they would mean January 1970, and a replay from there would be a replay of everything. The same holds for
times from Python (``ms_of``).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from rmq_store.errors import WrongUse
from rmq_store.utils.numbers import whole_number

_HOUR, _SIXTY, _FRACTION = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]", "(?:[.,][0-9]+)?"
_CLOCK = f"(?:{_HOUR}(?::{_SIXTY}(?::{_SIXTY}{_FRACTION})?)?|{_HOUR}{_SIXTY}(?:{_SIXTY}{_FRACTION})?)"


def _day(dash: str) -> str:
    """A month and a day of it, 29 February in every year."""
    first_29 = f"(?:0[1-9]|1[0-2]){dash}(?:0[1-9]|1[0-9]|2[0-9])"
    return f"(?:{first_29}|(?:0[13-9]|1[0-2]){dash}30|(?:0[13578]|1[02]){dash}31)"


_ISO_TIME = f"[0-9]{{4}}-{_day('-')}[T ]{_CLOCK}"
_COMPACT_TIME = f"[0-9]{{4}}{_day('')}{_HOUR}{_SIXTY}{_SIXTY}"
_ZONE = f"(?:Z|[+-]{_HOUR}(?::?{_SIXTY})?)"
TIMESTAMP_PATTERN = f"(?:{_ISO_TIME}|{_COMPACT_TIME}){_ZONE}"
"""What ``parse_consume_timestamp`` reads, as a regular expression that JSON Schema has too. It matches 29 February in
every year."""

_TIMESTAMP = re.compile(f"{TIMESTAMP_PATTERN}?")  # a missing zone has an error message of its own
_COMPACT = re.compile(rf"(\d{{4}})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)({_ZONE})?", re.ASCII)

_NUMBER = re.compile(r"-?\d+", re.ASCII)
_COMPACT_DIGITS = 14
_SECONDS_DIGITS = 10
_DURATION = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?(?:(\d{1,12})ms)?", re.ASCII)
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1000, 1)
_LONG_MAX = 2**63 - 1
_MILLISECONDS = "(?:-[0-9]{1,20}|[0-9]{1,9}|[0-9]{11,13}|[0-9]{15,20})"
TIME_PATTERN = rf"^\s*(?:{_MILLISECONDS}|{TIMESTAMP_PATTERN})\s*$"
"""What ``parse_time`` reads, as a regular expression of JSON Schema. It checks neither leap years nor 64 bits."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Time = datetime | int
"""A time from Python: a ``datetime`` with a zone, or epoch milliseconds."""


def parse_time(text: str) -> int:
    """A time in epoch ms. Raises WrongUse, which says what is wrong and how to write it."""
    stripped = text.strip()
    if not _NUMBER.fullmatch(stripped) or (stripped.isdecimal() and len(stripped) == _COMPACT_DIGITS):
        return parse_consume_timestamp(stripped)
    if len(stripped) == _SECONDS_DIGITS and stripped.isdecimal():
        raise WrongUse(
            f"the time {stripped} looks like seconds: write epoch milliseconds, with three digits more ({stripped}000)"
        )
    value = whole_number(stripped, signed=True)
    if value is None or abs(value) > _LONG_MAX:
        raise WrongUse(f"invalid time: {stripped:.40} does not fit into 64-bit milliseconds")
    return value


def ms_of(time: Time) -> int:
    """A time from Python in epoch ms. Raises WrongUse for a ``datetime`` without a zone, for a number that ``parse_time``
    refuses, such as seconds, and for other types."""
    if isinstance(time, datetime):
        return parse_consume_timestamp(time)
    if isinstance(time, bool) or not isinstance(time, int):
        raise WrongUse(f"invalid time {time!r}: give a datetime with a zone, or epoch milliseconds")
    if abs(time) > _LONG_MAX:  # of very many digits Python makes no text
        raise WrongUse("invalid time: the number does not fit into 64-bit milliseconds")
    return parse_time(str(time))


def parse_consume_timestamp(value: str | datetime) -> int:
    """A consumeTimestamp in epoch ms: RocketMQ's ``yyyyMMddHHmmss``, or ISO 8601, each with its zone.

    ``20240229235959+08:00``, ``20240229235959Z``, ``2024-02-29T23:59:59+08:00``. RocketMQ uses the zone of the machine
    and rolls 30 February over to March (``UtilAll#parseDate``, rules 5.3); both are refused here. Raises WrongUse.
    """
    moment = value if isinstance(value, datetime) else _parsed(value.strip())
    if moment is None or moment != moment:  # pandas' NaT, "not a time", is a datetime
        raise WrongUse(f"invalid time: {value!r}. Write 2026-01-31T12:00:00Z or 2026-01-31T20:00:00+08:00.")
    if moment.utcoffset() is None:  # Python's rule for a time without a zone: a tzinfo may know no offset
        raise WrongUse(f"the time {str(value)!r} has no zone: add Z for UTC or an offset like +08:00")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _parsed(text: str) -> datetime | None:
    """The time, with or without a zone; None for an invalid one."""
    if not _TIMESTAMP.fullmatch(text):
        return None  # Python accepts texts that are no times, like "2026-10-03 046Z"
    if compact := _COMPACT.fullmatch(text):
        year, month, day, hour, minute, second, zone = compact.groups(default="")
        text = f"{year}-{month}-{day}T{hour}:{minute}:{second}{zone}"
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def parse_duration(text: str) -> int:
    """A duration in ms: whole numbers with units, larger units first, like ``90s``, ``1h30m`` or ``250ms``.

    Raises WrongUse.
    """
    match = _DURATION.fullmatch(text.strip())
    if not match or not any(match.groups()):
        raise WrongUse(f"invalid duration {text!r}: write whole numbers with d, h, m, s or ms, like 90s or 1h30m")
    return sum(int(number) * unit_ms for number, unit_ms in zip(match.groups(), _UNITS_MS, strict=True) if number)


def format_time(ms: int) -> str:
    """ISO 8601 in UTC with milliseconds, as ``parse_time`` reads it; the number itself where the calendar ends."""
    try:
        moment = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return str(ms)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
