"""Whether messages of a broker's log are in the store under another broker name, where each group would consume them twice.

Two things show it, by what the store has of each other name:

- the last records that its newest import has recorded: whatever retention or a salvage has taken out, they show the log
- its first messages at the place of the log, which an older copy has too, and a log that was cut since
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFileQueue
from rmq_store.commit.positions import PositionKind, import_id
from rmq_store.errors import RmqError, WrongUse
from rmq_store.lake.broker.imported_records import SAME, has_same, of_messages
from rmq_store.lake.broker.last_records import shows_last_records
from rmq_store.lake.broker.log_items import record_of
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.imports import last_import, last_records_of, next_name
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.log.commit_log import BEHIND_BYTES
from rmq_store.log.record import Record

_COLUMNS = (*SAME, "born_host", "store_host")
"""What no two brokers' records have in common at one place."""

_OF_A_LOG = "store_size IS NOT NULL"
"""What was born here has no record. A compaction gives it a number in the place of a physical offset."""

_FIRSTS = 3
"""So many records of a name are compared: one may be damaged in the log."""


def refuse_imported(
    store: LakeStore, source: FileSource, log: MappedFileQueue, own_names: Sequence[str], begin: int | None = None
) -> None:
    """Raises WrongUse when messages that are to be imported as those of the broker were imported under another name: after a
    mistake in the name, under a new name of the broker, or from a slave, whose log is its master's.

    ``own_names``: those of the log, the broker's last. ``begin``: the physical offset from which the log will be imported;
    None: nothing of this name was. Only then messages are compared too, which reads a column of all of the store's.
    """
    shard, name = next(_names_with(store, source, log, own_names, begin), (None, ""))
    if shard is None:
        return
    while later := next_name(shard, name):
        name = later
    lost_end = f"; if that says that the broker lost the end of its log, also with --continue-as {own_names[-1]}"
    raise WrongUse(
        f"the log of {source} has messages that were imported as those of broker {name}: under another name they would be in "
        f"the store twice, and each group would consume them twice. Import it with --broker {name} --shard "
        f"{shard.name}{lost_end if begin is None else ''}. Else only a new store (--root) can have them again"
    )


def _names_with(
    store: LakeStore, source: FileSource, log: MappedFileQueue, own_names: Sequence[str], begin: int | None
) -> Iterator[tuple[Shard, str]]:
    """The shards and the other broker names that have messages of the log."""
    if not log.files:
        return
    first = log.files[0].start_offset if begin is None else begin
    others = False
    for shard in store.shards():
        try:
            positions = shard.positions()
        except RmqError:
            if begin is None:
                raise
            continue  # a broker that was imported before does not wait until another shard is repaired
        for name in sorted(positions.names(PositionKind.IMPORT) - {*own_names}):
            others = True
            if (positions.get(import_id(name)) or 0) > first and _ends_in(shard, name, source, log, first):
                yield shard, name
    if others and begin is None:
        for row in _first_rows(store, log):
            if _has_record(source, log, row):
                yield store.shards(row["shard"])[0], row["broker_name"]


def _ends_in(shard: Shard, name: str, source: FileSource, log: MappedFileQueue, first: int) -> bool:
    """Whether the log has the last records that were imported as those of the broker, and that they are behind the
    physical offset ``first``: not only the marker behind them."""
    newest = last_import(shard, name)
    records = last_records_of(newest) if newest else None
    return records is not None and records[1] > first + BEHIND_BYTES and shows_last_records(source, log, records)


def _first_rows(store: LakeStore, log: MappedFileQueue) -> list[Mapping[str, Any]]:
    """Of each broker name the first messages in the stretch that the log has, in a queue or in the archive."""
    begin, end = log.files[0].start_offset, log.files[-1].end_offset
    in_log = of_messages(f"{_OF_A_LOG} AND commit_log_offset >= {begin} AND commit_log_offset < {end}")
    text = f"SELECT min(commit_log_offset, {_FIRSTS}) AS firsts FROM ({in_log}) GROUP BY shard, broker_name"
    places = sorted({place for row in query(store, text).to_pylist() for place in row["firsts"]})
    if not places:
        return []
    listed = ", ".join(map(str, places))
    text = f"{of_messages(f'{_OF_A_LOG} AND commit_log_offset IN ({listed})', *_COLUMNS)} ORDER BY ALL"
    rows: list[Mapping[str, Any]] = query(store, text).to_pylist()
    return rows


def _has_record(source: FileSource, log: MappedFileQueue, row: Mapping[str, Any]) -> bool:
    """Whether the log has the record of a message."""
    record = record_of(source, log, row["commit_log_offset"], row["store_size"])
    return isinstance(record, Record) and has_same(_COLUMNS, record, row)
