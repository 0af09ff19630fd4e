"""Lookups in columns of maps are those of pyarrow."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rmq_store.lake.table.arrow_maps import MapLookup

MAPS = pa.array(
    [[("a", "1"), ("b", "2")], None, [], [("b", "3"), ("a", "4"), ("b", None)], [("c", "")], [("b", "5"), ("b", "6")]],
    pa.map_(pa.string(), pa.string()),
)


@pytest.mark.parametrize("maps", [MAPS, MAPS.slice(1), MAPS.slice(2, 2), MAPS[:0], pa.nulls(2, MAPS.type)])
@pytest.mark.parametrize("name", ["a", "b", "c", "absent"])
def test_a_lookup_is_that_of_pyarrow(maps: pa.MapArray, name: str) -> None:
    lookup = MapLookup(maps)
    assert lookup.first(name).equals(pc.map_lookup(maps, name, "first"))
    assert lookup.last(name).equals(pc.map_lookup(maps, name, "last"))
