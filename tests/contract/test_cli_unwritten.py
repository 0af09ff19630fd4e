"""``rmq`` where standard output cannot be written, or the current folder was deleted: what the errors say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.rmq import TODAY, Rmq

CHECKOUT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from rmq_store.cli import main; raise SystemExit(main())"]
FULL = "the answer cannot be written to standard output: No space left on device"


def to_a_full_disk(*arguments: str) -> tuple[int, str]:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*COMMAND, *arguments],
            env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    return ended.returncode, ended.stderr


def test_an_answer_on_a_full_disk_is_an_error_that_says_the_command_ended(imported: Rmq) -> None:
    request = f"{TODAY}-full"
    reset = ["reset", "-g", "orders", "-t", "OrderEvents", "--to-min", "--reason", "r", "--request", request]
    ended = f"error: {FULL}. The command itself ended with status committed (request {request})\n"
    assert to_a_full_disk(*reset, "--json") == (1, ended)
    assert imported.json(*reset)["status"] == "already_committed"


def test_a_line_on_a_full_disk_ends_a_command_that_another_one_finishes(imported: Rmq) -> None:
    consume = ["consume", "-g", "orders", "--engine", "local", "--request", f"{TODAY}-full"]
    code, text = to_a_full_disk(*consume)
    assert code == 1
    assert text == (
        f"error: {FULL}. What the command committed stays: run the same request again to finish, or to see that it is done "
        f"(request {TODAY}-full)\n"
    )
    assert imported.json(*consume)["status"] == "already_committed"


@pytest.mark.parametrize(
    "arguments",
    [
        ["sql", "select 1"],
        ["sql", "select 1", "--format", "csv"],
        ["sql", "select 1", "--json"],
        ["topics"],
        ["--help"],
        ["--version"],
    ],
    ids=" ".join,
)
def test_an_answer_of_a_query_on_a_full_disk_is_an_error_in_words(imported: Rmq, arguments: list[str]) -> None:
    assert to_a_full_disk(*arguments) == (1, f"error: {FULL}. The command itself ended\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["topics"], 0), (["sql", "select 1", "--json"], 0), (["--help"], 0), (["lag", "-g", "nope"], 2)],
)
def test_a_stream_that_was_closed_at_the_start_changes_no_exit_code(
    imported: Rmq, closed: str, arguments: list[str], code: int
) -> None:
    program = "from rmq_store.cli import command; command()"
    shell = ["bash", "-c", f'"$@" {closed}', "bash", sys.executable, "-c", program, *arguments]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    ended = subprocess.run(shell, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
    assert "defect" not in ended.stderr


def test_an_error_on_a_full_disk_keeps_its_exit_code(imported: Rmq) -> None:
    code, text = to_a_full_disk("consume", "-g", "no-such-group", "--json")
    assert code == 2
    assert text.startswith("error: consumers.toml has no group 'no-such-group'")


def test_a_request_whose_reader_has_gone_says_that_it_ended(imported: Rmq) -> None:
    request = f"{TODAY}-gone"
    reset = ["reset", "-g", "orders", "-t", "OrderEvents", "--to-min", "--reason", "r", "--request", request]
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [*COMMAND, *reset],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    text = (
        "the answer cannot be written to standard output: Broken pipe. The command itself ended with status committed"
    )
    assert (ended.returncode, ended.stderr) == (1, f"error: {text} (request {request})\n")


@pytest.fixture
def no_current_folder(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = imported.folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()


@pytest.mark.usefixtures("no_current_folder")
def test_a_deleted_current_folder_is_not_needed_with_absolute_paths(imported: Rmq) -> None:
    folder = str(imported.folder)
    answer = imported.json(
        "consume",
        "-g",
        "orders",
        "--settings",
        f"{folder}/consumers.toml",
        "--listener-path",
        folder,
        "--engine",
        "local",
    )
    assert answer["status"] == "committed"


def test_sql_needs_no_current_folder(imported: Rmq) -> None:
    """In a process of its own: DuckDB would end it."""
    gone = imported.folder / "gone"
    gone.mkdir()
    leave = "import os; os.rmdir(os.getcwd()); "
    answer = subprocess.run(
        [*COMMAND[:2], leave + COMMAND[2], "topics", "--root", str(imported.root)],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        cwd=gone,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "OrderEvents" in answer.stdout


@pytest.mark.usefixtures("no_current_folder")
def test_a_relative_root_in_a_deleted_folder_is_wrong_use(imported: Rmq) -> None:
    answer = imported("topics", "--root", "store")
    assert (answer.exit_code, answer.err) == (
        2,
        "error: root 'store' is relative to the current folder, which was deleted: give an absolute path\n",
    )
