"""The copies of failed messages as rows of the commit log: the rules of ``consumer/retry.py`` over columns.

The rule is asked once for every distinct combination of what it depends on, and its answer is applied to all rows that
share it, so the copies are those of the rule by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.consumer.delay import DelayLevels
from rmq_store.consumer.listener import Answer
from rmq_store.consumer.retry import SendBack, property_edits, retry_queue_id, route
from rmq_store.lake import tables
from rmq_store.lake.arrow_maps import edit_maps
from rmq_store.message import MessageQueue
from rmq_store.store import Produced


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What a group does with its failures, and the broker names of its queues in this shard."""

    group: str
    max_reconsume_times: int
    retry_queue_nums: int
    levels: DelayLevels
    local_broker: str
    lane: str


@dataclass(slots=True)
class Failures:
    """The failed messages of one queue: their offsets, what the listener answered, and their full rows."""

    queue: MessageQueue
    pass_: int
    offsets: npt.NDArray[np.int64]
    answers: Sequence[Answer]
    rows: pa.Table
    _send_backs: list[SendBack] = field(default_factory=list)

    def send_backs(self, policy: RetryPolicy) -> list[SendBack]:
        """Where each goes. Asked of the rule once per combination."""
        if not self._send_backs:
            known: dict[tuple[int, int, int | None], SendBack] = {}
            times = self.rows.column("reconsume_times").to_pylist()
            for offset, answer, reconsume_times in zip(self.offsets.tolist(), self.answers, times, strict=True):
                queue = self.queue
                retry_queue = retry_queue_id(
                    queue.topic, queue.broker_name, queue.queue_id, offset, policy.retry_queue_nums
                )
                key = (answer.delay_level, reconsume_times, retry_queue)
                if key not in known:
                    known[key] = route(
                        policy.group,
                        delay_level=answer.delay_level,
                        reconsume_times=reconsume_times,
                        max_reconsume_times=policy.max_reconsume_times,
                        retry_queue=retry_queue,
                        levels=policy.levels,
                    )
                self._send_backs.append(known[key])
        return self._send_backs

    def dead(self, policy: RetryPolicy) -> npt.NDArray[np.bool_]:
        """Which of them go to the dead letters."""
        return np.fromiter((s.dead for s in self.send_backs(policy)), dtype=np.bool_, count=len(self.offsets))


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of copies for one queue in the file to be written."""

    queue: MessageQueue
    part: int
    count: int
    first_row: int
    delay_ms: int | None

    def in_file(self, path: str) -> Produced:
        return Produced(
            self.queue, self.part, self.count, self.first_row, path, first_rel=self.first_row, delay_ms=self.delay_ms
        )


def retry_rows(
    failures: Iterable[Failures], policy: RetryPolicy, *, part: int, window_id: str, commit_id: str
) -> tuple[pa.Table, list[Segment]]:
    """All copies as one table of schema MSG, sorted by queue and origin, and its segments."""
    by_target: dict[tuple[MessageQueue, int | None], list[pa.Table]] = {}
    for failed in sorted(failures, key=lambda f: (f.queue, int(f.offsets[0]))):
        send_backs = failed.send_backs(policy)
        for send_back in dict.fromkeys(send_backs):
            chosen = [row for row, one in enumerate(send_backs) if one is send_back]
            target = _target(send_back, policy)
            copies = _copies(failed, chosen, send_back, target[0])
            by_target.setdefault(target, []).append(copies)
    tables_, segments, row = [], [], 0
    for (queue, delay_ms), parts in sorted(by_target.items(), key=lambda item: item[0][0]):
        copies = pa.concat_tables(parts).sort_by(
            [
                (name, "ascending")
                for name in ("origin_topic", "origin_broker_name", "origin_queue_id", "origin_queue_offset")
            ]
        )
        segments.append(Segment(queue, part, copies.num_rows, row, delay_ms))
        tables_.append(copies.append_column("rel", pa.array(np.arange(row, row + copies.num_rows), pa.int64())))
        row += copies.num_rows
    whole = pa.concat_tables(tables_)
    constant = {"commit_id": commit_id, "part": part, "group_name": policy.group, "window_id": window_id}
    for name, value in constant.items():
        whole = whole.append_column(name, _repeat(value, whole.num_rows, tables.MSG.field(name).type))
    return whole.select(tables.MSG.names).cast(tables.MSG), segments


def _target(send_back: SendBack, policy: RetryPolicy) -> tuple[MessageQueue, int | None]:
    if send_back.dead:
        return MessageQueue(send_back.topic, policy.local_broker, send_back.queue_id), None
    queue = MessageQueue(send_back.topic, policy.lane, send_back.queue_id)
    return queue, policy.levels.delay_ms(send_back.delay_level)


_COPIED = (
    "unique_key", "keys", "tags", "tags_code", "magic", "stored_body_size", "body_crc", "sys_flag", "flag",
    "born_timestamp", "born_host", "body",
)  # fmt: skip
_OF_THE_STORE = ("queue_offset", "commit_log_offset", "offset_msg_id", "store_timestamp", "store_size", "store_host",
                 "prepared_transaction_offset", "deliver_at")  # fmt: skip


def _copies(failed: Failures, chosen: list[int], send_back: SendBack, queue: MessageQueue) -> pa.Table:
    rows = failed.rows.take(pa.array(chosen))
    n = len(chosen)
    answers = [failed.answers[row] for row in chosen]
    edits = property_edits(send_back, failed.queue.topic, "")
    per_row = {
        name: rows.column("offset_msg_id").combine_chunks() if value == "" else value
        for name, value in edits.put_if_absent.items()
    }
    columns = {name: rows.column(name) for name in _COPIED}
    columns |= {name: pa.nulls(n, tables.MSG.field(name).type) for name in _OF_THE_STORE}
    columns["properties"] = edit_maps(rows.column("properties").combine_chunks(), edits.put, per_row, edits.remove)
    origin = failed.queue
    constant = {
        "topic": queue.topic,
        "broker_name": queue.broker_name,
        "queue_id": queue.queue_id,
        "reconsume_times": send_back.reconsume_times,
        "attempt": send_back.reconsume_times,
        "pass": failed.pass_,
        "origin_topic": origin.topic,
        "origin_broker_name": origin.broker_name,
        "origin_queue_id": origin.queue_id,
        "cause": str(send_back.cause),
    }
    columns |= {name: _repeat(value, n, tables.MSG.field(name).type) for name, value in constant.items()}
    columns["origin_queue_offset"] = pa.array(failed.offsets[chosen])
    columns["error_type"] = pa.array([answer.error_type for answer in answers], pa.string())
    columns["error_text"] = pa.array([answer.error_text for answer in answers], pa.string())
    return pa.table(columns)


def _repeat(value: object, n: int, type_: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, type_), n)
