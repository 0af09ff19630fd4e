"""Watches a process on which this one depends."""

from __future__ import annotations

import os
import signal
import threading

import psutil


def has_ended(process: psutil.Process, stop: threading.Event, look_every_s: float = 1.0) -> bool:
    """Wait until the process has ended, True, or until ``stop`` is set, False."""
    while not stop.wait(look_every_s):
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
    return False


def stop_with_parent() -> None:
    """Send SIGTERM to this process once its parent has ended. spark-submit starts the Python of a job, and leaves it alone when
    it is stopped itself: it would go on with the window, and its answer would be lost."""
    parent = psutil.Process().parent()

    def watch() -> None:
        if parent is None or has_ended(parent, threading.Event()):
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="rmq-parent", daemon=True).start()
