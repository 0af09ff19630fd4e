"""Retention: messages leave the store, nothing that anyone needs does, and the record of what happened stays whole."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store.admin.diff import Failures
from rmq_store.admin.sentences import maintain_sentence
from rmq_store.commit.ctl import SCHEDULE_GROUP
from rmq_store.commit.positions import Positions, QueueRange, del_id, max_id, off_id
from rmq_store.consumer.replay_name import replay_group
from rmq_store.errors import OffsetOutOfRange, StoreUnusable, WrongUse
from rmq_store.lake.admin import diff
from rmq_store.lake.commit import commit as committing
from rmq_store.lake.commit.rebuild import check
from rmq_store.lake.maintain import compact as compaction
from rmq_store.lake.maintain import retention
from rmq_store.lake.maintain.compact import CompactReport, CompactRequest, compact
from rmq_store.lake.maintain.maintain import maintain
from rmq_store.lake.maintain.retention import RetentionReport, RetentionRequest, retain
from rmq_store.lake.read.message_search import messages_at
from rmq_store.lake.sql.sql import query
from rmq_store.maintain.files_to_join import Limits
from rmq_store.maintain.request import MaintainRequest, Step
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import DLQ_GROUP_TOPIC_PREFIX, SCHEDULE_TOPIC, retry_topic
from rmq_store.settings.retention_settings import RetentionRule
from tests.contract.test_compact import lived
from tests.faults.answers import Clock, set_clock
from tests.faults.stores import (
    BROKER,
    GROUP,
    HOUR_MS,
    OPERATOR,
    QUEUES,
    SHARD,
    TOPIC,
    Lake,
    copied,
    group_named,
    write_broker,
)

DAY_MS = 24 * HOUR_MS
ALL = ("*", "%RETRY%*", f"{DLQ_GROUP_TOPIC_PREFIX}*", SCHEDULE_TOPIC)
SHORT = [RetentionRule(topic=topic, max_age_ms=1) for topic in ALL]
RECORDED = ("outcomes", "windows", "consumer_offsets", "offset_history", "acked_keys", "delayed")
"""The views of what happened and of what waits, which retention does not change."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Windows with failures, deliveries, dead letters and a redrive; and the time three days later. Every group has consumed
    all, some retries wait."""
    folder, clock = tmp_path_factory.mktemp("retention"), Clock()
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_clock(monkeypatch, clock)
        lake = Lake(folder / "store", clock.host)
        lake.load(write_broker(folder / "broker"))
        lived(lake, clock, "1")
        lake.redrive()
        lake.consume("2026-01-01-redriven")
    return lake.folder, clock.ms + 3 * DAY_MS


@pytest.fixture
def clock(built: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(built[1])
    set_clock(monkeypatch, clock)
    return clock


@pytest.fixture
def lake(built: tuple[Path, int], clock: Clock, tmp_path: Path) -> Lake:
    return copied(Lake(built[0], clock.host), tmp_path / "store")


def retained(lake: Lake, *rules: RetentionRule, dry_run: bool = False) -> RetentionReport:
    request = RetentionRequest(
        request_id="2026-01-05-maintain", actor=OPERATOR, rules=rules or SHORT, reason="daily", dry_run=dry_run
    )
    return retain(lake.shard, request, lake.host)


def compacted(lake: Lake) -> CompactReport:
    return compact(
        lake.shard, CompactRequest("2026-01-05-maintain", OPERATOR, "daily", Limits(least_files=2)), lake.host
    )


def is_whole(lake: Lake) -> bool:
    assert lake.audit() == []
    assert [report for report in check(lake.shard) if report.differs] == []
    return True


def readable(lake: Lake) -> dict[MessageQueue, tuple[int, int]]:
    """By queue its first readable offset and its end, after every message between them was read."""
    shard, positions = lake.shard, lake.shard.positions()
    bounds = {}
    for queue in positions.all_queues():
        least, most = positions.min_offset(queue), positions.max_offset(queue)
        assert [one["queue_offset"] for one in messages_at(shard, QueueRange(queue, least, most))] == list(
            range(least, most)
        )
        bounds[queue] = (least, most)
    return bounds


@pytest.mark.slow
def test_what_every_group_has_consumed_goes_and_its_record_stays(lake: Lake) -> None:
    before, recorded = readable(lake), lake.rows(*RECORDED)
    assert retained(lake).warnings == ()
    after, positions = readable(lake), lake.shard.positions()
    for queue, (least, most) in before.items():
        waits = queue.topic == SCHEDULE_TOPIC
        first = (positions.get(off_id(SCHEDULE_GROUP, queue)) or least) if waits else most
        assert after[queue] == (first, most), queue
    assert is_whole(lake)
    assert compacted(lake).removed_rows == sum(after[queue][0] - before[queue][0] for queue in before) > 0
    assert lake.rows(*RECORDED) == recorded
    assert is_whole(lake)
    for file in lake.folder.glob(f"{SHARD}/commitlog/kind=msg/*.parquet"):  # as a vacuum two days later
        if not lake.shard.commitlog.is_live(f"kind=msg/{file.name}"):
            file.unlink()
    assert readable(lake) == after
    assert lake.rows(*RECORDED) == recorded
    assert is_whole(lake)


def test_a_dead_letter_stays_redriven_when_its_copy_is_gone(lake: Lake) -> None:
    """As the commits of redrives say: the view of dead letters goes on to agree with the one of redrives."""
    redriven = (
        "SELECT d.queue_offset, d.redriven_at, d.redriven_to, r.committed_at, r.state, r.to_topic FROM dead_letters d"
        " JOIN redrives r USING (shard, topic, broker_name, queue_id, queue_offset) ORDER BY ALL"
    )
    copies = f"SELECT count(*) AS n FROM message_rows WHERE topic = '{retry_topic(GROUP)}' AND cause = 'redrive'"
    before = query(lake.store, redriven).to_pylist()
    assert query(lake.store, copies).to_pylist()[0]["n"] > 0
    states = {(one["state"], one["redriven_to"], one["to_topic"]) for one in before}
    assert states == {("sent", retry_topic(GROUP), retry_topic(GROUP)), ("pending", None, None)}
    retained(lake, *(rule for rule in SHORT if not rule.topic.startswith(DLQ_GROUP_TOPIC_PREFIX)))
    compacted(lake)
    assert query(lake.store, copies).to_pylist() == [{"n": 0}]
    assert query(lake.store, redriven).to_pylist() == before
    assert all(one["redriven_at"] == one["committed_at"] for one in before)
    assert is_whole(lake)


@pytest.mark.parametrize("max_bytes", [1, 3000])
def test_dead_letters_that_it_has_removed_are_gone_before_their_files_are_written_again(
    lake: Lake, max_bytes: int
) -> None:
    rows = "SELECT topic, broker_name, queue_id, queue_offset FROM dead_letters ORDER BY ALL"
    before = query(lake.store, rows).to_pylist()
    retained(lake, RetentionRule(topic=f"{DLQ_GROUP_TOPIC_PREFIX}*", max_bytes=max_bytes))
    begins = {queue: lake.shard.positions().min_offset(queue) for queue in lake.shard.positions().all_queues()}
    after = query(lake.store, rows).to_pylist()
    assert (
        after == [row for row in before if row["queue_offset"] >= begins[MessageQueue(*[*row.values()][:3])]] != before
    )
    counts = query(lake.store, "SELECT dead_letters FROM groups").column("dead_letters").to_pylist()
    assert sum(count or 0 for count in counts) == len(after)


@pytest.mark.slow
def test_after_it_windows_deliveries_and_redrives_go_on(lake: Lake, clock: Clock, tmp_path: Path) -> None:
    plain, began_ms = copied(lake, tmp_path / "plain"), clock.ms
    retained(lake)
    compacted(lake)
    # A new group begins at the first message that is there.
    outcomes = (
        "SELECT group_name, topic, outcome, reason, attempt, count(*) FROM outcomes WHERE group_name <> 'audit@host-later'"
        " GROUP BY ALL"
    )
    ends = []
    for one in (lake, plain):
        clock.ms = began_ms
        one.load(write_broker(tmp_path / f"broker-{one.folder.name}", 60), "2026-01-05-import")
        lived(one, clock, "later")
        ends.append(
            (one.shard.positions().offsets_of(GROUP), sorted(map(repr, query(one.store, outcomes).to_pylist())))
        )
    assert ends[0] == ends[1]
    assert is_whole(lake)


def test_a_second_run_and_a_dry_run_write_nothing(lake: Lake) -> None:
    planned = retained(lake, dry_run=True)
    files = sorted(lake.folder.rglob("*"))
    assert retained(lake, dry_run=True) == planned
    assert sorted(lake.folder.rglob("*")) == files
    assert retained(lake).removals == planned.removals
    version = lake.shard.commitlog.version
    assert not any(len(one.range) for one in retained(lake).removals)
    assert lake.shard.commitlog.version == version


def test_attempts_of_which_copies_are_gone_are_not_compared(lake: Lake) -> None:
    def failures() -> Failures:
        return diff._Rows(lake.store, lake.shard).failures(GROUP)

    assert failures().copies
    retained(lake)
    with pytest.raises(WrongUse, match=r"retention has removed messages of .*: its attempts cannot be compared"):
        failures()


# --- who holds messages back ------------------------------------------------------------------------------------------


def slow(lake: Lake) -> None:
    """A group that has consumed four messages of each queue."""
    lake.consume("2026-01-04-slow", group_named("slow", max_messages=4 * QUEUES, max_reconsume_times=0))


def of_topic(report: RetentionReport) -> dict[int, tuple[int, int, str | None]]:
    return {
        one.range.queue.queue_id: (one.range.end, one.held_to, one.held_by)
        for one in report.removals
        if one.range.queue.topic == TOPIC
    }


def test_the_slowest_group_keeps_what_it_has_not_consumed(lake: Lake) -> None:
    slow(lake)
    offsets, ends = lake.offsets("slow"), lake.offsets()
    assert of_topic(retained(lake)) == {queue: (offsets[queue], ends[queue], "slow") for queue in range(QUEUES)}
    lake.consume("2026-01-05-slow", group_named("slow"))
    assert of_topic(retained(lake)) == {queue: (ends[queue], ends[queue], None) for queue in range(QUEUES)}
    assert is_whole(lake)


def test_over_the_maximum_age_messages_are_lost_and_the_group_is_told(lake: Lake) -> None:
    slow(lake)
    offsets, ends = lake.offsets("slow"), lake.offsets()
    report = retained(lake, replace(SHORT[0], max_unconsumed_age_ms=1))
    lost = {one.range.queue.queue_id: one.lost for one in report.removals}
    assert {queue: set(groups) for queue, groups in lost.items()} == {queue: {"slow"} for queue in range(QUEUES)}
    ranges = {queue: (groups["slow"].begin, groups["slow"].end) for queue, groups in lost.items()}
    assert ranges == {queue: (offsets[queue], ends[queue]) for queue in range(QUEUES)}
    (ctl,) = lake.shard.ctls_since(0, action="retention")
    assert ctl.parameter("lost")["slow"] == {
        f"min/{TOPIC}/{BROKER}/{queue}": list(range_) for queue, range_ in ranges.items()
    }
    with pytest.raises(OffsetOutOfRange, match=r"retention removed \[4, 10\)"):
        lake.consume("2026-01-05-slow", group_named("slow"))
    lake.consume("2026-01-05-slow", group_named("slow", on_offset_out_of_range="skip"))
    told = "SELECT queue_id, begin_offset, end_offset FROM outcomes WHERE group_name = 'slow' AND outcome = 'lost'"
    assert {
        (row["queue_id"], (row["begin_offset"], row["end_offset"])) for row in query(lake.store, told).to_pylist()
    } == set(ranges.items())
    assert is_whole(lake)


def test_the_oldest_messages_go_until_the_topic_fits(lake: Lake) -> None:
    stored = sum(
        row["size_bytes"]
        for row in lake.shard.commitlog.files().to_pylist()
        if row["partition.kind"] == "msg" and row["min.topic"] == TOPIC
    )
    rule = RetentionRule(topic=TOPIC, max_bytes=2 * stored)
    assert of_topic(retained(lake, rule)) == {}
    assert {end for end, *_ in of_topic(retained(lake, replace(rule, max_bytes=1))).values()} == {10}
    assert is_whole(lake)


def test_the_retries_of_a_deleted_group_wait_for_no_reader() -> None:
    gone, begins = (MessageQueue(retry_topic(group), "lake-s1", 0) for group in ("gone", "begins"))
    positions = Positions(0, {max_id(gone): 5, max_id(begins): 5, del_id("gone"): 3})
    queues = {queue.topic: [queue] for queue in (gone, begins)}
    assert retention.offsets_of_groups(positions, queues) == {gone: {}, begins: {"begins": 0}}


def test_a_replay_holds_nothing_back() -> None:
    """Its offsets stay where it ended."""
    queue, replay = MessageQueue("Orders", "broker-a", 0), replay_group("billing", "2026-01-01-replay")
    positions = Positions(0, {max_id(queue): 9, off_id("billing", queue): 5, off_id(replay, queue): 2})
    assert retention.offsets_of_groups(positions, {"Orders": [queue]}) == {queue: {"billing": 5}}


def test_the_removed_ranges_are_rows(lake: Lake) -> None:
    report = retained(lake)
    expected = {
        (one.range.queue.topic, one.range.queue.broker_name, one.range.queue.queue_id, one.range.begin, one.range.end)
        for one in report.removals
        if len(one.range)
    }
    stored = query(lake.store, "SELECT * FROM removed_ranges").to_pylist()
    columns = ("topic", "broker_name", "queue_id", "begin_offset", "end_offset")
    assert {tuple(row[name] for name in columns) for row in stored} == expected
    assert {(row["actor"], row["actor_source"], row["reason"]) for row in stored} == {("olga", "airflow", "daily")}


# --- at the same time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["1.planned", "3.staged", "4.ctl-written", "6.settled"])
def test_a_window_that_has_read_its_messages_is_committed_after_they_were_removed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    group = group_named("late", max_reconsume_times=0)
    once = iter([lake])

    def retains(reached: str) -> None:
        if reached == step and next(once, None):
            retained(lake, replace(SHORT[0], max_unconsumed_age_ms=1))
            compacted(lake)

    monkeypatch.setattr(committing, "on_step", retains)
    report = lake.consume("2026-01-05-late", group)
    assert next(once, None) is None
    assert (report.status, lake.offsets("late")) == ("committed", lake.offsets())
    assert is_whole(lake)


def test_a_group_that_is_reset_meanwhile_loses_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    once = iter([lake])

    def resets(reached: str) -> None:
        if reached == "4.decided" and next(once, None):
            lake.reset("2026-01-05-reset", 2)

    monkeypatch.setattr(committing, "on_step", resets)
    report = retained(lake)
    assert next(once, None) is None
    assert {(end, held_by) for end, _, held_by in of_topic(report).values()} == {(2, GROUP)}
    assert is_whole(lake)


def test_who_is_reset_further_back_at_each_try_is_told(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    offset = 10

    def resets(reached: str) -> None:
        nonlocal offset
        if reached == "4.decided":
            offset -= 1
            monkeypatch.setattr(committing, "on_step", lambda step: None)
            lake.reset(f"2026-01-05-reset-{lake.shard.commitlog.version}", offset)
            monkeypatch.setattr(committing, "on_step", resets)

    monkeypatch.setattr(committing, "on_step", resets)
    with pytest.raises(StoreUnusable, match=r"8 times\. No message was removed; try again"):
        retained(lake)


@pytest.mark.parametrize("step", ["4.ctl-written", "5.put"])
def test_retention_that_is_killed_at_any_step_hurts_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Killed(BaseException):
        pass

    def dies(reached: str) -> None:
        if reached == step:
            raise Killed

    monkeypatch.setattr(committing, "on_step", dies)
    with pytest.raises(Killed):
        retained(lake)
    monkeypatch.setattr(committing, "on_step", lambda step: None)
    assert is_whole(lake)
    retained(lake)
    compacted(lake)
    assert is_whole(lake)


def test_a_request_that_is_done_again_says_what_it_has_done_before(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that was killed after its commit, and that Airflow tries again. All steps of a run are one request."""
    monkeypatch.setattr(compaction, "SETTLED_MS", 0)

    def maintained(step: Step, request_id: str = "2026-01-05-maintain") -> list[dict[str, Any]]:
        request = MaintainRequest(request_id=request_id, actor=OPERATOR, steps=frozenset({step}), rules=(*SHORT,))
        return [report.answer() for report in maintain(lake.shard, request, lake.host)]

    removed, *_ = maintained(Step.RETENTION)
    assert (removed["messages_removed"] > 0, removed["before"]) == (True, {})
    again, *derived = maintained(Step.RETENTION)
    assert again["before"] == {"messages_removed": removed["messages_removed"], "messages_lost": 0}
    assert (again["messages_removed"], [answer["before"] for answer in derived]) == (0, [{}] * 3)
    said = maintain_sentence([removed]).partition(";")[0]
    assert maintain_sentence([again]) == f"the request was committed before, nothing was done now: {said}"

    joined, *_ = maintained(Step.MESSAGES)
    assert (joined["joined"] > 0, joined["before"]) == (True, {})
    counts = ("joined", "removed_rows", "archived_rows")
    assert maintained(Step.MESSAGES)[0]["before"] == {name: joined[name] for name in counts}

    assert maintained(Step.RETENTION, "2026-01-05-another")[0]["before"] == {}
    assert is_whole(lake)


def test_a_vacuum_that_is_done_again_says_how_many_files_it_was_to_delete(lake: Lake, clock: Clock) -> None:
    """Its commit comes before it deletes them, so it does not say how many it has deleted."""
    request = MaintainRequest(request_id="2026-01-05-maintain", actor=OPERATOR, steps=frozenset({Step.VACUUM}))
    orphan = lake.folder / lake.shard.commitlog.path / "kind=msg" / "orphan.parquet"
    orphan.touch()
    os.utime(orphan, (1, 1))
    first, *_ = maintain(lake.shard, request, lake.host)
    again, *_ = maintain(lake.shard, request, lake.host)
    assert (len(first.deleted), first.before, again.before) == (1, {}, {"files_to_delete": 1})
    before = "the request was committed before, nothing was done now: up to 1 data file deleted"
    assert maintain_sentence([again.answer()]) == before
