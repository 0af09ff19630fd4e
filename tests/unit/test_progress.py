"""Waiting goes by progress: a slow start is waited for, a hung one is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.airflow_home import Airflow, AirflowHome, AirflowNotReady, free_port
from spark_jobs.progress import LONGEST_IDLE_S, MOST_CPU_S, NoProgress, Signs, signs_of, wait_for_progress


class World:
    """A clock that each pause moves on, processes that use CPU time, and a log that grows meanwhile."""

    def __init__(self, cpu_share: float = 0.0, log_share: float = 0.0, tick_s: float = 5.0) -> None:
        self.now_s = 1000.0
        self.cpu_s = 7.0
        self.log_bytes = 0.0
        self.cpu_share, self.log_share, self.tick_s = cpu_share, log_share, tick_s
        self.said: list[tuple[float, str]] = []

    def wait(self, ready_after_s: float = float("inf")) -> None:
        wait_for_progress(
            lambda: self.now_s >= 1000 + ready_after_s,
            lambda: Signs(self.cpu_s, int(self.log_bytes)),
            "still starting",
            lambda text: self.said.append((self.now_s - 1000, text)),
            clock=lambda: self.now_s,
            pause=self.pause,
        )

    def pause(self) -> None:
        self.now_s += self.tick_s
        self.cpu_s += self.cpu_share * self.tick_s
        self.log_bytes += self.log_share * self.tick_s


def test_what_is_there_already_is_not_waited_for() -> None:
    world = World()
    world.wait(ready_after_s=0)
    assert world.now_s == 1000
    assert world.said == []


@pytest.mark.parametrize("world", [World(cpu_share=0.02), World(log_share=0.1)], ids=["busy", "only its log grows"])
def test_a_start_that_takes_an_hour_and_gets_on_is_waited_for(world: World) -> None:
    world.wait(ready_after_s=3600)
    assert world.now_s == 1000 + 3600


@pytest.mark.parametrize("idle_share", [0.0, 0.005], ids=["stopped", "an idle JVM"])
def test_what_does_nothing_is_given_up_and_not_before(idle_share: float) -> None:
    world = World(cpu_share=idle_share)
    with pytest.raises(NoProgress, match="no progress for 120 s"):
        world.wait()
    assert world.now_s == 1000 + LONGEST_IDLE_S


def test_a_start_that_stops_half_way_is_given_up_so_long_after_its_last_progress() -> None:
    world = World(cpu_share=1.0)

    def stop_at_300() -> None:
        world.cpu_share = 1.0 if world.now_s < 1300 else 0.0
        World.pause(world)

    world.pause = stop_at_300  # type: ignore[method-assign]
    with pytest.raises(NoProgress, match="it used 300 s of CPU time"):
        world.wait()
    assert world.now_s == 1300 + LONGEST_IDLE_S


def test_a_process_that_ends_takes_its_account_along_and_that_is_no_progress_and_no_hang() -> None:
    world = World(cpu_share=0.02)

    def loses_a_child_each_minute() -> None:
        World.pause(world)
        if world.now_s % 60 == 0:
            world.cpu_s -= 1.0

    world.pause = loses_a_child_each_minute  # type: ignore[method-assign]
    world.wait(ready_after_s=600)
    world.cpu_share = 0.0
    with pytest.raises(NoProgress):
        world.wait()


def test_what_is_busy_for_ever_and_gets_nowhere_is_given_up() -> None:
    world = World(cpu_share=2.0)
    with pytest.raises(NoProgress, match=f"not ready after {MOST_CPU_S:.0f} s of CPU time"):
        world.wait()


def test_it_tells_every_fifteen_seconds_what_is_waited_for() -> None:
    world = World(cpu_share=0.4)
    world.wait(ready_after_s=50)
    assert world.said == [
        (15, "still starting; it used 6 s of CPU time so far"),
        (30, "still starting; it used 12 s of CPU time so far"),
        (45, "still starting; it used 18 s of CPU time so far"),
    ]


def test_it_looks_for_signs_every_five_seconds_however_often_it_asks() -> None:
    now_s, looks = [1000.0], []

    def signs() -> Signs:
        looks.append(now_s[0])
        return Signs(0, 0)

    def pause() -> None:
        now_s[0] += 0.5

    wait_for_progress(lambda: now_s[0] >= 1016, signs, "starting", print, clock=lambda: now_s[0], pause=pause)
    assert looks == [1000, 1005, 1010, 1015]


def test_an_end_that_the_question_sees_is_told_at_once() -> None:
    def ended() -> bool:
        raise ValueError("it ended while starting")

    with pytest.raises(ValueError, match="it ended"):
        wait_for_progress(ended, lambda: Signs(0, 0), "still starting", print, pause=lambda: pytest.fail("it waited"))


BUSY_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(flush=True)
sys.stdin.read()
child.kill()
"""


@pytest.fixture
def parent_of_a_busy_child() -> Iterator[int]:
    command = [sys.executable, "-c", BUSY_CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        yield parent.pid
        parent.communicate()


def test_the_time_of_children_and_the_growth_of_logs_are_signs(parent_of_a_busy_child: int, tmp_path: Path) -> None:
    before = signs_of([parent_of_a_busy_child])
    while signs_of([parent_of_a_busy_child]).cpu_s < before.cpu_s + 0.2:
        os.sched_yield()
    (tmp_path / "log").write_bytes(b"12345")
    assert signs_of([], [tmp_path / "log", tmp_path / "none"]) == Signs(0, 5)


def test_a_process_that_is_gone_has_no_signs() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert signs_of([gone.pid]) == Signs(0, 0)


def test_a_process_of_airflow_that_has_ended_ends_the_wait_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [sys.executable, "-c", "import sys; sys.exit('no such database')"]
    monkeypatch.setattr("scripts.airflow_home.airflow_command", lambda *_: fails)
    with (
        Airflow(AirflowHome(tmp_path, free_port(), tmp_path / "consumers.toml"), ["scheduler"]) as airflow,
        pytest.raises(AirflowNotReady, match=r"scheduler ended with code 1(.|\n)*no such database"),
    ):
        airflow.wait_for(lambda: False, "it has not started")


SERVER = """
import sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"metadatabase": {"status": "healthy"}, "scheduler": {"status": "healthy"}}')

time.sleep(1)
HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""
ASKS_ONCE = """
import sys, time, urllib.request
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"http://127.0.0.1:{sys.argv[1]}")
time.sleep(600)
"""


def test_the_scheduler_starts_once_the_api_server_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks ask the API server a few times, and then their try fails."""
    port, calls = free_port(), list[str]()

    def command(*words: str) -> list[str]:
        return [sys.executable, "-c", SERVER if words[0] == "api-server" else ASKS_ONCE, str(port)]

    monkeypatch.setattr("scripts.airflow_home.airflow_command", command)
    home = AirflowHome(tmp_path, port, tmp_path / "consumers.toml")
    with Airflow(home, ["scheduler", "api-server"], meanwhile=lambda: calls.append("")) as airflow:
        assert calls
        airflow.wait_until_healthy()
        airflow.check_alive()


def test_an_airflow_that_gets_nowhere_is_told_with_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_progress(*_: object, **__: object) -> None:
        raise NoProgress("no progress for 120 s")

    monkeypatch.setattr("scripts.airflow_home.wait_for_progress", no_progress)
    airflow = Airflow(AirflowHome(tmp_path, free_port(), tmp_path / "consumers.toml"))
    with pytest.raises(AirflowNotReady, match=r"it has not started: no progress for 120 s\. Logs: .*process-logs"):
        airflow.wait_for(lambda: False, "it has not started")
