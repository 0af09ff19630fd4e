"""The signals that stop a process: they raise Terminated in its main thread, so that claims are released and the answer is
written."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextvars import ContextVar
from types import FrameType

from rmq_store.errors import STOPPED, Terminated
from rmq_store.utils.host import monotonic_ms

STOPPED_BY: ContextVar[signal.Signals | None] = ContextVar("STOPPED_BY", default=None)
"""The one that stops this process. A query of DuckDB that it interrupts ends with an error that does not say so."""

ANSWERING: ContextVar[bool] = ContextVar("ANSWERING", default=False)
"""Whether the work has ended, and its answer is being written."""

_AGAIN_S = 0.05

_ONE_STOP_MS = 2000
"""Signals that come so soon after the first one are the same stop: GNU timeout sends one to its child and one to the group of
processes, and a terminal sends Ctrl-C to each process of it. A second one would end the release of the claims."""

_stops: list[int] = []
"""When the first signal of this stop came, by ``monotonic_ms``."""


def handle_signals() -> None:
    """What the starter has ignored stays so: a shell ignores Ctrl-C for what it starts in the background, nohup SIGHUP."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    sys.unraisablehook = _not_raised


def stopped_text(number: signal.Signals, *, has_request: bool) -> str:
    """What a user is told. ``has_request``: the work may have committed, and can be finished."""
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    advice = "; what was committed stays, run the same request again to finish" if has_request else ""
    return f"stopped by {name}{advice}"


def _stop(number: int, frame: FrameType | None) -> None:
    if ANSWERING.get():
        # The process ends now, or with the next signal, where its answer cannot be written.
        signal.signal(number, signal.SIG_DFL)
        return
    if _stops and monotonic_ms() - _stops[0] < _ONE_STOP_MS:
        return
    _stops[:] = [monotonic_ms()]
    STOPPED_BY.set(signal.Signals(number))
    STOPPED.set()
    raise Terminated  # for Ctrl-C too: py4j prints the traceback of a KeyboardInterrupt


def _not_raised(unraisable: sys.UnraisableHookArgs) -> None:
    """Python drops what a signal's handler raises inside ``__del__``: the signal comes again when that has ended."""
    number = STOPPED_BY.get()
    if number is None or not isinstance(unraisable.exc_value, KeyboardInterrupt | Terminated):
        sys.__unraisablehook__(unraisable)
        return
    _stops.clear()
    again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()
