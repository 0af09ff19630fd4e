"""What is not dispatched yet, and commits that share a file, are told as what is dispatched and has its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rmq_store.commit.ctl import Action, Ctl
from rmq_store.lake.commit.derived_tables import COMMITS, COMMITS_EVERY
from rmq_store.lake.commit.tail import undispatched
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.delta_log import LogCleaned
from rmq_store.lake.table.delta_table import LakeTable
from tests.contract.sql import kind, of
from tests.lake_damages import QUEUE
from tests.lake_fixtures import Bench, SmallStore


def test_what_is_not_dispatched_yet_is_shown_already(hand: Bench, tmp_path: Path) -> None:
    hand.window("shop", QUEUE, 0, 10, start_rule="first", retried=[3])
    texts = [
        "SELECT * EXCLUDE (body) FROM messages ORDER BY ALL",
        "SELECT * FROM offset_history ORDER BY ALL",
        "SELECT * FROM consumer_offsets ORDER BY ALL",
    ]
    before = [query(of(hand), text) for text in texts]
    assert [table.num_rows for table in before] == [11, 1, 1]
    assert hand.shard.consumequeue.files().num_rows == 0
    SmallStore(of(hand)).dispatch()
    hand.shard.consumequeue.refresh()
    assert hand.shard.consumequeue.files().num_rows > 0
    assert [query(of(hand), text) for text in texts] == before


EVERY_COMMIT = [
    "SELECT * FROM ctl_rows ORDER BY ALL",
    "SELECT * FROM windows ORDER BY ALL",
    "SELECT * FROM segments ORDER BY ALL",
    "SELECT * FROM offset_history ORDER BY ALL",
    "SELECT * FROM consumer_offsets ORDER BY ALL",
    "SELECT * FROM outcomes ORDER BY ALL",
    "SELECT * FROM audit",
]


@pytest.fixture
def busy(hand: Bench) -> Bench:
    """Some windows, a move and a claim: each a commit with a file of its own."""
    hand.window("shop", QUEUE, 0, 4, start_rule="first", retried=[1], dead=[3])
    hand.move("shop", QUEUE, 4, 0)
    hand.window("shop", QUEUE, 0, 10, lost=[(4, 6)])
    hand.commit(hand.ctl(Action.CLAIM, group="shop"), {"own/shop": 1 << 34})
    return hand


def brought_up(hand: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The derived tables with every commit, ``commits`` too, which usually waits until it is worth a file."""
    monkeypatch.setattr("rmq_store.lake.commit.dispatch.COMMITS", replace(COMMITS, every=1))
    SmallStore(of(hand)).dispatch()
    hand.shard.commits.refresh()


def ctl_files(hand: Bench) -> list[str]:
    hand.shard.commitlog.refresh()
    paths: list[str] = hand.shard.commitlog.files(kind("ctl")).column("path").to_pylist()
    return paths


def keep_only(hand: Bench, *commits: Ctl) -> None:
    """Remove the ctl files of all other commits."""
    for path in ctl_files(hand):
        if not any(ctl.commit_id in path for ctl in commits):
            hand.shard.root.delete(f"{hand.shard.commitlog.path}/{path}")


def test_commits_that_share_a_file_say_what_their_own_files_said(busy: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [query(of(busy), text) for text in EVERY_COMMIT]
    assert before[0].num_rows == 5
    brought_up(busy, monkeypatch)
    assert busy.shard.commits.files().column("num_records").to_pylist() == [5]
    assert [query(of(busy), text) for text in EVERY_COMMIT] == before


def test_no_file_is_opened_for_a_commit_that_shares_one(busy: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    brought_up(busy, monkeypatch)
    later = busy.window("late", QUEUE, 0, 10, start_rule="first")
    before = [query(of(busy), text) for text in EVERY_COMMIT]
    keep_only(busy, later.ctl, *busy.shard.ctls_since(0, action="import"))
    assert [query(of(busy), text) for text in EVERY_COMMIT] == before


def test_where_groups_stand_is_told_without_opening_a_file_of_a_window(busy: Bench) -> None:
    texts = [f"SELECT * FROM {name} ORDER BY ALL" for name in ("topics", "queues", "stored_offsets", "lag", "groups")]
    before = [query(of(busy), text) for text in texts]
    keep_only(busy, *busy.shard.ctls_since(0, action="import"))
    assert [query(of(busy), text) for text in texts] == before


def test_commits_waits_until_it_is_worth_a_file(hand: Bench) -> None:
    hand.window("shop", QUEUE, 0, 1, start_rule="first")
    made = SmallStore(of(hand))
    made.dispatch()
    hand.shard.commits.refresh()
    assert (hand.shard.commits.version, hand.shard.commitlog.version < COMMITS_EVERY) == (0, True)


def test_without_its_log_a_derived_table_takes_what_is_missing_and_opens_nothing_else(
    busy: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    brought_up(busy, monkeypatch)
    later = busy.window("late", QUEUE, 0, 10, start_rule="first")
    keep_only(busy, later.ctl)

    def cleaned(commitlog: LakeTable, version: int, claims: bool) -> list[str]:
        raise LogCleaned(str(version))

    monkeypatch.setattr("rmq_store.lake.commit.tail._ctl_files_after", cleaned)
    fresh = of(busy).shards()[0]
    assert [ctl.commit_id for ctl in undispatched(fresh, fresh.commits, claims=True).ctls] == [later.ctl.commit_id]
