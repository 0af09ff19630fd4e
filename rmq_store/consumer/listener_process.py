"""Protection of the process that a listener runs in: the listener can neither end it nor continue the window in a fork.

RocketMQ's client catches Throwable around its listener. Here ``SystemExit`` is a failure like any other, ``os._exit``
raises it while a listener runs, and a process that a listener has forked ends where the listener returns. What ends a
process in C cannot be caught (``docs/decisions/0008-listener-in-process.md``).
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import ClassVar, NoReturn

_EXIT = os._exit


class OwnProcess:
    """A context manager around a listener's code: ``os._exit`` raises SystemExit there. In a forked process it ends it.

    It may be nested: around each batch, and around the window, because of garbage that is collected between batches.
    The last one that ends, in whatever thread, restores ``os._exit``.
    """

    __slots__ = ("_pid",)
    _open: ClassVar[int] = 0

    def __enter__(self) -> None:
        self._pid = os.getpid()
        OwnProcess._open += 1
        os._exit = self._refuse

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        OwnProcess._open -= 1
        if not OwnProcess._open:
            os._exit = _EXIT
        if os.getpid() != self._pid:
            _EXIT(_exit_code(error))

    def _refuse(self, status: int) -> NoReturn:
        if os.getpid() != self._pid:
            _EXIT(status)
        raise SystemExit(f"os._exit({status})")


def _exit_code(error: BaseException | None) -> int:
    """The exit code of a forked process: that of its ``sys.exit``, else 1."""
    if not isinstance(error, SystemExit):
        return 1
    code = 0 if error.code is None else error.code
    return code & 0xFF if isinstance(code, int) else 1
