"""The rows that a delivery stores: copies of what is due, on whole columns.

``step`` in ``rmq_store/window/deliver.py`` has the rule; here it is called once per distinct case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import SCHEDULE_GROUP
from rmq_store.consumer.pull import Slice
from rmq_store.consumer.timer import is_coarse
from rmq_store.lake.read.slice_rows import rows_of_slices
from rmq_store.lake.table import tables
from rmq_store.lake.table.arrow_maps import edit_maps
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.tags_codes import tags_codes
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import MessageConst
from rmq_store.window.deliver import CAUSE, Step, place_problem, real_queue, step, time_problem
from rmq_store.window.due import Due, Undeliverable

Numbers: TypeAlias = npt.NDArray[np.int64]

_KEPT = (
    "unique_key", "keys", "tags", "magic", "stored_body_size", "body_crc", "sys_flag", "flag",
    "born_timestamp", "born_host", "reconsume_times", "prepared_transaction_offset", "epoch", "properties", "body",
)  # fmt: skip
"""What a copy has of its message. The rest is new with its place, or is decided here."""


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring rows of the copies that go to one queue."""

    queue: MessageQueue
    count: int
    first_row: int
    due_ms: int
    """When the first of them is due (UTC ms)."""


def delivered_rows(
    shard: Shard, due: Sequence[Due], commit_id: str, now_ms: int
) -> tuple[pa.Table, list[Run]] | dict[MessageQueue, Undeliverable]:
    """The copies of what is due, sorted by their queue, due time, and place before; and their runs. Where messages do not say
    where they go, by queue the first of them.

    Raises MissingFile and BadData for a segment that cannot be read.
    """
    moves = [(slice_, due_at) for one in due for due_at, slice_ in one.slices]
    slices = [slice_ for slice_, _ in moves]
    rows = rows_of_slices(shard.root, shard.commitlog.path, slices, _KEPT)
    slice_of = np.repeat(np.arange(len(slices)), [len(slice_) for slice_ in slices])
    offsets = np.concatenate([np.arange(slice_.begin, slice_.end) for slice_ in slices])
    places = _Places.of(rows.column("properties"))
    if undeliverable := _undeliverable(slices, slice_of, offsets, places, rows):
        return undeliverable
    steps, step_of = _steps(moves, slice_of, rows, now_ms)
    due_ms = np.array([one.due_ms for one in steps])[step_of]
    targets, target_of = _targets(shard, steps, step_of, places)
    origins = sorted({slice_.queue for slice_ in slices})
    place = {queue: number for number, queue in enumerate(origins)}
    origin_of = np.array([place[slice_.queue] for slice_ in slices])[slice_of]

    order = np.lexsort((offsets, origin_of, due_ms, target_of))
    number = len(order)
    columns = {field.name: pa.nulls(number, field.type) for field in tables.MSG}
    columns |= {name: rows.column(name) for name in _KEPT}
    columns["properties"] = _properties(steps, step_of, rows.column("properties").combine_chunks())
    if (np.diff(order) != 1).any():
        columns |= {name: columns[name].take(pa.array(order)) for name in _KEPT}
    columns |= _queue_columns("", targets, target_of[order])
    columns |= _queue_columns("origin_", origins, origin_of[order])
    columns |= {"origin_queue_offset": pa.array(offsets[order]), "rel": pa.array(np.arange(number))}
    columns["attempt"] = columns["reconsume_times"]
    # In a broker's level queue it is the time of the delivery (rules 11.3).
    columns["tags_code"] = tags_codes(columns["tags"].combine_chunks())
    constant = {"commit_id": commit_id, "part": 0, "group_name": SCHEDULE_GROUP, "pass": 0, "cause": CAUSE}
    columns |= {
        name: pa.repeat(pa.scalar(value, tables.MSG.field(name).type), number) for name, value in constant.items()
    }
    table = pa.table({name: columns[name] for name in tables.MSG.names}).cast(tables.MSG)
    return table, _runs(targets, target_of[order], due_ms[order])


def _steps(
    moves: Sequence[tuple[Slice, int]], slice_of: Numbers, rows: pa.Table, now_ms: int
) -> tuple[list[Step], Numbers]:
    """The distinct steps, and the number of each row's step. The messages of a slice have one, except in a slot of the timer,
    where it depends on their TIMER_OUT_MS."""
    coarse = np.array([is_coarse(slice_.queue) for slice_, _ in moves])
    steps = [step(slice_, due_at, None, now_ms) for slice_, due_at in moves if not is_coarse(slice_.queue)]
    step_of = (np.cumsum(~coarse) - 1)[slice_of]
    in_slots = np.flatnonzero(coarse[slice_of])
    if len(in_slots):
        timer_outs = _property(rows.column("properties").take(pa.array(in_slots)), MessageConst.TIMER_OUT_MS)
        numbers: dict[tuple[int, str | None], int] = {}
        for row, text in zip(in_slots.tolist(), timer_outs.to_pylist(), strict=True):
            case = (int(slice_of[row]), text)
            if case not in numbers:
                slice_, due_at = moves[case[0]]
                numbers[case] = len(steps)
                steps.append(step(slice_, due_at, text, now_ms))
            step_of[row] = numbers[case]
    return steps, step_of


@dataclass(frozen=True, slots=True)
class _Places:
    """Where rows say that they go."""

    pairs: Sequence[tuple[str | None, str | None]]
    """The distinct pairs of REAL_TOPIC and REAL_QID."""
    pair_of: Numbers
    """The number of each row's pair."""

    @staticmethod
    def of(maps: pa.ChunkedArray) -> _Places:
        """``maps``: the properties of the rows."""
        topics, queue_ids = (
            _property(maps, name).dictionary_encode(null_encoding="encode")
            for name in (MessageConst.REAL_TOPIC, MessageConst.REAL_QUEUE_ID)
        )
        names, ids = topics.dictionary.to_pylist(), queue_ids.dictionary.to_pylist()
        numbers = topics.indices.to_numpy().astype(np.int64) * len(ids) + queue_ids.indices.to_numpy()
        distinct, pair_of = np.unique(numbers, return_inverse=True)
        return _Places([(names[number // len(ids)], ids[number % len(ids)]) for number in distinct.tolist()], pair_of)


def _undeliverable(
    slices: Sequence[Slice], slice_of: Numbers, offsets: Numbers, places: _Places, rows: pa.Table
) -> dict[MessageQueue, Undeliverable]:
    """By queue the first message that does not say where it goes."""
    in_slots = np.array([is_coarse(slice_.queue) for slice_ in slices])[slice_of]
    unclear = np.array([place_problem(*pair) is not None for pair in places.pairs])[places.pair_of]
    suspects = np.flatnonzero(unclear | in_slots)
    if not len(suspects):
        return {}
    timer_outs = _property(rows.column("properties").take(pa.array(suspects)), MessageConst.TIMER_OUT_MS)
    undeliverable: dict[MessageQueue, Undeliverable] = {}
    for row, timer_out in zip(suspects.tolist(), timer_outs.to_pylist(), strict=True):
        queue = slices[slice_of[row]].queue
        if queue in undeliverable:
            continue
        reason = place_problem(*places.pairs[places.pair_of[row]]) or time_problem(queue, timer_out)
        if reason is not None:
            undeliverable[queue] = Undeliverable(queue, int(offsets[row]), reason)
    return undeliverable


def _targets(
    shard: Shard, steps: Sequence[Step], step_of: Numbers, places: _Places
) -> tuple[list[MessageQueue], Numbers]:
    """The queues to which the rows go, sorted, and the number of each row's queue: that of its step, else its ``real_queue``
    on the local broker."""
    queues: list[MessageQueue] = [one.queue for one in steps if one.queue is not None]
    stays = np.array([one.queue is not None for one in steps])
    queue_of = np.where(stays[step_of], (np.cumsum(stays) - 1)[step_of], len(queues) + places.pair_of)
    queues += [real_queue(topic, queue_id, shard.local_broker) for topic, queue_id in places.pairs]
    distinct, queue_of = np.unique(queue_of, return_inverse=True)
    reached = [queues[number] for number in distinct.tolist()]
    targets = sorted(set(reached))
    place = {queue: number for number, queue in enumerate(targets)}
    return targets, np.array([place[queue] for queue in reached])[queue_of]


def _properties(steps: Sequence[Step], step_of: Numbers, maps: pa.Array) -> pa.Array:
    """The properties of all rows, edited. Steps that put the same names are one edit of whole columns."""
    alike: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, one in enumerate(steps):
        edits = one.edits
        alike[tuple(edits.put.items()), tuple(edits.put_if_absent), edits.remove].append(number)
    kinds = np.empty(len(steps), np.int64)
    for kind, numbers in enumerate(alike.values()):
        kinds[numbers] = kind
    kind_of = kinds[step_of]
    parts, places = [], []
    for kind, numbers in enumerate(alike.values()):
        of_kind = np.flatnonzero(kind_of == kind)
        edits = steps[numbers[0]].edits
        if_absent = {
            name: pa.array([one.edits.put_if_absent.get(name) for one in steps]).take(pa.array(step_of[of_kind]))
            for name in edits.put_if_absent
        }
        of_rows = maps if len(alike) == 1 else maps.take(pa.array(of_kind))
        parts.append(edit_maps(of_rows, edits.put, if_absent, edits.remove))
        places.append(of_kind)
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(places))))


def _queue_columns(prefix: str, queues: Sequence[MessageQueue], number_of: Numbers) -> dict[str, pa.Array]:
    """Topic, broker name and queue id of each row's queue."""
    numbers = pa.array(number_of)
    return {
        f"{prefix}topic": pa.array([queue.topic for queue in queues]).take(numbers),
        f"{prefix}broker_name": pa.array([queue.broker_name for queue in queues]).take(numbers),
        f"{prefix}queue_id": pa.array([queue.queue_id for queue in queues], pa.int32()).take(numbers),
    }


def _runs(targets: Sequence[MessageQueue], target_of: Numbers, due_ms: Numbers) -> list[Run]:
    firsts = np.flatnonzero(np.diff(target_of, prepend=-1))
    counts = np.diff(firsts, append=len(target_of))
    return [
        Run(targets[target_of[first]], count, first, int(due_ms[first]))
        for first, count in zip(firsts.tolist(), counts.tolist(), strict=True)
    ]


def _property(maps: pa.ChunkedArray, name: str) -> pa.Array:
    return pc.map_lookup(maps.combine_chunks(), pa.scalar(name), "last")
