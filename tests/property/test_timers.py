"""The law of the timer: whatever is sent and whenever deliveries run, each message arrives once, never early, and in due
order within a delivery."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.consumer.timer import MAX_DELAY_MS
from rmq_store.memory.rows import MessageRow
from rmq_store.message import MessageQueue
from tests.contract.engines import MemoryWorld
from tests.contract.test_engines_timers import arrived, send
from tests.contract.world import DAY, LOCAL, NOON

DELAYS = st.one_of(
    st.integers(1, 10_000), st.integers(250_000, 260_000), st.integers(1, 2_000_000), st.integers(1, MAX_DELAY_MS)
)
STEPS = st.one_of(
    st.tuples(st.just("send"), st.lists(DELAYS, min_size=1, max_size=6)),
    st.tuples(st.just("wait"), st.one_of(st.integers(0, 3000), st.integers(0, 600_000), st.integers(0, 200_000_000))),
    st.tuples(st.just("deliver"), st.sampled_from([1, 3, 1000])),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=25))
def test_each_message_arrives_once_never_early_and_in_due_order(steps: list[tuple[str, object]]) -> None:
    world, sent, deliveries = MemoryWorld(), 0, 0

    def deliver(cap: int) -> bool:
        nonlocal deliveries
        deliveries += 1
        before = len(arrived(world))
        report = world.deliver(f"{DAY}-{deliveries}", cap=cap)
        came = [int((message.row.body or b"0").split()[1]) for message in arrived(world)[before:]]
        assert report.delivered == len(came)
        assert all(asked_ms <= world.clock() for asked_ms in came)
        seconds = [-(-asked_ms // 1000) for asked_ms in came]
        assert seconds == sorted(seconds)
        return report.status == "committed"

    for what, value in steps:
        if what == "send":
            assert isinstance(value, list)
            asked = [world.clock() + delay_ms for delay_ms in value]
            rows = [MessageRow(b"%d %d" % (sent + n, at), {"TIMER_DELIVER_MS": str(at)}) for n, at in enumerate(asked)]
            send(world, *rows)
            sent += len(rows)
        elif what == "wait":
            assert isinstance(value, int)
            world.clock.advance(value)
        else:
            assert isinstance(value, int)
            deliver(value)
    world.clock.advance(MAX_DELAY_MS + 1000)
    while deliver(1000):
        pass
    numbers = sorted(
        int((message.row.body or b"").split()[0]) for message in world.stored(MessageQueue("Orders", LOCAL, 0))
    )
    assert numbers == list(range(sent))
    assert world.clock() > NOON
