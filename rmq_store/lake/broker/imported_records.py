"""The records that a broker's log has in the place of imported messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFileQueue
from rmq_store.broker_files.queue_generations import Generations
from rmq_store.lake.broker.log_items import BufferedSource, item_of, record_of, records_in
from rmq_store.lake.read.message_search import quoted
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.imports import generations
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.log.commit_log import Blank, Stop
from rmq_store.log.inner_batch import is_inner_batch
from rmq_store.log.record import Record

_STRETCH_BYTES = 8 << 20
"""Of so many bytes of the log the messages are compared at once."""

_CHECKED = ("store_size", "body_crc")
_UNCHECKED = ("topic", "queue_id", "born_timestamp", "store_timestamp")
SAME = (*_CHECKED, *_UNCHECKED)
"""What makes two records the same, at the same place, and the queue offset."""
_REST = ("flag", "sys_flag", "born_host", "store_host", "reconsume_times")
_COLUMNS = (*SAME, "queue_offset", *_REST, "properties")

Stretch = tuple[str, int, int]
"""The name of a log that has several, and the physical offsets [begin, end) that were imported under it."""


def first_other_record(
    store: LakeStore, shard: Shard, source: FileSource, log: MappedFileQueue, broker_name: str, begin: int, end: int
) -> int | None:
    """The physical offset of the first message in [begin, end) in whose place the log has another good record, or the end of a
    file; None: it has none. A record that was damaged since is the imported one."""
    queues = generations(shard, broker_name)
    for row, item in _rows_and_items(store, shard, source, log, broker_name, begin, end):
        if isinstance(item, Blank) or (isinstance(item, Record) and not _is_record_of(item, queues, row)):
            place: int = row["commit_log_offset"]
            return place
    return None


def first_new_record(
    store: LakeStore, shard: Shard, source: FileSource, log: MappedFileQueue, stretches: Sequence[Stretch]
) -> int | None:
    """The physical offset of the first good record in the stretches that no message here is of, and that the broker has written
    after all that was imported; None: there is none. So a new record is told from one that retention removed here, or that a
    salvage left out."""
    known = {place for stretch in stretches for place in _places(store, shard, *stretch)}
    newest_ms = max(_newest_ms(store, shard, name) for name, _, _ in stretches)
    records = records_in(BufferedSource(source), log, stretches[0][1], stretches[-1][2])
    new = (one for one in records if one.commit_log_offset not in known and one.store_timestamp > newest_ms)
    return next((record.commit_log_offset for record in new), None)


def removed_records(
    store: LakeStore, shard: Shard, broker_name: str, begin: int, end: int, written: Mapping[int, int]
) -> set[int]:
    """Those of the records that begin in [begin, end), that no message here is of, and that the broker had written before the
    newest that was imported as one of its own: retention has removed them here, or a salvage has left them out. ``written``: by
    physical offset when the broker has written the record, in ms since the epoch."""
    known, newest_ms = _places(store, shard, broker_name, begin, end), _newest_ms(store, shard, broker_name)
    return {place for place, ms in written.items() if begin <= place < end and place not in known and ms <= newest_ms}


def _places(store: LakeStore, shard: Shard, broker_name: str, begin: int, end: int) -> set[int]:
    """The physical offsets in [begin, end) of the broker's messages that are here."""
    return {
        *query(store, of_messages(of_stretch(shard, broker_name, begin, end))).column("commit_log_offset").to_pylist()
    }


def _newest_ms(store: LakeStore, shard: Shard, broker_name: str) -> int:
    """When the broker has written the newest message that was imported, also if it is not here any more: ms since the epoch."""
    text = f"SELECT max(max_store_timestamp) AS ms FROM segments WHERE {of_broker(shard, broker_name)}"
    (row,) = query(store, text).to_pylist()
    return row["ms"] or 0


def old_records(
    store: LakeStore, shard: Shard, source: FileSource, log: MappedFileQueue, broker_name: str, begin: int, end: int
) -> set[int]:
    """The physical offsets in [begin, end) at which the files of the log have messages that were imported as those of the
    broker, also where no walk through the log comes, as behind an end-of-file marker. A delayed message that the broker has
    delivered again, at the same place, has another store time: it is a new one."""
    queues = generations(shard, broker_name)
    return {
        item.commit_log_offset
        for row, item in _rows_and_items(store, shard, source, log, broker_name, begin, end)
        if isinstance(item, Record) and _is_record_of(item, queues, row, most_changed=0)
    }


def _rows_and_items(
    store: LakeStore, shard: Shard, source: FileSource, log: MappedFileQueue, broker_name: str, begin: int, end: int
) -> Iterator[tuple[Mapping[str, Any], Record | Stop]]:
    """The imported records in [begin, end), in log order, each with what the log has in its place."""
    buffered = BufferedSource(source)
    for at in range(begin, end, _STRETCH_BYTES):
        for row in imported_records(store, shard, broker_name, at, min(at + _STRETCH_BYTES, end)):
            yield row, _item_for(buffered, log, row)


def imported_records(
    store: LakeStore, shard: Shard, broker_name: str, begin: int, end: int, *, step: int = 1
) -> list[dict[str, Any]]:
    """The records in [begin, end) that were imported as those of the broker, in log order: the first one in each ``step``
    bytes. The first message of a record is the one with its offset."""
    columns = ", ".join(f"arg_min({column}, (commit_log_offset, queue_offset)) AS {column}" for column in _COLUMNS)
    rows = of_messages(of_stretch(shard, broker_name, begin, end), *_COLUMNS)
    text = f"""
        SELECT min(commit_log_offset) AS place, {columns} FROM ({rows})
        GROUP BY commit_log_offset // {step} ORDER BY place
    """
    return [row | {"commit_log_offset": row.pop("place")} for row in query(store, text).to_pylist()]


def of_broker(shard: Shard, broker_name: str) -> str:
    """In SQL: whether a row is of the broker."""
    return f"shard = {quoted(shard.name)} AND broker_name = {quoted(broker_name)}"


def of_stretch(shard: Shard, broker_name: str, begin: int, end: int) -> str:
    """In SQL: whether a row is of the broker, at a physical offset in [begin, end)."""
    return f"{of_broker(shard, broker_name)} AND commit_log_offset >= {begin} AND commit_log_offset < {end}"


def of_messages(where: str, *columns: str) -> str:
    """In SQL: the messages in the queues and in the archive."""
    names = ", ".join(("shard", "broker_name", "commit_log_offset", *columns))
    return " UNION ALL ".join(f"SELECT {names} FROM {relation} WHERE {where}" for relation in ("msg", "archived"))


def is_same(source: FileSource, log: MappedFileQueue, queues: Generations, row: Mapping[str, Any]) -> bool:
    """Whether the log has the record of the row."""
    item = _item_for(source, log, row)
    return isinstance(item, Record) and _is_record_of(item, queues, row)


def _item_for(source: FileSource, log: MappedFileQueue, row: Mapping[str, Any]) -> Record | Stop:
    """What the log has at the place of the row, of whatever size."""
    place, size = row["commit_log_offset"], row["store_size"]
    record = record_of(source, log, place, size)
    return record if isinstance(record, Record) else item_of(source, log, place, size)


def _is_record_of(record: Record, queues: Generations, row: Mapping[str, Any], *, most_changed: int = 1) -> bool:
    """Whether the row was made from the record. No checksum covers the fields of ``_UNCHECKED`` and the queue offset, so one of
    them may have been changed since, at the broker or here, where all else is the same. Two records that a broker writes differ
    in more: also two retries of one message, whose groups are in their properties."""
    if not has_same(_CHECKED, record, row):
        return False
    offset = row["queue_offset"]  # as it is at the broker, where the message has no entry
    is_at_offset = record.queue_offset in (offset, queues.broker_offset(row["topic"], row["queue_id"], offset))
    changed = (not is_at_offset) + sum(not has_same((name,), record, row) for name in _UNCHECKED)
    if changed == 0 or changed > most_changed:
        return changed == 0
    if is_inner_batch(record.sys_flag, record.properties):  # the row is one of its messages
        return True
    return has_same(_REST, record, row) and record.properties == dict(row["properties"] or ())


def has_same(columns: Sequence[str], record: Record, row: Mapping[str, Any]) -> bool:
    """Whether the row has these columns from the record. A message of an inner batch has the CRC of its own body."""
    own = ("body_crc",) if is_inner_batch(record.sys_flag, record.properties) else ()
    return all(getattr(record, name) == row[name] for name in columns if name not in own)
