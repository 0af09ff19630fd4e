"""What is started with a keeper ends with its starter, whatever ends that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from scripts.airflow_home import AirflowNotReady, only_one
from scripts.keeper import CHECKOUT, end_kept, start_kept

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
own_group = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print(own_group.pid, os.getpid(), flush=True)
time.sleep(600)
"""
"""Like a scheduler with a task: it does not end when asked, and its child has a process group of its own."""

POLITE = """
import signal, sys, threading
told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
print("started", flush=True)
told.wait()
print("was asked")
sys.exit(7)
"""

STARTER = """
import os, sys
from pathlib import Path
from scripts.airflow_home import only_one
from scripts.keeper import start_kept
with only_one(Path(sys.argv[1]), "it") as lock, open(sys.argv[2], "wb") as log:
    command = [sys.executable, "-c", sys.argv[3]]
    kept = [start_kept(command, log, env=os.environ, patience_s=float(sys.argv[4]), keep_open=[lock]) for _ in range(2)]
    print(*[keeper.pid for keeper in kept], flush=True)
    sys.stdin.read()
"""

SOON_S = 300.0


@contextmanager
def starter(folder: Path, patience_s: float = 0.2) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that is inside ``only_one`` and keeps two stubborn commands; the ids of all that belongs to these."""
    command = [sys.executable, "-c", STARTER, str(folder / "lock"), str(folder / "log"), STUBBORN, str(patience_s)]
    started = subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    family: list[int] = []
    try:
        assert started.stdout is not None
        family = [int(pid) for pid in started.stdout.readline().split()]
        family += [int(pid) for line in lines_of(folder / "log", 2) for pid in line.split()]
        yield started, family
    finally:
        started.kill()
        started.communicate()
        for process_id in alive(family):
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)


def lines_of(log: Path, count: int) -> list[str]:
    """The lines of the log, once there are so many."""
    while (text := log.read_text() if log.exists() else "").count("\n") < count:
        os.sched_yield()
    return text.splitlines()


def alive(process_ids: Sequence[int]) -> list[int]:
    return [each for each in process_ids if is_alive(each)]


def is_alive(process_id: int) -> bool:
    try:
        return bool(psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_nothing_outlives_a_starter_that_is_killed(tmp_path: Path) -> None:
    with starter(tmp_path) as (started, family):
        assert len(alive(family)) == 6, "two keepers, each with a command and its child"
        started.kill()
        deadline = time.monotonic() + SOON_S
        while alive(family) and time.monotonic() < deadline:
            os.sched_yield()
        assert alive(family) == []


def test_a_command_is_asked_to_end_before_it_is_killed(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        keeper = start_kept([sys.executable, "-c", POLITE], log, env=os.environ, patience_s=SOON_S)
    assert lines_of(tmp_path / "log", 1) == ["started"]
    end_kept([keeper])
    assert (tmp_path / "log").read_text().splitlines() == ["started", "was asked"]
    assert keeper.returncode == 7
    end_kept([keeper])


@pytest.mark.parametrize(("code", "seen"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 128 + 9)])
def test_a_command_that_ends_by_itself_takes_its_own_along_and_its_code_is_the_keepers(
    code: str, seen: int, tmp_path: Path
) -> None:
    leaves_one = "import os, subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); "
    with (tmp_path / "log").open("wb") as log:
        keeper = start_kept([sys.executable, "-c", leaves_one + code], log, env=os.environ)
    assert keeper.wait(SOON_S) == seen
    (left_behind,) = lines_of(tmp_path / "log", 1)
    assert not is_alive(int(left_behind))
    end_kept([keeper])


def test_what_a_killed_keeper_kept_is_ended_by_the_starter(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        keeper = start_kept([sys.executable, "-c", STUBBORN], log, env=os.environ, patience_s=0.2)
    (pids,) = lines_of(tmp_path / "log", 1)
    kept = [int(pid) for pid in pids.split()]
    assert alive(kept) == kept
    keeper.kill()
    end_kept([keeper])
    assert alive(kept) == []


def test_the_next_start_is_refused_while_the_first_lives_and_waits_for_what_it_left_when_it_is_killed(
    tmp_path: Path,
) -> None:
    said: list[str] = []
    with starter(tmp_path, patience_s=1.0) as (started, family):
        with pytest.raises(AirflowNotReady, match="it runs already"), only_one(tmp_path / "lock", "it", said.append):
            pass
        assert said == []
        started.kill()
        started.wait()
        with only_one(tmp_path / "lock", "it", said.append):
            assert alive(family) == []
    assert said == ["it was killed; waiting until the processes that it had started have ended"]
    with only_one(tmp_path / "lock", "it", said.append):
        assert len(said) == 1
