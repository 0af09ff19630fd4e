"""Which files a vacuum finds in the log of a table, and keeps: in a small store, where a test takes away all but one reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_store.commit.ctl import StagedFile
from rmq_store.errors import BadData, OtherFormat, StaleAttempt, StoreUnusable
from rmq_store.lake.maintain import vacuum as vacuuming
from rmq_store.lake.maintain.vacuum import named_files, vacuum
from rmq_store.lake.table import tables
from rmq_store.lake.table.checkpoint import checkpoint_name, write_checkpoint
from rmq_store.lake.table.delta_entry import entry_name
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.table.store import LakeStore
from rmq_store.maintain.orphans import StoredFile
from rmq_store.utils.host import Host, day_of
from tests.contract.test_vacuum import REQUEST, age, orphan

HOST = Host()
ADDED, REMOVED = 1, 2
"""The versions of the log that added the file, and removed it."""


def staged(table: LakeTable, name: str) -> StagedFile:
    rows = pa.Table.from_pylist([{"commit_id": "c", "part": 0, "rel": 0}], tables.OUTCOME)
    file = NewFile(kind="outcome", name=name, rows=rows, store_day=day_of(HOST.now_ms()))
    return stage(table.root, table.path, file)


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    """The commit log of an empty shard; one file was added to it, a checkpoint was written, the file was removed."""
    store, _ = LakeStore.init(Root.parse(str(tmp_path)))
    table = store.create_shard("s1").commitlog
    file = staged(table, "a")
    table.put([file], {}, host=HOST)
    write_checkpoint(table)
    table.put([], {}, host=HOST, removed=[file.path])
    return table


@pytest.fixture
def shard(table: LakeTable) -> Shard:
    """With ``table`` as its commit log."""
    shard = Shard(table.root, "s1")
    shard.commitlog = table
    return shard


def path_of(table: LakeTable) -> str:
    (file,) = table.added_since(0)
    return file.path


def entry(table: LakeTable, version: int) -> Path:
    return Path(table.root.location, table.path, "_delta_log", entry_name(version))


def checkpoint(table: LakeTable, version: int) -> Path:
    return Path(table.root.location, checkpoint_name(table, version))


def test_a_file_that_a_checkpoint_names_is_kept(shard: Shard, table: LakeTable) -> None:
    """A slow process may still read that version."""
    entry(table, ADDED).unlink()
    age(table)
    assert vacuum(shard, table, REQUEST, HOST).deleted == ()
    assert path_of(table) in named_files(shard, table, vacuuming._listed(table)).kept


def test_a_file_that_an_entry_added_is_kept(shard: Shard, table: LakeTable) -> None:
    checkpoint(table, ADDED).unlink()
    age(table)
    assert vacuum(shard, table, REQUEST, HOST).deleted == ()
    assert path_of(table) in named_files(shard, table, vacuuming._listed(table)).kept


def test_a_file_that_is_removed_after_the_listing_is_kept(shard: Shard, table: LakeTable) -> None:
    entry(table, ADDED).unlink()
    checkpoint(table, ADDED).unlink()
    assert path_of(table) in named_files(shard, table, []).kept


def test_a_removal_is_dated_by_its_entry_and_by_the_checkpoint_when_that_is_gone(
    shard: Shard, table: LakeTable
) -> None:
    write_checkpoint(table)
    entry(table, ADDED).unlink()
    checkpoint(table, ADDED).unlink()
    later_ms = HOST.now_ms() + 3_600_000
    stored = StoredFile(f"_delta_log/{entry_name(REMOVED)}", 1, later_ms)
    named = named_files(shard, table, [stored])
    assert path_of(table) not in named.kept
    assert named.removed_ms == {path_of(table): later_ms}
    entry(table, REMOVED).unlink()
    age(table)
    assert vacuum(shard, table, REQUEST, HOST).deleted == (), "by the checkpoint it was removed today"


def test_a_file_that_is_committed_before_the_entry_of_the_vacuum_is_kept(
    shard: Shard, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, announced = staged(table, "late"), vacuuming._announced
    age(table)

    def commit_first(*arguments: object) -> int:
        table.put([file], {}, host=HOST)
        return announced(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(vacuuming, "_announced", commit_first)
    assert vacuum(shard, table, REQUEST, HOST).deleted == ()
    assert table.root.exists(f"{table.path}/{file.path}")


def test_a_live_file_is_never_deleted(table: LakeTable) -> None:
    file = staged(table, "live")
    table.put([file], {}, host=HOST)
    with pytest.raises(AssertionError, match="live files of s1/commitlog would be deleted"):
        vacuuming._delete(table, [StoredFile(file.path, 1, 0)], None)
    assert table.root.exists(f"{table.path}/{file.path}")


@pytest.mark.parametrize("name", ["commitlog", "offsets"])
def test_the_entry_of_a_vacuum_comes_first_and_conflicts_with_every_other(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    mine, other = getattr(shard, name), getattr(Shard(shard.root, "s1"), name)
    orphan(mine)
    age(mine)
    version, deleted = other.version, Root.delete_all

    def delete_all(root: Root, names: list[str]) -> None:
        with pytest.raises(StaleAttempt):
            other.put([], {}, host=HOST)
        deleted(root, names)

    monkeypatch.setattr(Root, "delete_all", delete_all)
    assert len(vacuum(shard, mine, REQUEST, HOST).deleted) == 1
    actions = [json.loads(line) for line in entry(mine, version + 1).read_text().splitlines()]
    assert [action["commitInfo"]["operation"] for action in actions if "commitInfo" in action] == ["VACUUM"]


def test_a_vacuum_that_cannot_write_its_entry_deletes_nothing(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    name = orphan(shard.offsets)
    age(shard.offsets)

    def overtaken(table: LakeTable, *arguments: object, **options: object) -> None:
        raise StaleAttempt("another")

    monkeypatch.setattr(LakeTable, "put", overtaken)
    with pytest.raises(StoreUnusable, match="Nothing was deleted"):
        vacuum(shard, shard.offsets, REQUEST, HOST)
    assert shard.root.exists(f"{shard.offsets.path}/{name}")


@pytest.mark.parametrize(
    ("name", "content", "error", "says"),
    [
        ("00000000000000000001.checkpoint.parquet", b"not Parquet", BadData, "is damaged"),
        ("00000000000000000001.checkpoint.parquet", None, StoreUnusable, "was deleted meanwhile"),
        ("00000000000000000001.json", b"", BadData, "is damaged"),
        ("00000000000000000001.json", None, StoreUnusable, "was deleted meanwhile"),
    ],
)
def test_a_log_that_cannot_be_read_as_it_was_listed_ends_a_vacuum(
    shard: Shard,
    table: LakeTable,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: bytes | None,
    error: type[Exception],
    says: str,
) -> None:
    listed = table.root.names_in(f"{table.path}/_delta_log")
    monkeypatch.setattr(Root, "names_in", lambda root, folder, after="": listed)
    file = Path(table.root.location, table.path, "_delta_log", name)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(error, match=says):
        named_files(shard, table, [])


@pytest.mark.parametrize("of", ["an entry", "a checkpoint"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_vacuum_begins_again_once_when_its_log_is_cleaned_up_meanwhile(
    shard: Shard, table: LakeTable, monkeypatch: pytest.MonkeyPatch, of: str, times: int
) -> None:
    write_checkpoint(table)
    name = orphan(table)
    age(table)
    file = entry(table, ADDED) if of == "an entry" else checkpoint(table, ADDED)
    stale = [table.root.names_in(f"{table.path}/_delta_log")] * times
    names_in = Root.names_in

    def listed(root: Root, folder: str, after: str = "") -> tuple[Sequence[str], int]:
        if not (stale and folder == f"{table.path}/_delta_log"):
            return names_in(root, folder, after)
        file.unlink(missing_ok=True)
        return stale.pop()

    monkeypatch.setattr(Root, "names_in", listed)
    if times == 1:
        assert name in {one.path for one in vacuum(shard, table, REQUEST, HOST).deleted}
    else:
        with pytest.raises(StoreUnusable, match="was deleted meanwhile by a clean-up"):
            vacuum(shard, table, REQUEST, HOST)
    assert table.root.exists(f"{table.path}/{name}") == (times == 2)


@pytest.mark.parametrize("scheme", ["file://", ""])
def test_a_file_that_is_named_by_its_whole_address_ends_a_vacuum(
    shard: Shard, table: LakeTable, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    path = f"{scheme}{table.root.location}/x.parquet"
    monkeypatch.setattr(vacuuming, "files_of_segments", lambda consumequeue: {path})
    with pytest.raises(OtherFormat, match="by its whole address"):
        named_files(shard, table, [])


def test_a_file_that_only_a_segment_names_is_kept(
    shard: Shard, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = orphan(table)
    monkeypatch.setattr(vacuuming, "files_of_segments", lambda consumequeue: {name})
    assert name in named_files(shard, table, []).kept
