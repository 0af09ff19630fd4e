"""Watches a process on which this one depends."""

from __future__ import annotations

import os
import signal
import sys
import threading

import psutil

from rmq_store.utils.process_end import end_process
from spark_jobs.session import IS_SUBMITTED


def submitted_by(program: str) -> psutil.Process | None:
    """The JVM of spark-submit, of which this process is the Python; None: nothing of spark-submit started it.

    Where spark-submit has ended already, this process ends too. ``program``: what it says that it is.
    """
    if IS_SUBMITTED not in os.environ:
        return None
    submit = _parent_that_listens(int(os.environ[IS_SUBMITTED]))
    if submit is None:
        print(f"error: spark-submit has ended, so this {program} does nothing", file=sys.stderr)
        end_process(128 + signal.SIGTERM)
    return submit


def has_ended(process: psutil.Process, stop: threading.Event, look_every_s: float = 1.0) -> bool:
    """Wait until the process has ended, True, or until ``stop`` is set, False."""
    while not stop.wait(look_every_s):
        try:
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
    return False


def stop_with(process: psutil.Process) -> None:
    """Send SIGTERM to this process once the other one has ended."""

    def watch() -> None:
        if has_ended(process, threading.Event()):
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="rmq-watch", daemon=True).start()


def _parent_that_listens(port: int) -> psutil.Process | None:
    """The parent of this process, if it listens on the TCP port, or hides whether it does. None: the process that started this
    one has ended, and another one is the parent now."""
    parent = psutil.Process().parent()
    if parent is None:
        return None
    try:
        ports = {each.laddr.port for each in parent.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    except psutil.AccessDenied:
        return parent
    except psutil.NoSuchProcess:
        return None
    return parent if port in ports else None
