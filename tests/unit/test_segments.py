"""Looking up segments costs what is looked for, not what has been."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.positions import QueueRange
from rmq_store.consumer.delay import CustomizedRetryPolicy, GroupRetryPolicy
from rmq_store.lake.read.segments import _disjoint
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.message.message import MessageQueue
from tests.contract.engines import LakeWorld
from tests.contract.world import DAY, fail, group, orders, several, succeed

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
