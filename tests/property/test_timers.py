"""The law of the timer: whatever is sent and whenever deliveries run, each message arrives once, never early, in due order
within a delivery, and by the first delivery that is not capped after it is due."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.consumer.timer import MAX_DELAY_MS, SLOT_MS
from rmq_store.producer.producer import Message
from rmq_store.window.deliver import DeliverReport
from tests.contract.engines import MemoryWorld
from tests.contract.test_engines_timers import arrived, send
from tests.contract.world import DAY

NO_CAP = 1_000_000


@dataclass
class Story:
    """``asked``: the moments that messages 0, 1, 2 … asked for."""

    world: MemoryWorld = field(default_factory=MemoryWorld)
    asked: list[int] = field(default_factory=list)
    deliveries: int = 0
    next_due_ms: int | None = None

    def send(self, delays_ms: list[int]) -> None:
        moments = [self.world.clock() + delay_ms for delay_ms in delays_ms]
        numbered = enumerate(moments, len(self.asked))
        send(self.world, *(Message("Orders", b"%d" % number, deliver_at=moment) for number, moment in numbered))
        self.asked += moments

    def go_to_the_next_due(self, and_ms: int) -> None:
        """What the last delivery said comes next, or not."""
        if self.next_due_ms is not None:
            self.world.clock.now_ms = max(self.world.clock(), self.next_due_ms + and_ms)

    def deliver(self, cap: int) -> DeliverReport:
        self.deliveries += 1
        before = len(arrived(self.world))
        report = self.world.deliver(f"{DAY}-{self.deliveries}", cap=cap)
        self.next_due_ms = report.next_due_ms
        came = self.arrived[before:]
        moments = [self.asked[number] for number in came]
        assert report.delivered == len(came) <= cap
        assert all(moment <= self.world.clock() for moment in moments)
        seconds = [-(-moment // 1000) for moment in moments]
        assert seconds == sorted(seconds)
        if cap == NO_CAP:
            due = [n for n, moment in enumerate(self.asked) if -(-moment // 1000) * 1000 <= self.world.clock()]
            assert sorted(self.arrived) == due
        return report

    @property
    def arrived(self) -> list[int]:
        return [int(message.row.body or b"") for message in arrived(self.world)]


DELAYS = st.one_of(
    st.integers(1, 10_000),
    st.integers(SLOT_MS - 3000, SLOT_MS + 3000),
    st.integers(1, 4 * SLOT_MS),
    st.integers(1, MAX_DELAY_MS),
)
SENDS = st.builds(lambda delays: ("send", delays), st.lists(DELAYS, min_size=1, max_size=6))
WAITS = st.builds(
    lambda ms: ("wait", ms), st.one_of(st.integers(0, 3000), st.integers(0, 3 * SLOT_MS), st.integers(0, 200_000_000))
)
JUMPS = st.builds(lambda ms: ("jump", ms), st.sampled_from([0, -1, 1, 1000, 700]))
DELIVERIES = st.builds(lambda cap: ("deliver", cap), st.sampled_from([NO_CAP, NO_CAP, 1, 3]))


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(SENDS, st.lists(st.one_of(SENDS, WAITS, JUMPS, DELIVERIES, st.tuples(JUMPS, DELIVERIES)), max_size=25))
def test_each_message_arrives_once_never_early_in_due_order_and_in_time(first: tuple, rest: list) -> None:  # type: ignore[type-arg]
    story = Story()
    steps = [first, *(one for step in rest for one in (step if isinstance(step[0], tuple) else (step,)))]
    for what, value in steps:
        match what:
            case "send":
                story.send(value)
                story.deliver(1)
            case "wait":
                story.world.clock.advance(value)
            case "jump":
                story.go_to_the_next_due(value)
            case _:
                story.deliver(value)
    while story.deliver(NO_CAP).next_due_ms is not None:
        story.go_to_the_next_due(0)
    assert sorted(story.arrived) == list(range(len(story.asked)))
