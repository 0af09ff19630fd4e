"""What every engine promises of a listener that takes too long (``ProcessQueue#cleanExpiredMsg``, rules 8): its batch is
retried at level 3, whatever it answered. See ``test_engines.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.duplicates import AbsorbRule
from rmq_store.message.message import MessageExt
from rmq_store.settings.settings import GroupSettings
from tests.contract.engines import LakeWorld, story
from tests.contract.world import DAY, Listen, World, bodies, counts, group, orders, several

MINUTE = 60_000
_LATE: dict[int, Callable[[], None]] = {}
"""What the Arrow listener below does with the clock."""


def in_minutes(*minutes: float, then: Listen) -> Callable[[World], Listen]:
    """A listener whose calls take so long, one after the other."""

    def in_world(world: World) -> Listen:
        left = iter(minutes)

        def listener(msgs: list[MessageExt], context: Any) -> Any:
            world.clock.advance(int(next(left) * MINUTE))
            return then(msgs, context)

        return listener

    return in_world


def succeed(msgs: list[MessageExt], context: Any) -> str:
    return "CONSUME_SUCCESS"


def succeed_each(msgs: list[MessageExt], context: Any) -> list[str]:
    return ["CONSUME_SUCCESS"] * len(msgs)


def yielding(msgs: list[MessageExt], context: Any) -> Any:
    yield from succeed_each(msgs, context)


def to_the_dead(msgs: list[MessageExt], context: Any) -> str:
    context.delay_level_when_next_consume = -1
    return "RECONSUME_LATER"


@pytest.mark.parametrize("then", [succeed, succeed_each, yielding, to_the_dead])
@story
def test_a_call_longer_than_the_consume_timeout_is_retried_at_level_three(world: World, then: Listen) -> None:
    world.fill(orders(0), several(6))
    slow = in_minutes(1, 15.1, 1, then=then)(world)
    report = world.consume(group(consume_message_batch_max_size=2), f"{DAY}-1", slow)
    retried = [m for m in world.lane(3) if m.row.properties["DELAY"] == "3"]
    assert bodies(retried) == [b"2", b"3"]
    told = retried[0].row.provenance
    assert told
    assert (told.error_type, told.error_text) == (
        "ConsumeTimeout",
        "the listener took longer than consume_timeout, 15 minutes",
    )
    assert counts(report) == ({"dead": 4, "retried": 2} if then is to_the_dead else {"acked": 4, "retried": 2})


@story
def test_the_consume_timeout_of_the_group_counts_and_is_reached_after_it(world: World) -> None:
    world.fill(orders(0), several(3))
    settings = group(consume_message_batch_max_size=1, consume_timeout=2)
    report = world.consume(settings, f"{DAY}-1", in_minutes(2, 2.1, 0, then=succeed)(world))
    assert (counts(report), bodies(world.lane(3))) == ({"acked": 2, "retried": 1}, [b"1"])


@story
def test_a_call_that_took_too_long_and_failed_keeps_its_error_and_is_sent_back_once(world: World) -> None:
    world.fill(orders(0), several(1))

    def refuse(msgs: list[MessageExt], context: Any) -> None:
        context.delay_level_when_next_consume = 7
        raise ValueError("no price")

    assert counts(world.consume(group(), f"{DAY}-1", in_minutes(16, then=refuse)(world))) == {"retried": 1}
    (retried,) = world.lane(3)
    assert retried.row.provenance
    assert retried.row.provenance.error_text == "no price"


@story
def test_a_message_that_was_retried_too_often_is_dead_after_the_timeout_too(world: World) -> None:
    world.fill(orders(0), several(1))
    report = world.consume(group(max_reconsume_times=0), f"{DAY}-1", in_minutes(16, then=succeed)(world))
    assert (counts(report), len(world.dead_letters())) == ({"dead": 1}, 1)


@pytest.mark.parametrize(
    "settings", [{"mode": "orderly"}, {"name": "audit@a", "message_model": MessageModel.BROADCASTING}]
)
@story
def test_in_order_and_broadcasting_only_the_listeners_status_counts(world: World, settings: dict[str, Any]) -> None:
    world.fill(orders(0), several(2))
    answer = "SUCCESS" if "mode" in settings else "CONSUME_SUCCESS"
    slow = in_minutes(60, then=lambda msgs, context: answer)(world)
    assert counts(world.consume(group(**settings), f"{DAY}-1", slow)) == {"acked": 2}


@story
def test_what_expired_was_not_acked_so_it_absorbs_no_duplicate(world: World) -> None:
    world.fill(orders(0), several(1))
    settings: GroupSettings = group(absorb_duplicates=AbsorbRule("UNIQ_KEY", 3_600_000))
    world.consume(settings, f"{DAY}-1", in_minutes(16, then=succeed)(world))
    world.fill(orders(0), several(1))
    assert counts(world.consume(settings, f"{DAY}-2")) == {"acked": 1}


class Batches:
    columns = ("body",)

    def consume_batch(self, batch: pa.RecordBatch) -> pa.Array:
        _LATE[0]()
        return pa.array([body != b"1" for body in batch.column(0).to_pylist()])


@pytest.mark.parametrize(
    ("minutes", "outcomes"), [(15, {"acked": 2, "retried": 1}), (15.1, {"retried": 3})], ids=["in time", "late"]
)
def test_an_arrow_listener_has_the_timeout_for_its_record_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float, outcomes: dict[str, int]
) -> None:
    world = LakeWorld(tmp_path)
    world.fill(orders(0), several(3))
    monkeypatch.setitem(_LATE, 0, lambda: world.clock.advance(int(minutes * MINUTE)))
    batches = replace(group(), listener=f"{__name__}:Batches")
    assert counts(world.consume(batches, f"{DAY}-1")) == outcomes
    assert {m.row.properties["DELAY"] for m in world.lane(3)} == {"3"}
