"""A Delta table as a stranger reads it: the newest checkpoint, and the JSON entries behind it (Delta protocol, "Action
Reconciliation"). Nothing of this project and no Delta library is used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet")
_COLUMNS = ("add", "remove", "txn")


class LogBroken(Exception):
    """The log of a table cannot be replayed: an entry is missing or is no JSON."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one entry of the log says."""

    version: int
    changes: Mapping[str, int]
    """The positions that it changed: application id to the new number, -1 where it was deleted."""
    commit_ids: tuple[str, ...]


@dataclass(slots=True)
class TableState:
    """The table in its newest version."""

    folder: Path
    version: int = -1
    files: dict[str, str] = field(default_factory=dict)
    """Live data files, relative to the folder, and the value of their partition ``kind``."""
    positions: dict[str, int] = field(default_factory=dict)
    """Application id to number; -1: the position was deleted."""
    entries: list[Entry] = field(default_factory=list)
    """Those behind the checkpoint."""

    def of_kind(self, kind: str) -> list[Path]:
        return [self.folder / path for path, of_file in sorted(self.files.items()) if of_file == kind]


def replay(folder: Path) -> TableState:
    """The newest version of the table in ``folder``. Raises LogBroken."""
    names = {path.name for path in (folder / "_delta_log").iterdir()}
    checkpoints = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    versions = sorted(int(match[1]) for name in names if (match := _ENTRY.fullmatch(name)))
    state = TableState(folder)
    if checkpoints:
        state.version = max(checkpoints)
        for action in _actions_of_checkpoint(folder / "_delta_log" / f"{state.version:020}.checkpoint.parquet"):
            _apply(state, action)
    for version in versions:
        if version <= state.version:
            continue
        if version != state.version + 1:
            raise LogBroken(f"{folder.name}: the log has entry {version}, but no entry {state.version + 1}")
        state.entries.append(_applied_entry(state, version))
        state.version = version
    if state.version < 0:
        raise LogBroken(f"{folder.name}: the log has neither a checkpoint nor entry 0")
    return state


def _applied_entry(state: TableState, version: int) -> Entry:
    path = state.folder / "_delta_log" / f"{version:020}.json"
    try:
        actions = [json.loads(line) for line in path.read_bytes().splitlines()]
    except ValueError as error:
        raise LogBroken(f"{path} is no JSON: {error}") from None
    positions = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
    changes = {name: value for name, value in positions.items() if state.positions.get(name, -1) != value}
    for action in actions:
        _apply(state, action)
    info: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    ids = info.get("commit_ids") or ""
    return Entry(version, changes, tuple(ids.split(",")) if ids else ())


def _apply(state: TableState, action: Mapping[str, Any]) -> None:
    if add := action.get("add"):
        partition = dict(add.get("partitionValues") or {})
        state.files[unquote(add["path"])] = partition.get("kind") or ""
    elif remove := action.get("remove"):
        state.files.pop(unquote(remove["path"]), None)
    elif txn := action.get("txn"):
        state.positions[txn["appId"]] = int(txn["version"])


def _actions_of_checkpoint(path: Path) -> Iterator[Mapping[str, Any]]:
    """Its adds and positions; what it says of removed files is for a vacuum only."""
    file = pq.ParquetFile(path)
    present = [name for name in _COLUMNS if name in file.schema_arrow.names]
    for row in file.read(columns=present).to_pylist():
        yield {name: value for name, value in row.items() if value is not None and name != "remove"}
