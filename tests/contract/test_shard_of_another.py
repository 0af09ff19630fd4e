"""A folder with the tables of another shard, or of another store: it is refused, and the doctor says what to do."""

from __future__ import annotations

import shutil

import pytest

from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from tests.contract.rmq import Rmq
from tests.faults.test_exchanged_shards import exchanged


@pytest.fixture
def west(rmq: Rmq) -> Rmq:
    """A store with a message in the shard west, and one in east."""
    rmq.json("init")
    rmq.json("send", "--topic", "OrderEvents", "--create", "--shard", "west", "--request", "2026-11-20-n", "body")
    rmq.json("send", "--topic", "Others", "--create", "--shard", "east", "body")
    return rmq


def copied(west: Rmq) -> None:
    """As by hand, to have a second broker."""
    shutil.copytree(west.root / "west", west.root / "south")
    shutil.copy(west.root / "shards" / "west.json", west.root / "shards" / "south.json")


def of_another_store(west: Rmq) -> None:
    other = west.folder / "other"
    store, _ = LakeStore.init(Root.parse(str(other)))
    store.create_shard("south")
    (other / "south").rename(west.root / "south")
    (other / "shards" / "south.json").rename(west.root / "shards" / "south.json")


def exchanged_with_east(west: Rmq) -> None:
    exchanged(west.root, "east", "west")


WRONG = {
    "a copy": (copied, "shards/south.json is the entry of shard west. If the folder south is a copy"),
    "of another store": (of_another_store, "shard south is one of the store "),
    "exchanged": (exchanged_with_east, "it is the folder of another shard"),
}


@pytest.mark.parametrize("name", WRONG)
def test_no_command_uses_a_folder_with_the_tables_of_another_shard(west: Rmq, name: str) -> None:
    """A group would get the messages of a copy again, and a request that is repeated would be done again."""
    plant, words = WRONG[name]
    plant(west)
    for command in (
        ("consume", "--group", "orders"),
        ("send", "--topic", "OrderEvents", "--shard", "west", "--request", "2026-11-20-n", "body"),
        ("topics",),
        ("sql", "SELECT count(*) FROM messages"),
        ("maintain",),
        ("backup", str(west.folder / "backup")),
    ):
        refused = west(*command)
        assert (refused.exit_code, words in refused.err) == (1, True), (command, refused)
    checks = {check["check"]: check for check in west("doctor", "--json").json()["checks"]}
    assert words in checks["commit log"]["found"]
    assert "put the folders right" in checks["commit log"]["mend"]
    assert west("audit").exit_code == 1, "it is read, and named"


def test_an_entry_without_a_text_proves_nothing_and_is_a_finding(west: Rmq) -> None:
    (west.root / "shards" / "west.json").write_text('{"name": null, "store_id": 5, "commitlog": null}')
    assert west.json("topics")
    assert west("audit").exit_code == 1
