"""What every engine promises to a group that subscribes by SQL92. See ``test_engines.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmq_store.filter.subscription import build_subscription_data
from tests.contract.engines import LakeWorld, story
from tests.contract.world import BILLING, DAY, World, counts, fail_bodies, orders, said
from tests.oracle.memory.rows import MessageRow

DEAR = replace(BILLING, subscriptions=(build_subscription_data("Orders", "price > 100 AND vip IS NULL", "SQL92"),))


def prices(*texts: str | None) -> list[MessageRow]:
    return [said(n) if text is None else said(n, price=text) for n, text in enumerate(texts)]


@story
def test_a_group_gets_what_its_expression_selects_and_the_rest_counts_as_filtered(world: World) -> None:
    rows = [*prices("7", "101", None, "n/a", "1000"), said(5, price="500", vip="true")]
    world.fill(orders(0), rows)
    seen: list[bytes | None] = []

    def listener(msgs: list[Any], context: Any) -> str:
        seen.extend(m.body for m in msgs)
        return "CONSUME_SUCCESS"

    report = world.consume(DEAR, f"{DAY}-1", listener)
    assert seen == [b"1", b"4"]
    assert counts(report) == {"acked": 2, "filtered": 4}
    assert world.offset(orders(0)) == 6


@story
def test_a_retry_is_not_filtered_again(world: World) -> None:
    """A retry topic is subscribed with "*" (rules 7.8: filterSupportRetry is false)."""
    world.fill(orders(0), prices("7", "101"))
    world.consume(DEAR, f"{DAY}-1", fail_bodies(b"1"))
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    cheaper = replace(
        DEAR, subscription_version=2, subscriptions=(build_subscription_data("Orders", "price < 100", "SQL92"),)
    )
    assert counts(world.consume(cheaper, f"{DAY}-2")) == {"acked": 1}


class BodiesOnly:
    """A listener on batches that names one column, and not the one that the filter reads."""

    columns = ("body",)

    def consume_batch(self, batch: Any) -> list[str]:
        assert batch.schema.names == ["body"]
        return ["RECONSUME_LATER" if body == b"4" else "CONSUME_SUCCESS" for body in batch.column("body").to_pylist()]


@pytest.fixture
def lake(tmp_path: Any) -> LakeWorld:
    return LakeWorld(tmp_path)


def test_a_filter_reads_its_properties_also_for_a_listener_that_does_not(lake: LakeWorld) -> None:
    lake.fill(orders(0), prices("7", "101", None, "n/a", "1000"))
    report = lake.consume(replace(DEAR, listener=f"{__name__}:BodiesOnly"), f"{DAY}-1")
    assert counts(report) == {"acked": 1, "filtered": 3, "retried": 1}
    (copy,) = lake.lane(3)
    assert (copy.row.body, copy.row.properties["price"]) == (b"4", "1000")
