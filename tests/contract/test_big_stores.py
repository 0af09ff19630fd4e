"""The large stores of the benchmarks are as windows would have made them, at the smallest size."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.big_stores import GROUP, of_windows
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.host import Host


@pytest.mark.parametrize("ctl_rows", [1, 256])
@pytest.mark.parametrize(("windows", "groups", "failing"), [(32, 2, 4), (160, 20, 20)])
def test_a_store_of_many_windows_has_no_contradiction(
    tmp_path: Path, windows: int, groups: int, failing: int, ctl_rows: int
) -> None:
    of_windows(str(tmp_path), Host(), windows=windows, groups=groups, failing=failing, ctl_rows=ctl_rows)
    store = LakeStore.open(Root.parse(str(tmp_path)))
    text = "SELECT count(*) AS windows, sum(retried) AS retried FROM windows WHERE group_name <> 'template'"
    assert query(store, text).to_pylist() == [{"windows": windows, "retried": failing}]
    assert query(store, f"SELECT sum(lag) AS lag FROM lag WHERE group_name = '{GROUP}'").to_pylist() == [{"lag": 0}]
    assert audit(store) == []
