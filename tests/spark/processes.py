"""Code for Spark in processes of its own: a process can hold a classic or a Connect session, not one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from spark_jobs.session import open_session


def in_a_new_process(code: str, *arguments: str, env: Mapping[str, str] | None = None) -> Any:
    """The JSON that ``code`` prints last."""
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    return json.loads(run.stdout.splitlines()[-1])


_CLIENT = """
import json, os, sys
from spark_jobs.session import open_session
code, arguments, conf = json.loads(sys.argv[1])
names = {"session": open_session("client", remote=os.environ["REMOTE"], conf=conf), "arguments": arguments}
try:
    exec(compile(code, "<test>", "exec"), names)
finally:
    names["session"].stop()
print(json.dumps(names["answer"]))
"""


def in_a_client(remote: str, code: str, *arguments: str, conf: Mapping[str, str] | None = None) -> Any:
    """What ``code`` assigns to ``answer``, in a new process with a Connect ``session`` and the ``arguments``."""
    return in_a_new_process(_CLIENT, json.dumps([code, arguments, conf]), env={"REMOTE": remote})


def family(process_id: int) -> list[psutil.Process]:
    """The process with all that it has started."""
    parent = psutil.Process(process_id)
    return [parent, *parent.children(recursive=True)]


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


class ClassicDriver:
    """A process with a classic session, for many pieces of code. Each has a session of its own on the same JVM: settings,
    temporary views and functions of one are not seen by the next."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log

    def run(self, code: str, *arguments: str, conf: Mapping[str, str] | None = None) -> Any:
        """What ``code`` assigns to ``answer``, with a ``session`` and the ``arguments``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([code, arguments, conf or {}]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self._log.read_text()[-4000:]
        answer, error = json.loads(line)
        assert not error, error
        return answer


@contextmanager
def running_driver(log: Path, python_path: Path) -> Iterator[ClassicDriver]:
    """A driver that ends with the block. ``python_path``: a folder from which its workers can import."""
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-m", __name__, str(python_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        yield ClassicDriver(process, log)


def _serve() -> None:
    """In the driver's process: answer one line of JSON with another, until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the JVM prints must not come between the answers
    with open_session("test", master="local[2,2]", python_path=sys.argv[1:]) as shared:
        for line in sys.stdin:
            code, arguments, conf = json.loads(line)
            names: dict[str, Any] = {"session": shared.newSession(), "arguments": arguments}
            error = ""
            try:
                for name, value in conf.items():
                    names["session"].conf.set(name, value)
                exec(compile(code, "<test>", "exec"), names)
            except BaseException:
                error = traceback.format_exc()
            print(json.dumps([names.get("answer"), error]), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
