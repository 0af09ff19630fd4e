"""The folders of two shards under the names of each other: the audit and the doctor say so, and no request is done twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq_store import Message, open_store
from rmq_store.lake.admin.doctor import OtherMend, commit_logs_found
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import Problem
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore


def exchanged(root: Path, first: str, second: str) -> None:
    """The folders of two shards, each under the name of the other."""
    (root / first).rename(root / "other")
    (root / second).rename(root / first)
    (root / "other").rename(root / second)


def without_ids(root: Path, *shards: str) -> None:
    """The entries are as an earlier version has written them."""
    for shard in shards:
        (root / "shards" / f"{shard}.json").write_text(json.dumps({"name": shard}))


@pytest.mark.parametrize("with_ids", [True, False], ids=["entries with ids", "entries of earlier versions"])
def test_two_shards_whose_folders_were_exchanged_are_named(tmp_path: Path, with_ids: bool) -> None:
    LakeStore.init(Root.parse(str(tmp_path)))
    store = open_store(tmp_path)
    for shard in ("east", "west"):
        store.send([Message(f"Of-{shard}", b"note")], create_queues=1, shard=shard, request_id=f"2026-11-20-{shard}")
    if not with_ids:
        without_ids(tmp_path, "east", "west")
    assert audit(LakeStore.open(Root.parse(str(tmp_path)))) == []
    exchanged(tmp_path, "east", "west")
    findings = audit(LakeStore.open(Root.parse(str(tmp_path))))
    assert [(one.shard, one.problem) for one in findings] == [
        ("east", Problem.SHARD_ELSEWHERE),
        ("west", Problem.SHARD_ELSEWHERE),
    ]
    by_id = "has the commit log .*: it is the folder of another shard.* Give each folder the name"
    said = by_id if with_ids else "has queues that were born in shard west: give each folder the name"
    with pytest.raises(OtherMend, match=f"folder east {said}"):
        commit_logs_found(Root.parse(str(tmp_path)))


def test_a_shard_without_queues_of_its_own_is_known_by_the_id_in_its_entry(tmp_path: Path) -> None:
    store, _ = LakeStore.init(Root.parse(str(tmp_path)))
    for shard in ("east", "west"):
        store.create_shard(shard)
    assert audit(store) == []
    exchanged(tmp_path, "east", "west")
    findings = audit(LakeStore.open(Root.parse(str(tmp_path))))
    assert [(one.shard, one.problem) for one in findings] == [
        ("east", Problem.SHARD_ELSEWHERE),
        ("west", Problem.SHARD_ELSEWHERE),
    ]
    assert "its commit log is that of shards/west.json" in str(findings[0].detail)


def test_a_send_that_is_repeated_after_folders_were_exchanged_is_not_done_twice(tmp_path: Path) -> None:
    """Where the entries have no ids, nothing is refused."""
    LakeStore.init(Root.parse(str(tmp_path)))
    store = open_store(tmp_path)
    notes = [Message("Notes", b"note %d" % number) for number in range(5)]
    first = store.send(notes, create_queues=1, shard="east", request_id="2026-11-20-n")
    store.send([Message("Others", b"note")], create_queues=1, shard="west", request_id="2026-11-20-o")
    without_ids(tmp_path, "east", "west")
    exchanged(tmp_path, "east", "west")
    again = open_store(tmp_path).send(notes, create_queues=1, shard="east", request_id="2026-11-20-n")
    assert [one.commit_id for one in again] == [one.commit_id for one in first]
    text = "SELECT count(*) AS n FROM messages WHERE topic = 'Notes'"
    assert query(LakeStore.open(Root.parse(str(tmp_path))), text).to_pylist() == [{"n": 5}]
