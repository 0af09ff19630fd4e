"""Reads of many data files: one after the other on disk, several at once in S3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rmq_store.consumer.pull import Slice
from rmq_store.lake.table.object_store import Root

Item = TypeVar("Item")
Result = TypeVar("Result")

PARALLEL_READS = 8


def in_parallel(root: Root, read: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """``read`` of each item, in their order."""
    if root.is_local or len(items) < 2:
        return list(map(read, items))
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        return list(pool.map(read, items))


def by_file(slices: Iterable[Slice]) -> list[list[Slice]]:
    """The slices of each file, in their order."""
    of_file: dict[str, list[Slice]] = {}
    for slice_ in slices:
        of_file.setdefault(slice_.file, []).append(slice_)
    return list(of_file.values())
