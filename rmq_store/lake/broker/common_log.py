"""How far a broker's log is still the one that was imported.

A broker that was killed, or whose disk was replaced, may lose the end of its log and write other records there. What it
has in common with the imported messages is then a beginning of both, so the end of it is found by bisection. A record that is
damaged at the broker ends it only where the next good one behind it is not the imported one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFileQueue
from rmq_store.commit.ctl import Action
from rmq_store.commit.positions import import_id
from rmq_store.lake.broker.import_part import OtherLog, begin_of
from rmq_store.lake.broker.imported_records import (
    Stretch,
    first_new_record,
    first_other_record,
    imported_records,
    is_same,
    of_broker,
)
from rmq_store.lake.broker.last_records import TAIL_BYTES, has_recorded
from rmq_store.lake.broker.log_items import (
    goes_on,
    over_blank,
    place_behind_damage,
)
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
from rmq_store.log.commit_log import BEHIND_BYTES

_MARKS = 4096
"""Into so many stretches the imported part of the log is cut; the records of one of them are looked at one by one."""


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
    records = partial(imported_records, store, shard, broker_name)
    same = partial(is_same, source, log, queues)
    until = imported if first_other is None else first_other
    marks = records(first, until, step=max((until - first) // _MARKS, 1))
    number = _common(marks, same)
    if number:
        mark = marks[number - 1]["commit_log_offset"]
        end = marks[number]["commit_log_offset"] if number < len(marks) else until
        rows = records(mark, end)
        count = _common(rows, same)
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
        rows = records(common_end, behind + 1)
        if rows and rows[-1]["commit_log_offset"] == behind and same(rows[-1]):
            return common_log(store, shard, source, log, broker_name, imported, begin=behind, first_other=first_other)
        is_other_behind = bool(rows) and behind < _end_of(rows[-1])
    next_place = others[0]["commit_log_offset"] if others else until
    text = f"""
        SELECT count(*) AS messages, count(DISTINCT (topic, queue_id)) AS queues
        FROM messages WHERE {of_broker(shard, broker_name)} AND commit_log_offset >= {common_end}
    """
    (lost,) = query(store, text).to_pylist()
    is_exact = next_place in (common_end, over_blank(source, log, common_end))
    file_end = next((file.end_offset for file in log.files if file.start_offset < common_end <= file.end_offset), None)
    is_exact |= next_place == file_end and has_all_of(shard, broker_name, common_end)
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
        if before is None or begin != imported:
            return begin
    except OtherLog as error:
        cause = error
    is_same = has_recorded(source, log, recorded)
    if cause is None and is_same:
        return begin
    tail_begin = max(end - TAIL_BYTES, 0) if recorded is None else recorded[0]
    stretches = _stretches(shard, broker_name, max(tail_begin, log.files[0].start_offset), end)
    others = [first_other_record(store, shard, source, log, *stretch) for stretch in stretches]
    if is_same is False and not all(has_all_of(shard, name, begin) for name, begin, _ in stretches):
        others.append(first_new_record(store, shard, source, log, stretches))
    other = min((place for place in others if place is not None), default=None)
    if cause is None and other is None:  # what differs was damaged since, or was not imported
        return begin
    raise OtherLog(f"the log of {source} is not the one that was imported up to {imported}", other) from cause


def _stretches(shard: Shard, broker_name: str, begin: int, end: int) -> list[Stretch]:
    """The names of the log and the physical offsets of each in [begin, end), in log order."""
    first_import = first_of_continued(shard, broker_name)
    if first_import is None:
        return [(broker_name, begin, end)]
    continued = first_import.parameter(CONTINUES)
    cut = continued["end"]
    earlier = _stretches(shard, continued["broker_name"], begin, min(cut, end)) if begin < cut else []
    return [*earlier, (broker_name, max(begin, cut), end)]


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
            "it contains no imported record, so this is the store of another broker: import it with its own --broker. If it is "
            "the same broker, it has lost the end of its log and deleted the files before it: import it into a new store "
            "(--root). Under another broker name its groups would consume messages twice"
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


def _common(rows: Sequence[Mapping[str, Any]], is_same: Callable[[Mapping[str, Any]], bool]) -> int:
    """How many of the rows are the same: a beginning of them."""
    return bisect_left(rows, True, key=lambda row: not is_same(row))


def _end_of(row: Mapping[str, Any]) -> int:
    end: int = row["commit_log_offset"] + row["store_size"]
    return end


def has_all_of(shard: Shard, broker_name: str, offset: int) -> bool:
    """Whether no salvage and no retention has left out or removed imported records behind the physical offset: where none is
    here then, none was."""
    return salvaged_to(shard, {broker_name}) <= offset and not shard.ctls_since(0, action=str(Action.RETENTION))


def _ends_with_marker(shard: Shard, broker_name: str, offset: int) -> bool:
    """Whether the newest import had an end-of-file marker at the offset, behind its last record: no other was there."""
    newest = last_import(shard, broker_name)
    records = last_records_of(newest) if newest else None
    return records is not None and records[1] == offset + BEHIND_BYTES
