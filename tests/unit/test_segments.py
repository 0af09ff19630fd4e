"""Looking up segments costs what is looked for, not what has been."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.positions import QueueRange
from rmq_store.consumer.delay import CustomizedRetryPolicy, GroupRetryPolicy
from rmq_store.errors import MissingFile
from rmq_store.lake.read.segments import _disjoint, segments_of, waiting_segments
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC
from tests.contract.engines import LakeWorld
from tests.contract.world import DAY, SHARD, fail, group, orders, several, succeed

Q = MessageQueue("T", "b", 0)


@pytest.mark.parametrize(
    ("ranges", "together"),
    [
        ([(3, 5)], [(3, 5)]),
        ([(7, 9), (0, 2)], [(0, 2), (7, 9)]),
        ([(0, 4), (2, 3), (3, 6), (6, 7)], [(0, 7)]),
    ],
)
def test_ranges_are_joined_where_they_touch(ranges: list[tuple[int, int]], together: list[tuple[int, int]]) -> None:
    assert _disjoint(QueueRange(Q, begin, end) for begin, end in ranges) == together


@pytest.fixture
def consumequeue_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of ``consumequeue`` that were read, once for each time."""
    reads: list[str] = []
    original = LakeTable.read_each

    def reading(table: LakeTable, paths: Iterable[str], *more: Any, **named: Any) -> Any:
        paths = list(paths)
        reads.extend(path for path in paths if table.path.endswith("consumequeue"))
        return original(table, paths, *more, **named)

    monkeypatch.setattr(LakeTable, "read_each", reading)
    return reads


def test_a_delivery_reads_the_segments_up_to_the_first_that_is_not_due_each_once(
    tmp_path: Path, consumequeue_reads: list[str]
) -> None:
    """Twelve windows failed a second apart; each has a file of ``consumequeue``."""
    world = LakeWorld(tmp_path)
    for turn in range(12):
        world.fill(orders(0), several(1, first=turn))
        world.consume(group(), f"{DAY}-c{turn}", fail)
        world.clock.advance(1000 if turn < 11 else -1_001)
    reads = []
    for turn in range(3):
        consumequeue_reads.clear()
        report = world.deliver(f"{DAY}-d{turn}")
        reads.append((report.delivered, len(consumequeue_reads)))
        world.clock.advance(1 if turn == 0 else 4_000)
    assert reads == [(0, 1), (1, 2), (4, 8)]
    assert len(set(consumequeue_reads)) == 8


def test_files_of_a_folder_are_read_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of threads costs more CPU time than it saves there."""
    world = LakeWorld(tmp_path)
    for turn in range(3):
        world.fill(orders(0), several(1, first=turn))
        world.consume(group(), f"{DAY}-c{turn}", succeed)
    table = Shard(world.shard.root, SHARD).commitlog
    monkeypatch.delattr("rmq_store.lake.table.parallel.ThreadPoolExecutor")
    paths = table.files().column("path").to_pylist()
    assert [rows.num_rows for rows in table.read_each(paths)] == table.files().column("num_records").to_pylist()


def test_segments_of_other_groups_are_not_read(tmp_path: Path, consumequeue_reads: list[str]) -> None:
    """The lane of each group has five segments, and another offset is looked up in each lane. The names of two lanes differ
    only after the part that statistics keep."""
    world = LakeWorld(tmp_path)
    names = ("one", "two", f"{'long' * 9}-one", f"{'long' * 9}-two")
    for turn in range(5):
        world.fill(orders(0), several(1, first=turn))
        for name in names:
            world.consume(group(name), f"{DAY}-c{turn}", fail)
    shard = world.shard
    lanes = [queue for name in names for queue in shard.positions().queues_of(SCHEDULE_TOPIC, shard.lane(name))]
    consumequeue_reads.clear()
    segments = segments_of(shard, [QueueRange(lane, offset, offset + 1) for offset, lane in enumerate(lanes)])
    bases = {queue: [segment.base for segment in of_queue] for queue, of_queue in segments.items()}
    assert bases == {lane: [offset] for offset, lane in enumerate(lanes)}
    assert len(consumequeue_reads) == 1 + 1 + 4


def test_a_delivery_reads_no_more_after_a_long_history_while_another_group_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One group failed once and waits for hours, at offset 0 of its lane; the other one fails again and again."""

    def waits(name: str, delay_ms: int) -> Any:
        policy = GroupRetryPolicy(customized=CustomizedRetryPolicy((delay_ms,)))
        return group(name, retry_policy=policy, max_reconsume_times=1)

    world = LakeWorld(tmp_path)
    world.fill(orders(0), several(1))
    world.consume(waits("patient", 36_000_000), f"{DAY}-p", fail)
    read: list[str] = []
    original = LakeTable.read

    def reading(table: LakeTable, paths: Iterable[str], *more: Any, **named: Any) -> Any:
        paths = list(paths)
        read.extend(f"{table.path}/{path}" for path in paths if table.path.endswith("consumequeue"))
        return original(table, paths, *more, **named)

    counts = []
    for turn in range(12):
        world.fill(orders(0), several(1, first=turn + 1))
        world.consume(waits("hasty", 1000), f"{DAY}-c{turn}", fail)
        world.clock.advance(1000)
        with monkeypatch.context() as patched:
            patched.setattr(LakeTable, "read", reading)
            read.clear()
            assert world.deliver(f"{DAY}-d{turn}").delivered == (1 if turn else 2)
            counts.append(len(read))
        world.consume(waits("hasty", 1000), f"{DAY}-r{turn}", succeed)
    assert max(counts[6:]) <= max(counts[:6])


def test_a_topic_that_no_file_has_has_no_segments(tmp_path: Path, consumequeue_reads: list[str]) -> None:
    world = LakeWorld(tmp_path)
    world.fill(orders(0), several(1))
    assert segments_of(world.shard, [QueueRange(orders(0, "Another"), 0, 1)]) == {}
    assert consumequeue_reads == []


def test_a_segment_of_a_broker_that_cannot_be_split_by_the_second_is_named(tmp_path: Path) -> None:
    world = LakeWorld(tmp_path)
    level = MessageQueue(SCHEDULE_TOPIC, SHARD, 16)
    world.fill(level, several(3))
    (file,) = tmp_path.rglob("kind=msg/*.parquet")
    file.unlink()
    with pytest.raises(MissingFile, match=r"the file of offsets \[0, 3\) of .*queueId=16\], was removed"):
        waiting_segments(world.shard, [QueueRange(level, 0, 1)])
