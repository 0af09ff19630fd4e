"""``rmq maintain``: every table of every shard, all steps or some, and what ``rmq doctor`` says before it."""

from __future__ import annotations

import os
import time
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rmq_store.lake.maintain import compact, derived
from rmq_store.lake.table import checkpoint
from rmq_store.maintain import request
from rmq_store.maintain.files_to_join import Limits
from rmq_store.maintain.orphans import DEFAULT_AGE_MS
from tests.contract.rmq import Rmq

TABLES = ["commitlog", "commits", "consumequeue", "offsets"]
WINDOWS = 3


@pytest.fixture
def busy(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> Rmq:
    """Three windows of some messages, and an orphan of three days."""
    for _ in range(WINDOWS):
        imported.json("consume", "--group", "orders", "--engine", "local", "--max-messages", "50")
    monkeypatch.setattr(derived, "LIMITS", Limits(least_files=2, target_rows=10_000))
    monkeypatch.setattr(compact, "SETTLED_MS", 0)
    orphan = commit_log(imported) / "kind=msg" / "orphan.parquet"
    orphan.touch()
    then = time.time() - 1.5 * DEFAULT_AGE_MS / 1000
    os.utime(orphan, (then, then))
    return imported


def commit_log(rmq: Rmq) -> Path:
    return rmq.root / "broker-a" / "commitlog"


def by_table(answer: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["table"]: row for row in answer["tables"]}


def test_all_steps_do_all_tables_and_change_no_row(busy: Rmq) -> None:
    sql = "SELECT * FROM windows ORDER BY commit_id"
    before = busy.json("sql", sql)
    answer = busy.json("maintain", "--reason", "a test")
    tables = by_table(answer)
    assert (answer["status"], answer["warnings"], sorted(tables)) == ("done", [], TABLES)
    for name in ("consumequeue", "offsets"):
        row = tables[name]
        assert row["joined"] >= 2
        assert row["files_after"] < row["files_before"]
        assert row["bytes_after"] < row["bytes_before"]
    assert (tables["commitlog"]["files_deleted"], tables["commitlog"]["checkpoint"]) == (1, True)
    assert not (commit_log(busy) / "kind=msg" / "orphan.parquet").exists()
    assert (commit_log(busy) / "_delta_log" / "_last_checkpoint").exists()
    assert busy.json("sql", "SELECT reason FROM ctl WHERE action = 'vacuum'") == [{"reason": "a test"}]
    assert busy.json("sql", sql) == before
    assert busy.json("audit")["audit"] == []
    assert busy.json("dispatch", "--check")["status"] == "ok"
    again = by_table(busy.json("maintain"))
    # The commits of the first run have files too, which the second one may join.
    assert [again[name]["joined"] for name in ("consumequeue", "offsets")] == [0, 0]
    assert [row["files_deleted"] for row in again.values()] == [0] * 4


def test_a_dry_run_names_the_files_and_changes_nothing(busy: Rmq) -> None:
    before = sorted(path for path in busy.root.rglob("*"))
    answer = busy.json("maintain", "--dry-run")
    assert answer["status"] == "dry_run"
    assert [(file["table"], file["path"]) for file in answer["files"]] == [("commitlog", "kind=msg/orphan.parquet")]
    assert by_table(answer)["offsets"]["joined"] >= WINDOWS
    assert sorted(path for path in busy.root.rglob("*")) == before
    text = busy("maintain", "--dry-run").out
    assert "kind=msg/orphan.parquet" in text
    assert "status: dry_run" in text


def test_a_step_alone_does_only_that(busy: Rmq) -> None:
    tables = by_table(busy.json("maintain", "--step", "vacuum", "--older-than", "70h"))
    assert [(row["joined"], row["checkpoint"]) for row in tables.values()] == [(0, False)] * 4
    assert tables["commitlog"]["files_deleted"] == 1
    tables = by_table(busy.json("maintain", "--step", "checkpoint", "--step", "derived"))
    assert [tables[name]["checkpoint"] for name in ("commitlog", "consumequeue", "offsets")] == [True] * 3
    assert tables["offsets"]["joined"] >= WINDOWS


def test_an_age_at_which_a_run_may_commit_is_wrong_use(busy: Rmq) -> None:
    answer = busy("maintain", "--older-than", "1h")
    assert (answer.exit_code, "25h to 144h" in answer.err) == (2, True)
    assert busy("maintain", "--step", "everything").exit_code == 2


def test_a_checkpoint_that_cannot_be_written_is_an_error_in_words(busy: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(table: object) -> None:
        raise OSError("no checkpoint of broker-a/commitlog was written: the disk is full")

    monkeypatch.setattr("rmq_store.lake.maintain.maintain.write_checkpoint", refuse)
    answer = busy("maintain", "--json")
    assert (answer.exit_code, answer.json()["error"]) == (1, "StoreUnusable")
    assert "the disk is full" in answer.json()["message"]
    assert checkpoint.CHECKPOINT_EVERY


def test_doctor_names_the_tables_that_should_be_maintained(busy: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    def maintenance() -> dict[str, Any]:
        checks = busy("doctor", "--json").json()["checks"]
        (check,) = [check for check in checks if check["check"] == "maintenance"]
        return dict(check)

    assert maintenance()["status"] == "ok"
    monkeypatch.setattr(request, "MOST_FILES", 2)
    monkeypatch.setattr(request, "MOST_ENTRIES", 2)
    check = maintenance()
    assert check["status"] == "failed"
    assert "broker-a/offsets has 3 data files (more than 2)" in check["found"]
    assert "log entries since its checkpoint" in check["found"]
    assert "rmq maintain" in check["mend"]
    busy.json("maintain")
    assert "offsets" not in maintenance()["found"]


RETENTION = """
[[retention]]
topic = "OrderEvents"
max_age = "1d"
"""


def test_retention_removes_what_the_settings_say_and_the_groups_allow(busy: Rmq) -> None:
    settings = busy.folder / "consumers.toml"
    settings.write_text(settings.read_text() + RETENTION)
    offsets = {
        (row["broker_name"], row["queue_id"]): row["next_offset"]
        for row in busy.json(
            "sql", "SELECT * FROM consumer_offsets WHERE topic = 'OrderEvents' AND group_name = 'orders'"
        )
    }
    planned = busy.json("maintain", "--step", "retention", "--dry-run")
    assert busy.json("sql", "SELECT * FROM removed_ranges") == []
    answer = busy.json("maintain", "--reason", "a test")
    assert answer["removals"] == planned["removals"] != []
    for row in answer["removals"]:
        assert (row["limit"], row["held_by"], row["lost"]) == ("max_age", "orders", {})
        assert row["end_offset"] == offsets[row["broker_name"], row["queue_id"]] < row["held_to"]
    commitlog = by_table(answer)["commitlog"]
    assert commitlog["messages_removed"] == WINDOWS * 50 == sum(row["end_offset"] for row in answer["removals"])
    assert commitlog["messages_held"] == sum(row["held_to"] - row["end_offset"] for row in answer["removals"])
    removed = busy.json("sql", "SELECT queue_id, end_offset, reason FROM removed_ranges ORDER BY queue_id")
    assert [row["end_offset"] for row in removed] == [
        row["end_offset"] for row in answer["removals"] if row["end_offset"]
    ]
    assert {row["reason"] for row in removed} == {"a test"}
    assert busy.json("audit")["audit"] == []
    assert busy.json("dispatch", "--check")["status"] == "ok"
    assert "held_by" in busy("maintain", "--dry-run").out


def test_an_error_after_the_retention_says_what_was_committed(busy: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = busy.folder / "consumers.toml"
    settings.write_text(settings.read_text() + RETENTION)

    joined = compact._joined

    def full(*_: object, **__: object) -> None:
        raise OSError(ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:

        def joined_on_a_full_disk(*arguments: Any) -> Any:
            patch.setattr(pq, "ParquetWriter", full)
            return joined(*arguments)

        patch.setattr(compact, "_joined", joined_on_a_full_disk)
        ended = busy("maintain", "--json")
    answer = ended.json()
    assert (ended.exit_code, answer["error"], answer["tables"]) == (1, "StoreUnusable", [])
    assert answer["committed"] == {"broker-a": {"messages_removed": WINDOWS * 50, "messages_lost": 0}}
    assert "This commit was not made, and earlier ones stay" in answer["message"]
    removed = busy.json("sql", "SELECT request_id FROM removed_ranges")
    assert {row["request_id"] for row in removed} == {answer["request_id"]}


def test_wrong_settings_stop_maintenance_before_it_begins(busy: Rmq) -> None:
    settings = busy.folder / "consumers.toml"
    settings.write_text(settings.read_text() + RETENTION.replace("1d", "soon"))
    answer = busy("maintain")
    assert (answer.exit_code, "OrderEvents: max_age: invalid duration 'soon'" in answer.err) == (2, True)
    settings.unlink()
    assert busy.json("maintain", "--dry-run")["removals"] == []


def test_settings_of_retention_alone_are_enough_for_a_store_without_groups(imported: Rmq) -> None:
    settings = imported.folder / "retention.toml"
    settings.write_text('[[retention]]\ntopic = "*"\nmax_age = "1d"\nmax_unconsumed_age = "1d"\n')
    answer = imported.json("maintain", "--settings", str(settings), "--step", "retention", "--dry-run")
    assert answer["removals"]
    checks = imported("doctor", "--settings", str(settings), "--json").json()["checks"]
    assert f"{settings}: 0 groups" in str(checks)
    refused = imported("consume", "--all", "--settings", str(settings))
    assert (refused.exit_code, "there is no group: add a [[group]]" in refused.err) == (2, True)
