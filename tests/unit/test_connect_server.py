"""A Spark Connect server that ends, as its starter sees it, without Spark."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from spark_jobs.locked_folder import locked_folder
from spark_jobs.process_watch import has_ended
from spark_jobs.session import ConnectServer

SERVER = """
import fcntl, json, sys
from pathlib import Path
from spark_jobs.locked_folder import LOCK
folder, port = Path(sys.argv[sys.argv.index("--starter") + 1]), int(sys.argv[sys.argv.index("--port") + 1])
(folder / "address.new").write_text(json.dumps({"port": port or 4711}))
(folder / "address.new").rename(folder / "address")
with (folder / LOCK).open() as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
"""
"""It ends with its starter, as a real one does."""


def test_a_server_that_has_ended_is_started_again_under_its_address(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    server = ConnectServer(log_file=tmp_path / "log", submit=[sys.executable, str(program)])
    assert not server.has_ended, "it has not begun"
    with server:
        remote, process = server.remote, psutil.Process(server.process_id)
        assert not server.has_ended
        process.kill()
        while not server.has_ended:
            threading.Event().wait(0.01)
        server.start_again()
        assert not server.has_ended
        assert (server.remote, server.process_id != process.pid) == (remote, True)
    assert not server.has_ended, "it was stopped"


def test_a_server_notices_that_its_jvm_has_ended() -> None:
    stop = threading.Event()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as jvm:
        process = psutil.Process(jvm.pid)
        threading.Timer(0.05, stop.set).start()
        assert not has_ended(process, stop, 0.001)
        jvm.kill()
        assert has_ended(process, threading.Event(), 0.001), "it is a zombie"
    assert has_ended(process, threading.Event(), 0.001), "it is gone"


WATCHER = """
import sys, threading
from pathlib import Path
from spark_jobs.connect_server import _when_starter_ends
stop, ready = threading.Event(), threading.Event()
if sys.argv[2] == "ready":
    ready.set()
threading.Thread(target=_when_starter_ends, args=(Path(sys.argv[1]), stop, ready), daemon=True).start()
print("begun", flush=True)
stop.wait()
"""


@pytest.mark.parametrize(("state", "code"), [("ready", 0), ("starting", 1)])
def test_a_server_whose_starter_has_ended_ends_and_removes_the_folder_of_its_starter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, code: int
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder, lock = locked_folder("connect-server")
    (folder / "address").write_text("{}")
    watcher = [sys.executable, "-c", WATCHER, str(folder), state]
    with subprocess.Popen(watcher, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "begun\n"
        assert folder.exists()
        lock.close()
        assert server.wait() == code
    assert not folder.exists()
