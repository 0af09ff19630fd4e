"""Commands, timed from the start of their process: short queries, and a window with nothing to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench import ACTOR, DAY, Bench, check, group_of, seconds
from benchmarks.broker_log import TOPIC
from benchmarks.table import Measurement, Target
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.window.consume_request import ConsumeRequest

TITLE = "command line, from process start"
MESSAGES = 20_000
GROUP = "caught-up"
_RUNS = 5


def measure(bench: Bench) -> Iterator[Measurement]:
    store, shard = bench.copy(bench.lake(MESSAGES))
    request, group = ConsumeRequest(f"{DAY}-all", ACTOR), group_of(GROUP, "Named")
    consume_window(store, shard, group, request, lambda plan: LocalEngine(bench.host), host=bench.host)
    settings = Path(store.root.location).with_suffix(".toml")
    settings.write_text(settings_text(GROUP, "Named"))
    environment = os.environ | {"RMQ_ROOT": store.root.location, "RMQ_SETTINGS": str(settings)}

    def empty_window() -> None:
        report = answer("consume", "--group", GROUP, environment=environment)
        check("the empty window", (report["status"], [w["engine"] for w in report["windows"]]), ("empty", ["none"]))

    def sql() -> None:
        check("the answer", rmq("sql", "select 1 as one", "--format", "csv", environment=environment), "one\n1")

    cases: dict[str, Callable[[], float]] = {
        "rmq consume": lambda: seconds(empty_window),
        "rmq sql": lambda: seconds(sql),
        "python": lambda: seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)),
    }
    samples_of = bench.in_turns(cases, rounds=1 if bench.quick else _RUNS)

    def row(key: str, what: str, case: str, target: Target | None = None, is_peer: bool = False) -> Measurement:
        return Measurement(key, what, "s", samples_of[case], target=target, is_peer=is_peer, more_is_better=False)

    yield row("command.empty", "rmq consume, nothing to do, no JVM", "rmq consume", Target("<=", 1.0))
    yield row("command.sql", 'rmq sql "select 1"', "rmq sql")
    yield row("command.python", "start Python, do nothing", "python", is_peer=True)


def settings_text(group: str, listener: str, topics: Sequence[str] = (TOPIC,)) -> str:
    """The settings of ``bench.group_of`` as a part of ``consumers.toml``."""
    text = f"""
[[group]]
name = "{group}"
listener = "benchmarks.listeners:{listener}"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
"""
    return text + "".join(f'\n[[group.subscription]]\ntopic = "{topic}"\n' for topic in topics)


def rmq(*arguments: str, environment: dict[str, str]) -> str:
    """The standard output of a command that succeeds. Raises WrongResult when it fails."""
    command = [str(Path(sys.executable).with_name("rmq")), *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    check(f"exit code of rmq {arguments[0]} ({run.stderr.strip()})", run.returncode, 0)
    return run.stdout.strip()


def answer(*arguments: str, environment: dict[str, str]) -> dict[str, Any]:
    """The JSON answer of a command that succeeds. Raises WrongResult when it fails."""
    document: dict[str, Any] = json.loads(rmq(*arguments, "--json", environment=environment))
    return document
