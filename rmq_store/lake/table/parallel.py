"""Requests to a store: one after the other in a folder, several at once in S3, where each waits for the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rmq_store.lake.table.object_store import Root

Item = TypeVar("Item")
Answer = TypeVar("Answer")
First = TypeVar("First")
Second = TypeVar("Second")

REQUESTS = 8
"""Several small data files, most of the time of which is Python's own."""

LOG_REQUESTS = 48
"""Entries of a log: a few hundred bytes each."""


def in_parallel(
    root: Root, ask: Callable[[Item], Answer], items: Sequence[Item], requests: int = REQUESTS
) -> Iterator[Answer]:
    """``ask`` of each item, in their order; in S3 at most ``requests`` of them at once. Raises what ``ask`` raises."""
    if root.is_local or len(items) <= 1:  # threads that wait for Python's lock cost more than they save
        yield from map(ask, items)
        return
    with ThreadPoolExecutor(requests) as pool:
        yield from pool.map(ask, items)


def both(root: Root, first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """What two calls return; in S3 both are made at once. Raises what the first one raises, else what the second one raises."""
    if root.is_local:
        return first(), second()
    with ThreadPoolExecutor(1) as pool:
        later = pool.submit(second)
        return first(), later.result()
