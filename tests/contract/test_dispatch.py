"""``rmq dispatch``: derived tables that differ from the commit log are found, named, and written again from it."""

from __future__ import annotations

from dataclasses import replace
from errno import ENOSPC
from typing import Any

import pytest

from rmq_store.commit.ctl import Action, Ctl, Moved
from rmq_store.lake.commit.cursor import COMMITS as COMMITS_AT_CURSOR
from rmq_store.lake.commit.cursor import cursor_of, cursor_positions
from rmq_store.lake.commit.derived_tables import COMMITS, KINDS, Derived
from rmq_store.lake.commit.dispatch import _QUIET_VERSIONS, behind, dispatch, staged
from rmq_store.lake.commit.rebuild import check, rebuild
from rmq_store.lake.commit.tail import Tail, undispatched
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import ABOUT_CLAIMS, Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.host import Host
from tests.contract.rmq import Rmq
from tests.faults.answers import Put, answer_puts, clean_log
from tests.lake_damages import QUEUE
from tests.lake_fixtures import Bench

NAMES = ("commits", "consumequeue", "offsets")


def shard_of(rmq: Rmq) -> Shard:
    (shard,) = LakeStore.open(Root.parse(str(rmq.root))).shards()
    return shard


def doubled(shard: Shard, kind: Derived) -> int:
    """Append the rows of all commits once more; returns how many there are."""
    shard.commitlog.refresh()
    ctls = [ctl for ctl in shard.ctls_since(0) if kind.claims or ctl.action not in ABOUT_CLAIMS]
    host, table = Host(), kind.table(shard)
    table.refresh()
    table.put(staged(shard, kind, Tail(ctls), host), cursor_positions(shard), host=host)
    return sum(len(kind.rows(ctl)) for ctl in ctls)


def versions(shard: Shard) -> list[int]:
    for kind in KINDS:
        kind.table(shard).refresh()
    return [kind.table(shard).version for kind in KINDS]


@pytest.fixture
def consumed(imported: Rmq) -> Rmq:
    """Imported, and a window whose retries wait; ``commits`` has all of it."""
    imported.json("consume", "--group", "orders", "--engine", "local")
    doubled(shard_of(imported), COMMITS)
    return imported


def test_tables_that_say_what_the_log_says_are_left_alone(consumed: Rmq) -> None:
    before = versions(shard_of(consumed))
    answer = consumed.json("dispatch", "--check")
    assert (answer["status"], answer["differences"]) == ("ok", [])
    assert [table["table"] for table in answer["tables"]] == list(NAMES)
    assert all(table["rows"] for table in answer["tables"])
    assert not any(table["rebuilt"] for table in consumed.json("dispatch", "--rebuild")["tables"])
    assert versions(shard_of(consumed)) == before


@pytest.mark.slow
def test_doubled_rows_are_found_and_repaired_and_the_audit_is_empty_again(consumed: Rmq) -> None:
    messages = consumed.json("sql", "SELECT count(*) AS n FROM messages")
    rows = [doubled(shard_of(consumed), kind) for kind in KINDS]
    assert consumed("audit").exit_code == 1
    assert consumed.json("sql", "SELECT count(*) AS n FROM messages") != messages

    answer = consumed("dispatch", "--check", "--json")
    assert (answer.exit_code, answer.json()["status"]) == (1, "differs")
    assert [table["differences"] for table in answer.json()["tables"]] == rows
    (one, *_) = (row for row in answer.json()["differences"] if row["table"] == "consumequeue")
    assert (one["shard"], one["in_table"], one["in_log"]) == ("broker-a", 2, 1)
    assert {"topic", "broker_name", "queue_id", "base_offset", "end_offset"} <= one["row"].keys()

    before = versions(shard_of(consumed))
    assert consumed.json("dispatch", "--rebuild", "--dry-run")["differences"] == answer.json()["differences"]
    assert versions(shard_of(consumed)) == before

    text = consumed("dispatch", "--rebuild")
    assert (text.exit_code, text.out.count("rebuilt")) == (0, 3)
    assert "commits" in text.err, "progress"
    assert versions(shard_of(consumed)) == [version + 1 for version in before]
    assert consumed.json("audit")["audit"] == []
    assert consumed.json("sql", "SELECT count(*) AS n FROM messages") == messages
    assert consumed.json("dispatch", "--check")["status"] == "ok"
    consumed.json("dispatch", "--rebuild")
    assert versions(shard_of(consumed)) == [version + 1 for version in before]


def test_what_can_be_read_of_a_queue_is_the_same_after_a_rebuild(consumed: Rmq) -> None:
    texts = [("print", "--topic", "OrderEvents"), ("progress", "--group", "orders")]
    before = [consumed.json(*text) for text in texts]
    for kind in KINDS:
        doubled(shard_of(consumed), kind)
    consumed.json("dispatch", "--rebuild")
    assert [consumed.json(*text) for text in texts] == before
    (window,) = consumed.json("consume", "--group", "orders", "--engine", "local")["windows"]
    assert window["status"] == "empty"


def test_a_check_takes_nothing_for_missing_that_is_only_not_dispatched_yet(hand: Bench) -> None:
    hand.window("shop", QUEUE, 0, 10, start_rule="first", retried=[3])
    assert [report.differences for report in check(hand.shard)] == [(), (), ()]


def test_what_is_committed_and_dispatched_beside_a_rebuild_is_kept(
    hand: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand.window("shop", QUEUE, 0, 4, start_rule="first", retried=[3])
    dispatch(hand.shard, hand.host)
    for kind in (COMMITS, *KINDS):
        doubled(hand.shard, kind)
    root, tables = hand.shard.root, []

    def answer(put: Put) -> None:
        if put.action == "rebuild" and put.table not in tables:
            tables.append(put.table)
            elsewhere = Bench(Shard(root, hand.shard.name))
            elsewhere.window("shop", QUEUE, 3 + len(tables), 4 + len(tables), retried=[3 + len(tables)])
            dispatch(elsewhere.shard, elsewhere.host)
            if put.table.endswith("/commits"):
                doubled(elsewhere.shard, COMMITS)
        put.send()

    answer_puts(monkeypatch, answer)
    assert all(report.rebuilt for report in rebuild(hand.shard, hand.host))
    assert len(tables) == 3
    reports = check(Shard(root, hand.shard.name))
    assert [(report.rows, report.differences) for report in reports] == [(5, ()), (5, ()), (4, ())]


def test_a_dispatch_says_what_it_would_take(hand: Bench, rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_ROOT", hand.shard.root.location)
    hand.window("shop", QUEUE, 0, 4, start_rule="first")
    would = rmq.json("dispatch", "--dry-run", "--shard", "broker-a")
    assert would == {"status": "dry_run", "shards": {"broker-a": 4}}
    assert rmq.json("dispatch", "--shard", "broker-a") == {"status": "done", "shards": {"broker-a": 4}}
    assert rmq.json("dispatch", "--dry-run") == {"status": "dry_run", "shards": {"broker-a": 0}}


@pytest.mark.parametrize("other", ["--rebuild", "--dry-run"])
def test_a_check_that_is_to_change_something_is_wrong_use(imported: Rmq, other: str) -> None:
    assert imported("dispatch", "--check", other).exit_code == 2


# --- hosts whose clocks are wrong by days ----------------------------------------------------------------------------

MOVED = Moved("shop", QUEUE, None, 1, 0)
DAY_MS = 24 * 3600 * 1000


def off_by(days: float) -> Host:
    return Host(now_ms=lambda: Host().now_ms() + int(days * DAY_MS))


def move(bench: Bench, begin: int) -> Ctl:
    return bench.move("shop", QUEUE, begin or None, begin + 1).ctl


def assert_all_is_dispatched(bench: Bench) -> None:
    """Whoever reads is told every commit, and after a dispatch the tables hold every commit once."""
    fresh = Shard(bench.shard.root, bench.shard.name)
    assert [report.differences for report in check(fresh)] == [(), (), ()]
    dispatch(fresh, bench.host)
    assert [report.differences for report in check(fresh)] == [(), (), ()]


def test_a_dispatch_by_a_clock_that_is_ahead_hides_no_later_commit(hand: Bench) -> None:
    move(hand, 0)
    dispatch(hand.shard, off_by(5))
    for begin in range(1, 4):
        move(hand, begin)
    clean_log(hand.shard.commitlog)
    assert len(undispatched(hand.shard, hand.shard.offsets).ctls) == 3
    assert_all_is_dispatched(hand)


def test_a_clock_that_steps_back_in_a_run_doubles_no_row(hand: Bench) -> None:
    """The id is made three days ahead of the store time, so the row lies in an older day than its id says."""
    ahead = replace(hand, host=off_by(3)).ctl(Action.RESET, group="shop", request_id="x", moved=(MOVED,))
    hand.commit(ahead, {"off/shop": 1})
    dispatch(hand.shard, off_by(4.3))
    move(hand, 1)
    clean_log(hand.shard.commitlog)
    assert_all_is_dispatched(hand)


def test_a_commit_that_decided_before_the_cursor_and_landed_after_it_is_taken(
    hand: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is right, and its ``read_version`` does not prove it new."""
    held: list[Put] = []

    def answer(put: Put) -> None:
        if put.action == "reset" and not held:
            held.append(put)
            move(Bench(Shard(hand.shard.root, hand.shard.name)), 4)
            dispatch(Shard(hand.shard.root, hand.shard.name), hand.host)
        put.send()

    answer_puts(monkeypatch, answer)
    late = hand.commit(hand.ctl(Action.RESET, group="late", request_id="x", moved=(MOVED,)), {"off/late": 1}).ctl
    clean_log(hand.shard.commitlog)
    hand.shard.offsets.refresh()
    assert late.read_version < cursor_of(hand.shard.offsets)
    assert late.commit_id in [ctl.commit_id for ctl in undispatched(hand.shard, hand.shard.offsets).ctls]
    assert_all_is_dispatched(hand)


def test_without_its_log_the_number_of_commits_says_what_is_missing_and_the_table_is_not_read(
    hand: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    move(hand, 0)
    for kind in KINDS:
        doubled(hand.shard, kind)
    later = move(hand, 1)
    clean_log(hand.shard.commitlog)
    shard = Shard(hand.shard.root, hand.shard.name)
    monkeypatch.setattr("rmq_store.lake.commit.tail._by_commit_id", None)
    assert [ctl.commit_id for ctl in undispatched(shard, shard.commits, claims=True).ctls] == [later.commit_id]


def test_a_table_without_the_number_of_commits_is_compared_by_their_ids(hand: Bench) -> None:
    move(hand, 0)
    for kind in KINDS:
        recorded = cursor_positions(hand.shard)
        del recorded[COMMITS_AT_CURSOR]
        kind.table(hand.shard).put(
            staged(hand.shard, kind, Tail(hand.shard.ctls_since(0)), hand.host), recorded, host=hand.host
        )
        kind.table(hand.shard).refresh()
    move(hand, 1)
    clean_log(hand.shard.commitlog)
    assert_all_is_dispatched(hand)
    assert cursor_of(hand.shard.offsets) < hand.shard.commitlog.version


# --- a store that takes no files, or has damaged ones ----------------------------------------------------------------

DISK_FULL = OSError(ENOSPC, "No space left on device")


@pytest.fixture
def undone(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> Rmq:
    """``offsets`` lacks the last commits."""
    monkeypatch.setattr("rmq_store.lake.window.window.follow_up", lambda shard, host: ())
    imported.json("consume", "--group", "orders", "--engine", "local")
    return imported


@pytest.mark.parametrize("how", [(), ("--rebuild",)])
@pytest.mark.parametrize("step", ["commit.dispatch.derived", "table.local_files._temporary"])
def test_a_full_disk_is_said_in_words(
    undone: Rmq, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...], step: str
) -> None:
    if how:
        doubled(shard_of(undone), COMMITS)
        doubled(shard_of(undone), COMMITS)

    def full(*arguments: object, **options: object) -> None:
        raise DISK_FULL

    def put_at_once(table: LakeTable, *arguments: Any, **options: Any) -> None:
        put(table, *arguments, **(options | {"patience_ms": 0}))

    put = LakeTable.put
    with monkeypatch.context() as on_a_full_disk:
        on_a_full_disk.setattr(f"rmq_store.lake.{step}", full)
        on_a_full_disk.setattr(LakeTable, "put", put_at_once)
        answer = undone("dispatch", *how, "--json")
    assert (answer.exit_code, answer.json()["error"]) == (1, "StoreUnusable")
    assert "No space left on device" in answer.json()["message"]
    undone.json("dispatch", *how)
    assert undone.json("dispatch", "--check")["status"] == "ok"


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more"])
def test_a_ctl_file_that_is_no_parquet_any_more_is_named(imported: Rmq, content: bytes) -> None:
    file = max((imported.root / "broker-a" / "commitlog" / "kind=ctl").rglob("*.parquet"))
    file.write_bytes(content)
    answer = imported("dispatch", "--check", "--json")
    assert (answer.exit_code, answer.json()["error"]) == (1, "BadData")
    assert file.name in answer.json()["message"]


def test_a_dry_run_counts_what_the_dispatch_takes(hand: Bench) -> None:
    """A commit without rows for a table, such as a claim, is not taken alone."""

    def counted() -> tuple[int, int]:
        return behind(Shard(hand.shard.root, hand.shard.name)), dispatch(hand.shard, hand.host)

    assert counted() == (1, 1), "the import, in consumequeue"
    assert counted() == (0, 0)
    hand.commit(hand.ctl(Action.CLAIM), {})
    assert counted() == (0, 0)
    hand.window("shop", QUEUE, 0, 5, start_rule="first")
    assert counted() == (2, 2), "the import and the window, in offsets"
    for _ in range(_QUIET_VERSIONS):
        hand.commit(hand.ctl(Action.CLAIM), {})
    dry, taken = counted()
    assert dry == taken
