"""Calls in a thread for which neither the caller nor the end of the process has to wait."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def in_daemon(call: Callable[[], T], name: str, answer: Future[T] | None = None) -> Future[T]:
    """What the call returns or raises, in a thread with this name. Unlike one of an executor it does not keep the process when
    it hangs. Raises RuntimeError where the system refuses a thread. ``answer``: gets it, for a caller that has to know it also
    when a signal comes while the thread starts."""
    answer = Future() if answer is None else answer

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, name=name, daemon=True).start()
    return answer
