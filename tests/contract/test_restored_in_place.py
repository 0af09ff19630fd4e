"""A process that keeps a store open answers as a new one after the store was restored in place, whatever came since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rmq_store.api import Store
from rmq_store.console.listing import Question
from rmq_store.console.reader import StoreReader
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.table.checkpoint import write_checkpoint
from rmq_store.lake.table.delta_entry import END_BYTES, entry_name
from rmq_store.lake.table.delta_log import LOG_FOLDER
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.producer.producer import Message
from rmq_store.utils.host import Host
from tests.lake_fixtures import ALICE

OF_POSITIONS = Question("SELECT broker_name, queue_id, max_offset FROM queues ORDER BY ALL", {})
OF_FILES = Question("SELECT broker_name, queue_id, queue_offset, body FROM messages ORDER BY ALL", {})
OF_COMMITS = Question("SELECT request_id, action FROM ctl ORDER BY ALL", {})
TABLES = ("commitlog", "consumequeue", "offsets", "commits")

Rows = list[list[dict[str, Any]]]


def send(root: Root, text: str, count: int = 1, *, size: int = 1) -> None:
    """So many commits, each of ``size`` messages."""
    store = Store(LakeStore.open(root), ALICE)
    for number in range(count):
        store.send([Message("Orders", f"{text} {number}".encode())] * size, create_queues=2)


def copied(root: Root) -> Mapping[str, bytes]:
    return {name: root.read(name) for name, _ in root.list()}


def restore(root: Root, copy: Mapping[str, bytes]) -> None:
    root.delete_all([name for name, _ in root.list()])
    for name, content in copy.items():
        root.replace(name, content)


def reader_of(root: Root) -> StoreReader:
    return StoreReader(lambda: LakeStore.open(root), readers=1)


def checked(root: Root, reader: StoreReader, *questions: Question) -> Rows:
    """The reader's answers, which are those of a new one."""
    rows = reader.rows(*questions)
    assert rows == reader_of(root).rows(*questions)
    return rows


def checkpointed(root: Root, *, clean: bool) -> None:
    """A checkpoint of the newest version of each table. ``clean``: delete all entries up to it, as another tool does."""
    (shard,) = LakeStore.open(root).shards()
    for name in TABLES:
        table = getattr(shard, name)
        write_checkpoint(table)
        if clean:
            names = [f"{table.path}/{LOG_FOLDER}/{entry_name(version)}" for version in range(table.version + 1)]
            root.delete_all(names)


def dispatched(root: Root) -> None:
    (shard,) = LakeStore.open(root).shards()
    dispatch(shard, Host())


@pytest.mark.parametrize("questions", [[OF_POSITIONS], [OF_POSITIONS, OF_FILES]], ids=["positions", "files"])
def test_a_kept_store_that_was_restored_answers_as_a_new_one(root: Root, questions: list[Question]) -> None:
    """The history since the copy has fewer, as many and more commits than the one that was lost."""
    LakeStore.init(root)
    send(root, "both", 3)
    older = copied(root)
    send(root, "lost", 2, size=2)
    newer = copied(root)
    for since in (1, 2, 3) if root.is_local else (2,):
        restore(root, newer)
        reader = reader_of(root)
        lost = checked(root, reader, *questions)
        restore(root, older)
        send(root, "again", since)
        assert checked(root, reader, *questions) != lost
        send(root, "more")
        checked(root, reader, *questions)


@pytest.mark.parametrize("clean", [False, True])
def test_a_store_that_was_opened_at_its_checkpoint_is_compared_too(root: Root, clean: bool) -> None:
    LakeStore.init(root)
    send(root, "both", 2)
    older = copied(root)
    send(root, "lost", 2, size=2)
    checkpointed(root, clean=clean)
    reader = reader_of(root)
    lost = checked(root, reader, OF_POSITIONS, OF_FILES)
    restore(root, older)
    send(root, "again", 2)
    checkpointed(root, clean=clean)
    assert checked(root, reader, OF_POSITIONS, OF_FILES) != lost


def test_tables_stay_open_while_their_logs_grow_and_are_cleaned_up(root: Root) -> None:
    LakeStore.init(root)
    send(root, "first")
    reader = reader_of(root)
    kept = shard_of(reader)
    checked(root, reader, OF_POSITIONS, OF_FILES)
    send(root, "second", 2)
    checked(root, reader, OF_POSITIONS, OF_FILES)
    assert shard_of(reader) is kept
    checkpointed(root, clean=True)
    checked(root, reader, OF_POSITIONS, OF_FILES)
    opened_again = shard_of(reader)
    checked(root, reader, OF_POSITIONS, OF_FILES)
    assert shard_of(reader) is opened_again, "the log ends at its checkpoint, whose entry is gone"


def shard_of(reader: StoreReader) -> object:
    with reader.store() as store:
        (shard,) = store.shards()
        return shard


def test_derived_tables_that_alone_were_restored_are_noticed(root: Root) -> None:
    """The newest entry of the commit log is the same then."""
    LakeStore.init(root)
    send(root, "one", 2)
    before = copied(root)
    send(root, "two")
    dispatched(root)
    reader = reader_of(root)
    checked(root, reader, OF_POSITIONS, OF_COMMITS)
    kept = shard_of(reader)
    log = {name: content for name, content in copied(root).items() if "/commitlog/" in name}
    restore(root, {**before, **log})
    dispatched(root)
    checked(root, reader, OF_POSITIONS, OF_COMMITS)
    assert shard_of(reader) is not kept


@pytest.mark.parametrize("blank", [0, END_BYTES])
def test_the_end_and_the_size_of_the_newest_entry_are_compared(root: Root, blank: int) -> None:
    LakeStore.init(root)
    send(root, "one")
    (shard,) = LakeStore.open(root).shards()
    name = f"local/commitlog/{LOG_FOLDER}/{entry_name(shard.commitlog.version)}"
    entry = root.read(name) + b" " * blank
    root.replace(name, entry)
    shard.commitlog.log.open()
    for other in (entry[:-1] + b"\t", entry[:-1], entry + b" ", b""):
        root.replace(name, other)
        assert not shard.commitlog.log.is_as_read()
        root.replace(name, entry)
        assert shard.commitlog.log.is_as_read()
    root.delete(name)
    assert not shard.commitlog.log.is_as_read()
