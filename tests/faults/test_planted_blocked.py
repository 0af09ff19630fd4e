"""The audit finds what was changed in the record of what blocks a queue: by it the next window counts the tries of a message.

Two windows have failed at messages 2 and 3 of a queue, and waited for a later try.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import Finding, Problem
from tests.contract.engines import LakeWorld
from tests.contract.test_engines_orderly import in_order, suspend_at
from tests.contract.world import DAY, HOUR, orders, several
from tests.faults.test_planted_faults import Plant, in_first, planted
from tests.planted_shard import Row


def record(change: Callable[[Row], Row], *, oldest: bool = False) -> Plant:
    return lambda at: at.rewrite_record("consume", change, oldest=oldest)


def first(**values: Any) -> Plant:
    """Other values in the first range of the newest window."""
    return record(in_first("blocked", **values))


def doubled(row: Row) -> Row:
    return row | {"blocked": [row["blocked"][0], *row["blocked"]]}


FAULTS: dict[str, tuple[Plant, str]] = {
    "fewer attempts than the window before": (first(attempts=1), "1 attempts after 3"),
    "a negative number of attempts": (first(attempts=-1), "-1 attempts"),
    "more attempts in the window before": (
        record(in_first("blocked", attempts=50), oldest=True),
        "6 attempts after 50",
    ),
    "another time of the first attempt": (
        first(first_failed_at=1),
        "another first_failed_at than by the window before",
    ),
    "a first attempt now that was before": (
        first(first_failed_at=None),
        "another first_failed_at than by the window before",
    ),
    "a first attempt before the first window": (
        record(in_first("blocked", first_failed_at=1), oldest=True),
        "another first_failed_at than by the window before",
    ),
    "a range that ends behind the queue": (first(end_offset=99), "a range that ends behind the queue"),
    "a range of the next message": (
        first(begin_offset=3, end_offset=4),
        "a range that does not begin at 2",
    ),
    "a range that is empty": (first(end_offset=2), "an empty range"),
    "a range twice": (record(doubled), "a range that begins before 4"),
    "a range of a queue that was not read": (first(queue_id=1), "a range of a queue that it did not read"),
}


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Finding]]:
    lake = LakeWorld(tmp_path_factory.mktemp("sound"))
    lake.fill(orders(0), several(6))
    for number in range(2):
        lake.consume(in_order(consume_message_batch_max_size=2), f"{DAY}-{number}", suspend_at(2, 3))
        lake.clock.advance(HOUR)
    assert audit(lake.store) == []
    faults = {name: (plant, Problem.RECORD_NOT_VALID) for name, (plant, _) in FAULTS.items()}
    root = tmp_path_factory.mktemp("planted") / "store"
    return planted(Path(lake.root.location), root, list(faults), faults)


@pytest.mark.parametrize("name", FAULTS)
def test_the_audit_finds(findings: dict[str, list[Finding]], name: str) -> None:
    said = [one.detail or "" for one in findings[name] if one.problem is Problem.RECORD_NOT_VALID]
    assert FAULTS[name][1] in {fact for detail in said for fact in detail.partition("as blocked ")[2].split(", ")}
