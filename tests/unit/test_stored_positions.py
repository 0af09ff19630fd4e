"""Positions of a checkpoint equal those of a plain dict, and only what is looked at becomes objects."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from rmq_store.commit.position_index import indexed
from rmq_store.commit.positions import Positions, max_id, off_id
from rmq_store.errors import WrongUse
from rmq_store.lake.sql.position_rows import position_rows
from rmq_store.lake.table import stored_positions as module
from rmq_store.lake.table.stored_positions import stored_positions
from tests.property.test_position_rows import by_id
from tests.property.test_positions import CHANGES, IDS, NAMES, QUEUES, times_of, values_of


def stored(values: dict[str, int], updated_ms: dict[str, int]) -> Positions:
    return stored_positions(
        1,
        pa.array(list(values), pa.string()),
        pa.array(list(values.values()), pa.int64()),
        pa.array([updated_ms.get(app_id) or None for app_id in values], pa.int64()),
    )


@given(CHANGES, CHANGES)
def test_they_are_the_positions_of_a_plain_dict(before: dict[str, Any], changes: dict[str, Any]) -> None:
    plain, read = Positions(1, values_of(before), times_of(before)), stored(values_of(before), times_of(before))
    assert read == plain
    assert plain == read
    assert pickle.loads(pickle.dumps(stored(values_of(before), times_of(before)))) == plain
    later_plain, later_read = (each.advanced(2, values_of(changes), times_of(changes)) for each in (plain, read))
    for positions, expected in ((read, plain), (later_read, later_plain)):
        assert dict(positions.items()) == dict(expected.items())
        assert [positions.get(app_id) for app_id in IDS] == [expected.get(app_id) for app_id in IDS]
        for group in (None, *NAMES):
            rows = by_id(position_rows("s", positions, group).to_pylist())
            assert rows == by_id(position_rows("s", expected, group).to_pylist())


GROUPS = [f"g{number}" for number in range(50)]


@pytest.mark.parametrize(
    ("look", "ids"),
    [
        (lambda positions: positions.get(off_id("g7", QUEUES[0])), len(QUEUES)),
        (lambda positions: positions.offsets_of("g7"), len(QUEUES)),
        (lambda positions: positions.advanced(2, {off_id("g7", QUEUES[0]): 1}, {}), len(QUEUES)),
        (lambda positions: position_rows("s", positions), 0),
        (lambda positions: position_rows("s", positions, "g7"), 0),
    ],
)
def test_only_what_is_looked_at_becomes_objects(
    look: Callable[[Positions], Any], ids: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {off_id(group, queue): 5 for group in GROUPS for queue in QUEUES} | {max_id(queue): 5 for queue in QUEUES}
    positions, counts = stored(values, {}), list[int]()

    def counted(values: dict[str, int], updated_ms: dict[str, int]) -> Any:
        counts.append(len(values))
        return indexed(values, updated_ms)

    monkeypatch.setattr(module, "indexed", counted)
    look(positions)
    assert sum(counts) == ids


def test_a_name_that_is_no_text_is_wrong_use() -> None:
    """As an argument that is not UTF-8 reaches the process."""
    with pytest.raises(WrongUse, match="unpaired surrogate"):
        stored({}, {}).queues_of("topic-\udcff")
