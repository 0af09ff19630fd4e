"""Who is stopped while Spark starts or works says so, gives its claims back, and leaves no process and no folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from spark_jobs.session import ConnectServer
from tests.faults.stores import GROUP, MESSAGES, REQUEST, Lake, write_broker
from tests.spark.commands import answer_of, command, wait_until
from tests.spark.processes import family, in_a_client, is_gone
from tests.spark.test_faults import LISTENER, SETTINGS
from tests.terminal import Terminal

WORDS = ["consume", "--group", GROUP, "--request", REQUEST]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Its group has a listener that touches ``called`` and does not return before there is a file ``open``."""
    lake = Lake(tmp_path / "store")
    lake.load(write_broker(tmp_path / "broker"))
    (tmp_path / "consumers.toml").write_text(SETTINGS.replace("shop:", "stall:"))
    (tmp_path / "stall.py").write_text(LISTENER.format(folder=str(tmp_path)))
    (tmp_path / "tmp").mkdir()
    return lake


def environment(lake: Lake) -> dict[str, str]:
    return {"RMQ_ROOT": str(lake.folder), "TMPDIR": str(lake.folder.parent / "tmp")}


def said(by: str) -> str:
    return f"error: stopped by {by}; what was committed stays, run the same request again to finish (request {REQUEST})"


def finished(lake: Lake) -> None:
    """The same request does its work at once: no claim is left."""
    (lake.folder.parent / "open").touch()
    process = command(lake.folder.parent, *WORDS, "--engine", "local", env=environment(lake))
    assert answer_of(process)["messages"] == MESSAGES


@contextmanager
def nothing_left(process: int) -> Iterator[None]:
    members = family(process)
    yield
    try:
        assert [member.name() for member in members if not is_gone(member)] == []
    finally:
        for member in members:
            if not is_gone(member):
                member.kill()


@pytest.mark.parametrize("closed", [False, True], ids=["Ctrl-C", "closed terminal"])
def test_a_window_in_spark_ends_with_its_terminal(lake: Lake, tmp_path: Path, closed: bool) -> None:
    words = [str(Path(sys.executable).with_name("rmq")), *WORDS, "--master", "local[2]"]
    env = {name: text for name, text in os.environ.items() if name != "SPARK_REMOTE"} | environment(lake)
    with Terminal(words, tmp_path, env) as terminal:
        while not (tmp_path / "called").exists():
            assert terminal.process.poll() is None, terminal.screen
            time.sleep(0.05)
        members = family(terminal.process.pid)
        if closed:
            terminal.close()
        else:
            terminal.press_ctrl_c()
        assert terminal.end() == (129 if closed else 130), terminal.screen
    psutil.wait_procs(members)
    if not closed:
        assert said("Ctrl-C") in terminal.screen
        assert "Traceback" not in terminal.screen
    assert list((tmp_path / "tmp").glob("rmq-*")) == []
    assert lake.commits("consume") == []
    finished(lake)


def test_a_window_on_a_server_that_is_stopped_frees_the_server(
    connect_server: ConnectServer, lake: Lake, tmp_path: Path
) -> None:
    window = command(tmp_path, *WORDS, env=environment(lake) | {"SPARK_REMOTE": connect_server.remote})
    wait_until((tmp_path / "called").exists, window)
    window.send_signal(signal.SIGTERM)
    _, err = window.communicate()
    assert (window.returncode, said("SIGTERM") in err) == (143, True), err
    assert in_a_client(connect_server.remote, "answer = session.range(0, 9, 1, 2).count()") == 9, "its tasks have ended"
    finished(lake)


def test_a_window_on_a_server_that_does_not_answer_ends_all_the_same(lake: Lake, tmp_path: Path) -> None:
    """pyspark would ask it for ten minutes whether it has cancelled the job, and without end to close the session."""
    with ConnectServer(master="local[2]", log_file=tmp_path / "log") as server:
        window = command(tmp_path, *WORDS, env=environment(lake) | {"SPARK_REMOTE": server.remote})
        wait_until((tmp_path / "called").exists, window)
        (jvm,) = [process for process in family(server.process_id) if process.name() == "java"]
        jvm.suspend()
        try:
            window.send_signal(signal.SIGTERM)
            _, err = window.communicate()
        finally:
            jvm.resume()
    assert (window.returncode, said("SIGTERM") in err) == (143, True), err
    finished(lake)


def starts_spark(process: psutil.Process) -> bool:
    """Whether pyspark has started it, so that it becomes a JVM."""
    with suppress(psutil.Error):
        return "_PYSPARK_DRIVER_CONN_INFO_PATH" in process.environ()
    return False


def test_a_window_that_is_stopped_while_spark_starts_leaves_no_jvm(lake: Lake, tmp_path: Path) -> None:
    window = command(tmp_path, *WORDS, "--master", "local[2]", env=environment(lake))
    wait_until(lambda: any(map(starts_spark, psutil.Process(window.pid).children())), window)
    with nothing_left(window.pid):
        window.send_signal(signal.SIGTERM)
        assert window.wait() == 143
    assert window.stderr is not None
    assert said("SIGTERM") in window.stderr.read()
    assert list((tmp_path / "tmp").iterdir()) == []
    finished(lake)


def test_a_server_in_the_foreground_ends_with_ctrl_c() -> None:
    """A SparkContext replaces the handler of the signal by its own."""
    words = [sys.executable, "-m", "spark_jobs.connect_server", "--master", "local[1]", "--no-delta"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert "sc://localhost" in server.stdout.readline()
        server.send_signal(signal.SIGINT)
        _, err = server.communicate()
    assert (server.returncode, "Traceback" in err) == (0, False), err


def test_a_server_that_is_stopped_while_it_starts_ends_at_once_and_leaves_no_jvm() -> None:
    """To start takes longer than what follows a container's SIGTERM."""
    words = [sys.executable, "-m", "spark_jobs.connect_server", "--master", "local[1]", "--no-delta"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        wait_until(lambda: any(map(starts_spark, psutil.Process(server.pid).children())), server)
        with nothing_left(server.pid):
            server.send_signal(signal.SIGTERM)
            out, err = server.communicate()
    assert (server.returncode, out, "Traceback" in err) == (143, "", False), err
