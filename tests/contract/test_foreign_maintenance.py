"""What other tools do to a commit log that breaks it (OPTIMIZE, VACUUM, a file removed) is named, never guessed."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.contract.rmq import Rmq

FILES = "SELECT DISTINCT file FROM segments WHERE topic = 'OrderEvents'"


def _commit_log(rmq: Rmq) -> DeltaTable:
    return DeltaTable(str(rmq.root / "broker-a" / "commitlog"))


def _optimized_and_vacuumed(rmq: Rmq) -> None:
    """As a user does it who has no more use for old files, with the safety of the retention switched off."""
    table = _commit_log(rmq)
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)


@pytest.fixture
def files_of_orders(imported: Rmq) -> list[Path]:
    rows = imported.json("sql", FILES)
    return [imported.root / "broker-a" / "commitlog" / row["file"] for row in rows]


def test_the_audit_names_the_segments_whose_files_an_optimize_took_out(imported: Rmq) -> None:
    segments = imported.json("sql", "SELECT count(*) AS n FROM segments")[0]["n"]
    _commit_log(imported).optimize.compact()
    answer = imported("audit", "--json")
    assert answer.exit_code == 1
    assert [row["problem"] for row in answer.json()["audit"]] == ["segment file not live"] * segments


def test_a_vacuum_with_its_own_settings_keeps_what_an_optimize_took_out(imported: Rmq) -> None:
    _commit_log(imported).optimize.compact()
    assert _commit_log(imported).vacuum(dry_run=False) == []
    with pytest.raises(Exception, match="retention"):
        _commit_log(imported).vacuum(retention_hours=24 * 365, dry_run=False)
    assert imported.json("consume", "--group", "orders", "--engine", "local")["windows"]


REPLAY = ("replay", "--group", "orders", "--topic", "OrderEvents", "--from", "2020-01-01T00:00:00Z")


@pytest.mark.parametrize(
    "command",
    [
        ("consume", "--group", "orders", "--engine", "local"),
        (*REPLAY, "--engine", "local"),
        ("print", "--topic", "OrderEvents"),
    ],
    ids=lambda command: command[0],
)
def test_a_window_after_optimize_and_vacuum_names_file_segment_and_cause(
    imported: Rmq, files_of_orders: list[Path], command: tuple[str, ...]
) -> None:
    _optimized_and_vacuumed(imported)
    answer = imported(*command, "--json")
    error = answer.json()
    assert (answer.exit_code, error["error"]) == (1, "MissingFile")
    assert any(file.name in error["message"] for file in files_of_orders)
    assert "OrderEvents" in error["message"]
    assert "OPTIMIZE" in error["message"]
    assert imported.json("sql", "SELECT * FROM windows") == []


def test_a_file_that_somebody_removed_is_told_apart_from_one_that_a_tool_took_out(
    imported: Rmq, files_of_orders: list[Path]
) -> None:
    for file in files_of_orders:
        file.unlink()
    error = imported("consume", "--group", "orders", "--engine", "local", "--json").json()
    assert error["error"] == "MissingFile"
    assert "removed from storage" in error["message"]
    assert "OPTIMIZE" not in error["message"]


def test_a_file_that_is_no_parquet_any_more_is_named(imported: Rmq, files_of_orders: list[Path]) -> None:
    for file in files_of_orders:
        file.write_bytes(file.read_bytes()[:1000])
    error = imported("consume", "--group", "orders", "--engine", "local", "--json").json()
    assert error["error"] == "BadData"
    assert any(file.name in error["message"] for file in files_of_orders)


@pytest.mark.parametrize("hint", ["garbage{", "[]", '{"version": null}'])
def test_a_damaged_hint_at_the_last_checkpoint_is_replaced_by_a_listing(imported: Rmq, hint: str) -> None:
    _commit_log(imported).create_checkpoint()
    (imported.root / "broker-a" / "commitlog" / "_delta_log" / "_last_checkpoint").write_text(hint)
    (window,) = imported.json("consume", "--group", "orders", "--engine", "local")["windows"]
    assert window["status"] == "committed"


def test_a_hint_at_a_checkpoint_that_is_not_there_is_named_with_what_to_do(imported: Rmq) -> None:
    _commit_log(imported).create_checkpoint()
    hint = imported.root / "broker-a" / "commitlog" / "_delta_log" / "_last_checkpoint"
    hint.write_text('{"version": 77, "size": 3}')
    answer = imported("progress", "--group", "orders", "--json")
    assert (answer.exit_code, answer.json()["error"]) == (1, "StoreUnusable")
    assert "_last_checkpoint names the checkpoint of version 77" in answer.json()["message"]
    hint.unlink()
    (window,) = imported.json("consume", "--group", "orders", "--engine", "local")["windows"]
    assert window["status"] == "committed"
