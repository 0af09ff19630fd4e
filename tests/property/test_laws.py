"""Laws that hold for every story: random streams, failures, caps, resets and repeated requests.

Derandomised: the same examples every time, and a failing one is printed with the blob that repeats it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_store.admin.reset import ResetTo
from rmq_store.commit.ctl import Action, Produced
from rmq_store.commit.positions import Outcome, Positions, QueueRange, max_id, off_id, total
from rmq_store.consumer.delay import CustomizedRetryPolicy, GroupRetryPolicy
from rmq_store.consumer.pull import cover
from rmq_store.consumer.start import Start, StartRule
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.message.message_const import TIMER_TOPIC
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.ranges import plan_ranges
from tests.contract.engines import LakeWorld, MemoryWorld
from tests.contract.world import DAY, LOCAL, World, group, orders, said, succeed
from tests.oracle.memory.commit import tally_of_range

SAME_EVERY_TIME = settings(
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow],
)
COPIED = (Outcome.RETRIED, Outcome.DEAD)
SECONDS = (10, 30, 60, 3600, 1)


# --- stories ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fill:
    queue_id: int
    tags: tuple[str | None, ...]

    def tell(self, world: World, reader: Reader) -> None:
        first = reader.messages
        reader.messages += len(self.tags)
        world.fill(orders(self.queue_id), [said(first + n, tag=tag) for n, tag in enumerate(self.tags)])


@dataclass(frozen=True)
class Consume:
    """``request``: the same number is the same request, with the same bounds."""

    request: int

    def tell(self, world: World, reader: Reader) -> None:
        reader.consume(world, self.request)


@dataclass(frozen=True)
class Deliver:
    after_s: int
    cap: int

    def tell(self, world: World, reader: Reader) -> None:
        world.clock.advance(self.after_s * 1000)
        reader.deliver(world, self.cap)


@dataclass(frozen=True)
class Reset:
    queue_id: int
    percent: int

    def tell(self, world: World, reader: Reader) -> None:
        queue = orders(self.queue_id)
        if queue in world.positions().all_queues():
            at = world.positions().max_offset(queue) * self.percent // 100
            reader.resets += 1
            world.reset_to(ResetTo.OFFSET, at, queues=(queue,), request_id=f"{DAY}-r{reader.resets}")


@dataclass
class Reader:
    """The group of a story, and what its listener does: message n fails as often as ``failures[n % len]`` says."""

    group: GroupSettings
    failures: tuple[int, ...]
    levels: tuple[int, ...]
    messages: int = 0
    resets: int = 0
    deliveries: int = 0

    def listen(self, msgs: list[MessageExt], context: Any) -> list[str]:
        numbers = [int(m.body or b"0") for m in msgs]
        context.delay_level_when_next_consume = self.levels[numbers[0] % len(self.levels)]
        fails = [m.reconsume_times < self.failures[n % len(self.failures)] for n, m in zip(numbers, msgs, strict=True)]
        return ["RECONSUME_LATER" if failed else "CONSUME_SUCCESS" for failed in fails]

    def consume(self, world: World, request: int, listener: Any = None) -> Any:
        """Requests 0, 3, 6 … are capped to five messages."""
        cap = 5 if request % 3 == 0 else None
        return world.consume(self.group, f"{DAY}-{request}", listener or self.listen, max_messages=cap)

    def deliver(self, world: World, cap: int) -> Any:
        self.deliveries += 1
        return world.deliver(f"{DAY}-d{self.deliveries}", cap=cap)


QUEUE_IDS = st.integers(0, 2)
FILLS = st.builds(Fill, QUEUE_IDS, st.lists(st.sampled_from(["TagA", "TagB", None]), min_size=1, max_size=8).map(tuple))
CONSUMES = st.builds(Consume, st.integers(0, 9))
DELIVERIES = st.builds(Deliver, st.sampled_from(SECONDS), st.sampled_from([1000, 3, 1]))
RESETS = st.builds(Reset, QUEUE_IDS, st.sampled_from([0, 50, 100]))
# A few steps, and after each of them a window: a story without windows tells nothing.
STEPS = st.tuples(st.one_of(FILLS, DELIVERIES, DELIVERIES, RESETS, CONSUMES), CONSUMES)
STORIES = st.builds(lambda first, rest: (first, *chain(*rest)), FILLS, st.lists(STEPS, min_size=2, max_size=8))
READERS = st.fixed_dictionaries(
    {
        "expression": st.sampled_from(["*", "TagA", "TagA || TagB"]),
        "consume_message_batch_max_size": st.integers(1, 4),
        "max_reconsume_times": st.sampled_from([2, 1, 3, 4, 0]),
        "retry_queue_nums": st.sampled_from([1, 2, 3, 4, 0]),
        "retry_policy": st.sampled_from([None, GroupRetryPolicy(customized=CustomizedRetryPolicy((1, 5, 7000, 2500)))]),
        "max_messages": st.sampled_from([None, 3]),
        "consumers": st.integers(1, 3),
        "failures": st.lists(st.integers(0, 3), min_size=1, max_size=5).map(tuple),
        "levels": st.lists(st.sampled_from([0, 1, 2, 0, 4, -1]), min_size=1, max_size=3).map(tuple),
    }
)


def tell(world: World, steps: tuple[Any, ...], asked: dict[str, Any]) -> Reader:
    asked = dict(asked)
    failures, levels, expression = asked.pop("failures"), asked.pop("levels"), asked.pop("expression")
    reader = Reader(group(topics={"Orders": expression}, **asked), failures, levels)
    for step in steps:
        step.tell(world, reader)
    return reader


def drain(world: World, reader: Reader) -> None:
    """Let everything come to its end: what waits is delivered, and nothing fails any more."""
    for n in range(100, 200):
        world.clock.advance(7_200_000)
        reader.deliver(world, 1000)
        if reader.consume(world, 3 * n + 1, succeed).status == "empty":
            return
    raise AssertionError("the story never ends")


# --- the laws --------------------------------------------------------------------------------------------------------


@SAME_EVERY_TIME
@given(STORIES, READERS)
def test_the_outcomes_of_every_window_add_up_to_its_range(steps: tuple[Any, ...], asked: dict[str, Any]) -> None:
    world = MemoryWorld()
    tell(world, steps, asked)
    for ctl in world.ctls():
        for consumed in ctl.consumed:
            assert total(consumed.tallies) == tally_of_range(consumed.range)
            assert sum(tally.count for tally in consumed.tallies.values()) == consumed.range.end - consumed.range.begin


@SAME_EVERY_TIME
@given(STORIES, READERS)
def test_windows_tile_every_queue_and_only_operators_break_the_row(
    steps: tuple[Any, ...], asked: dict[str, Any]
) -> None:
    world = MemoryWorld()
    tell(world, steps, asked)
    reached: dict[MessageQueue, tuple[int, int]] = {}
    for move in world.history("billing"):
        at, pass_ = reached.get(move.queue, (None, 0))
        if move.action == Action.RESET:
            assert (move.from_offset, move.pass_) == (at, max(p for _, p in [*reached.values(), (0, pass_)]) + 1)
        else:
            assert move.from_offset == (0 if at is None else at)
            assert move.to_offset >= (move.from_offset or 0)
        reached[move.queue] = move.to_offset, max(move.pass_, pass_)
    positions = world.positions()
    assert {queue: positions.get(off_id("billing", queue)) for queue in reached} == {
        q: at for q, (at, _) in reached.items()
    }


@SAME_EVERY_TIME
@given(STORIES, READERS)
def test_every_failure_has_exactly_one_copy_that_names_it(steps: tuple[Any, ...], asked: dict[str, Any]) -> None:
    world = MemoryWorld()
    tell(world, steps, asked)
    failed: Counter[Outcome] = Counter()
    for ctl in world.ctls():
        if ctl.action is Action.CONSUME:
            told = Counter({outcome: sum(c.tally(outcome).count for c in ctl.consumed) for outcome in COPIED})
            assert sum(segment.count for segment in ctl.produced) == told.total()
            failed += told
    timers = world.positions().queues_of(TIMER_TOPIC)
    waited = [m for level in range(1, 19) for m in world.lane(level)] + [m for q in timers for m in world.stored(q)]
    letters = world.dead_letters()
    assert (len(waited), len(letters)) == (failed[Outcome.RETRIED], failed[Outcome.DEAD])
    origins = [m.row.provenance for m in waited + letters if m.row.provenance]
    assert len({(origin.pass_, origin.queue, origin.offset) for origin in origins}) == failed.total()


@SAME_EVERY_TIME
@given(STORIES, READERS)
def test_a_request_that_is_complete_does_nothing_again(steps: tuple[Any, ...], asked: dict[str, Any]) -> None:
    world = MemoryWorld()
    reader = tell(world, steps, asked)
    complete = {ctl.request_id: ctl for ctl in world.ctls() if ctl.action is Action.CONSUME and ctl.request_complete}
    before = world.ctls()
    for request_id in complete:
        parts = [ctl for ctl in before if ctl.request_id == request_id and ctl.action is Action.CONSUME]
        again = reader.consume(world, int(request_id.rsplit("-", 1)[1]))
        assert (again.status, again.complete) == ("already_committed", True)
        assert again.messages() == sum(len(c.range) for ctl in parts for c in ctl.consumed)
    assert world.ctls() == before


@SAME_EVERY_TIME
@given(STORIES, READERS)
def test_in_the_end_every_message_of_a_pass_is_acked_filtered_or_dead(
    steps: tuple[Any, ...], asked: dict[str, Any]
) -> None:
    world = MemoryWorld()
    reader = tell(world, steps, asked)
    drain(world, reader)
    ends: Counter[str] = Counter()
    for ctl in world.ctls():
        for consumed in ctl.consumed if ctl.group == "billing" else ():
            ends["in" if consumed.range.queue.topic == "Orders" else "again"] += len(consumed.range)
            ends.update({str(outcome): tally.count for outcome, tally in consumed.tallies.items()})
    assert ends["again"] == ends["retried"]
    assert ends["in"] == ends["acked"] + ends["filtered"] + ends["dead"]
    assert world.deliver(f"{DAY}-last").next_due_ms is None


@SAME_EVERY_TIME
@given(STORIES, READERS)
def test_the_number_of_consumers_changes_nothing_that_happens(steps: tuple[Any, ...], asked: dict[str, Any]) -> None:
    told = []
    for consumers in (1, 3):
        world = MemoryWorld()
        tell(world, steps, asked | {"consumers": consumers, "max_messages": None})
        queues = world.positions().all_queues()
        copies = Counter(
            (m.queue, m.row.properties["UNIQ_KEY"], m.row.reconsume_times, m.row.provenance and m.row.provenance.cause)
            for queue in queues
            for m in world.stored(queue)
        )
        offsets = {queue: world.positions().get(off_id("billing", queue)) for queue in queues}
        told.append((copies, offsets))
    assert told[0] == told[1]


@settings(SAME_EVERY_TIME, max_examples=8)
@given(STORIES, READERS)
def test_the_lake_does_what_memory_does(steps: tuple[Any, ...], asked: dict[str, Any]) -> None:
    memory = MemoryWorld()
    tell(memory, steps[:8], asked)
    with TemporaryDirectory() as folder:
        lake = LakeWorld(Path(folder))
        tell(lake, steps[:8], asked)
        assert lake.projection() == memory.projection()


# --- pure decisions --------------------------------------------------------------------------------------------------

Q = MessageQueue("Orders", LOCAL, 0)


@SAME_EVERY_TIME
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=6), st.integers(0, 25), st.integers(0, 25))
def test_slices_and_holes_tile_a_range(runs: list[tuple[int, int]], one: int, other: int) -> None:
    segments, at = [], 0
    for gap, count in runs:
        segments.append(Produced(Q, 0, count, 0, "f", at + gap))
        at += gap + count
    wanted = QueueRange(Q, min(one, other), max(one, other))
    slices, holes = cover(wanted, segments)
    pieces = sorted([(s.begin, s.end) for s in slices] + [(h.begin, h.end) for h in holes])
    assert [begin for begin, _ in pieces] == [wanted.begin, *(end for _, end in pieces)][: len(pieces)]
    assert pieces[-1][1] == wanted.end if pieces else wanted.begin == wanted.end
    held = {offset for s in segments for offset in range(s.base or 0, (s.base or 0) + s.count)}
    assert {offset for h in holes for offset in range(h.begin, h.end)}.isdisjoint(held)


@SAME_EVERY_TIME
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=5),
    st.integers(0, 30),
)
def test_a_cap_is_used_up_and_shared_so_that_nobody_could_give_to_a_smaller_share(
    queues: list[tuple[int, int, int]], cap: int
) -> None:
    ends = {MessageQueue("T", "b", n): start + more for n, (start, more, _) in enumerate(queues)}
    start_of = {MessageQueue("T", "b", n): Start(start, StartRule.STORED) for n, (start, _, _) in enumerate(queues)}
    bounds = {MessageQueue("T", "b", n): start + bound for n, (start, _, bound) in enumerate(queues)}
    positions = Positions(1, {max_id(queue): end for queue, end in ends.items()})
    wanted = {p.queue: len(p.range) for p in plan_ranges("g", positions, start_of, bounds)}
    taken = {p.queue: len(p.range) for p in plan_ranges("g", positions, start_of, bounds, max_messages=cap)}
    assert sum(taken.values()) == min(cap, sum(wanted.values()))
    for queue, share in wanted.items():
        got = taken.get(queue, 0)
        assert got == share or got >= max(taken.values(), default=0) - 1
