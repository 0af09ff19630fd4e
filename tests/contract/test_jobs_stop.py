"""A job for spark-submit that is stopped ends as ``rmq`` does: its claim is released, and its answer is one JSON line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmq_store.utils.host import Host, day_of
from spark_jobs.session import IS_SUBMITTED
from tests.contract.rmq import CONSUMERS, LISTENER, Rmq

CHECKOUT = Path(__file__).resolve().parents[2]
REQUEST = f"{day_of(Host().now_ms())}-stopped"
STARTER = """
import os, socket, subprocess, sys
with socket.create_server(("127.0.0.1", 0)) as gateway:
    subprocess.run(sys.argv[1:], env=os.environ | {"%s": str(gateway.getsockname()[1])})
"""
"""As spark-submit starts a job's Python."""

LISTENING = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
"""The tests may run under nohup, which ignores this signal in all that it starts."""

STOPPED = """
import os, signal, threading
from pathlib import Path

def fail_without_price(msgs, context):
    pid = {pid}
    if not Path("called").exists():
        Path("called").touch()
        os.kill(pid, signal.{name})
    threading.Event().wait()
"""


def job(imported: Rmq) -> list[str]:
    words = ["--group", "orders", "--engine", "local", "--request", REQUEST, "--listener-path", str(imported.folder)]
    return [sys.executable, "-c", LISTENING, str(CHECKOUT / "spark_jobs" / "consume_window.py"), *words]


def listens(imported: Rmq, name: str, pid: str) -> None:
    (imported.folder / "cli_listener.py").write_text(STOPPED.format(name=name, pid=pid))
    settings = CONSUMERS.replace('engine = "auto"', 'engine = "auto"\nlistener_process = false')
    (imported.folder / "consumers.toml").write_text(settings)


def assert_is_released(imported: Rmq, answer: Any, by: str, exit_code: int) -> None:
    said = f"stopped by {by}; what was committed stays, run the same request again to finish"
    assert (answer["error"], answer["message"], answer["exit_code"]) == ("Stopped", said, exit_code)
    assert answer["request_id"] == REQUEST
    owned = imported.json("sql", "select distinct ended_by from queue_owners where group_name = 'orders'")
    assert owned == [{"ended_by": "released"}]
    (imported.folder / "cli_listener.py").write_text(LISTENER)
    assert imported.json("consume", "-g", "orders", "--request", REQUEST)["messages"] == 4200


@pytest.mark.parametrize(("name", "exit_code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_job_that_is_stopped_says_so_and_gives_its_queues_back(imported: Rmq, name: str, exit_code: int) -> None:
    listens(imported, name, "os.getpid()")
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    ended = subprocess.run(job(imported), env=env, capture_output=True, text=True, check=False)
    assert (ended.returncode, "Traceback" in ended.stderr) == (exit_code, False), ended.stderr
    assert_is_released(imported, json.loads(ended.stdout), name, exit_code)


@pytest.mark.slow
def test_a_job_whose_spark_submit_was_killed_stops(imported: Rmq) -> None:
    """It would go on with the window, and its answer would be lost."""
    listens(imported, "SIGKILL", "os.getppid()")
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-c", STARTER % IS_SUBMITTED, *job(imported)]
    ended = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, check=False
    )  # up to the end of the job, which has it too
    assert_is_released(imported, json.loads(ended.stdout), "SIGTERM", 143)


def test_a_job_whose_spark_submit_was_killed_before_it_began_does_nothing(imported: Rmq) -> None:
    env = os.environ | {"PYTHONPATH": str(CHECKOUT), IS_SUBMITTED: "1"}
    ended = subprocess.run(job(imported), env=env, capture_output=True, text=True, check=False)
    said = "error: spark-submit has ended, so this job does nothing\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "", said)
    assert imported.json("sql", "select * from windows") == []


def test_a_connect_server_whose_spark_submit_was_killed_before_it_began_does_nothing() -> None:
    """It would take the parent that it has now for the JVM, and stay when the JVM has long ended."""
    env = os.environ | {"PYTHONPATH": str(CHECKOUT), IS_SUBMITTED: "1"}
    words = [sys.executable, "-m", "spark_jobs.connect_server", "--master", "local[1]", "--no-delta"]
    ended = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    said = "error: spark-submit has ended, so this server does nothing\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "", said)
