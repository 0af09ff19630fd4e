"""Laws of several consumers of one group, whatever each believes about the others, and whoever is interrupted by whom.

A consumer may be interrupted between its claim and its commit, by another one that may be interrupted too; leases may end
meanwhile, listeners break, requests be given again, queues grow and appear.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.commit.claim import LEASE_S
from rmq_store.commit.ctl import Action
from rmq_store.consumer.allocate_rule import AllocateRule
from rmq_store.errors import HeldByAnother, ListenerError, StaleAttempt
from rmq_store.message.message import MessageExt
from rmq_store.settings.settings import GroupSettings
from tests.contract.engines import LakeWorld, MemoryWorld
from tests.contract.test_engines_rebalance import assert_each_once
from tests.contract.world import DAY, World, group, orders, several
from tests.property.test_laws import SAME_EVERY_TIME

CLIENTS = ("c1", "c2", "c3")


@dataclass(frozen=True)
class Step:
    """A window of ``client`` for a request; requests 2 and 5 are capped. ``fills``: what is stored before it; ``inside``: how
    many of the next steps happen between its claim and its commit; ``lease_ends``: and whether its lease is over then."""

    request: int
    client: str
    view: tuple[str, ...]
    fills: tuple[int, int]
    inside: int
    lease_ends: bool
    breaks: bool


@dataclass
class Story:
    world: World
    group: GroupSettings
    steps: list[Step]
    messages: int = 0
    asked: Counter[bytes] = field(default_factory=Counter)

    def tell(self) -> None:
        while self.steps:
            self.step()

    def step(self) -> None:
        step = self.steps.pop(0)
        queue_id, count = step.fills
        if count:
            self.world.fill(orders(queue_id), several(count, first=self.messages))
            self.messages += count

        def meanwhile() -> None:
            for _ in range(step.inside):
                if self.steps:
                    self.step()
            if step.lease_ends:
                self.world.clock.advance(LEASE_S * 1000)

        def listener(msgs: list[MessageExt], context: Any) -> Any:
            return (
                "what?" if step.breaks else ["RECONSUME_LATER" if m.body == b"3" else "CONSUME_SUCCESS" for m in msgs]
            )

        host = self.world.another_host(meanwhile, before_id=2)
        with suppress(HeldByAnother, StaleAttempt, ListenerError):
            self.world.consume(
                self.group, f"{DAY}-{step.client}-{step.request}", listener, host=host,
                max_messages=3 if step.request % 3 == 2 else None, client_id=step.client, client_ids=step.view,
            )  # fmt: skip

    def drain(self) -> None:
        """Whoever is left alone takes everything."""
        for n in range(100, 110):
            self.world.clock.advance(3_600_000)
            self.world.deliver(f"{DAY}-d{n}")
            if self.world.consume(self.group, f"{DAY}-{n}").status == "empty":
                return
        raise AssertionError("the story never ends")


FIRST = st.builds(
    Step, st.just(0), st.just("c1"), st.just(("c1", "c2")), st.tuples(st.integers(0, 3), st.integers(2, 5)),
    st.integers(0, 2), st.just(False), st.just(False),
)  # fmt: skip
STEPS = st.builds(
    Step,
    request=st.integers(0, 5),
    client=st.sampled_from(CLIENTS),
    view=st.sets(st.sampled_from(CLIENTS), min_size=1).map(lambda ids: tuple(sorted(ids))),
    fills=st.tuples(st.integers(0, 3), st.integers(0, 4)),
    inside=st.integers(0, 3),
    lease_ends=st.sampled_from([False, False, True]),
    breaks=st.sampled_from([False, False, False, True]),
)
STORIES = st.tuples(FIRST, FIRST, st.lists(STEPS, min_size=2, max_size=9)).map(lambda told: [*told[:2], *told[2]])
SETTINGS = st.fixed_dictionaries(
    {
        "allocate_strategy": st.sampled_from(["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"]).map(AllocateRule),
        "max_messages": st.sampled_from([None, 4]),
        "consume_message_batch_max_size": st.sampled_from([1, 32]),
    }
)


def told(world: World, steps: list[Step], asked: dict[str, Any]) -> Story:
    story = Story(world, group(**asked), list(steps))
    story.tell()
    return story


@settings(SAME_EVERY_TIME, max_examples=120)
@given(STORIES, SETTINGS)
def test_in_the_end_every_message_has_exactly_one_outcome(steps: list[Step], asked: dict[str, Any]) -> None:
    world = MemoryWorld()
    story = told(world, steps, asked)
    story.drain()
    assert_each_once(world)
    ends: Counter[str] = Counter()
    for ctl in world.ctls():
        for consumed in ctl.consumed if ctl.group == "billing" else ():
            ends.update({str(outcome): tally.count for outcome, tally in consumed.tallies.items()})
    assert ends["acked"] == story.messages


@settings(SAME_EVERY_TIME, max_examples=80)
@given(STORIES, SETTINGS)
def test_a_window_commits_only_what_it_claimed_and_nobody_took_over(steps: list[Step], asked: dict[str, Any]) -> None:
    world = MemoryWorld()
    told(world, steps, asked)
    numbers: dict[str, int] = {}
    claims = {ctl.commit_id: ctl.parameter("claims") for ctl in world.ctls() if ctl.action is Action.CLAIM}
    for ctl in world.ctls():
        if ctl.action is Action.CLAIM:
            assert all(number == numbers.get(app_id, 0) + 1 for app_id, number in claims[ctl.commit_id].items())
            numbers |= claims[ctl.commit_id]
        if ctl.action is Action.CONSUME:
            mine = claims[ctl.parameter("claim")]
            assert {f"own/billing/Orders/broker-a/{c.range.queue.queue_id}" for c in ctl.consumed} <= mine.keys()
            assert mine.items() <= numbers.items()


@settings(SAME_EVERY_TIME, max_examples=6)
@given(STORIES, SETTINGS)
def test_consumers_of_the_lake_do_what_those_of_memory_do(steps: list[Step], asked: dict[str, Any]) -> None:
    memory = MemoryWorld()
    told(memory, steps[:6], asked)
    with TemporaryDirectory() as folder:
        lake = LakeWorld(Path(folder))
        told(lake, steps[:6], asked)
        assert lake.projection() == memory.projection()
