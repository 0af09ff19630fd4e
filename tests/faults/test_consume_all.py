"""Many groups in one process (``lake/window/consume_all.py``): each ends as with a command of its own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import rmq_store
from rmq_store.commit.claim import LEASE_S, RENEW_EVERY_S, Wish
from rmq_store.commit.positions import Claim, PositionKind, own_queue_id
from rmq_store.consumer.duplicates import AbsorbRule
from rmq_store.errors import DerivedTableDamaged, HeldByAnother, ListenerError, RmqError, WrongUse
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.lake.admin.replay import begin_attempt
from rmq_store.lake.commit import commit as commit_steps
from rmq_store.lake.commit import dispatch as dispatching
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.commit.commit import STEPS
from rmq_store.lake.commit.cursor import cursor_of, cursor_positions, refuse_other_history
from rmq_store.lake.commit.derived_tables import COMMITS
from rmq_store.lake.commit.dispatch import behind
from rmq_store.lake.commit.rebuild import check
from rmq_store.lake.read.message_search import message_by_id
from rmq_store.lake.sql.sql import queries, query
from rmq_store.lake.window import consume_all as module
from rmq_store.lake.window.consume_all import ConsumeAllReport, consume_all
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.group_course import GroupReport
from rmq_store.lake.window.window import consume_window
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume_request import ConsumeRequest
from tests.faults.answers import Clock, set_clock
from tests.faults.jobs import Job, killed_after_put, killed_at
from tests.faults.listeners import fail_some
from tests.faults.stores import (
    BROKER,
    FIRST_STORED_MS,
    HOUR_MS,
    MESSAGES,
    QUEUES,
    REQUEST,
    TESTS,
    TOPIC,
    Lake,
    copied,
    group_named,
    write_broker,
)

PATIENCE_S = 60.0
HERE = __name__

_OTHERS_ARE_OVER = threading.Event()
_MEANWHILE: list[Callable[[], object]] = []


def slow(msgs: Sequence[Any], context: Any) -> Any:
    assert _OTHERS_ARE_OVER.wait(PATIENCE_S)
    return fail_some(msgs, context)


def wrong_answer(msgs: Sequence[Any], context: Any) -> Any:
    return "MAYBE"


def in_order(msgs: Sequence[Any], context: Any) -> Any:
    return "SUSPEND_CURRENT_QUEUE_A_MOMENT" if msgs[0].body == b"order 13" else "SUCCESS"


def meanwhile(msgs: Sequence[Any], context: Any) -> Any:
    if _MEANWHILE:
        _MEANWHILE.pop()()
    return "CONSUME_SUCCESS"


@pytest.fixture(autouse=True)
def calm() -> Iterator[None]:
    _OTHERS_ARE_OVER.set()
    _MEANWHILE.clear()
    yield
    _OTHERS_ARE_OVER.set()


class InThisThread:
    """A pool whose work is over when it has been submitted."""

    def __init__(self, *arguments: Any, **options: Any) -> None: ...

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        result: Future[Any] = Future()
        try:
            result.set_result(function(*arguments))
        except BaseException as error:
            result.set_exception(error)
        return result

    def shutdown(self, **options: Any) -> None: ...


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All windows of a claim end before the first is committed."""
    monkeypatch.setattr(module, "ThreadPoolExecutor", InThisThread)


def group(name: str, listener: str = "fail_some", **changes: object) -> GroupSettings:
    place = "tests.faults.listeners" if listener == "fail_some" else HERE
    return group_named(name, listener=listener if ":" in listener else f"{place}:{listener}", **changes)


def consumed(lake: Lake, *groups: GroupSettings, request: str = REQUEST, **options: Any) -> ConsumeAllReport:
    engine = LocalEngine(lake.host)
    return consume_all(lake.store, groups, ConsumeRequest(request, TESTS), lambda plan: engine, lake.host, **options)


def alone(lake: Lake, several: Sequence[GroupSettings], request: str = REQUEST) -> dict[str, str]:
    """The same groups, each by a command of its own: the status or the error of each."""
    ends = {}
    for one in several:
        try:
            report = lake.consume(request, one)
            while not report.is_last:
                report = lake.consume(request, one)
            ends[one.name] = str(report.status)
        except RmqError as error:
            ends[one.name] = type(error).__name__
    return ends


def ends_of(report: ConsumeAllReport) -> dict[str, str]:
    return {
        one.group: type(one.error).__name__ if one.error else str(one.shards[-1].windows[-1].status)
        for one in report.groups
    }


_WINDOW = "group_name, action, queues, messages, acked, filtered, retried, dead, listener"
_PARAMETERS = """regexp_replace(parameters, '"claim":"[0-9a-f]+"|,"task_ms":[0-9]+', '', 'g') AS parameters"""
_FAILED = "group_name, attempt, origin_topic, origin_queue_id, origin_queue_offset, pass, unique_key, topic, queue_id"
VIEWS = {
    "windows": f"{_WINDOW}, {_PARAMETERS}, request_id, request_part, request_complete, epoch",
    "consumer_offsets": "group_name, topic, broker_name, queue_id, next_offset",
    "blocked": "group_name, topic, queue_id, begin_offset, end_offset, attempts",
    "retries": f"{_FAILED}, delay_level",
    "dead_letters": f"{_FAILED}, cause",
    "offset_history": "group_name, topic, queue_id, from_offset, to_offset, pass, action, request_id",
    "queue_owners": "group_name, topic, queue_id, claim_number, request_id, ended_by, reason",
    "lag": "*",
}
"""By view its columns without times, ids and versions."""


def tables_of(lake: Lake) -> dict[str, Counter[str]]:
    """What the views have, in no order."""
    answers = queries(lake.store, [f"SELECT {columns} FROM {view}" for view, columns in VIEWS.items()])
    return {view: Counter(map(str, answer.to_pylist())) for view, answer in zip(VIEWS, answers, strict=True)}


def assert_same_stores(lake: Lake, other: Lake, *groups: str) -> None:
    assert lake.projections(*groups) == other.projections(*groups)
    assert tables_of(lake) == tables_of(other)
    for one in (lake, other):
        assert one.audit() == []
        assert behind(one.shard) == 0
        assert [table.differences for table in check(one.shard)] == [()] * 3


# --- side by side ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_groups_together_are_as_groups_alone(new_lake: Callable[[str], Lake], at_once: None) -> None:
    together, apart = new_lake("together"), new_lake("apart")
    groups = [group(f"g{number}") for number in range(4)]
    groups += [
        group("capped", max_messages=7),
        group("none", "no_such_module:Listener"),
        group("wrong", "wrong_answer"),
    ]
    groups += [group("once", absorb_duplicates=AbsorbRule("KEYS", HOUR_MS)), group("timed", max_minutes=60)]
    groups += [group("inorder", "in_order", mode="orderly", max_reconsume_times=2), group("few", shards=("s1",))]
    report = consumed(together, *groups)
    assert ends_of(report) == alone(apart, groups)
    assert [type(one.error) for one in report.groups if one.error] == [ListenerError, ListenerError]
    assert report.warnings == ()
    assert_same_stores(together, apart, *(one.name for one in groups))
    assert ends_of(consumed(together, *groups)) == alone(apart, groups)


def test_all_claims_are_one_entry_and_all_windows_that_are_ready_are_one(lake: Lake, at_once: None) -> None:
    groups = [group(f"g{number}") for number in range(5)]
    before = lake.shard.commitlog.version
    report = consumed(lake, *groups)
    assert lake.shard.commitlog.version == before + 2
    versions = {one.shards[0].windows[0].version for one in report.groups}
    assert versions == {before + 2}
    shard = lake.shard
    for action in ("claim", "consume"):
        ctls = [ctl for ctl in shard.ctls_since(0, action=action) if ctl.request_id == REQUEST]
        assert {ctl.group for ctl in ctls} == {one.name for one in groups}
        assert [shard.ctl_of(ctl.commit_id) for ctl in ctls] == ctls
    assert all(Claim.of(value).lease_end_s == 0 for _, value in shard.positions().of_kind(PositionKind.CLAIM))


def test_copies_of_a_common_entry_are_found_by_their_ids(lake: Lake, at_once: None) -> None:
    consumed(lake, *(group(f"g{number}") for number in range(3)))
    copies = query(lake.store, "SELECT offset_msg_id, topic FROM dead_letters").to_pylist()
    assert len({copy["topic"] for copy in copies}) == 3
    for copy in copies:
        (message,) = message_by_id(lake.store, copy["offset_msg_id"])
        assert message["topic"] == copy["topic"]


@pytest.mark.slow
def test_a_replay_after_common_entries_is_as_after_windows_alone(
    new_lake: Callable[[str], Lake], at_once: None
) -> None:
    together, apart = new_lake("together"), new_lake("apart")
    groups = [group(f"g{number}") for number in range(3)]
    consumed(together, *groups)
    alone(apart, groups)
    for lake in (together, apart):
        store = rmq_store.open_store(lake.folder, actor="ana")
        replay = store.replay(groups[1], TOPIC, FIRST_STORED_MS + 6, request_id="2026-01-02-replay")
        lake.deliver()  # the retries of the groups and of the replay
    consumed(together, *groups, request="2026-01-02-r")
    alone(apart, groups, "2026-01-02-r")
    engine = LocalEngine(together.host)
    for lake in (together, apart):
        store, shard = rmq_store.open_store(lake.folder, actor="ana"), lake.shard
        assert store.consume(groups[1], replay=replay.group, request_id="2026-01-02-follow-up").messages > 0
        again = ConsumeRequest("2026-01-03-again", TESTS, "the listener has changed")
        one, request, scope = begin_attempt(shard, replace(groups[1], name=replay.group), again, lake.host)
        report = consume_window(store.lake, shard, one, request, lambda plan: engine, lake.host, scope=scope)
        assert (report.status, report.complete, report.messages()) == ("committed", True, replay.messages)
    assert_same_stores(together, apart, *(one.name for one in groups), replay.group)


def test_many_commits_of_few_entries_do_not_wait_to_be_dispatched(
    lake: Lake, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatching, "_QUIET_COMMITS", 5)
    monkeypatch.setattr(dispatching, "COMMITS", replace(COMMITS, every=8))
    consumed(lake, *(group(f"g{number}", "meanwhile") for number in range(5)))
    shard = lake.shard
    assert cursor_of(shard.consumequeue) == cursor_of(shard.commits) == shard.commitlog.version


def test_a_log_without_the_commit_of_a_cursor_is_refused_also_when_an_entry_has_older_and_newer_ones(
    lake: Lake, at_once: None
) -> None:
    consumed(lake, *(group(f"g{number}") for number in range(5)))
    shard = lake.shard
    first, *_, last = [ctl.commit_id for ctl in shard.ctls_since(0, action="consume")]
    between = (int(first[:16], 16) + int(last[:16], 16)) // 2
    shard.consumequeue.put([], cursor_positions(shard) | {"dispatch/commit": between}, host=lake.host)
    with pytest.raises(DerivedTableDamaged, match="restored from a backup"):
        refuse_other_history(lake.shard, lake.shard.consumequeue)


def test_groups_without_work_write_nothing_and_import_no_listener(lake: Lake) -> None:
    names = [f"g{number}" for number in range(3)]
    consumed(lake, *map(group, names))
    before = sorted(lake.folder.rglob("*"))
    report = consumed(lake, *(group(name, "no_such_module:Listener") for name in names), request="2026-01-02-r")
    assert ends_of(report) == dict.fromkeys(names, "empty")
    assert sorted(lake.folder.rglob("*")) == before


@pytest.mark.slow
def test_a_slow_group_holds_up_no_other(new_lake: Callable[[str], Lake]) -> None:
    together, apart = new_lake("together"), new_lake("apart")
    groups = [group("slow", "slow"), *(group(f"g{number}") for number in range(3))]
    _OTHERS_ARE_OVER.clear()
    over: list[str] = []

    def finished(report: GroupReport) -> None:
        over.append(report.group)
        if len(over) == len(groups) - 1:
            assert together.commits("consume", "g0") == [REQUEST]
            _OTHERS_ARE_OVER.set()

    assert set(ends_of(consumed(together, *groups, finished=finished)).values()) == {"committed"}
    assert over[-1] == "slow"
    alone(apart, groups)
    assert_same_stores(together, apart, *(one.name for one in groups))


# --- what happens to one of them -------------------------------------------------------------------------------------


def test_a_group_that_another_request_holds_is_left_to_it(lake: Lake) -> None:
    queues = tuple(own_queue_id("held", MessageQueue(TOPIC, BROKER, number)) for number in range(QUEUES))
    with claimed(lake.shard, Wish("2026-01-01-theirs", TESTS, "held", queues=queues), lake.host) as theirs:
        held, free = consumed(lake, group("held"), group("free")).groups
        theirs.release()
    assert isinstance(held.error, HeldByAnother)
    assert "2026-01-01-theirs" in str(held.error)
    assert (free.error, free.shards[0].messages) == (None, MESSAGES)
    assert ends_of(consumed(lake, group("held"), group("free"))) == {"held": "committed", "free": "already_committed"}


def test_of_a_first_window_no_queue_is_skipped_and_the_other_groups_go_on(lake: Lake) -> None:
    queue = MessageQueue(TOPIC, BROKER, 1)
    wish = Wish("2026-01-01-theirs", TESTS, "g", queues=(own_queue_id("g", queue),))
    with claimed(lake.shard, wish, lake.host) as theirs:
        report = consumed(lake, group("g"), group("other"))
        theirs.release()
    assert ends_of(report) == {"g": "HeldByAnother", "other": "committed"}
    assert "g/Orders/broker-a/1 is held by request 2026-01-01-theirs" in str(report.groups[0].error)
    assert lake.commits("consume", "g") == []
    assert ends_of(consumed(lake, group("g"), group("other"))) == {"g": "committed", "other": "already_committed"}
    assert lake.audit() == []


def test_a_queue_that_another_request_holds_is_skipped(lake: Lake) -> None:
    lake.consume("2026-01-01-first", group("g"), max_messages=0)
    queue = MessageQueue(TOPIC, BROKER, 1)
    with claimed(lake.shard, Wish("2026-01-01-theirs", TESTS, "g", queues=(own_queue_id("g", queue),)), lake.host):
        one, other = consumed(lake, group("g"), group("other")).groups
    assert isinstance(one.error, HeldByAnother)
    assert [held.queue for held in one.shards[0].windows[0].held] == [queue]
    assert one.shards[0].messages == MESSAGES * 2 // 3
    assert other.error is None


def test_a_group_that_is_reset_while_it_runs_is_refused_alone(new_lake: Callable[[str], Lake], at_once: None) -> None:
    together, apart = new_lake("together"), new_lake("apart")
    groups = [group("g0"), group("moved", "meanwhile"), group("g1")]
    _MEANWHILE.append(partial(together.reset, "2026-01-01-reset", 2, group="moved"))
    report = consumed(together, *groups)
    assert ends_of(report) == {"g0": "committed", "moved": "StaleAttempt", "g1": "committed"}
    assert "2026-01-01-reset" in str(report.groups[1].error)
    _MEANWHILE.append(partial(apart.reset, "2026-01-01-reset", 2, group="moved"))
    assert alone(apart, groups) == ends_of(report)
    assert_same_stores(together, apart, "g0", "moved", "g1")


def test_others_that_commit_between_the_plans_and_the_claims_are_seen(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [partial(lake.consume, "2026-01-01-other", group("g0"))]

    def at(step: str) -> None:
        if step == "1.planned" and others:
            others.pop()()

    monkeypatch.setattr(commit_steps, "on_step", at)
    report = consumed(lake, group("g0"), group("g1"))
    assert ends_of(report) == {"g0": "empty", "g1": "committed"}
    assert lake.commits("consume", "g0") == ["2026-01-01-other"]
    assert lake.audit() == []


def test_a_group_goes_on_in_the_next_shard_and_an_error_ends_its_work_only(lake: Lake, tmp_path: Path) -> None:
    replace(lake, shard_name="s2").load(write_broker(tmp_path / "broker", port=10921), "2026-01-01-second", "broker-b")
    queues = tuple(own_queue_id("held", MessageQueue(TOPIC, BROKER, number)) for number in range(QUEUES))
    with claimed(lake.shard, Wish("2026-01-01-theirs", TESTS, "held", queues=queues), lake.host):
        held, free, one = consumed(lake, group("held"), group("free"), group("one", shards=("s2",))).groups
    assert (type(held.error), held.shards) == (HeldByAnother, ())
    assert [(shard.windows[0].shard, shard.messages) for shard in free.shards] == [("s1", MESSAGES), ("s2", MESSAGES)]
    assert [(shard.windows[0].shard, shard.messages) for shard in one.shards] == [("s2", MESSAGES)]
    report = consumed(lake, group("free"), request="2026-01-02-r", shard="s2")
    assert [shard.windows[0].shard for shard in report.groups[0].shards] == ["s2"]


def test_a_group_whose_topic_is_not_there_has_nothing_to_do(lake: Lake) -> None:
    absent = group("absent", subscriptions=(build_subscription_data("NoSuch", "*"),))
    wrong = group("elsewhere", shards=("s9",))
    first, second, third = consumed(lake, absent, wrong, group("g")).groups
    assert (first.error, first.shards, first.idle[:26]) == (None, (), "there is no topic NoSuch; ")
    assert type(second.error) is WrongUse
    assert third.shards[0].messages == MESSAGES


# --- several windows, claims -----------------------------------------------------------------------------------------


def test_a_request_of_several_windows_is_completed_for_each_group(lake: Lake) -> None:
    groups = [group("a", max_messages=7), group("b", max_messages=11), group("c")]
    windows = {one.group: len(one.shards[0].windows) for one in consumed(lake, *groups).groups}
    assert windows == {"a": 5, "b": 3, "c": 1}
    assert [len(lake.commits("consume", name)) for name in "abc"] == [5, 3, 1]
    assert lake.audit() == []


def test_the_claims_of_what_still_runs_are_renewed_in_one_commit(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    timed = replace(lake, host=set_clock(monkeypatch, clock))
    _OTHERS_ARE_OVER.clear()
    over: list[str] = []

    def finished(report: GroupReport) -> None:
        over.append(report.group)
        clock.ms += RENEW_EVERY_S * 1000
        if len(over) == 2:
            _OTHERS_ARE_OVER.set()

    slow_groups = [group("slow-1", "slow"), group("slow-2", "slow")]
    report = consumed(timed, *slow_groups, group("g0"), group("g1", max_messages=12), finished=finished)
    assert set(ends_of(report).values()) == {"committed"}
    renewals = timed.shard.ctls_since(0, action="renew")
    slow_renewals = [ctl for ctl in renewals if ctl.group == "slow-1"]
    assert slow_renewals
    twins = [ctl for ctl in renewals if ctl.read_version == slow_renewals[0].read_version]
    assert {"slow-1", "slow-2"} <= {str(ctl.group) for ctl in twins}
    assert slow_renewals[0].parameter("lease_end_s") == slow_renewals[0].store_timestamp // 1000 + LEASE_S
    assert timed.audit() == []


def test_a_listener_that_stops_the_process_gives_all_claims_back(lake: Lake) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    _MEANWHILE.append(stop)
    with pytest.raises(KeyboardInterrupt):
        consumed(lake, group("stops", "meanwhile"), *(group(f"g{number}") for number in range(3)))
    claims = lake.shard.positions().of_kind(PositionKind.CLAIM)
    assert all(Claim.of(value).lease_end_s == 0 for _, value in claims)
    again = consumed(lake, group("stops", "meanwhile"), *(group(f"g{number}") for number in range(3)))
    assert {one.error for one in again.groups} == {None}
    assert lake.audit() == []


def test_a_stopped_window_calls_its_listener_no_more(lake: Lake) -> None:
    """The other window is in its first call while the process is stopped."""
    calls: list[str] = []
    began = threading.Event()

    def stop() -> None:
        assert began.wait(PATIENCE_S)
        raise KeyboardInterrupt

    _CALLS.append((calls, began))
    _MEANWHILE.append(stop)
    _OTHERS_ARE_OVER.clear()
    with pytest.raises(KeyboardInterrupt):
        consumed(lake, group("stops", "meanwhile"), group("long", "counting"))
    _OTHERS_ARE_OVER.set()
    for thread in [one for one in threading.enumerate() if one.name.startswith("window")]:
        thread.join(PATIENCE_S)
    assert len(calls) == 1
    assert lake.commits("consume", "long") == []


_CALLS: list[tuple[list[str], threading.Event]] = []


def counting(msgs: Sequence[Any], context: Any) -> Any:
    calls, began = _CALLS[-1]
    calls.append("call")
    began.set()
    assert _OTHERS_ARE_OVER.wait(PATIENCE_S)
    return "CONSUME_SUCCESS"


def test_a_program_consumes_for_many_groups(lake: Lake) -> None:
    store = rmq_store.open_store(lake.folder, actor="ana")
    report = store.consume_all(
        [group("g"), group("none", "no_such_module:Listener")], max_messages=4, threads=2, request_id="2026-01-02-r"
    )
    first, second = report.groups
    assert (report.request_id, first.status, first.messages, first.error) == ("2026-01-02-r", "committed", 4, None)
    assert (second.status, second.messages, type(second.error)) == ("empty", 0, ListenerError)
    with pytest.raises(WrongUse, match="invalid max_messages 0"):
        store.consume_all([group("g")], max_messages=0)


# --- kill ------------------------------------------------------------------------------------------------------------

THREE = ("billing", "audit", "third")


@pytest.fixture(scope="module")
def undisturbed(imported: Lake, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = copied(imported, tmp_path_factory.mktemp("undisturbed") / "lake")
    alone(lake, [group(name) for name in THREE])
    return lake


def assert_as_undisturbed(lake: Lake, undisturbed: Lake) -> None:
    """After the same request again."""
    Job("consume_all", lake.folder, group=",".join(THREE)).run()
    again = Job("consume_all", lake.folder, group=",".join(THREE)).run()
    assert set(ends_of(again).values()) == {"already_committed"}
    assert [one.shards[0].messages for one in again.groups] == [MESSAGES] * len(THREE)
    assert lake.projections(*THREE) == undisturbed.projections(*THREE)
    assert [lake.commits("consume", name) for name in THREE] == [[REQUEST]] * len(THREE)
    assert lake.audit() == []


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_loses_and_doubles_nothing(lake: Lake, undisturbed: Lake, step: str) -> None:
    assert killed_at(Job("consume_all", lake.folder, group=",".join(THREE)), step)
    assert_as_undisturbed(lake, undisturbed)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_kill_after_any_write_loses_and_doubles_nothing(lake: Lake, undisturbed: Lake, number: int) -> None:
    assert killed_after_put(Job("consume_all", lake.folder, group=",".join(THREE)), number)
    assert_as_undisturbed(lake, undisturbed)
