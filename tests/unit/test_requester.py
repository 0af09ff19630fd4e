"""Who asks, and under which id."""

from __future__ import annotations

import os
import pwd

import pytest

from rmq_store.commit.ctl import Actor
from rmq_store.commit.request import actor_of, request_id_of
from rmq_store.errors import WrongUse
from rmq_store.utils.host import Host

NOON = Host(now_ms=lambda: 1_772_366_400_000, entropy=lambda count: bytes(range(count)))
"""2026-03-01T12:00:00Z"""


def test_a_new_request_id_begins_with_the_utc_date_and_names_what_is_done() -> None:
    assert request_id_of(None, "consume", NOON) == "2026-03-01-consume-0001020304050607"
    assert request_id_of(None, "consume", Host()) != request_id_of(None, "consume", Host())


@pytest.mark.parametrize(
    "given",
    [
        "2026-03-01",
        "2026-03-01-mine",
        "2026-02-28/dag/run 1",
        "2026-03-01" + "x" * 240,
        "2026-03-01-~2-a",
        "2026-03-01~",
    ],
)
def test_an_id_of_today_or_before_is_taken_as_it_is(given: str) -> None:
    assert request_id_of(given, "consume", NOON) == given


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "must begin with its UTC date, YYYY-MM-DD, for example 2026-03-01-deliver-1"),
        ("mine", "must begin"),
        ("2026-02-30-mine", "must begin"),
        ("2026-03-011", "must begin"),
        ("2026-03-01-\n", r"contains '\\n': it may have ASCII letters, digits, punctuation and spaces only"),
        ("2026-03-01-Müller", "contains 'ü': it may have ASCII letters"),
        ("2026-03-01\t", r"contains '\\t'"),
        ("é2026-03-01", "must begin"),
        ("2026-03-01" + "x" * 241, "has 251 characters; it may have 250"),
        ("2026-03-02-mine", "a date in the future; today is 2026-03-01"),
        ("2026-03-01-mine~2", "ends with ~2, as the id of a part of another request"),
        ("2026-03-01~10", "ends with ~10"),
    ],
)
def test_an_id_that_no_search_would_find_again_is_refused(given: str, says: str) -> None:
    with pytest.raises(WrongUse, match=says):
        request_id_of(given, "deliver", NOON)


def test_the_os_user_asks_unless_a_name_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert actor_of("ana") == Actor("ana", "unverified")
    assert actor_of() == Actor(pwd.getpwuid(os.getuid()).pw_name, "os")
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert actor_of() == Actor("uid-4000000000", "os")
