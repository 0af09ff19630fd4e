"""A request in a shard: all its windows, and what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmq_store.admin.sentences import blocked_warnings, window_line, window_sentence
from rmq_store.commit.claim import Held, Holder
from rmq_store.commit.ctl import Action, Actor, Blocked, Consumed, Ctl, Produced
from rmq_store.commit.positions import (
    ABSENT,
    Outcome,
    Positions,
    QueueRange,
    Tally,
    blk_id,
    grp_id,
    max_id,
    min_id,
    off_id,
    own_queue_id,
    pas_id,
)
from rmq_store.commit.request import Status, overall
from rmq_store.errors import HeldByAnother, WrongUse
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.consumption import Consumption, answer, answer_so_far, queue_rows, shards_of
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, retry_topic
from rmq_store.settings.settings import load_settings
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import Scope
from rmq_store.window.ranges import blocked_offsets, left_behind

QUEUE = MessageQueue("Orders", "broker-a", 0)


def window(begin: int, end: int, *, retried: int = 0, **changes: Any) -> WindowReport:
    tallies = {Outcome.ACKED: Tally(end - begin - retried), Outcome.RETRIED: Tally(retried)}
    consumed = (Consumed(QueueRange(QUEUE, begin, end), 0, tallies),)
    report = replace(EMPTY, status=Status.COMMITTED, engine="local", window_id="w", commit_id=f"c{end}", version=7)
    return replace(report, consumed=consumed, **changes)


BLOCKING = Ctl(
    "c1",
    Action.CONSUME,
    Actor("ana", "test"),
    group="shop",
    consumed=(Consumed(QueueRange(QUEUE, 0, 2), 0, {Outcome.ACKED: Tally(2)}),),
    blocked=(Blocked(QueueRange(QUEUE, 2, 3), 1, "SUSPEND_CURRENT_QUEUE_A_MOMENT"),),
)
"""A window that left the queue blocked at offset 2."""
EMPTY = WindowReport(status=Status.EMPTY, shard="a", group="shop", request_id="2026-03-01-1", engine="none")


def consumed_in(windows: Sequence[WindowReport]) -> Consumption:
    """As many of the windows as are asked for."""
    left = iter(windows)
    return Consumption.of(lambda: next(left))


def test_windows_follow_each_other_until_the_request_is_complete_and_each_is_told() -> None:
    parts = iter([window(0, 10, complete=False), window(10, 15, complete=False), window(15, 17), EMPTY])
    told: list[WindowReport] = []
    done = Consumption.of(lambda: next(parts), told.append)
    assert done.windows == tuple(told)
    assert (done.status, done.messages, len(done.windows)) == ("committed", 17, 3)


def test_an_answer_says_who_holds_what_was_left() -> None:
    held = (Held(own_queue_id("shop", QUEUE), 4, 70, Holder("2026-03-01-2", "ben", 4, "c2")),)
    told = answer("shop", "2026-03-01-1", [consumed_in([window(0, 10, complete=False, held=held), window(10, 12)])])
    assert [one["held"] for one in told["windows"]] == [
        [
            {
                "topic": "Orders", "broker_name": "broker-a", "queue_id": 0, "request_id": "2026-03-01-2",
                "actor": "ben", "client_id": "c2", "seconds_left": 70,
            }
        ],
        [],
    ]  # fmt: skip
    assert [one["complete"] for one in told["windows"]] == [False, True]


@pytest.mark.parametrize("report", [EMPTY, window(0, 9, status="already_committed", engine="none", version=None)])
def test_a_window_that_commits_nothing_is_the_last(report: WindowReport) -> None:
    done = consumed_in([report, window(0, 10)])
    assert (done.windows, done.status, done.messages) == ((report,), report.status, report.messages())


def test_what_another_attempt_did_meanwhile_is_not_counted_twice() -> None:
    """The answer "already committed" is the sum of all windows of the request, also of those committed here."""
    done = consumed_in([window(0, 10, complete=False), window(0, 25, status="already_committed", engine="none")])
    assert (done.status, done.messages, done.outcomes) == ("committed", 10, {Outcome.ACKED: 10})


def test_windows_that_were_told_are_not_lost_with_the_one_that_fails() -> None:
    parts = iter([window(0, 10, complete=False)])
    told: list[WindowReport] = []

    def next_window() -> WindowReport:
        for part in parts:
            return part
        raise HeldByAnother("held")

    with pytest.raises(HeldByAnother):
        Consumption.of(next_window, told.append)
    assert [report.messages() for report in told] == [10]


def test_the_answer_of_an_error_tells_the_windows_before_it_shard_by_shard() -> None:
    before = [window(0, 10, complete=False), window(10, 15), window(0, 4, shard="b", complete=False)]
    done = [consumed_in(before[:2]), Consumption((before[2],))]
    assert answer_so_far("shop", "2026-03-01-1", before) == answer("shop", "2026-03-01-1", done)
    assert answer_so_far("shop", "2026-03-01-1", []) == {}


def test_a_summary_says_how_many_had_which_outcome_and_where_the_queues_stand() -> None:
    delayed = [
        Produced(MessageQueue(SCHEDULE_TOPIC, "lake~shop", level - 1), 0, 1, 0, "f", deliver_at=due_ms)
        for level, due_ms in ((4, 8000), (3, 7000))
    ]
    done = consumed_in([window(0, 10, retried=2, complete=False, delayed=tuple(delayed)), window(10, 15)])
    assert done.summary() == {
        "status": "committed",
        "shard": "a",
        "group": "shop",
        "request_id": "2026-03-01-1",
        "engine": "local",
        "windows": 2,
        "complete": True,
        "messages": 15,
        "outcomes": {"acked": 13, "retried": 2},
        "offsets": {"Orders broker-a:0": 15},
        "ranges": {"Orders broker-a:0": [0, 15]},
        "retry_levels": {"3": 1, "4": 1},
        "next_retry_ms": 7000,
        "blocked_queues": 0,
        "not_consumed": 0,
        "commit_id": "c15",
        "warnings": [],
    }


@pytest.mark.parametrize(
    ("group", "warning"),
    [
        ("shop", "2 queues wait at a failed message: the next window of shop tries again (see the view blocked)"),
        (
            "shop-replay-0123456789",
            (
                "2 queues wait at a failed message, so that the replay has not consumed 8 messages: once the listener handles "
                "it, begin another attempt, with a reason in 'reprocess' of the form in Airflow, or by rmq replay --group "
                "shop-replay-0123456789 --reprocess REASON"
            ),
        ),
    ],
)
def test_blocked_queues_are_a_warning_with_what_reads_on(group: str, warning: str) -> None:
    """Each queue once, with what the last of the windows says of it."""
    ranges = [QueueRange(QUEUE, 5, 10), QueueRange(replace(QUEUE, queue_id=1), 0, 3)]
    first = window(0, 5, group=group, complete=False, unread=tuple(ranges[:1]))
    done = consumed_in([first, window(0, 0, group=group, unread=tuple(ranges), warnings=("not dispatched",))])
    summary = done.summary()
    assert (summary["blocked_queues"], summary["not_consumed"]) == (2, 8)
    assert summary["warnings"] == answer(group, "r", [done])["warnings"] == ["not dispatched", warning]
    assert (
        "; 2 queues wait at a failed message (see the view blocked), 8 messages not consumed; 2 war"
        in window_sentence(summary)
    )
    assert ", 1 queue waits at a failed message (see the view blocked), 5 messages not consumed" in window_line(first)


def test_a_queue_whose_first_messages_retention_has_removed_is_blocked_at_those_that_are_left() -> None:
    blocked = {off_id("shop", QUEUE): 2, blk_id("shop", QUEUE): 1, max_id(QUEUE): 9}
    assert blocked_offsets(Positions(1, blocked), "shop", [BLOCKING]) == {QUEUE: 2}
    assert blocked_offsets(Positions(1, blocked | {min_id(QUEUE): 5}), "shop", [BLOCKING]) == {QUEUE: 5}
    assert left_behind({QUEUE: 9}, {QUEUE: 9}) == ()


@pytest.mark.parametrize(
    ("changed", "stops"),
    [
        ({}, {QUEUE: 2}),
        ({off_id("shop", QUEUE): 4}, {QUEUE: 4}),  # another request has read on, and waits there
        ({blk_id("shop", QUEUE): ABSENT}, {}),  # it has read on
        ({pas_id("shop", QUEUE): 1}, {}),  # an operator has moved the queue
        ({pas_id("shop", QUEUE): 1, off_id("shop", QUEUE): ABSENT}, {}),  # to where it had no offset
    ],
)
def test_a_queue_is_blocked_until_a_window_reads_on_or_an_operator_moves_it(
    changed: dict[str, int], stops: dict[MessageQueue, int]
) -> None:
    positions = {off_id("shop", QUEUE): 2, blk_id("shop", QUEUE): 990, max_id(QUEUE): 9} | changed
    assert blocked_offsets(Positions(1, positions), "shop", [BLOCKING]) == stops
    assert blocked_offsets(Positions(1, positions), "shop", [replace(BLOCKING, blocked=())]) == {}


def test_a_blocked_queue_of_retries_of_a_replay_is_read_by_its_next_window() -> None:
    """As every window of a replay after its first request, it reads the retries."""
    name = "shop-replay-0123456789"
    retries = MessageQueue(retry_topic(name), "lake-a", 0)
    warnings = blocked_warnings(name, [QueueRange(retries, 0, 1), QueueRange(QUEUE, 5, 6)])
    assert [warning.startswith("1 queue waits at a failed message") for warning in warnings] == [True, True]
    assert ["has not consumed 1 message:" in warnings[0], "the next window" in warnings[1]] == [True, True]


def test_an_answer_is_told_in_all_and_by_shard_and_by_window() -> None:
    done = [consumed_in([window(0, 10)]), consumed_in([replace(EMPTY, shard="b")])]
    told = answer("shop", "2026-03-01-1", done)
    assert {key: told[key] for key in ("status", "group", "request_id", "messages")} == {
        "status": "committed",
        "group": "shop",
        "request_id": "2026-03-01-1",
        "messages": 10,
    }
    assert told["shards"] == [one.summary() for one in done]
    assert [(w["shard"], w["status"], w["commit_id"]) for w in told["windows"]] == [
        ("a", "committed", "c10"),
        ("b", "empty", None),
    ]
    assert told["windows"][0]["counts"] == {str(outcome): 10 * (outcome is Outcome.ACKED) for outcome in Outcome}
    (range_,) = told["windows"][0]["ranges"]
    assert (range_["topic"], range_["begin_offset"], range_["end_offset"]) == ("Orders", 0, 10)


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        (["empty", "already_committed", "committed"], "committed"),
        (["empty", "already_committed", "dry_run"], "dry_run"),
        (["empty", "already_committed"], "already_committed"),
        (["empty"], "empty"),
        ([], "empty"),
    ],
)
def test_several_statuses_come_to_the_one_that_did_most(statuses: list[str], status: str) -> None:
    assert overall(statuses) == status


# --- the shards of a group -------------------------------------------------------------------------------------------

SHOP = load_settings(
    '[[group]]\nname = "shop"\nlistener = "a:b"\n[[group.subscription]]\ntopic = "Orders"\n', "tests"
).group("shop")


class Store:
    """Shards by name, each with one queue of a topic."""

    root = SimpleNamespace(location="/data/store")

    def __init__(self, **topics: str) -> None:
        self._topics = topics
        self.epochs: dict[str, dict[str, int]] = {}

    def shards(self, name: str | None = None) -> list[Any]:
        if name is not None and name not in self._topics:
            raise WrongUse(f"no shard {name}")
        return [self._shard(known, topic) for known, topic in self._topics.items() if name in (None, known)]

    def _shard(self, name: str, topic: str) -> Any:
        values = {max_id(MessageQueue(topic, f"broker-{name}", 0)): 5, **self.epochs.get(name, {})}
        positions = Positions(0, values)
        return SimpleNamespace(name=name, positions=lambda: positions)


def names_of(shards: list[Shard]) -> list[str]:
    return [shard.name for shard in shards]


THREE = cast("LakeStore", Store(a="Orders", b="Payments", c="Orders"))


def test_a_group_consumes_where_a_topic_of_it_is() -> None:
    assert names_of(shards_of(THREE, SHOP)) == ["a", "c"]
    assert names_of(shards_of(THREE, SHOP, chosen="c")) == ["c"]
    assert names_of(shards_of(THREE, replace(SHOP, shards=("b", "c")))) == ["c"]


def test_the_retries_of_a_replay_may_be_in_any_shard() -> None:
    retries = Scope(retries_only=True)
    assert names_of(shards_of(THREE, SHOP, retries)) == ["a", "b", "c"]
    replay = replace(SHOP, name="shop-replay-0123456789")
    with pytest.raises(WrongUse, match="shop-replay-0123456789 has replayed nothing here"):
        shards_of(THREE, replay, retries)
    store = Store(a="Orders", b="Payments")
    store.epochs["b"] = {grp_id(replay.name): 0}
    assert names_of(shards_of(cast("LakeStore", store), replay, retries)) == ["a", "b"]


@pytest.mark.parametrize(
    ("shards", "chosen", "says"),
    [
        (None, "b", "there is no topic Orders; known: Payments"),
        (None, "d", "no shard d"),
        (("a", "b"), "c", r"shard c is not in the shards of group shop \(a, b\)"),
        (("d",), None, "no shard d"),
    ],
)
def test_a_shard_that_is_none_of_the_groups_is_refused(
    shards: tuple[str, ...] | None, chosen: str | None, says: str
) -> None:
    with pytest.raises(WrongUse, match=says):
        shards_of(THREE, replace(SHOP, shards=shards), chosen=chosen)


def test_an_empty_store_says_how_to_fill_it_and_a_near_topic_is_named() -> None:
    with pytest.raises(
        WrongUse, match="the store /data/store is empty: import a broker's files with 'rmq import-store'"
    ):
        shards_of(cast("LakeStore", Store()), SHOP)
    with pytest.raises(WrongUse, match="no topic Orders, did you mean 'Order'"):
        shards_of(cast("LakeStore", Store(a="Order")), SHOP)
    with pytest.raises(WrongUse, match=r"known: %Notes$"):
        shards_of(cast("LakeStore", Store(a="%Notes", b="%RETRY%shop", c="%DLQ%shop")), SHOP)


def test_the_rows_of_a_request_have_its_queues_over_all_windows_and_the_outcomes_that_there_were() -> None:
    request = consumed_in([window(0, 10, complete=False, retried=2), window(10, 15)])
    rows, columns = queue_rows([request])
    assert columns == ["shard", "topic", "broker_name", "queue_id", "begin_offset", "end_offset", "acked", "retried"]
    assert [[row[name] for name in columns] for row in rows] == [["a", "Orders", "broker-a", 0, 0, 15, 13, 2]]
    assert queue_rows([consumed_in([EMPTY])])[0] == []


def test_the_rows_of_a_request_that_goes_on_have_what_is_committed_now() -> None:
    before = window(0, 15, status=Status.ALREADY_COMMITTED)
    assert [row["end_offset"] for row in queue_rows([consumed_in([before])])[0]] == [15]
    rows, _ = queue_rows([consumed_in([window(10, 15, complete=False), before])])
    assert [(row["begin_offset"], row["end_offset"]) for row in rows] == [(10, 15)]
