"""How far a broker's log is still the one that was imported.

A broker that was killed, or whose disk was replaced, may lose the end of its log and write other records there. What it
has in common with the imported messages is then a beginning of both, so the end of it is found by bisection. A record that is
damaged at the broker ends it only where the next good one behind it is not the imported one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFileQueue
from rmq_store.broker_files.queue_generations import Generations
from rmq_store.commit.ctl import Action
from rmq_store.commit.positions import import_id
from rmq_store.lake.broker.import_part import OtherLog, begin_of
from rmq_store.lake.broker.last_records import TAIL_BYTES, has_tail
from rmq_store.lake.broker.log_items import (
    BufferedSource,
    bytes_at,
    goes_on,
    item_of,
    over_blank,
    place_behind_damage,
)
from rmq_store.lake.read.message_search import quoted
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.imports import (
    CONTINUES,
    TAIL,
    first_of_continued,
    generations,
    last_import,
    last_records_of,
    salvaged_to,
)
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.log.commit_log import BEHIND_BYTES, Blank, Stop, record_at
from rmq_store.log.inner_batch import is_inner_batch
from rmq_store.log.record import Record

_MARKS = 4096
"""Into so many stretches the imported part of the log is cut; the records of one of them are looked at one by one."""

_STRETCH_BYTES = 8 << 20
"""Of so many bytes of the log the messages are compared at once."""

_CHECKED = ("store_size", "body_crc")
_UNCHECKED = ("topic", "queue_id", "born_timestamp", "store_timestamp")
SAME = (*_CHECKED, *_UNCHECKED)
"""What makes two records the same, at the same place, and the queue offset."""
_REST = ("flag", "sys_flag", "born_host", "store_host", "reconsume_times")
_COLUMNS = (*SAME, "queue_offset", *_REST, "properties")


@dataclass(frozen=True, slots=True)
class CommonLog:
    """The beginning that a broker's log and the imported messages have in common."""

    broker_name: str
    """The name under which its end was imported."""
    end: int
    """Physical offset up to which they are the same (exclusive)."""
    continues: bool
    """Whether the broker's log goes on there, with something else."""
    messages: int
    """Imported messages from there on. The broker does not have them any more."""
    queues: int
    """How many queues these are in."""
    is_exact: bool = True
    """Whether the next imported record begins there, and the first good one behind damage is another. Else records of that
    place are not here any more, and the logs may be the same for longer."""
    has_all: bool = False
    """Whether every imported record is in it, though the last imported bytes are others."""


def common_log(
    store: LakeStore,
    shard: Shard,
    source: FileSource,
    log: MappedFileQueue,
    broker_name: str,
    imported: int,
    *,
    begin: int | None = None,
    first_other: int | None = None,
) -> CommonLog | None:
    """What the log has in common with the messages that were imported up to the physical offset ``imported``; None: none of
    the imported records that its files could have is in them, under this name or one that it continues. ``begin``: where a
    record is that both have; None: none is known. ``first_other``: where another record is known to be in the place of an
    imported one; old ones may be behind it.

    Where no message of this name is in both, and the log is that of the earlier name exactly up to where this one continues it,
    that is the end, and all messages of this name are lost. Elsewhere it is an end under the earlier name.
    """
    first = log.files[0].start_offset if begin is None else begin
    queues = generations(shard, broker_name)
    of_broker = _of(shard, broker_name)

    def is_same(row: Mapping[str, Any]) -> bool:
        return _is_same(source, log, queues, row)

    until = imported if first_other is None else first_other
    step = max((until - first) // _MARKS, 1)
    at = f"commit_log_offset // {step}"
    marks = _rows(store, f"{of_broker} AND commit_log_offset >= {first} AND commit_log_offset < {until}", at)
    number = _common(marks, is_same)
    if number:
        mark = marks[number - 1]["commit_log_offset"]
        end = marks[number]["commit_log_offset"] if number < len(marks) else until
        rows = _rows(store, f"{of_broker} AND commit_log_offset >= {mark} AND commit_log_offset < {end}")
        count = _common(rows, is_same)
        common_end = _end_of(rows[count - 1])
        others = [*rows[count:], *marks[number:]]
    else:
        earlier = _common_with_earlier_name(store, shard, source, log, broker_name, first_other)
        if earlier is None or earlier.broker_name != broker_name:
            return earlier
        common_end, others = earlier.end, marks
    behind = place_behind_damage(source, log, over_blank(source, log, common_end))
    is_other_behind = True
    if behind is not None and behind < until:
        rows = _rows(store, f"{of_broker} AND commit_log_offset >= {common_end} AND commit_log_offset <= {behind}")
        if rows and rows[-1]["commit_log_offset"] == behind and is_same(rows[-1]):
            return common_log(store, shard, source, log, broker_name, imported, begin=behind, first_other=first_other)
        is_other_behind = bool(rows) and behind < _end_of(rows[-1])
    next_place = others[0]["commit_log_offset"] if others else until
    text = f"""
        SELECT count(*) AS messages, count(DISTINCT (topic, queue_id)) AS queues
        FROM messages WHERE {of_broker} AND commit_log_offset >= {common_end}
    """
    (lost,) = query(store, text).to_pylist()
    is_exact = next_place in (common_end, over_blank(source, log, common_end))
    file_end = next((file.end_offset for file in log.files if file.start_offset < common_end <= file.end_offset), None)
    is_exact |= next_place == file_end and _has_all_of(shard, broker_name, common_end)
    is_exact |= next_place == imported and _ends_with_marker(shard, broker_name, common_end)
    is_exact &= is_other_behind
    has_all = first_other is None and not others and not lost["messages"] and imported <= log.files[-1].end_offset
    continues = goes_on(source, log, common_end)
    return CommonLog(broker_name, common_end, continues, lost["messages"], lost["queues"], is_exact, has_all)


def begin_of_log(
    store: LakeStore, shard: Shard, source: FileSource, log: MappedFileQueue, broker_name: str, *, salvage: bool
) -> int:
    """The physical offset from which the broker's log is to be imported. Raises as ``begin_of``, and OtherLog also where
    only the last imported records are there, behind others."""
    imported, before = shard.positions().get(import_id(broker_name)), last_import(shard, broker_name)
    recorded: list[Any] | None = before.parameter(TAIL) if before else None
    cause: OtherLog | None = None
    begin = end = imported or 0
    try:
        begin = begin_of(source, log, imported, before, salvage)
        if recorded is None or begin != imported or has_tail(source, log, recorded):
            return begin
    except OtherLog as error:
        cause = error
    tail_begin = max(end - TAIL_BYTES, 0) if recorded is None else recorded[0]
    stretches = _stretches(shard, broker_name, max(tail_begin, log.files[0].start_offset), end)
    others = (_first_other(store, shard, source, log, *stretch) for stretch in stretches)
    other = next((place for place in others if place is not None), None)
    if cause is None and other is None:  # what differs was damaged since, or was not imported
        return begin
    raise OtherLog(f"the log of {source} is not the one that was imported up to {imported}", other) from cause


def _stretches(shard: Shard, broker_name: str, begin: int, end: int) -> list[tuple[str, int, int]]:
    """The names of the log and the physical offsets of each in [begin, end), in log order."""
    first_import = first_of_continued(shard, broker_name)
    if first_import is None:
        return [(broker_name, begin, end)]
    continued = first_import.parameter(CONTINUES)
    cut = continued["end"]
    earlier = _stretches(shard, continued["broker_name"], begin, min(cut, end)) if begin < cut else []
    return [*earlier, (broker_name, max(begin, cut), end)]


def _first_other(
    store: LakeStore, shard: Shard, source: FileSource, log: MappedFileQueue, broker_name: str, begin: int, end: int
) -> int | None:
    """The physical offset of the first message in [begin, end) in whose place the log has another good record, or the end of a
    file; None: it has none. A record that was damaged since is the imported one."""
    queues, source = generations(shard, broker_name), BufferedSource(source)
    for row in _rows_in(store, shard, broker_name, begin, end):
        item = _item_for(source, log, row)
        if isinstance(item, Blank) or (isinstance(item, Record) and not _is_record_of(item, queues, row)):
            place: int = row["commit_log_offset"]
            return place
    return None


def _rows_in(store: LakeStore, shard: Shard, broker_name: str, begin: int, end: int) -> Iterator[dict[str, Any]]:
    """The imported records in [begin, end), in log order."""
    for at in range(begin, end, _STRETCH_BYTES):
        stretch = f"commit_log_offset >= {at} AND commit_log_offset < {min(at + _STRETCH_BYTES, end)}"
        yield from _rows(store, f"{_of(shard, broker_name)} AND {stretch}")


def old_records(
    store: LakeStore, shard: Shard, source: FileSource, log: MappedFileQueue, broker_name: str, begin: int, end: int
) -> set[int]:
    """The physical offsets in [begin, end) at which the files of the log have messages that were imported as those of the
    broker, also where no walk through the log comes, as behind an end-of-file marker. A delayed message that the broker has
    delivered again, at the same place, has another store time: it is a new one."""
    queues, source = generations(shard, broker_name), BufferedSource(source)
    rows = _rows_in(store, shard, broker_name, begin, end)
    items = ((_item_for(source, log, row), row) for row in rows)
    return {
        item.commit_log_offset
        for item, row in items
        if isinstance(item, Record) and _is_record_of(item, queues, row, most_changed=0)
    }


def _common_with_earlier_name(
    store: LakeStore,
    shard: Shard,
    source: FileSource,
    log: MappedFileQueue,
    broker_name: str,
    first_other: int | None,
) -> CommonLog | None:
    """What the log has in common with that of the name which this one continues; under this name where that ends exactly at the
    cut. None: nothing, or this name continues none."""
    first_import = first_of_continued(shard, broker_name)
    if first_import is None:
        return None
    continued = first_import.parameter(CONTINUES)
    earlier = continued["broker_name"]
    imported = shard.positions().get(import_id(earlier)) or 0
    before_cut = first_other if first_other is not None and first_other < continued["end"] else None
    common = common_log(store, shard, source, log, earlier, imported, first_other=before_cut)
    if common is None or (common.broker_name, common.end) != (earlier, continued["end"]):
        return common
    return replace(common, broker_name=broker_name)


def what_differs(common: CommonLog | None, broker_name: str) -> str:
    """What that means, and what can be done; None as ``common_log`` answers it."""
    if common is None:
        return (
            "none of the imported records is in it, so this is the store of another broker: import it with its own --broker. "
            "If it is the same one, it has lost the end of its log and then removed what was before: import it into a new "
            "store (--root), as under another name its groups would consume messages twice"
        )
    if common.broker_name != broker_name:
        return (
            f"it is the same as the imported log of broker {common.broker_name} up to {common.end}, and none of the messages "
            f"of {broker_name}, which continues that log at another offset, is in it. It cannot be imported into this store: "
            "under another broker name, what both have would be in the store twice. Import it into a new store (--root); "
            "docs/limits.md, 'A broker that lost the end of its log'"
        )
    if common.has_all:
        when = "" if common.continues else ", once the broker has written on"
        return (
            "every imported record is in it, but the last bytes that were imported are others here: the last record was copied "
            "while the broker wrote it, for that import or for this one, or was changed since, or a broker that was killed has "
            "written over the end-of-file marker behind it. Import a newer copy. If that is refused too, the record stays as "
            "it was imported, and what follows can be imported under another broker name"
            f"{when} (--continue-as NAME); docs/limits.md, 'A broker that lost the end of its log', says how its groups "
            "continue there"
        )
    lost = f"{common.messages:,} imported messages in {common.queues:,} queues are not in it"
    if not common.continues:
        return (
            f"it is the same up to {common.end} and ends there, {lost}: this is an older copy, or the broker has lost the end "
            "of its log. Import a newer copy"
        )
    return (
        f"it is the same up to {common.end}, where other records follow, {lost}: the broker lost the end of its log, wrote on, "
        f"and gives the offsets of those messages to others. They are kept here (commit_log_offset >= {common.end} of "
        f"{broker_name!r}). Import what follows under another broker name (--continue-as NAME); docs/limits.md, 'A broker that "
        "lost the end of its log', says how its groups continue there"
    )


def _of(shard: Shard, broker_name: str) -> str:
    return f"shard = {quoted(shard.name)} AND broker_name = {quoted(broker_name)}"


def _rows(store: LakeStore, condition: str, group: str = "commit_log_offset") -> list[dict[str, Any]]:
    """The first imported record of each group, in log order. The first message of a record is the one with its offset."""
    columns = ", ".join(f"arg_min({column}, (commit_log_offset, queue_offset)) AS {column}" for column in _COLUMNS)
    text = f"""
        SELECT min(commit_log_offset) AS place, {columns} FROM msg WHERE {condition} GROUP BY {group} ORDER BY place
    """
    return [row | {"commit_log_offset": row.pop("place")} for row in query(store, text).to_pylist()]


def _common(rows: Sequence[Mapping[str, Any]], is_same: Callable[[Mapping[str, Any]], bool]) -> int:
    """How many of the rows are the same: a beginning of them."""
    return bisect_left(rows, True, key=lambda row: not is_same(row))


def _is_same(source: FileSource, log: MappedFileQueue, queues: Generations, row: Mapping[str, Any]) -> bool:
    """Whether the log has the record of the row."""
    item = _item_for(source, log, row)
    return isinstance(item, Record) and _is_record_of(item, queues, row)


def _item_for(source: FileSource, log: MappedFileQueue, row: Mapping[str, Any]) -> Record | Stop:
    """What the log has at the place of the row, of whatever size."""
    place, size = row["commit_log_offset"], row["store_size"]
    record = record_at(bytes_at(source, log, place, size), 0, place)
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


def _end_of(row: Mapping[str, Any]) -> int:
    end: int = row["commit_log_offset"] + row["store_size"]
    return end


def _has_all_of(shard: Shard, broker_name: str, offset: int) -> bool:
    """Whether no salvage and no retention has left out or removed imported records behind the physical offset: where none is
    here then, none was."""
    return salvaged_to(shard, {broker_name}) <= offset and not shard.ctls_since(0, action=str(Action.RETENTION))


def _ends_with_marker(shard: Shard, broker_name: str, offset: int) -> bool:
    """Whether the newest import had an end-of-file marker at the offset, behind its last record: no other was there."""
    newest = last_import(shard, broker_name)
    records = last_records_of(newest) if newest else None
    return records is not None and records[1] == offset + BEHIND_BYTES
