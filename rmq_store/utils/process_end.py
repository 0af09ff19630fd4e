"""How a process ends that has used Arrow."""

from __future__ import annotations

import atexit
import sys
import threading
from contextlib import suppress
from os import _exit  # a listener's code sees another one
from typing import NoReturn

_HAS_CODE_OF_USER = threading.Event()


def code_of_user_runs_here() -> None:
    """What such code keeps open to the end, such as a file with a buffer, is closed only when the interpreter is taken down."""
    _HAS_CODE_OF_USER.set()


def end_process(code: int) -> NoReturn:
    """End this process with the exit code, as ``sys.exit`` in the main thread, but leave the interpreter as it is, unless code
    of a user has run here.

    A thread of Arrow's pool may give memory back to Python a moment after Arrow has answered. While the interpreter is taken
    down, CPython before 3.14 ends each thread that asks for it, and the C++ code of that thread then aborts the process: a
    command that has committed would end with SIGABRT (python/cpython#87135).
    """
    if _HAS_CODE_OF_USER.is_set():
        sys.exit(code)
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        with suppress(BaseException):  # a signal too: all is done
            step()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):  # also of one that is closed
            stream.flush()
    _exit(code)
