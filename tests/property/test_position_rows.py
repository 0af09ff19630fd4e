"""The relation ``positions`` equals one row per id, decoded id by id."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from rmq_store.commit.positions import ABSENT, Positions, own_queue_id, split_id
from rmq_store.lake.sql.position_rows import POSITIONS, position_rows
from tests.property.test_positions import CHANGES, NAMES, QUEUES, times_of, values_of

COLUMNS = {
    **dict.fromkeys(
        ("off", "pas", "blk", "own", "grp", "sub", "red", "del"), ("group_name", "topic", "broker_name", "queue_id")
    ),
    **dict.fromkeys(("max", "min"), ("topic", "broker_name", "queue_id")),
    **dict.fromkeys(("import", "cutover"), ("broker_name",)),
}


def plain_row(app_id: str, value: int, updated_ms: int) -> dict[str, Any]:
    kind, *parts = split_id(app_id)
    names = dict(zip(COLUMNS.get(kind, ()), parts, strict=False))
    queue_id = int(names["queue_id"]) if "queue_id" in names else None
    row: dict[str, Any] = dict.fromkeys(POSITIONS.names)
    row |= {"shard": "s", "app_id": app_id, "kind": kind, "value": value, "updated_ms": updated_ms or None}
    return row | names | {"queue_id": queue_id}


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["app_id"]))


@given(CHANGES)
def test_the_rows_are_those_of_the_ids(changes: dict[str, tuple[int, int]]) -> None:
    table = position_rows("s", Positions(1, values_of(changes), times_of(changes)))
    plain = [plain_row(app_id, *txn) for app_id, txn in changes.items() if txn[0] != ABSENT]
    assert table.schema == POSITIONS
    assert by_id(table.to_pylist()) == by_id(plain)


@given(CHANGES)
def test_the_rows_of_a_group_are_without_those_of_other_groups(changes: dict[str, tuple[int, int]]) -> None:
    positions = Positions(1, values_of(changes), times_of(changes))
    known = [row for row in position_rows("s", positions).to_pylist() if row["kind"] in COLUMNS]
    for name in (*NAMES, "other"):
        expected = [row for row in known if row["group_name"] in (None, name)]
        assert by_id(position_rows("s", positions, name).to_pylist()) == by_id(expected)


@pytest.mark.parametrize("others", [0, 7])
def test_other_groups_add_no_rows_to_those_of_one(others: int) -> None:
    groups = ["g", *(f"other-{n}" for n in range(others))]
    positions = Positions(1, {own_queue_id(name, queue): 1 for name in groups for queue in QUEUES})
    assert position_rows("s", positions, "g").num_rows == len(QUEUES)
