"""The Delta tables of a shard: their schemas, and how a ``Ctl`` becomes a row and back.

``commitlog`` is append-only and the only source of truth; ``consumequeue``, ``offsets`` and ``commits`` are derived from
it and can be rebuilt at any time (docs/architecture.md, "The store"). Key columns come first and carry statistics in
every file; body is last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from rmq_store.commit.ctl import Action, Actor, Blocked, Consumed, Ctl, Moved, Observed, Produced, WrittenFile
from rmq_store.commit.positions import Outcome, QueueRange, Tally
from rmq_store.lake.table.import_parameters import misshaped
from rmq_store.lake.table.table_layout import TableLayout
from rmq_store.message.message import MessageQueue

_INT64_WRAP = 1 << 64


def _fields(**types: pa.DataType) -> list[pa.Field]:
    return [pa.field(name, type_) for name, type_ in types.items()]


_QUEUE = _fields(topic=pa.string(), broker_name=pa.string(), queue_id=pa.int32())

CONSUMED = pa.struct(
    [
        *_QUEUE,
        *_fields(begin_offset=pa.int64(), end_offset=pa.int64(), **{"pass": pa.int64()}, start_rule=pa.string()),
        *[pa.field(str(outcome), pa.int64()) for outcome in Outcome],
        *[pa.field(f"{outcome}_hash", pa.int64()) for outcome in Outcome],
    ]
)

PRODUCED = pa.struct(
    [
        *_QUEUE,
        *_fields(
            part=pa.int32(),
            base_offset=pa.int64(),
            count=pa.int64(),
            first_row=pa.int64(),
            file=pa.string(),
            min_store_timestamp=pa.int64(),
            max_store_timestamp=pa.int64(),
            deliver_at=pa.int64(),
            tags_codes=pa.list_(pa.int64()),
        ),
    ]
)

MOVED = pa.struct(
    [
        *_fields(group_name=pa.string()),
        *_QUEUE,
        *_fields(from_offset=pa.int64(), to_offset=pa.int64(), **{"pass": pa.int64()}),
    ]
)

OBSERVED = pa.struct([*_fields(group_name=pa.string()), *_QUEUE, *_fields(offset=pa.int64())])

BLOCKED = pa.struct(
    [
        *_QUEUE,
        *_fields(
            begin_offset=pa.int64(),
            end_offset=pa.int64(),
            attempts=pa.int64(),
            status=pa.string(),
            first_failed_at=pa.int64(),
            error_type=pa.string(),
            error_text=pa.string(),
        ),
    ]
)

WRITTEN_FILE = pa.struct(_fields(path=pa.string(), rows=pa.int64(), size=pa.int64(), sha256=pa.string()))

KEYS = _fields(commit_id=pa.string(), part=pa.int32(), rel=pa.int64())

PROVENANCE = _fields(
    group_name=pa.string(),
    **{"pass": pa.int64()},
    origin_topic=pa.string(),
    origin_broker_name=pa.string(),
    origin_queue_id=pa.int32(),
    origin_queue_offset=pa.int64(),
    cause=pa.string(),
    attempt=pa.int32(),
    error_type=pa.string(),
    error_text=pa.string(),
    window_id=pa.string(),
    epoch=pa.int64(),
)
"""Where a copy comes from. ``epoch``: the group's when the message failed or was redriven; a delivery keeps it."""

RECORD = _fields(
    topic=pa.string(),
    broker_name=pa.string(),
    queue_id=pa.int32(),
    queue_offset=pa.int64(),
    commit_log_offset=pa.int64(),
    offset_msg_id=pa.string(),
    store_timestamp=pa.int64(),
    unique_key=pa.string(),
    keys=pa.string(),
    tags=pa.string(),
    tags_code=pa.int64(),
    magic=pa.int32(),
    store_size=pa.int32(),
    stored_body_size=pa.int32(),
    body_crc=pa.int32(),
    sys_flag=pa.int32(),
    flag=pa.int32(),
    born_timestamp=pa.int64(),
    born_host=pa.string(),
    store_host=pa.string(),
    reconsume_times=pa.int32(),
    prepared_transaction_offset=pa.int64(),
    deliver_at=pa.int64(),
)

PAYLOAD = [pa.field("properties", pa.map_(pa.string(), pa.string())), pa.field("body", pa.binary())]

MSG = pa.schema([*KEYS, *RECORD, *PROVENANCE, *PAYLOAD])
"""A message row (kind ``msg``). ``rel``: its row in its staged file; null for a log record that has no consume queue entry
(these rows come last)."""

CTL = pa.schema(
    [
        *KEYS[:1],
        *_fields(
            action=pa.string(),
            request_id=pa.string(),
            group_name=pa.string(),
            window_id=pa.string(),
            store_timestamp=pa.int64(),
            request_part=pa.int32(),
            request_complete=pa.bool_(),
            epoch=pa.int64(),
            read_version=pa.int64(),
            actor=pa.string(),
            actor_source=pa.string(),
            reason=pa.string(),
            parameters=pa.string(),
            subscription=pa.string(),
            subscription_version=pa.int32(),
            listener=pa.string(),
            consumed=pa.list_(CONSUMED),
            produced=pa.list_(PRODUCED),
            moved=pa.list_(MOVED),
            observed=pa.list_(OBSERVED),
            blocked=pa.list_(BLOCKED),
            files=pa.list_(WRITTEN_FILE),
        ),
    ]
)
"""The one row of a commit (kind ``ctl``)."""

OUTCOME_RANGE = pa.schema(
    [
        *KEYS,
        *_QUEUE,
        *_fields(group_name=pa.string(), **{"pass": pa.int64()}, window_id=pa.string()),
        *_fields(begin_offset=pa.int64(), end_offset=pa.int64(), outcome=pa.string(), reason=pa.string()),
    ]
)
"""A range of offsets with an exceptional outcome and no message of its own."""

OUTCOME = pa.schema(
    [
        *OUTCOME_RANGE,
        *_fields(attempt=pa.int32(), error_type=pa.string(), error_text=pa.string(), unique_key=pa.string()),
    ]
)
"""An outcome row (kind ``outcome``): an OUTCOME_RANGE; or what retention leaves of a copy that it removes, with the keys that
the copy had. The outcome is then also ``delivered`` or ``redriven``."""

KEY = pa.schema(
    [
        *KEYS,
        *_QUEUE,
        *_fields(
            queue_offset=pa.int64(), group_name=pa.string(), epoch=pa.int64(), key_hash=pa.int64(), key_text=pa.string()
        ),
    ]
)
"""The key of an acked message, in groups that absorb duplicates (kind ``key``). A file is one window's, or a part of it,
by queue and offset; no value is null. ``key_hash``: ``absorb.key_hash``, as signed bits. ``epoch``: the group's in that
window."""

_STATS = (
    "commit_id", "part", "rel", "topic", "broker_name", "queue_id", "queue_offset", "store_timestamp", "action", "request_id",
    "group_name",
)  # fmt: skip


def _united(*schemas: pa.Schema) -> pa.Schema:
    columns: dict[str, pa.Field] = {}
    for schema in schemas:
        for column in schema:
            columns.setdefault(column.name, column)
    last = [columns.pop(column.name) for column in PAYLOAD]
    first = [columns.pop(name) for name in _STATS]
    return pa.schema([*first, *columns.values(), *last])


_PARTITIONS = _fields(kind=pa.string(), store_day=pa.date32())

COMMITLOG = pa.schema([*_united(MSG, CTL, OUTCOME, KEY), *_PARTITIONS])

COMMITLOG_LAYOUT = TableLayout(COMMITLOG, ("kind", "store_day"), _STATS)

_BY_DAY = ("store_day",)

CONSUMEQUEUE = pa.schema(
    [
        *_QUEUE,
        *_fields(
            base_offset=pa.int64(),
            end_offset=pa.int64(),
            commit_id=pa.string(),
            part=pa.int32(),
            first_row=pa.int64(),
            file=pa.string(),
            action=pa.string(),
            store_timestamp=pa.int64(),
            min_store_timestamp=pa.int64(),
            max_store_timestamp=pa.int64(),
            deliver_at=pa.int64(),
            tags_codes=pa.list_(pa.int64()),
            store_day=pa.date32(),
        ),
    ]
)
"""One row per segment of a queue."""

CONSUMEQUEUE_LAYOUT = TableLayout(
    CONSUMEQUEUE,
    _BY_DAY,
    ("topic", "broker_name", "queue_id", "base_offset", "end_offset", "commit_id", "max_store_timestamp"),
)

OFFSETS = pa.schema(
    [
        *_fields(group_name=pa.string()),
        *_QUEUE,
        *_fields(
            read_version=pa.int64(),
            commit_id=pa.string(),
            store_timestamp=pa.int64(),
            action=pa.string(),
            **{"pass": pa.int64()},
            from_offset=pa.int64(),
            to_offset=pa.int64(),
            window_id=pa.string(),
            request_id=pa.string(),
            actor=pa.string(),
            actor_source=pa.string(),
            reason=pa.string(),
            store_day=pa.date32(),
        ),
    ]
)
"""Every move of every offset: by a window (from its begin to its end) or by an operator."""

OFFSETS_LAYOUT = TableLayout(
    OFFSETS, _BY_DAY, ("group_name", "topic", "broker_name", "queue_id", "read_version", "commit_id")
)


COMMITS = pa.schema([*CTL, *_PARTITIONS[1:]])
"""The ``ctl`` rows again, many in one file: thousands of files with one commit each are slow to read."""

COMMITS_LAYOUT = TableLayout(COMMITS, _BY_DAY, ("commit_id", "read_version"))


def _signed(value: int) -> int:
    """A 64-bit hash sum as the BIGINT with the same bits."""
    return value - _INT64_WRAP if value >= _INT64_WRAP >> 1 else value


def queue_of_row(row: Mapping[str, Any]) -> MessageQueue:
    """The queue in the columns ``topic``, ``broker_name`` and ``queue_id``."""
    return MessageQueue(row["topic"], row["broker_name"], row["queue_id"])


def origin_of_row(row: Mapping[str, Any]) -> MessageQueue:
    """The queue of the message that a copy names."""
    return MessageQueue(row["origin_topic"], row["origin_broker_name"], row["origin_queue_id"])


def _queue_columns(queue: MessageQueue) -> dict[str, Any]:
    return {"topic": queue.topic, "broker_name": queue.broker_name, "queue_id": queue.queue_id}


_NO_OUTCOMES = {name: 0 for outcome in Outcome for name in (str(outcome), f"{outcome}_hash")}


def consumed_to_row(consumed: Consumed) -> dict[str, Any]:
    row = _queue_columns(consumed.range.queue) | _NO_OUTCOMES
    row |= {"begin_offset": consumed.range.begin, "end_offset": consumed.range.end}
    row |= {"pass": consumed.pass_, "start_rule": consumed.start_rule}
    for outcome, tally in consumed.tallies.items():
        row |= {str(outcome): tally.count, f"{outcome}_hash": _signed(tally.hash_sum)}
    return row


def consumed_from_row(row: dict[str, Any]) -> Consumed:
    tallies = {
        outcome: Tally(row[str(outcome)], row[f"{outcome}_hash"] % _INT64_WRAP)
        for outcome in Outcome
        if row[str(outcome)]
    }
    return Consumed(
        QueueRange(queue_of_row(row), row["begin_offset"], row["end_offset"]), row["pass"], tallies, row["start_rule"]
    )


_PRODUCED_SAME = (
    "part", "count", "first_row", "file", "min_store_timestamp", "max_store_timestamp", "deliver_at",
)  # fmt: skip


def produced_to_row(produced: Produced) -> dict[str, Any]:
    row = _queue_columns(produced.queue) | {name: getattr(produced, name) for name in _PRODUCED_SAME}
    return row | {"base_offset": produced.base, "tags_codes": produced.tags_codes and list(produced.tags_codes)}


def produced_from_row(row: dict[str, Any]) -> Produced:
    codes = row["tags_codes"]
    return Produced(
        queue_of_row(row),
        base=row["base_offset"],
        tags_codes=None if codes is None else tuple(codes),
        commit_id=row.get("commit_id") or "",
        **{name: row[name] for name in _PRODUCED_SAME},
    )


_BLOCKED_SAME = ("attempts", "status", "first_failed_at", "error_type", "error_text")


def _blocked_to_row(blocked: Blocked) -> dict[str, Any]:
    row = _queue_columns(blocked.range.queue) | {name: getattr(blocked, name) for name in _BLOCKED_SAME}
    return row | {"begin_offset": blocked.range.begin, "end_offset": blocked.range.end}


def _blocked_from_row(row: dict[str, Any]) -> Blocked:
    range_ = QueueRange(queue_of_row(row), row["begin_offset"], row["end_offset"])
    return Blocked(range_, **{name: row[name] for name in _BLOCKED_SAME})


_CTL_SAME = (
    "commit_id", "request_id", "window_id", "store_timestamp", "request_part", "request_complete", "epoch",
    "read_version", "reason", "parameters", "subscription", "subscription_version", "listener",
)  # fmt: skip


def ctl_to_row(ctl: Ctl) -> dict[str, Any]:
    """The ``ctl`` row (schema CTL) of a decided commit."""
    row = {name: getattr(ctl, name) for name in _CTL_SAME}
    row |= {"action": str(ctl.action), "group_name": ctl.group}
    row |= {"actor": ctl.actor.name, "actor_source": ctl.actor.source}
    row["consumed"] = [consumed_to_row(consumed) for consumed in ctl.consumed]
    row["produced"] = [produced_to_row(produced) for produced in ctl.produced]
    row["moved"] = [
        _queue_columns(m.queue)
        | {"group_name": m.group, "from_offset": m.from_offset, "to_offset": m.to_offset, "pass": m.pass_}
        for m in ctl.moved
    ]
    row["observed"] = [_queue_columns(o.queue) | {"group_name": o.group, "offset": o.offset} for o in ctl.observed]
    row["blocked"] = [_blocked_to_row(blocked) for blocked in ctl.blocked]
    row["files"] = [asdict(file) for file in ctl.files]
    return row


def ctl_from_row(row: dict[str, Any]) -> Ctl:
    """Raises ValueError and others where the row is not that of a commit."""
    action, parameters = Action(row["action"]), json_object(row["parameters"])
    if parameters is None:  # else what reads one of them fails, long after the row was read
        raise ValueError("it has parameters that are no JSON object")
    if wrong := misshaped(action, parameters):
        raise ValueError(f"it has {wrong}")
    return Ctl(
        action=action,
        actor=Actor(row["actor"], row["actor_source"]),
        group=row["group_name"],
        consumed=tuple(consumed_from_row(item) for item in row["consumed"] or ()),
        produced=tuple(produced_from_row(item) for item in row["produced"] or ()),
        moved=tuple(
            Moved(m["group_name"], queue_of_row(m), m["from_offset"], m["to_offset"], m["pass"])
            for m in row["moved"] or ()
        ),
        observed=tuple(Observed(o["group_name"], queue_of_row(o), o["offset"]) for o in row["observed"] or ()),
        blocked=tuple(_blocked_from_row(item) for item in row["blocked"] or ()),
        files=tuple(WrittenFile(**item) for item in row["files"] or ()),
        **{name: row[name] for name in _CTL_SAME},
    )


def json_object(text: str | None) -> dict[str, Any] | None:
    """The object of a text of JSON; None: it is none."""
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def ctl_table(ctls: Iterable[Ctl]) -> pa.Table:
    return pa.Table.from_pylist([ctl_to_row(ctl) for ctl in ctls], schema=CTL)
