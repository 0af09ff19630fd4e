"""A process that dies while it writes an object to a folder leaves a temporary file beside it, which is no object."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store.lake.maintain.backup import backup
from rmq_store.lake.table import local_files
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard_entry import SHARDS
from rmq_store.lake.table.store import STORE, LakeStore
from tests.faults.stores import SHARD, Lake


def cut(path: Path) -> Path:
    """What a write of ``path`` leaves when the process dies before the object has its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process removes nothing
        with local_files._written(path, b"{}") as temporary:
            return temporary


@pytest.fixture(params=[f"{SHARDS}/{SHARD}.json", f"{SHARDS}/another.json", STORE])
def object_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_store_with_a_cut_write_is_the_same_store(lake: Lake, object_name: str) -> None:
    cut(lake.folder / object_name)
    assert lake.store.shard_names() == [SHARD]
    assert lake.consume().status == "committed"
    assert lake.audit() == []
    assert not LakeStore.init(Root.parse(str(lake.folder)))[1], "it is there"


def test_a_folder_with_a_cut_write_is_no_store_yet(tmp_path: Path, object_name: str) -> None:
    cut(tmp_path / object_name)
    _, is_new = LakeStore.init(Root.parse(str(tmp_path)))
    assert is_new


def test_a_backup_has_no_cut_write(lake: Lake, tmp_path: Path, object_name: str) -> None:
    temporary = cut(lake.folder / object_name)
    backup(lake.store, Root.parse(str(tmp_path / "backup")))
    assert list((tmp_path / "backup").rglob(temporary.name)) == []
    assert Lake(tmp_path / "backup").audit() == []


def test_a_first_backup_that_was_cut_is_completed_by_the_next(lake: Lake, tmp_path: Path, object_name: str) -> None:
    target = tmp_path / "backup"
    cut(target / object_name)
    backup(lake.store, Root.parse(str(target)))
    assert Lake(target).store.shard_names() == [SHARD]
    assert Lake(target).audit() == []
