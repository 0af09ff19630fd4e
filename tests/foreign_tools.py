"""Other tools that write to a table of the store. Since format 2 the protocol of a table forbids it; ``protocol_ignored``
does it anyway, as a tool that does not look at the protocol, or as it could be done to older tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from rmq_store.lake.table.delta_entry import entry_name, protocol_action

OPEN_TO_ALL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
"""The protocol of a table that any tool may write to."""


def log_of(table: Path) -> Path:
    return table / "_delta_log"


def newest_version(table: Path) -> int:
    return max(int(entry.stem) for entry in log_of(table).glob("*.json"))


def append_entry(table: Path, *actions: Mapping[str, Any]) -> Path:
    """The next entry of the log, with these actions."""
    path = log_of(table) / entry_name(newest_version(table) + 1)
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return path


@contextmanager
def protocol_ignored(table: Path) -> Iterator[DeltaTable]:
    """The table for delta-rs, which may write to it."""
    append_entry(table, OPEN_TO_ALL)
    try:
        yield DeltaTable(str(table))
    finally:
        append_entry(table, protocol_action())
