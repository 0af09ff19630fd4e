"""The signals that stop a process: ``rmq_store/utils/signals.py``."""

from __future__ import annotations

import subprocess
import sys

import pytest

TWICE = """
import os, signal
from rmq_store.errors import Terminated
from rmq_store.utils import signals

now = iter([0, {second}, {second}])
signals.monotonic_ms = lambda: next(now)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its jobs in the background ignore it
signals.handle_signals()
try:
    os.kill(os.getpid(), signal.{first})
    raise SystemExit("the first one stops nothing")
except Terminated:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        print("released", signals.STOPPED_BY.get().name)
    except Terminated:
        print("stopped again")
"""


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [("SIGTERM", 100, "released SIGTERM"), ("SIGINT", 1999, "released SIGINT"), ("SIGTERM", 2000, "stopped again")],
)
def test_signals_that_come_together_are_one_stop(first: str, second: int, expected: str) -> None:
    """As GNU timeout sends them: the second one does not end the release of the claims."""
    code = TWICE.format(first=first, second=second)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == f"{expected}\n"


ANSWERED = """
import os, signal, typer
from rmq_store.cli.output import Output
from rmq_store.utils import signals

def echo(text):
    os.kill(os.getpid(), signal.SIGTERM)
    print(text)

signals.handle_signals()
typer.echo = echo
Output(as_json=False).answer({"status": "committed"})
"""


def test_a_signal_while_the_answer_is_written_makes_no_error_of_what_was_done() -> None:
    """Only the second one ends the process, where nothing reads the answer."""
    ended = subprocess.run([sys.executable, "-c", ANSWERED], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "status: committed\n", "")
