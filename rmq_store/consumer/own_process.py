"""A listener runs in this process and must not take it away: not end it, and not go on with the window in a copy of it.

RocketMQ's client catches Throwable around its listener. Here ``SystemExit`` is a failure like any other, ``os._exit``
becomes one while a listener is asked, and a process that a listener has forked ends where the listener returns. What
ends a process in C cannot be caught here (``docs/decisions/0008-listener-in-process.md``).
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import ClassVar, NoReturn

_EXIT = os._exit


class OwnProcess:
    """For ``with``, around a listener's code. ``os._exit`` raises SystemExit there, but in a forked process, which ends.

    One may stand in another: around each batch, and around the window for what is collected between the batches. The last
    one that ends, in whatever thread, gives ``os._exit`` back.
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
    """Of a forked process: what its ``sys.exit`` asked for, else 1."""
    if not isinstance(error, SystemExit):
        return 1
    code = 0 if error.code is None else error.code
    return code & 0xFF if isinstance(code, int) else 1
