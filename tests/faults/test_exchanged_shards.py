"""The folders of two shards under the names of each other: the audit and the doctor say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq_store import Message, open_store
from rmq_store.lake.admin.doctor import OtherMend, commit_logs_found
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import Problem
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore


def exchanged(root: Path, first: str, second: str) -> None:
    """The folders of two shards, each under the name of the other."""
    (root / first).rename(root / "other")
    (root / second).rename(root / first)
    (root / "other").rename(root / second)


@pytest.mark.parametrize("with_ids", [True, False], ids=["entries with ids", "entries of earlier versions"])
def test_two_shards_whose_folders_were_exchanged_are_named(tmp_path: Path, with_ids: bool) -> None:
    LakeStore.init(Root.parse(str(tmp_path)))
    store = open_store(tmp_path)
    for shard in ("east", "west"):
        store.send([Message(f"Of-{shard}", b"note")], create_queues=1, shard=shard, request_id=f"2026-11-20-{shard}")
    if not with_ids:
        for shard in ("east", "west"):
            (tmp_path / "shards" / f"{shard}.json").write_text(json.dumps({"name": shard}))
    assert audit(LakeStore.open(Root.parse(str(tmp_path)))) == []
    exchanged(tmp_path, "east", "west")
    findings = audit(LakeStore.open(Root.parse(str(tmp_path))))
    assert [(one.shard, one.problem) for one in findings] == [
        ("east", Problem.SHARD_ELSEWHERE),
        ("west", Problem.SHARD_ELSEWHERE),
    ]
    said = "names" if with_ids else "has queues that were born in shard west: give each folder the name"
    with pytest.raises(OtherMend, match=f"the folder east .*{said}"):
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
