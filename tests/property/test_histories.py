"""Laws that hold for every history: all kinds of groups, operators, accidents and retention at once (``histories.py``).

The same examples every time. ``HISTORIES=20000`` tells that many others, by chance; a failing one is printed step by step
with the blob that repeats it, and not made smaller, which took minutes.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from rmq_store.commit.ctl import SCHEDULE_GROUP
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import Problem
from rmq_store.lake.table.checkpoint import write_checkpoint
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_store.window.consume_request import Scope
from tests.contract.engines import LakeWorld, MemoryWorld
from tests.property.answers import ALL_WELL
from tests.property.histories import Cast, Teller, tell
from tests.property.steps import Again, Consume, Deliver, Trim
from tests.property.strategies import CASTS, HISTORIES
from tests.readers import assert_a_kept_view_agrees, assert_readers_agree, tables_of

MORE = int(os.environ.get("HISTORIES", "0"))
BUDGET = settings(
    derandomize=not MORE,
    database=None,
    deadline=None,
    print_blob=True,
    max_examples=MORE or 150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.generate],
)


@pytest.mark.slow
@BUDGET
@given(CASTS, HISTORIES)
def test_every_offset_has_one_outcome_every_failure_one_copy_and_a_rerun_changes_nothing(
    cast: Cast, steps: tuple[Any, ...]
) -> None:
    """What is checked after every step stands in ``ledger.py``."""
    teller = tell(MemoryWorld(), cast, steps)
    for number in range(len(teller.finished)):
        Again(number).tell(teller)


@pytest.mark.slow
@settings(BUDGET, max_examples=MORE or 40)
@given(CASTS, HISTORIES)
def test_in_the_end_every_queue_is_done_and_nothing_waits(cast: Cast, steps: tuple[Any, ...]) -> None:
    teller = tell(MemoryWorld(), cast, steps)
    settle(teller)
    positions, stands = teller.world.positions(), teller.ledger.places if teller.ledger else {}
    for topic in (SCHEDULE_TOPIC, TIMER_TOPIC):
        waited = [queue for queue in positions.queues_of(topic) if positions.max_offset(queue)]
        assert {q: stands[SCHEDULE_GROUP, q].offset for q in waited} == {q: positions.max_offset(q) for q in waited}
    for name, group in teller.settings.items():
        topics = [f"%RETRY%{name}", *(s.topic for s in group.subscriptions if name in cast.groups)]
        queues: list[MessageQueue] = [queue for topic in topics for queue in positions.queues_of(topic)]
        assert {q: stands[name, q].offset for q in queues} == {q: positions.max_offset(q) for q in queues}


def settle(teller: Teller) -> None:
    """Nothing fails any more and nobody stops: everything that waits comes to its end."""
    teller.cast = replace(teller.cast, script=[ALL_WELL])
    for name, group in list(teller.settings.items()):
        patient = replace(group, on_offset_out_of_range="skip", max_messages=None)
        teller.introduce(patient, name if name in teller.cast.groups else "billing")
    for n in range(100, 160, 3):
        before = len(teller.did)
        Deliver(7200, 1000).tell(teller)
        for name in teller.settings:
            Consume(name, n, Scope(retries_only=name not in teller.cast.groups)).tell(teller)
        if all(did == "WrongUse" or did[0] == "empty" for _, did in teller.did[before:]):
            return
    raise AssertionError("the history never ends")


@pytest.mark.slow
@settings(BUDGET, max_examples=MORE // 20 or 8)
@given(CASTS, HISTORIES)
def test_the_lake_tells_every_history_as_memory_does(cast: Cast, steps: tuple[Any, ...]) -> None:
    """And every reader of Delta tables finds in its tables what we find."""
    memory = tell(MemoryWorld(), cast, steps[:9])
    with TemporaryDirectory() as folder:
        lake = tell(LakeWorld(Path(folder)), cast, steps[:9], checked=False)
        assert lake.did == memory.did, "every attempt came to the same"
        assert left(lake) == left(memory)
        assert isinstance(lake.world, LakeWorld)
        trimmed = any(isinstance(step, Trim) for step in steps[:9])  # which no commit of a retention records
        findings = [
            one for one in audit(lake.world.store) if one.problem is not Problem.FIRST_OFFSET_DIFFERS or not trimmed
        ]
        assert findings == []
        for table in tables_of(lake.world.shard).values():
            write_checkpoint(table)
        assert_readers_agree(lake.world.shard)
        assert_a_kept_view_agrees(lake.world.shard.commitlog)


def left(teller: Teller) -> dict[str, Any]:
    """What a history leaves. Commits that read one version touch nothing in common, and a window's ranges come from
    several consumers: their order says nothing."""
    found = teller.world.projection()
    found["commits"].sort(key=lambda commit: (commit["read_version"], commit["request_id"], commit["request_part"]))
    for lost in found["outcomes"].values():
        lost.sort(key=lambda one: (one.range.queue, one.pass_, one.range.begin))
    return found
