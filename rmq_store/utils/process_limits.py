"""Limits that the kernel keeps for this process."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def set_limit(which: int, value: int) -> None:
    """Set a limit of ``resource`` for the process, as far as the one above it allows."""
    _, hard = resource.getrlimit(which)
    resource.setrlimit(which, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def address_space() -> int:
    """Bytes that the process has now. Linux only."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


@contextmanager
def bounded_address_space(more_bytes: int) -> Iterator[None]:
    """In the body the process can allocate at most so many bytes more than it has; a lower limit stays as it is. Only on Linux:
    elsewhere nothing says what it has."""
    if sys.platform != "linux":
        yield
        return
    before, _ = resource.getrlimit(resource.RLIMIT_AS)
    limit = address_space() + more_bytes
    if before == resource.RLIM_INFINITY or limit < before:
        set_limit(resource.RLIMIT_AS, limit)
    try:
        yield
    finally:
        set_limit(resource.RLIMIT_AS, before)
