"""Files that replace others of their table in one commit: all of them or none, once, and unseen by a reader of changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from rmq_store.commit.ctl import StagedFile
from rmq_store.errors import OtherFormat, StaleAttempt
from rmq_store.lake.table import tables
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.utils.host import Host

DAY = "2026-11-22"
STORED = pa.schema([column for column in tables.OFFSETS if column.name != "store_day"])


def opened(folder: Path) -> LakeTable:
    root = Root.parse(str(folder))
    return LakeTable.create(root, "s/offsets", tables.OFFSETS_LAYOUT)


def staged(table: LakeTable, name: str, *groups: str) -> StagedFile:
    rows = pa.Table.from_pylist([{"group_name": group} for group in groups], schema=STORED)
    file = NewFile(kind="", name=name, rows=rows, stats=tables.OFFSETS_LAYOUT.stats, store_day=DAY)
    return stage(table.root, table.path, file)


def joined(table: LakeTable, name: str, *groups: str) -> StagedFile:
    return replace(staged(table, name, *groups), data_change=False)


def groups_in(table: LakeTable) -> list[str]:
    paths = table.files().column("path").to_pylist()
    names: list[str] = table.read(paths, ["group_name"]).column(0).to_pylist()
    return sorted(names)


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    table = opened(tmp_path)
    for name in "abc":
        table.put([staged(table, name, name)], {}, host=Host())
    return table


def test_the_files_take_the_place_of_others_for_every_reader(table: LakeTable, tmp_path: Path) -> None:
    table.put([joined(table, "ab", "a", "b")], {}, host=Host(), removed={"a.parquet", "b.parquet"})
    for reader in (table, opened(tmp_path)):
        assert sorted(reader.files().column("path").to_pylist()) == ["ab.parquet", "c.parquet"]
        assert groups_in(reader) == ["a", "b", "c"]
    other = DeltaTable(str(tmp_path / "s/offsets"))
    assert sorted(uri.rsplit("/", 1)[1] for uri in other.file_uris()) == ["ab.parquet", "c.parquet"]


def test_a_reader_of_changes_sees_no_row_again(table: LakeTable, tmp_path: Path) -> None:
    version = table.version
    table.put([joined(table, "ab", "a", "b")], {}, host=Host(), removed={"a.parquet", "b.parquet"})
    assert [file.path for file in table.added_since(version) if file.data_change] == []
    lines = (tmp_path / f"s/offsets/_delta_log/{version + 1:020}.json").read_text().splitlines()
    changes = [
        action.get("add") or action["remove"] for line in lines if "commitInfo" not in (action := json.loads(line))
    ]
    assert [change["dataChange"] for change in changes] == [False, False, False]


def test_a_file_is_replaced_once(table: LakeTable, tmp_path: Path) -> None:
    """Two processes plan on the same version; a third only adds."""
    slow, adding = opened(tmp_path), opened(tmp_path)
    table.put([joined(table, "ab", "a", "b")], {}, host=Host(), removed={"a.parquet", "b.parquet"})
    adding.put([staged(adding, "d", "d")], {}, host=Host())
    with pytest.raises(StaleAttempt):
        slow.put([joined(slow, "bc", "b", "c")], {}, host=Host(), removed={"b.parquet", "c.parquet"})
    slow.refresh()
    with pytest.raises(StaleAttempt, match=r"1 of 2 files are not in s/offsets any more, b\.parquet among them"):
        slow.put([joined(slow, "bc-2", "b", "c")], {}, host=Host(), removed={"b.parquet", "c.parquet"})
    assert groups_in(slow) == ["a", "b", "c", "d"]
    slow.put([joined(slow, "cd", "c", "d")], {}, host=Host(), removed={"c.parquet", "d.parquet"})
    assert groups_in(opened(tmp_path)) == ["a", "b", "c", "d"]


def test_a_table_in_another_format_is_not_written(table: LakeTable) -> None:
    table.log.view.protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    with pytest.raises(OtherFormat):
        table.put([], {}, host=Host())
