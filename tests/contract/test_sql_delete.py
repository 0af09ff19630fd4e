"""What SQL says of a group that was deleted, and created again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_store.admin.delete_group import DeleteGroupRequest
from rmq_store.admin.reset import ResetTo
from rmq_store.admin.track import TrackType
from rmq_store.commit.ctl import Action
from rmq_store.commit.positions import QueueRange
from rmq_store.errors import WrongUse
from rmq_store.lake.admin.delete_group import delete_group
from rmq_store.lake.admin.track import track
from rmq_store.lake.broker.export import export_offsets
from rmq_store.lake.maintain import compact as compacting
from rmq_store.lake.maintain.compact import CompactRequest, compact
from rmq_store.lake.read.message_search import messages_at
from rmq_store.lake.read.slice_reader import SliceReader
from rmq_store.lake.sql.sql import query
from rmq_store.maintain.files_to_join import Limits
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host
from tests.contract.engines import LakeWorld
from tests.contract.world import ANA, BILLING, DAY, HOUR, LOCAL, NOON, SHARD, fail_bodies, orders, several
from tests.lake_fixtures import small_store


@pytest.fixture
def lake(tmp_path: Path) -> LakeWorld:
    """A retry that was delivered and not read, and one that is delayed."""
    made = LakeWorld(tmp_path)
    made.fill(orders(0), several(6))
    made.consume(BILLING, f"{DAY}-1", fail_bodies(b"1"), max_messages=3)
    made.clock.advance(10_000)
    made.deliver(f"{DAY}-d1")
    made.consume(BILLING, f"{DAY}-2", fail_bodies(b"4"), until_ms=NOON)
    return made


def rows(lake: LakeWorld, text: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in query(lake.store, text).to_pylist()]


GROUP = "SELECT queues, lag, epoch, deleted_at FROM groups WHERE group_name = 'billing'"
DROPPED = "SELECT queue_id, begin_offset, end_offset, pass, reason FROM outcomes WHERE outcome = 'dropped'"


def exported(lake: LakeWorld) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """The offsets of queue 0, and what waits."""
    found = export_offsets(lake.shard, SHARD)
    return re.findall(r'"([^"]+@[^"]+)":\{\s*0:(\d+)\s*\}', found.text), dict(found.waiting_retries)


def test_a_deleted_group_has_no_lag_until_it_is_created_again(lake: LakeWorld) -> None:
    lake.observe("billing", orders(0), 5)
    lake.delete()
    for view in ("lag", "consumer_offsets", "stored_offsets"):
        assert rows(lake, f"SELECT * FROM {view} WHERE group_name = 'billing'") == []
    assert rows(lake, GROUP) == [(0, 0, 1, NOON + 10_000)]
    lake.observe("billing", orders(1), 5)
    assert rows(lake, "SELECT * FROM stored_offsets WHERE group_name = 'billing'") == []
    lake.consume(BILLING, f"{DAY}-3", max_messages=1)
    found = "SELECT topic, next_offset, lag FROM lag WHERE group_name = 'billing' ORDER BY topic"
    assert rows(lake, found) == [("%RETRY%billing", 1, 0), ("Orders", 1, 5)]
    assert rows(lake, GROUP) == [(2, 5, 1, NOON + 10_000)]


def test_the_history_says_who_made_an_offset_void_and_why(lake: LakeWorld) -> None:
    lake.delete()
    text = "SELECT topic, from_offset, to_offset, pass, actor, reason FROM offset_history WHERE action = 'delete' ORDER BY 1"
    who = ("ana", "nobody needs it")
    assert rows(lake, text) == [("%RETRY%billing", 0, 1, 1, *who), ("Orders", 6, None, 1, *who)]


def test_the_audit_finds_nothing_in_a_group_that_was_deleted_and_created_again_twice(lake: LakeWorld) -> None:
    for number in range(2):
        lake.delete(f"{DAY}-x{number}")
        assert rows(lake, "SELECT * FROM audit") == []
        lake.consume(BILLING, f"{DAY}-a{number}", fail_bodies(b"2"))
        lake.clock.advance(HOUR)
        lake.deliver(f"{DAY}-a{number}")
        lake.consume(BILLING, f"{DAY}-b{number}", fail_bodies(b"2"))
    assert rows(lake, "SELECT * FROM audit") == []
    why = "it is a retry from before its group was deleted"
    # 4 was delayed at the first delete, 2 at the second one, when it had failed once more.
    assert rows(lake, f"{DROPPED} ORDER BY begin_offset") == [(0, 1, 2, 1, why), (0, 4, 5, 2, why)]
    assert rows(lake, "SELECT count(*) FROM retries WHERE state = 'waiting'") == [(1,)]


def test_a_retry_that_was_acked_before_the_delete_is_dropped_with_a_reason_that_is_true_of_it(lake: LakeWorld) -> None:
    lake.consume(BILLING, f"{DAY}-3", max_messages=1)  # acks the retry of 1
    lake.delete()
    lake.consume(BILLING, f"{DAY}-4")
    lake.reset_to(ResetTo.MIN, topic="%RETRY%billing")
    lake.consume(BILLING, f"{DAY}-5")
    assert rows(lake, DROPPED) == [(0, 0, 1, 2, "it is a retry from before its group was deleted")]
    assert rows(lake, "SELECT * FROM audit") == []


def test_an_export_holds_no_void_offset_and_no_group_that_is_gone(lake: LakeWorld) -> None:
    lake.fill(MessageQueue("%RETRY%billing", SHARD, 0), several(2, first=10))
    assert exported(lake) == ([("Orders@billing", "6")], {"billing": 2})
    lake.delete()
    assert exported(lake) == ([], {})
    lake.consume(BILLING, f"{DAY}-3", max_messages=2)
    table, _ = exported(lake)
    assert table == [("%RETRY%billing@billing", "2"), ("Orders@billing", "2")]


def test_only_the_retries_of_a_group_that_was_deleted_are_read_with_their_epoch(
    lake: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, bool]] = []
    batches = SliceReader.batches

    def noted(reader: SliceReader, columns: Sequence[str] | None) -> Any:
        read.append((reader._slice.queue.topic, "epoch" in (columns or ())))
        return batches(reader, columns)

    monkeypatch.setattr(SliceReader, "batches", noted)
    lake.consume(BILLING, f"{DAY}-3")
    assert read == [("%RETRY%billing", False)]
    lake.delete()
    lake.clock.advance(HOUR)
    lake.deliver(f"{DAY}-d2")
    read.clear()
    lake.consume(BILLING, f"{DAY}-4")
    assert sorted(read) == [("%RETRY%billing", True), ("Orders", False)]


def test_few_commits_are_read_to_know_that_a_group_had_no_window_since_its_delete(
    lake: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        lake.clock.advance(HOUR)
        lake.fill(orders(0), several(1, first=6 + number))
        lake.consume(BILLING, f"{DAY}-w{number}")
    lake.delete()
    (shard,) = lake.store.shards(SHARD)
    opened: list[str] = []
    ctls_in = shard.ctls_in

    def noted(paths: list[str]) -> Any:
        opened.extend(paths)
        return ctls_in(paths)

    monkeypatch.setattr(shard, "ctls_in", noted)
    assert (shard.has_ctl("billing", Action.CONSUME, 1), len(opened)) == (False, 1)
    assert shard.has_ctl("billing", Action.CONSUME, 0)


@pytest.mark.parametrize("lead_ms", [HOUR, 3 * 60_000])
def test_the_windows_of_a_group_are_known_behind_one_that_a_fast_clock_has_dated(tmp_path: Path, lead_ms: int) -> None:
    """In a folder nothing tells a host that its clock is wrong. The others go on by the right one."""
    lake, numbers = LakeWorld(tmp_path), iter(range(20))

    def window(name: str) -> None:
        lake.clock.advance(1000)
        lake.fill(orders(0), several(1, first=next(numbers)))
        lake.consume(BILLING, f"{DAY}-{name}")

    lake.clock.advance(lead_ms)
    window("fast")
    lake.clock.advance(-lead_ms)
    window("second")
    lake.delete()
    (shard,) = lake.store.shards(SHARD)
    first = shard.first_ctl("billing", Action.CONSUME, 0)
    assert (first and first.request_id, shard.has_ctl("billing", Action.CONSUME, 1)) == (f"{DAY}-fast", False)
    window("third")
    window("fourth")
    (shard,) = lake.store.shards(SHARD)
    first = shard.first_ctl("billing", Action.CONSUME, 1)
    assert (first and first.request_id, shard.has_ctl("billing", Action.CONSUME, 1)) == (f"{DAY}-third", True)


def test_the_newest_window_of_a_group_is_known_after_its_commits_were_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joined files are sorted by request, so a file may have old commits and new ones."""
    monkeypatch.setattr(compacting, "CTL_ROWS", 6)
    lake, numbers = LakeWorld(tmp_path), iter(range(6, 20))
    lake.fill(orders(0), several(6))

    def fill_each_hour(*names: str) -> None:
        for name in names:
            lake.clock.advance(HOUR)
            lake.fill(orders(0), several(1, first=next(numbers)))
            if name:
                lake.consume(BILLING, f"{DAY}-{name}")

    fill_each_hour("z1", "g2")
    lake.delete()
    fill_each_hour("z3", *[""] * 5)
    lake.clock.advance(2 * HOUR)
    compact(lake.shard, CompactRequest(f"{DAY}-join", ANA, limits=Limits(least_files=2)), lake.host)
    (shard,) = lake.store.shards(SHARD)
    windows = shard.ctls_since(0, group="billing", action=str(Action.CONSUME))
    assert windows[-1].epoch == 1
    assert [shard.has_ctl("billing", Action.CONSUME, epoch) for epoch in (0, 1, 2)] == [True, True, False]


def test_a_group_is_deleted_in_every_shard_that_has_something_of_it_and_once(tmp_path: Path) -> None:
    """Group shop has had a window in broker-a, which said that the group has no queue in broker-b."""
    store = small_store(tmp_path).store

    def deleted(group: str, request: str, chosen: str | None = None) -> list[tuple[str, str]]:
        asked = DeleteGroupRequest(group, f"2026-11-21-{request}", ANA, "not used any more")
        return [(report.shard, report.status) for report in delete_group(store.shards(chosen), asked, Host())]

    assert deleted("shop", "1") == [("broker-a", "committed"), ("broker-b", "committed")]
    assert deleted("elsewhere", "2", "broker-b") == [("broker-b", "committed")]
    assert deleted("elsewhere", "3") == [("broker-a", "committed")]
    assert deleted("elsewhere", "2", "broker-b") == [("broker-b", "already_committed")]
    assert deleted("elsewhere", "3") == [("broker-a", "already_committed")]
    with pytest.raises(WrongUse, match="has not been created again"):
        deleted("elsewhere", "4")
    found = query(store, "SELECT group_name FROM stored_offsets WHERE group_name IN ('shop', 'elsewhere')")
    assert (found.num_rows, query(store, "SELECT * FROM audit").num_rows) == (0, 0)


def test_a_track_tells_what_became_of_retries_that_waited(lake: LakeWorld) -> None:
    def told(number: int) -> tuple[TrackType, list[str]]:
        (message,) = messages_at(lake.shard, QueueRange(orders(0), number, number + 1))
        (found,) = (one for one in track(lake.store, message) if one.group == "billing")
        return found.type, [str(hop.outcome) for hop in found.hops]

    lake.delete()
    assert told(1) == (TrackType.SKIPPED, ["retried", "skipped"])
    assert told(4) == (TrackType.RETRYING, ["retried", "waiting"])
    lake.clock.advance(HOUR)
    lake.deliver(f"{DAY}-d2")
    lake.consume(BILLING, f"{DAY}-3")
    assert told(4)[1] == ["retried", "dropped", "acked"]
    assert MessageQueue("%RETRY%billing", LOCAL, 0) in lake.positions().offsets_of("billing")
