"""What a user starts first: ``make demo`` and ``make up``, as processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from demo.__main__ import FOLDER
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from scripts.airflow_home import direct_opener, free_port, is_free
from scripts.keeper import CHECKOUT


class Started:
    """A process with all that it has started so far; whatever a failed test leaves of them is killed."""

    def __init__(self, *words: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=CHECKOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"} | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.output = ""
        self._family: set[psutil.Process] = set()

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.look_around()
        if self.process.poll() is None:
            self.process.kill()
        for process in self.alive():
            with suppress(psutil.Error):
                process.kill()

    def read_until(self, words: str) -> str:
        """The output up to the line with these words. Raises AssertionError when the process ends before."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            self.look_around()
            if words in line:
                return self.output
        raise AssertionError(f"it ended with code {self.process.wait()}. Its output:\n{self.output}")

    def end(self, number: signal.Signals | None = None) -> int:
        """Wait for its end, after a signal if one is given; its exit code."""
        self.look_around()
        if number is not None:
            self.process.send_signal(number)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            self.look_around()
        return self.process.wait()

    def look_around(self) -> list[psutil.Process]:
        """What it has started and what is alive of that."""
        with suppress(psutil.NoSuchProcess):
            self._family.update(psutil.Process(self.process.pid).children(recursive=True))
        return self.alive()

    def alive(self) -> list[psutil.Process]:
        return [process for process in self._family if is_alive(process)]


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.timeout(3600)
def test_the_demo_tells_its_whole_story_and_leaves_a_store_to_look_at_and_no_process() -> None:
    (FOLDER / "store").mkdir(parents=True, exist_ok=True)
    (FOLDER / "store" / "store.json").write_text("what an earlier demo left, half written")
    with Started("-m", "demo") as demo:
        assert demo.end() == 0, demo.output
        assert demo.alive() == []
    for number in range(1, 11):
        assert f"[{number}/10]" in demo.output
    for words in ("by engine spark", "already_committed: the same 5,100 messages", "audit: empty", "Done in"):
        assert words in demo.output

    store = LakeStore.open(Root.parse(str(FOLDER / "store")))
    windows = query(store, "SELECT group_name, messages, retried, dead FROM windows ORDER BY committed_at").to_pylist()
    assert [(w["messages"], w["retried"], w["dead"]) for w in windows[:3]] == [(5100, 28, 0), (28, 1, 0), (1, 0, 1)]
    assert windows[3]["group_name"].startswith("demo-payments-replay-")
    letters = query(
        store, "SELECT error_type, attempt FROM dead_letters WHERE group_name = 'demo-payments'"
    ).to_pylist()
    assert letters == [{"error_type": "AccountClosed", "attempt": 3}]
    assert "PaymentFlow@demo-payments" in (FOLDER / "exports/broker-a/broker-a/consumerOffset.json").read_text()


@pytest.mark.timeout(1800)
def test_nothing_outlives_a_demo_that_is_killed_and_the_next_one_ends_with_ctrl_c() -> None:
    """Also the warm Spark Connect server ends when its starter is killed."""
    with Started("-m", "demo") as demo:
        demo.read_until("[2/10]")
        with Started("-m", "demo") as second:
            assert second.end() == 1
            assert "the demo runs already" in second.output
        demo.read_until("[3/10]")
        commands = {process: " ".join(process.cmdline()) for process in demo.look_around()}
        airflow = [process for process, words in commands.items() if "airflow" in words]
        assert len(airflow) >= 6, "three processes and their keepers"
        assert any("connect_server" in words for words in commands.values())
        assert any(process.name() == "java" for process in commands)
        assert demo.end(signal.SIGKILL) == -signal.SIGKILL
        with Started("-m", "demo") as following:
            following.read_until("[1/10]")
            assert [process for process in airflow if is_alive(process)] == []
            while not any(process.name() == "java" for process in following.look_around()):
                assert following.process.poll() is None, following.output
                time.sleep(0.1)
            assert following.end(signal.SIGINT) == 130
            assert "stopped" in following.output
            assert following.alive() == []
        while demo.alive():
            time.sleep(0.1)


def listened_to(process: psutil.Process) -> set[str]:
    try:
        connections = process.net_connections("inet")
    except psutil.NoSuchProcess:  # it has ended meanwhile
        return set()
    return {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}


@pytest.mark.timeout(1800)
def test_make_up_serves_airflow_on_loopback_until_ctrl_c(tmp_path: Path) -> None:
    LakeStore.init(Root.parse(str(tmp_path / "store")))
    port, env = free_port(), {"RMQ_ROOT": str(tmp_path / "store")}
    words = ("--port", str(port), "--home", str(tmp_path / "airflow"), "--no-spark")
    with Started("scripts/up.py", *words, env=env) as up:
        up.read_until("password")
        assert f"http://127.0.0.1:{port}   user: admin   password: " in up.output
        with direct_opener().open(f"http://127.0.0.1:{port}/api/v2/monitor/health", timeout=300) as answer:
            health = json.load(answer)
        assert {name: state["status"] for name, state in health.items()} == dict.fromkeys(
            ("metadatabase", "scheduler", "triggerer", "dag_processor"), "healthy"
        )
        processes = up.look_around()
        assert len(processes) >= 4
        assert {address for member in processes for address in listened_to(member)} == {"127.0.0.1"}
        assert up.end(signal.SIGINT) == 0
        assert f"port {port} is free" in up.output
        assert is_free(port)
        assert up.alive() == []


def test_make_up_says_what_is_wrong_before_it_starts_anything(tmp_path: Path) -> None:
    env = {"RMQ_ROOT": str(tmp_path / "none")}
    with Started("scripts/up.py", "--home", str(tmp_path / "airflow"), env=env) as up:
        assert up.end() == 1
        assert "no store at" in up.output
        assert not (tmp_path / "airflow" / "airflow.db").exists()
