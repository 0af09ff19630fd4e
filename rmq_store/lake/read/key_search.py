"""The row groups in which a message with a key may be, by the Bloom filters of the message files.

A row group without filters (written by an earlier version) is always among them, so an answer is the same as that of a scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rmq_store.lake.read.open_files import Footer, OpenFiles
from rmq_store.lake.table.key_filters import KEY_WORDS, KEYS, UNIQUE_KEY
from rmq_store.lake.table.object_store import TAIL_BYTES, Root
from rmq_store.lake.table.parallel import in_parallel
from rmq_store.utils.bloom_filter import bitset, may_contain, xxh64

BOUNDS = ("min.topic", "max.topic", "min.store_timestamp", "max.store_timestamp", "null_count.store_timestamp")
"""The statistics of a file that rule it out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySearch:
    """A search for the messages with a key, stored in ``[begin_ms, end_ms)`` (UTC ms)."""

    key: str
    unique_only: bool
    """Only as their unique key, not also among their KEYS."""
    topic: str | None = None
    begin_ms: int | None = None
    end_ms: int | None = None

    def row_groups(self, root: Root, folder: str, index: pa.Table) -> list[Sequence[int] | None]:
        """For each message file the row groups that can have such a message; None: all, its filters were not read.

        ``folder``: the table's folder in ``root``; ``index``: its files, as ``LakeTable.files`` returns them. Raises
        StoreUnusable when the store does not answer.
        """
        hash_ = xxh64(self.key.encode(errors="surrogatepass"))

        def of_file(row: dict[str, Any]) -> Sequence[int] | None:
            if not self._in_bounds(row):
                return ()
            if row["size_bytes"] <= TAIL_BYTES and not root.is_local:
                return None  # one request reads such a file, and its filters would need another
            try:
                return self._in_file(root, f"{folder}/{row['path']}", hash_)
            except (OSError, pa.ArrowInvalid):
                return None  # the scan says what is wrong

        return list(in_parallel(root, of_file, index.select(["path", "size_bytes", *BOUNDS]).to_pylist()))

    def _in_bounds(self, row: dict[str, Any]) -> bool:
        """Whether a file can have messages of the topic and time, by its statistics. A message that was born in the lake
        has its store time from its commit, and null in its file."""
        least, most = row["min.topic"], row["max.topic"]
        if self.topic is not None and least is not None and most is not None and not least <= self.topic <= most:
            return False
        least, most = row["min.store_timestamp"], row["max.store_timestamp"]
        if row["null_count.store_timestamp"] != 0 or least is None or most is None:
            return True
        return (self.begin_ms is None or most >= self.begin_ms) and (self.end_ms is None or least < self.end_ms)

    def _in_file(self, root: Root, path: str, hash_: int) -> Sequence[int]:
        footer = OpenFiles(root).footer(path)
        names = (UNIQUE_KEY,) if self.unique_only else (UNIQUE_KEY, KEYS, KEY_WORDS)
        places = [_filters(footer, group, names) for group in range(len(footer.starts) - 1)]
        known = [place for of_group in places for place in of_group or ()]
        if not known:
            return range(len(places))
        # All filters of a file are side by side, behind its rows.
        begin, end = min(begin for begin, _ in known), max(end for _, end in known)
        content = root.read(path, begin, end)

        def may_have(place: tuple[int, int]) -> bool:
            bits = bitset(content[place[0] - begin : place[1] - begin])
            return bits is None or may_contain(bits, hash_)

        return [
            group
            for group, of_group in enumerate(places)
            if of_group is None or any(may_have(place) for place in of_group)
        ]


def _filters(footer: Footer, group: int, names: Sequence[str]) -> list[tuple[int, int]] | None:
    """Where the filters of the columns are in the file, as ``[begin, end)``; None when one of the columns has none."""
    places = []
    columns = footer.metadata.row_group(group)
    for name in names:
        if name in footer.leaves:
            chunk = columns.column(footer.leaves[name])
            if chunk.bloom_filter_offset is None or chunk.bloom_filter_length is None:
                return None
            places.append((chunk.bloom_filter_offset, chunk.bloom_filter_offset + chunk.bloom_filter_length))
    return places
