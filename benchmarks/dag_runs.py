"""Airflow: its start, a run of a group from the trigger to committed offsets, and many groups. PostgreSQL, local disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from benchmarks.bench import Bench, WrongResult, check
from benchmarks.table import Measurement, Target
from demo.airflow_api import AirflowApi
from rmq_store import Message, Store, create_store, open_store
from rmq_store.admin.dag_params import dag_id_of
from scripts.airflow_home import AirflowHome, free_port
from scripts.keeper import CHECKOUT, end_kept, start_kept

TITLE = "Airflow on loopback: make up, and runs over its REST API"
MESSAGES = 100
"""Of a small window."""
_STARTED = re.compile(r"^Airflow is at http://127\.0\.0\.1:\d+ ", re.MULTILINE)
_GROUP = """
[[group]]
name = "{name}"
listener = "benchmarks.listeners:Named"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
schedule = "{schedule}"

[[group.subscription]]
topic = "Orders"
"""

_PARSE = """
import sys, time
from airflow.dag_processing.dagbag import DagBag
DagBag("dags/rmq_persist_offsets.py")
began = time.process_time()
bag = DagBag("dags/rmq_consume.py")
print(time.process_time() - began, len(bag.dags), len(bag.import_errors))
"""


def measure(bench: Bench) -> Iterator[Measurement]:
    many, runs = (10, 2) if bench.quick else (500, 5)
    folder = bench.new_folder("airflow")
    folder.mkdir(parents=True)
    store = create_store(folder / "store")
    (folder / "many.toml").write_text(
        "".join(_GROUP.format(name=f"group-{n}", schedule="*/5 * * * *") for n in range(many))
    )
    (folder / "consumers.toml").write_text(
        _GROUP.format(name="small", schedule="")
        + "".join(_GROUP.format(name=f"planned-{number}", schedule="planned") for number in range(many))
    )
    cpu = tuple(_parse_cpu_s(folder, many) for _ in range(2 if bench.quick else 3))
    target = None if bench.quick else Target("<=", 5)
    yield Measurement(
        "airflow.parse", f"{many} groups: CPU time to read their DAGs", "s", cpu, target=target, more_is_better=False
    )

    with _up(folder, "--no-spark"):
        pass  # makes the database
    target = None if bench.quick else Target("<=", 20)
    with _up(folder, "--no-spark") as started_s:
        yield Measurement(
            "airflow.up", "make up SPARK=0, again", "s", (started_s,), target=target, more_is_better=False
        )
        yield from _runs(bench, folder, store, runs, many)
    if not bench.quick:
        with _up(folder, "--spark") as started_s:
            what, target = "make up with a warm Spark server, again", Target("<=", 40)
            yield Measurement("airflow.up.spark", what, "s", (started_s,), target=target, more_is_better=False)


def _runs(bench: Bench, folder: Path, store: Store, runs: int, many: int) -> Iterator[Measurement]:
    home = AirflowHome(folder / "home", int((folder / "port").read_text()), folder / "consumers.toml")
    api = AirflowApi(home, _Patient(), lambda what: None)
    small, plan = dag_id_of("small"), "rmq_plan_windows"
    api.wait_for_dags({small, plan})
    for dag_id in (small, plan):
        api.request("PATCH", f"/api/v2/dags/{dag_id}?update_mask=is_paused", {"is_paused": False})
    committed, empty = [], []
    for number in range(runs + 1):  # the first one warms up
        store.send([Message("Orders", b"%d" % n, keys=(str(n),)) for n in range(MESSAGES)], create_queues=4)
        began_s = time.time()
        api.run(small, f"small-{number}")
        sql = "SELECT max(committed_at) AS at, sum(messages) AS messages FROM windows WHERE group_name = 'small'"
        (row,) = open_store(folder / "store").query(sql).to_pylist()
        check("messages", int(row["messages"]), (number + 1) * MESSAGES)
        committed.append(row["at"] / 1000 - began_s)
        began_s = time.time()
        api.run(small, f"empty-{number}")
        run = api.request("GET", f"/api/v2/dags/{small}/dagRuns/empty-{number}")
        empty.append(datetime.fromisoformat(run["end_date"]).timestamp() - began_s)
        bench.say(f"run {number}: committed after {committed[-1]:.1f} s, an empty one over after {empty[-1]:.1f} s")
    at_most = (lambda value: None) if bench.quick else (lambda value: Target("<=", value))
    what = f"a window of {MESSAGES} messages: trigger to committed offsets"
    yield Measurement("airflow.window", what, "s", tuple(committed[1:]), target=at_most(8), more_is_better=False)
    what = "an empty window: trigger to the end of its run"
    yield Measurement("airflow.empty", what, "s", tuple(empty[1:]), target=at_most(3), more_is_better=False)
    began_s = time.time()
    api.run(plan, "tick")
    sql = "SELECT max(committed_at) AS at, count(DISTINCT group_name) AS groups FROM windows WHERE group_name LIKE 'planned-%'"
    (row,) = open_store(folder / "store").query(sql).to_pylist()
    check("groups of the tick", row["groups"], many)
    what = f"rmq_plan_windows, {many} groups with {(runs + 1) * MESSAGES} messages each: trigger to the last offset"
    yield Measurement(
        "airflow.tick", what, "s", (row["at"] / 1000 - began_s,), target=at_most(60), more_is_better=False
    )


def _parse_cpu_s(folder: Path, groups: int) -> float:
    """CPU time, once Airflow is imported, of the process that reads the DAGs of the groups."""
    home = AirflowHome(folder / "parse", free_port(), folder / "many.toml", {"RMQ_ROOT": str(folder / "store")})
    home.initialise()
    process = subprocess.run(
        [sys.executable, "-c", _PARSE],
        cwd=CHECKOUT,
        env=home.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        cpu, dags, errors = process.stdout.split()[-3:]
    except ValueError:
        raise WrongResult(f"the DAGs cannot be read: {process.stderr[-2000:]}") from None
    check("DAGs and import errors", (int(dags), int(errors)), (groups, 0))
    return float(cpu)


@contextmanager
def _up(folder: Path, *words: str) -> Iterator[float]:
    """``make up`` in a folder of its own: the seconds until it says that Airflow is there."""
    port, log_file = free_port(), folder / "up.log"
    (folder / "port").write_text(str(port))
    env = os.environ | {
        "RMQ_ROOT": str(folder / "store"),
        "RMQ_SETTINGS": str(folder / "consumers.toml"),
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "scripts/up.py", "--port", str(port), "--home", str(folder / "home"), *words]
    began_s = time.perf_counter()
    with log_file.open("wb") as log:
        process = start_kept(command, log, env=env, patience_s=60)
    try:
        while not _STARTED.search(log_file.read_text(errors="replace")):
            if process.poll() is not None:
                raise WrongResult(f"make up has ended: {log_file.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)  # the error of the measured seconds
        yield time.perf_counter() - began_s
    finally:
        end_kept([process])


class _Patient:
    """``make up`` watches its processes itself."""

    def wait_for(self, is_done: object, what: str) -> None:
        assert callable(is_done)
        while not is_done():
            time.sleep(0.5)  # each look is a request to the server that is measured
