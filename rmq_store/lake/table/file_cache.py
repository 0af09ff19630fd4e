"""Rows of small files that were read before, up to a number of bytes. Files of a table never change."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

import pyarrow as pa


class FileCache:
    """Threads may share it. What was used longest ago is dropped first."""

    def __init__(self, most_bytes: int, most_of_one: int) -> None:
        self._most_bytes = most_bytes
        self._most_of_one = most_of_one
        self._bytes = 0
        self._tables: OrderedDict[Hashable, pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> pa.Table | None:
        with self._lock:
            if key in self._tables:
                self._tables.move_to_end(key)
            return self._tables.get(key)

    def put(self, key: Hashable, table: pa.Table) -> None:
        """Keep the table, unless it is large."""
        if table.nbytes > self._most_of_one:
            return
        with self._lock:
            before = self._tables.pop(key, None)
            self._tables[key] = table
            self._bytes += table.nbytes - (0 if before is None else before.nbytes)
            while self._bytes > self._most_bytes:
                _, dropped = self._tables.popitem(last=False)
                self._bytes -= dropped.nbytes
