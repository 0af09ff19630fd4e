"""Laws of groups that are deleted and created again, at any moment of any story."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.admin.delete_group import is_gone
from rmq_store.commit.ctl import Action
from rmq_store.commit.positions import grp_id, total
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageExt
from tests.contract.engines import LakeWorld, MemoryWorld
from tests.contract.world import DAY, World, group
from tests.oracle.memory.commit import tally_of_range
from tests.property.test_laws import CONSUMES, DELIVERIES, FILLS, READERS, RESETS, SAME_EVERY_TIME, Reader, drain


@dataclass
class Living(Reader):
    """``life``: the group's epoch at its last delete. ``sent_back`` and ``came_back``: (message, times it had failed,
    life)."""

    life: int = 0
    deletes: int = 0
    sent_back: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    came_back: Counter[tuple[str, int, int]] = field(default_factory=Counter)

    def listen(self, msgs: list[MessageExt], context: Any) -> list[str]:
        answers = super().listen(msgs, context)
        for message, answer in zip(msgs, answers, strict=True):
            self.note(message)
            if answer == "RECONSUME_LATER":
                self.sent_back[message.unique_key or "", message.reconsume_times + 1, self.life] += 1
        return answers

    def note(self, message: MessageExt) -> None:
        if message.reconsume_times:
            self.came_back[message.unique_key or "", message.reconsume_times, self.life] += 1


@dataclass(frozen=True)
class Delete:
    def tell(self, world: World, reader: Living) -> None:
        reader.deletes += 1
        try:
            world.delete(f"{DAY}-x{reader.deletes}")
        except WrongUse:
            return
        reader.life = world.positions().get(grp_id("billing")) or 0


RETRIES = "%RETRY%billing"
DELETES = st.just(Delete())
STEPS = st.tuples(st.one_of(FILLS, DELIVERIES, RESETS, DELETES), CONSUMES, st.one_of(DELETES, DELIVERIES), CONSUMES)
STORIES = st.builds(lambda first, rest: (first, *chain(*rest)), FILLS, st.lists(STEPS, min_size=2, max_size=6))


def tell(world: World, steps: tuple[Any, ...], asked: dict[str, Any]) -> Living:
    asked = dict(asked)
    failures, levels, expression = asked.pop("failures"), asked.pop("levels"), asked.pop("expression")
    reader = Living(group(topics={"Orders": expression}, **asked), failures, levels)
    for step in steps:
        step.tell(world, reader)
    return reader


@SAME_EVERY_TIME
@given(STORIES, READERS)
def test_nobody_is_asked_about_a_retry_of_another_life(steps: tuple[Any, ...], asked: dict[str, Any]) -> None:
    reader = tell(MemoryWorld(), steps, asked)
    assert reader.came_back <= reader.sent_back


@SAME_EVERY_TIME
@given(STORIES, READERS)
def test_in_the_end_every_retry_was_asked_about_or_dropped_or_deleted_where_it_lay(
    steps: tuple[Any, ...], asked: dict[str, Any]
) -> None:
    world = MemoryWorld()
    reader = tell(world, steps, asked)
    drain(world, reader)
    ends: Counter[str] = Counter()
    for ctl in world.ctls():
        for consumed in ctl.consumed if ctl.action is Action.CONSUME else ():
            assert total(consumed.tallies) == tally_of_range(consumed.range)
            ends["again"] += len(consumed.range) if consumed.range.queue.topic == RETRIES else 0
            ends.update({str(outcome): tally.count for outcome, tally in consumed.tallies.items()})
        if ctl.action is Action.DELETE:
            ends["deleted"] += sum(m.to_offset - (m.from_offset or 0) for m in ctl.moved if m.queue.topic == RETRIES)
    assert ends["retried"] == ends["again"] + ends["deleted"]
    assert ends["dropped"] <= sum(count for (_, _, life), count in reader.sent_back.items() if life < reader.life)


@SAME_EVERY_TIME
@given(STORIES, READERS)
def test_every_life_begins_anew_and_no_window_is_of_a_life_before(
    steps: tuple[Any, ...], asked: dict[str, Any]
) -> None:
    world = MemoryWorld()
    tell(world, (*steps, Delete()), asked)
    assert is_gone(world.positions(), "billing") or not world.history("billing")
    deleted = 0
    for ctl in world.ctls():
        if ctl.action is Action.DELETE:
            deleted = ctl.epoch or 0
        elif ctl.action is Action.CONSUME:
            assert all(consumed.pass_ >= deleted for consumed in ctl.consumed)


@settings(SAME_EVERY_TIME, max_examples=6)
@given(STORIES, READERS)
def test_the_lake_deletes_as_memory_does(steps: tuple[Any, ...], asked: dict[str, Any]) -> None:
    memory = MemoryWorld()
    tell(memory, steps[:9], asked)
    with TemporaryDirectory() as folder:
        lake = LakeWorld(Path(folder))
        tell(lake, steps[:9], asked)
        assert lake.projection() == memory.projection()
