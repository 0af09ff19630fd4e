"""An error after the commit is a warning on the command line: exit code 0, ``committed``, in text and in JSON."""

from __future__ import annotations

from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path

import pytest

from rmq_store.lake.commit import dispatch as dispatching
from tests.contract.rmq import ALL_DUE, Rmq

COMMANDS = [
    ["consume", "--group", "orders"],
    ["redrive", "--group", "orders", "--all", "--reason", "mended"],
    ["deliver", "--now", ALL_DUE],
    ["replay", "--group", "orders", "--topic", "OrderEvents", "--from", "2020-01-01T00:00:00Z", "--until", ALL_DUE],
    ["send", "--topic", "Orders", "--create", "hello"],
    ["clone", "--from", "orders", "--to", "elsewhere", "--topic", "OrderEvents", "--reason", "a test"],
    ["reset", "--group", "orders", "--topic", "OrderEvents", "--to-min", "--reason", "a test"],
    ["skip", "--group", "orders", "--topic", "OrderEvents", "--reason", "a test"],
    ["delete-group", "--group", "orders", "--reason", "a test"],
    ["cutover", "--broker", "broker-a", "--reason", "a test"],
    ["hand-back", "--broker", "broker-a", "--reason", "a test"],
]
"""In this order each has something to do."""


@pytest.fixture
def disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """As soon as a commit is made."""

    def full(*arguments: object, **options: object) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(dispatching, "staged", full)


@pytest.mark.usefixtures("disk_is_full")
@pytest.mark.parametrize("form", ["text", "json"])
def test_what_goes_wrong_after_a_commit_is_a_warning_of_every_command(imported: Rmq, form: str) -> None:
    settings = imported.folder / "consumers.toml"
    dead_at_once = settings.read_text().replace('engine = "auto"', 'engine = "local"\nmax_reconsume_times = 0')
    settings.write_text(dead_at_once)
    for command in COMMANDS:
        if command[0] == "deliver":
            imported("send", "--topic", "Later", "--create", "--delay", "90s", "good morning")
        answer = imported(*command, *(["--json"] if form == "json" else []))
        assert answer.exit_code == 0, (command, answer)
        assert "warning: shard broker-a: committed, but " in answer.err, (command, answer)
        assert "(OSError: [Errno 28] No space left on device)" in answer.err
        if form == "json":
            told = answer.json()
            assert (told["status"], len(told["warnings"])) == ("committed", 1), (command, told)
        else:
            assert "status: committed" in answer.out, (command, answer)


@pytest.mark.usefixtures("disk_is_full")
def test_what_goes_wrong_after_an_import_is_a_warning(rmq: Rmq, broker_store: Callable[[str], Path]) -> None:
    rmq("init")
    words = ["import-store", str(broker_store("market-clean")), "--broker", "broker-a", "--engine", "local"]
    answer = rmq(*words, "--json")
    assert (answer.exit_code, answer.json()["status"], len(answer.json()["warnings"])) == (0, "committed", 1)
    assert "warning: shard broker-a: committed, but " in answer.err
