"""The command line in this process, as a user types it: arguments in; exit code, standard output and error out."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rmq_store.cli import main
from rmq_store.utils.host import Host, day_of

TODAY = day_of(Host().now_ms())
ORDERS = 4200
"""Messages of OrderEvents in the imported store."""
ALL_DUE = "2200-01-01T00:00:00Z"

LISTENER = """
def succeed(msgs, context):
    return "CONSUME_SUCCESS"


def fail_without_price(msgs, context):
    return ["RECONSUME_LATER" if m.get_property("price") == "n/a" else "CONSUME_SUCCESS" for m in msgs]
"""

CONSUMERS = """
[[group]]
name = "orders"
listener = "cli_listener:fail_without_price"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
consume_message_batch_max_size = 32
engine = "auto"

[[group.subscription]]
topic = "OrderEvents"

[[group]]
name = "elsewhere"
listener = "cli_listener:succeed"

[[group.subscription]]
topic = "NoSuchTopic"

[[group]]
name = "broken"
listener = "no_such_module:Listener"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"

[[group.subscription]]
topic = "PaymentFlow"
"""


@dataclass(frozen=True, slots=True)
class Answer:
    exit_code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class Rmq:
    """``rmq(...)`` runs a command with this store as $RMQ_ROOT, in an empty folder that has a consumers.toml."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], made: Path) -> None:
        self.folder = folder
        self.root = folder / "store"
        self._capsys = capsys
        self._made = made

    def __call__(self, *arguments: str) -> Answer:
        self._capsys.readouterr()
        exit_code = main([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        return Answer(exit_code, out, err)

    def correct_listeners(self) -> None:
        """Give the group ``broken`` a listener that can be imported."""
        settings = self.folder / "consumers.toml"
        settings.write_text(settings.read_text().replace("no_such_module:Listener", "cli_listener:succeed"))

    def once(self, name: str, make: Callable[[], object]) -> None:
        """Leave the folder as ``make`` does, which is called once in a session: later it is a copy, to be changed freely."""
        made = self._made / name
        if made.exists():
            shutil.copytree(made, self.folder, dirs_exist_ok=True)
        else:
            make()
            shutil.copytree(self.folder, made)

    def json(self, *arguments: str) -> Any:
        """The answer in JSON of a command that succeeds."""
        answer = self(*arguments, "--json")
        assert answer.exit_code == 0, answer
        return answer.json()


def lines_of(text: str) -> dict[str, str]:
    """``key: value`` lines of an answer."""
    return {key: value for key, colon, value in (line.partition(": ") for line in text.splitlines()) if colon}


@pytest.fixture(scope="session")
def made_stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of ``Rmq.once``, by name."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def rmq(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, made_stores: Path) -> Rmq:
    """No store is there yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # commands add folders with listeners
    monkeypatch.setenv("COLUMNS", "400")
    for name in ("RMQ_DEBUG", "RMQ_SETTINGS", "SPARK_REMOTE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "consumers.toml").write_text(CONSUMERS)
    (tmp_path / "cli_listener.py").write_text(LISTENER)
    found = Rmq(tmp_path, capsys, made_stores)
    monkeypatch.setenv("RMQ_ROOT", str(found.root))
    monkeypatch.delitem(sys.modules, "cli_listener", raising=False)
    return found


@pytest.fixture(scope="session")
def imported_once(broker_store: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("imported") / "store"
    files = broker_store("market-clean")
    assert main(["init", "--root", str(root)]) == 0
    assert main(["import-store", str(files), "--broker", "broker-a", "--root", str(root), "--engine", "local"]) == 0
    return root


@pytest.fixture
def imported(rmq: Rmq, imported_once: Path) -> Rmq:
    """A store with everything that a real broker had: market-clean. It is a copy, to be changed freely."""
    shutil.copytree(imported_once, rmq.root)
    return rmq
