"""A broker that lost the end of its log and wrote on: where its log was cut, and what continues it under another name.

``docs/decisions/0014-diverged-log.md``. What both have, and what the broker lost, stays in the queues of the old name. The
queues of the new name begin at the cut, with the broker's own queue offsets, so each message is in one queue. All of it is part
of the new name's first import: one commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rmq_store.admin.offset_moves import need_reason, next_epoch
from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.log_names import QueueCuts
from rmq_store.broker_files.mapped_file_queue import MappedFileQueue
from rmq_store.commit.ctl import Ctl, Moved
from rmq_store.commit.positions import (
    PositionKind,
    Positions,
    cutover_id,
    diverged_id,
    group_of,
    grp_id,
    import_id,
    max_id,
    min_id,
    off_id,
    pas_id,
    queue_of,
)
from rmq_store.errors import BadData, WrongUse, clause
from rmq_store.lake.broker.common_log import CommonLog, begin_of_log, common_log, has_all_of, what_differs
from rmq_store.lake.broker.import_part import LogRead, OtherLog, refuse_missing_files
from rmq_store.lake.broker.imported_records import of_broker, of_messages, old_records, removed_records
from rmq_store.lake.broker.log_items import BufferedSource, records_in
from rmq_store.lake.broker.lost_deletes import refuse_lost_deletes
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.import_parameters import parameter_of_import
from rmq_store.lake.table.imports import CONTINUES, generations, imports_of, refuse_continued
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue


@dataclass(frozen=True, slots=True)
class Continuation:
    """The wish that a broker name continues the log of another one."""

    broker_name: str
    """The other one."""
    reason: str

    def __post_init__(self) -> None:
        need_reason("an import that continues another broker's log", self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedLog:
    """What a first import that continues another log found."""

    broker_name: str
    """The name that has what both have, and what the broker lost."""
    end: int
    """Physical offset of the cut."""
    lost_messages: int
    """Imported messages from there on, which the broker does not have any more."""
    lost_queues: int
    groups: int
    """How many groups got offsets in the queues of the new name: those that had some in the old one's."""


@dataclass(frozen=True, slots=True)
class LogCut:
    """Where a log was cut, and what the new name begins with."""

    broker_name: str
    """The old name."""
    name: str
    """The new one."""
    common: CommonLog
    cuts: Mapping[MessageQueue, int]
    """Per queue of the new name the offset at which it begins: 0 where all of the old one's messages were lost."""
    moved: tuple[Moved, ...]

    @property
    def parameters(self) -> dict[str, Any]:
        """What the ctl row records of it."""
        lost = {"lost_messages": self.common.messages, "lost_queues": self.common.queues}
        cuts = [[*key, cut] for key, cut in sorted(self.by_queue.items())]
        return {CONTINUES: {"broker_name": self.broker_name, "end": self.common.end, "cuts": cuts} | lost}

    @property
    def by_queue(self) -> QueueCuts:
        return {(queue.topic, queue.queue_id): cut for queue, cut in self.cuts.items()}

    @property
    def advance(self) -> dict[str, int]:
        """The positions that it moves: those of the new name's queues and of its groups, and the end of the old name."""
        advance = {import_id(self.name): self.common.end, diverged_id(self.broker_name): self.common.end}
        advance |= {max_id(queue): cut for queue, cut in self.cuts.items()}
        advance |= {min_id(queue): cut for queue, cut in self.cuts.items() if cut}
        for move in self.moved:
            advance |= {grp_id(move.group): move.pass_, pas_id(move.group, move.queue): move.pass_}
            advance[off_id(move.group, move.queue)] = move.to_offset
        return advance

    @property
    def report(self) -> ContinuedLog:
        return _report(self.parameters[CONTINUES], self.moved)


def log_cut(
    store: LakeStore, shard: Shard, source: FileSource, log: MappedFileQueue, continuation: Continuation, name: str
) -> LogCut:
    """Where the ``log`` differs from what was imported under the other name, by the handle's snapshot.

    Raises WrongUse when there is nothing to continue, BadData when the log goes on nowhere, the place cannot be proved, or
    files behind it are missing.
    """
    positions, old = shard.positions(), continuation.broker_name
    imported = positions.get(import_id(old))
    if imported is None:
        raise WrongUse(f"nothing of broker {old} has been imported into shard {shard.name}, so nothing can continue it")
    refuse_closed(shard, old)
    try:
        begin_of_log(store, shard, source, log, old, salvage=False)
    except OtherLog as error:
        common = common_log(store, shard, source, log, old, imported, first_other=error.first_other)
        if common is None or common.broker_name != old or not common.continues:
            raise BadData(f"{error}: {what_differs(common, old)}. Nothing was changed.") from error
        if not common.is_exact:
            raise BadData(
                f"{clause(error)}. It is the same at least up to {common.end}, but the messages that were imported from there "
                "are not in this store any more: retention removed them, or a salvage left them out. So it cannot be proved "
                "where the two differ. Nothing was changed. docs/limits.md, 'A broker that lost the end of its log', says what "
                "is left to do"
            ) from error
    else:
        raise WrongUse(
            f"the log of {source} is the one that was imported as {old} up to {imported}: there is nothing to continue. Import "
            f"it with --broker {old}"
        )
    refuse_missing_files(log, common.end)
    refuse_lost_deletes(store, shard, source, log, old, common.end)
    cuts = _cuts(store, shard, source, log, positions, old, name, common.end)
    return LogCut(old, name, common, cuts, moves_to_cuts(positions, old, name, cuts))


def refuse_old_records(
    store: LakeStore,
    shard: Shard,
    source: FileSource,
    log: MappedFileQueue,
    older_names: Sequence[str],
    read: LogRead,
) -> None:
    """Raises BadData where a part of a log that goes on under another name has messages that were imported under one of its
    older names: the broker cut its log before them, and has not written over them."""
    ends = {name: shard.positions().get(import_id(name)) or 0 for name in older_names}
    longer = {name: end for name, end in ends.items() if end > read.begin}
    written = _written(shard, read) if longer else {}
    for name, end in longer.items():
        old = old_records(store, shard, source, log, name, read.begin, read.end) & written.keys()
        if not old and not has_all_of(shard, name, read.begin):
            old = removed_records(store, shard, name, read.begin, end, written)
        if old:
            raise BadData(
                f"behind what the broker has written from {read.begin} on, the log of {source} still has messages that it lost "
                f"and that are here as those of {name}: they would be in the store twice. Nothing was changed. Import a copy "
                "once the broker has written over them. If it was killed before that, it has taken them in again, and its log "
                "can only be imported into a new store (--root); docs/limits.md, 'A broker that lost the end of its log'"
            )


def _written(shard: Shard, read: LogRead) -> dict[int, int]:
    """By physical offset when the broker has written the messages in the staged files of a part, in ms since the epoch."""
    paths = [file.path for result in read.results for file in result.files]
    places, times = "commit_log_offset", "store_timestamp"
    rows = shard.commitlog.read(paths, [places, times])
    return dict(zip(rows.column(places).to_pylist(), rows.column(times).to_pylist(), strict=True))


def refuse_closed(shard: Shard, broker_name: str) -> None:
    """Raises WrongUse when the broker was cut over, or its log is imported under another name now."""
    refuse_continued(shard, broker_name)
    if shard.positions().get(cutover_id(broker_name)):
        raise WrongUse(
            f"broker {broker_name} was cut over to shard {shard.name}: its files cannot be imported any more until "
            "'rmq hand-back' gives its groups back to it"
        )


def continued_log(ctl: Ctl) -> ContinuedLog | None:
    """What the import continued, None for another import."""
    parameter = ctl.parameter(CONTINUES)
    return None if parameter is None else _report(parameter, ctl.moved)


def _report(parameter: Mapping[str, Any], moved: tuple[Moved, ...]) -> ContinuedLog:
    return ContinuedLog(
        broker_name=parameter["broker_name"],
        end=parameter["end"],
        lost_messages=parameter["lost_messages"],
        lost_queues=parameter["lost_queues"],
        groups=len({move.group for move in moved}),
    )


def _cuts(
    store: LakeStore,
    shard: Shard,
    source: FileSource,
    log: MappedFileQueue,
    positions: Positions,
    old: str,
    name: str,
    end: int,
) -> dict[MessageQueue, int]:
    """Per queue of the new name the offset of the first message that the broker lost, else the end of the old name's queue.

    Where retention or a salvage has taken out the messages at the cut, the next message of the queue in the log says it. Raises
    BadData where the log has none.
    """
    where = f"{of_broker(shard, old)} AND rel IS NOT NULL"
    text = f"""
        SELECT topic, queue_id, min(CASE WHEN commit_log_offset >= {end} THEN queue_offset END) AS behind,
            max(CASE WHEN commit_log_offset < {end} THEN queue_offset + 1 END) AS before
        FROM ({of_messages(where, "topic", "queue_id", "queue_offset")}) GROUP BY topic, queue_id
    """
    rows = {MessageQueue(row["topic"], old, row["queue_id"]): row for row in query(store, text).to_pylist()}
    least = _least_cuts(shard, old, end)
    cuts, open_cuts = {}, {}
    for queue in [queue for queue in positions.all_queues() if queue.broker_name == old]:
        row = rows.get(queue, {})
        cuts[queue] = most = positions.max_offset(queue) if row.get("behind") is None else row["behind"]
        lowest = max(row.get("before") or 0, least.get(queue, most))
        if lowest < most:
            open_cuts[queue] = range(lowest, most + 1)
    cuts |= _first_offsets(shard, source, log, end, open_cuts) if open_cuts else {}
    return {MessageQueue(queue.topic, name, queue.queue_id): cut for queue, cut in cuts.items()}


def _least_cuts(shard: Shard, broker_name: str, end: int) -> dict[MessageQueue, int]:
    """Per queue the lowest offset at which it may go on from the physical offset: the end of what imports up to there have
    brought, else the first offset of all."""
    first: dict[MessageQueue, int] = {}
    least: dict[MessageQueue, int] = {}
    for ctl in imports_of(shard, broker_name):
        is_before = parameter_of_import(ctl, "range")[1] <= end
        for segment in ctl.produced:
            base = segment.base or 0
            first[segment.queue] = min(base, first.get(segment.queue, base))
            if is_before:
                least[segment.queue] = max(base + segment.count, least.get(segment.queue, 0))
    return first | least


def _first_offsets(
    shard: Shard, source: FileSource, log: MappedFileQueue, end: int, cuts: Mapping[MessageQueue, range]
) -> dict[MessageQueue, int]:
    """Of each queue the offset of its first message in the log from the physical offset on. Raises BadData where it has none
    that is a possible cut."""
    queues = {(queue.topic, queue.queue_id): queue for queue in cuts}
    (broker_name,) = {queue.broker_name for queue in cuts}
    bases, offsets = generations(shard, broker_name), dict[MessageQueue, int]()
    for record in records_in(BufferedSource(source), log, end, log.files[-1].end_offset):
        if queue := queues.get((record.topic, record.queue_id)):
            offsets.setdefault(queue, bases.base(queue) + record.queue_offset)
        if len(offsets) == len(cuts):
            break
    unknown = [queue for queue, possible in cuts.items() if offsets.get(queue) not in possible]
    if unknown:
        raise BadData(
            f"the log is the same up to {end}, but in {len(unknown):,} queues, first topic {unknown[0].topic!r}, queue "
            f"{unknown[0].queue_id}, it is not known at which offset the broker goes on: retention or a salvage has taken the "
            "messages there out of this store. Nothing was changed. Import a copy once the broker has written a message to "
            "each of them, or import its store into a new store (--root); docs/limits.md, 'A broker that lost the end of its "
            "log'"
        )
    return offsets


def moves_to_cuts(positions: Positions, old: str, name: str, cuts: Mapping[MessageQueue, int]) -> tuple[Moved, ...]:
    """A group that has an offset in a queue of the old name begins that queue of the new name at the cut."""
    places = [(group_of(app_id), queue_of(app_id)) for app_id, _ in positions.of_kind(PositionKind.OFFSET)]
    places = [(group, MessageQueue(q.topic, name, q.queue_id)) for group, q in places if q.broker_name == old]
    return tuple(
        Moved(group, queue, None, cuts[queue], next_epoch(positions, group)) for group, queue in sorted(places)
    )
