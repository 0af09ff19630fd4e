"""``docs/start.md`` in an empty folder, ``docs/jobs.md`` and ``docs/questions.md`` on a store as the demo leaves it: every
command, program and query works. The listener of ``docs/listeners.md`` passes its own test."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from demo.archives import unpack
from rmq_store.admin.dag_params import ReplayParams, Run, UndoParams, consume_request, redrive_request, reset_request
from rmq_store.cli import main
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore

CHECKOUT = Path(__file__).resolve().parents[2]
START = CHECKOUT / "docs" / "start.md"
JOBS, QUESTIONS = CHECKOUT / "docs" / "jobs.md", CHECKOUT / "docs" / "questions.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RUN = re.compile(r"/api/v2/dags/([\w-]+)/dagRuns\"")
GROUP = "demo-payments"
DUE = "2200-01-01T00:00:00Z"


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each block of code that has a language."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def demo_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeStore]:
    """The store and the environment after ``make demo``: imported, consumed, with a dead letter. Then a reset, a delayed
    message, and two messages with one key that nothing has consumed."""
    folder = tmp_path_factory.mktemp("site")
    unpack(CHECKOUT / "demo" / "broker-store.tar.gz", folder / "broker")
    consume = f"consume --group {GROUP} --engine local"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(CHECKOUT)
        patch.setenv("RMQ_ROOT", str(folder / "store"))
        patch.setenv("RMQ_SETTINGS", str(CHECKOUT / "demo" / "consumers.toml"))
        for command in (
            "init",
            f"import-store {folder / 'broker'} --broker broker-a --engine local",
            *(consume, f"deliver --now {DUE}", consume, f"deliver --now {DUE}", consume),
            f"reset --group {GROUP} --topic OrderEvents --to-min --reason test",
            *("send --topic PaymentFlow --key order-1 payment",) * 2,
            "send --topic PaymentFlow --delay 1h later",
        ):
            assert main(shlex.split(command)) == 0, command
        yield LakeStore.open(Root.parse(str(folder / "store")))


class Read(dict[str, Any]):
    """The parameters of a run, and which of them were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


READERS: Mapping[str, Callable[[Run, Read], object]] = {
    f"rmq_consume__{GROUP}": consume_request,
    "rmq_replay": lambda run, params: ReplayParams.of(params),
    "rmq_reset_offset": reset_request,
    "rmq_undo": lambda run, params: UndoParams.of(params),
    "rmq_redrive_dlq": redrive_request,
    "rmq_deliver_delayed": lambda run, params: None,
}


def check_call(text: str) -> None:
    """The DAG of a REST call takes its parameters."""
    words = shlex.split(text)
    (dag_id,) = _RUN.findall(text)
    params = Read(json.loads(words[words.index("--json") + 1])["conf"])
    READERS[dag_id](Run(dag_id, "run", "manual", datetime(2026, 11, 23, tzinfo=UTC)), params)
    assert set(params) <= params.names, text


@pytest.mark.slow
def test_each_job_from_top_to_bottom(demo_store: LakeStore, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    languages = []
    for language, text in blocks(JOBS):
        languages.append(language)
        if language == "bash":
            for line in text.splitlines():
                program, *arguments = shlex.split(line)
                assert (program, main(arguments)) == ("rmq", 0), f"{line}\n{capsys.readouterr()}"
        elif language == "python":
            exec(compile(text, JOBS.name, "exec"), names)
        elif language == "curl":
            check_call(text)
        else:
            assert query(demo_store, text).num_rows > 0, text
    assert {language: languages.count(language) for language in languages} == {
        "bash": 6,
        "curl": 6,
        "python": 7,
        "sql": 7,
    }


def test_the_first_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A block of ``text`` has parts of what the commands before it print."""
    (tmp_path / "demo").symlink_to(CHECKOUT / "demo")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RMQ_ROOT", str(tmp_path / "var/start/store"))
    monkeypatch.setenv("RMQ_SETTINGS", str(CHECKOUT / "demo/consumers.toml"))
    printed = ""
    languages = []
    for language, text in blocks(START):
        languages.append(language)
        if language == "text":
            assert [line for line in text.splitlines() if line not in printed] == []
            continue
        capsys.readouterr()
        for line in text.splitlines():
            program, *arguments = shlex.split(line)
            if program == "rmq":
                assert main(arguments) == 0, f"{line}\n{capsys.readouterr()}"
            else:
                subprocess.run([program, *arguments], check=True)
        printed = capsys.readouterr().out
    assert languages == ["bash", "text", "bash", "text", "bash", "bash", "text", "bash", "text"]


QUERIES = [text for _, text in blocks(QUESTIONS)]


@pytest.mark.parametrize("number", range(1, 11))
def test_a_question_has_an_answer_unless_all_is_well(demo_store: LakeStore, number: int) -> None:
    rows = query(demo_store, QUERIES[number - 1]).num_rows
    assert (rows == 0) == (number == 10)


LISTENERS = CHECKOUT / "docs" / "listeners.md"
_FILE = re.compile(r'^```\w+ title="([\w./]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def test_the_listener_of_the_page_passes_its_test(tmp_path: Path) -> None:
    files = dict(_FILE.findall(LISTENERS.read_text(encoding="utf-8")))
    assert list(files) == ["shop/listeners.py", "consumers.toml", "test_listeners.py"]
    for name, text in {**files, "shop/__init__.py": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RMQ_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_listeners.py"]
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert "1 passed" in run.stdout, run.stdout + run.stderr
