"""Other tools must not write to a commit log, and those that respect its protocol do not. What the others break (OPTIMIZE,
DELETE, VACUUM, a file removed) is named, never guessed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from tests.contract.rmq import Rmq
from tests.foreign_tools import log_of, protocol_ignored

FILES = "SELECT DISTINCT file FROM segments WHERE topic = 'OrderEvents'"
TABLES = ("commitlog", "consumequeue", "offsets", "commits")


def _path(rmq: Rmq, table: str = "commitlog") -> Path:
    return rmq.root / "broker-a" / table


def _commit_log(rmq: Rmq) -> DeltaTable:
    return DeltaTable(str(_path(rmq)))


OPTIMIZE_AND_DELETE: dict[str, Callable[[DeltaTable], object]] = {
    "OPTIMIZE": lambda table: table.optimize.compact(),
    "DELETE": lambda table: table.delete("topic = 'OrderEvents'"),
}


def _changed(rmq: Rmq, tool: str, *, vacuumed: bool = False) -> None:
    """``vacuumed``: as a user does it who has no more use for old files, with the safety of the retention switched off."""
    with protocol_ignored(_path(rmq)) as table:
        OPTIMIZE_AND_DELETE[tool](table)
        if vacuumed:
            assert table.vacuum(0, dry_run=False, enforce_retention_duration=False)


WRITES: dict[str, Callable[[DeltaTable], object]] = OPTIMIZE_AND_DELETE | {
    "UPDATE": lambda table: table.update(updates={"store_day": "'2020-01-01'"}),
    "RESTORE": lambda table: table.restore(0),
    "append": lambda table: write_deltalake(table, table.to_pyarrow_table(), mode="append"),
    "overwrite": lambda table: write_deltalake(table, table.to_pyarrow_table(), mode="overwrite"),
    "ALTER TABLE": lambda table: table.alter.set_table_properties({"delta.appendOnly": "false"}),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_tool_that_respects_the_protocol_writes_to_no_table(imported: Rmq, write: str) -> None:
    imported.json("consume", "--group", "orders", "--engine", "local")
    for name in TABLES:
        log = log_of(_path(imported, name))
        before = sorted(entry.name for entry in log.iterdir())
        if write == "ALTER TABLE" or name != "commits":  # which is empty: there is nothing to optimize or delete
            with pytest.raises(CommitFailedError, match=r"Unsupported table features.*rmqStore"):
                WRITES[write](DeltaTable(str(log.parent)))
        assert sorted(entry.name for entry in log.iterdir()) == before
    assert imported.json("audit")["audit"] == []
    assert imported.json("dispatch", "--check")["status"] == "ok"


def test_a_vacuum_of_everything_deletes_neither_live_files_nor_those_of_a_running_window(imported: Rmq) -> None:
    imported.json("consume", "--group", "orders", "--engine", "local")
    for name in TABLES:
        table = DeltaTable(str(_path(imported, name)))
        assert table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True) == []
        staged = _path(imported, name) / "staged.parquet"
        staged.touch()
        with pytest.raises(CommitFailedError, match=r"Unsupported table features.*rmqStore"):
            table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        assert staged.exists()
    assert imported.json("audit")["audit"] == []
    assert imported.json("dispatch", "--check")["status"] == "ok"


@pytest.fixture
def files_of_orders(imported: Rmq) -> list[Path]:
    rows = imported.json("sql", FILES)
    return [imported.root / "broker-a" / "commitlog" / row["file"] for row in rows]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_audit_names_the_segments_whose_files_an_optimize_took_out(imported: Rmq, checkpoint: bool) -> None:
    segments = imported.json("sql", "SELECT count(*) AS n FROM segments")[0]["n"]
    _changed(imported, "OPTIMIZE")
    if checkpoint:
        _commit_log(imported).create_checkpoint()
    answer = imported("audit", "--json")
    assert answer.exit_code == 1
    problems = Counter(row["problem"] for row in answer.json()["audit"])
    assert problems.pop("segment file not live") == segments
    assert problems.keys() == {"file in no segment"}, "the files that it wrote"


def test_the_audit_names_the_segments_whose_files_a_delete_took_out(imported: Rmq, files_of_orders: list[Path]) -> None:
    names = ", ".join(f"'{file.relative_to(_path(imported))}'" for file in files_of_orders)
    (row,) = imported.json("sql", f"SELECT count(*) AS n FROM segments WHERE file IN ({names})")
    _changed(imported, "DELETE")
    answer = imported("audit", "--json")
    assert answer.exit_code == 1
    problems = Counter(row["problem"] for row in answer.json()["audit"])
    assert problems["segment file not live"] == row["n"]


@pytest.mark.parametrize("tool", OPTIMIZE_AND_DELETE)
def test_a_vacuum_with_its_own_settings_keeps_what_another_tool_took_out(imported: Rmq, tool: str) -> None:
    with protocol_ignored(_path(imported)) as table:
        OPTIMIZE_AND_DELETE[tool](table)
        assert table.vacuum(dry_run=False) == []
        with pytest.raises(Exception, match="retention"):
            table.vacuum(retention_hours=24 * 6, dry_run=False)
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
@pytest.mark.parametrize("tool", OPTIMIZE_AND_DELETE)
def test_a_window_after_a_vacuum_names_file_segment_and_cause(
    imported: Rmq, files_of_orders: list[Path], command: tuple[str, ...], tool: str
) -> None:
    _changed(imported, tool, vacuumed=True)
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
    (log_of(_path(imported)) / "_last_checkpoint").write_text(hint)
    (window,) = imported.json("consume", "--group", "orders", "--engine", "local")["windows"]
    assert window["status"] == "committed"


def test_a_hint_at_a_checkpoint_that_is_not_there_is_replaced_by_a_listing(imported: Rmq) -> None:
    _commit_log(imported).create_checkpoint()
    (log_of(_path(imported)) / "_last_checkpoint").write_text('{"version": 77, "size": 3}')
    assert imported.json("progress", "--group", "orders")
    (window,) = imported.json("consume", "--group", "orders", "--engine", "local")["windows"]
    assert window["status"] == "committed"
    problems = [(row["problem"], row["file"]) for row in imported("audit", "--json").json()["audit"]]
    assert problems == [("checkpoint not readable", "commitlog")]
    imported.json("maintain", "--step", "checkpoint")
    assert imported.json("audit")["audit"] == []
    assert _commit_log(imported).version() > 0, "the Delta library opens it"
