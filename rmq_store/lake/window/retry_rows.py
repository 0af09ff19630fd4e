"""The copies of failed messages as rows of the commit log: the rules of ``consumer/retry.py`` over columns.

``route`` is called once for each distinct combination of its arguments, and its result is applied to all rows with that
combination. So the copies are those of the rule by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.commit.ctl import Produced
from rmq_store.consumer.listener import Answer
from rmq_store.consumer.listener_death import cause_of
from rmq_store.consumer.retry import SendBack, property_edits, retry_queue_id, route, sent_away_edits
from rmq_store.lake.table import tables
from rmq_store.lake.table.arrow_maps import edit_maps
from rmq_store.lake.window.consume_job import ConsumeJob, Offsets
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import MessageConst

Numbers = npt.NDArray[np.int64]
Route = tuple[SendBack, str, Numbers]
"""Where messages of an origin topic go, and their indexes."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where failed messages come from: offsets of one queue, ascending."""

    queue: MessageQueue
    pass_: int
    offsets: Offsets


@dataclass(slots=True)
class Failures:
    """Failed messages of some queues: those of each origin, one origin after the other."""

    origins: Sequence[Origin]
    answers: Sequence[Answer]
    """What the listener answered, per message."""
    rows: pa.Table
    """Their rows, with COPY_COLUMNS."""
    _routes: list[Route] | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.answers)

    def routes(self, job: ConsumeJob) -> list[Route]:
        if self._routes is None:
            self._routes = self._new_routes(job)
        return self._routes

    def _new_routes(self, job: ConsumeJob) -> list[Route]:
        count = len(self)
        levels = np.fromiter((answer.delay_level for answer in self.answers), dtype=np.int64, count=count)
        times = self.rows.column("reconsume_times").to_numpy()
        names = sorted({origin.queue.topic for origin in self.origins})
        topics = self.of_origins([names.index(origin.queue.topic) for origin in self.origins])
        arguments = (levels, times, self._retry_queues(job.group.retry_queue_nums), topics)
        which = np.zeros(count, dtype=np.int64)
        for values in arguments:
            distinct, place = np.unique(values, return_inverse=True)
            which = which * len(distinct) + place
        routes = []
        for combination in np.unique(which):
            chosen = np.flatnonzero(which == combination)
            level, reconsume_times, retry_queue, topic = (int(values[chosen[0]]) for values in arguments)
            routes.append((self._route(job, level, reconsume_times, retry_queue), names[topic], chosen))
        return routes

    def of_origins(self, values: Sequence[int]) -> Numbers:
        """For each message the value of its origin."""
        return np.repeat(np.array(values, dtype=np.int64), [len(origin.offsets) for origin in self.origins])

    def _retry_queues(self, nums: int) -> Numbers:
        """The retry queue of each message; -1 where the group has no retry queues."""
        if nums <= 1:
            return np.full(len(self), nums - 1, dtype=np.int64)
        chosen = (
            retry_queue_id(queue.topic, queue.broker_name, queue.queue_id, offset, nums)
            for queue, offsets in ((origin.queue, origin.offsets.tolist()) for origin in self.origins)
            for offset in offsets
        )
        return np.fromiter(chosen, dtype=np.int64, count=len(self))

    def _route(self, job: ConsumeJob, delay_level: int, reconsume_times: int, retry_queue: int) -> SendBack:
        return route(
            job.group.name,
            delay_level=delay_level,
            reconsume_times=reconsume_times,
            max_reconsume_times=job.group.max_reconsume_times,
            retry_queue=None if retry_queue < 0 else retry_queue,
            levels=job.levels,
            policy=job.group.retry_policy,
        )

    def dead(self, job: ConsumeJob) -> npt.NDArray[np.bool_]:
        """Which messages become dead letters."""
        dead = np.zeros(len(self), dtype=np.bool_)
        for send_back, _, chosen in self.routes(job):
            dead[chosen] = send_back.dead
        return dead


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of copies for one queue in the file to be written."""

    queue: MessageQueue
    part: int
    count: int
    first_row: int
    delay_ms: int | None

    def in_file(self, path: str) -> Produced:
        return Produced(self.queue, self.part, self.count, self.first_row, path, delay_ms=self.delay_ms)


def retry_rows(failures: Iterable[Failures], job: ConsumeJob, part: int) -> tuple[pa.Table, list[Segment]]:
    """All copies as one table of schema MSG, sorted by queue and origin, and its segments. ``part``: the task's number."""
    by_target: dict[tuple[MessageQueue, int | None], list[pa.Table]] = {}
    for failed in failures:
        for send_back, topic, chosen in failed.routes(job):
            target = _target(send_back, job)
            by_target.setdefault(target, []).append(_copies(failed, chosen, send_back, topic, target[0], job))
    tables_, segments, row = [], [], 0
    for (queue, delay_ms), parts in sorted(by_target.items(), key=_by_queue_and_delay):
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
    constant = {
        "commit_id": job.commit_id,
        "part": part,
        "group_name": job.group.name,
        "window_id": job.window_id,
        "epoch": job.epoch,
    }
    for name, value in constant.items():
        whole = whole.append_column(name, _repeat(value, whole.num_rows, tables.MSG.field(name).type))
    return whole.select(tables.MSG.names).cast(tables.MSG), segments


def _by_queue_and_delay(item: tuple[tuple[MessageQueue, int | None], object]) -> tuple[MessageQueue, int]:
    (queue, delay_ms), _ = item
    return queue, delay_ms or 0


def _target(send_back: SendBack, job: ConsumeJob) -> tuple[MessageQueue, int | None]:
    if send_back.dead:
        return MessageQueue(send_back.topic, job.local_broker, send_back.queue_id), None
    return MessageQueue(send_back.topic, job.lane, send_back.queue_id), send_back.delay_ms


_COPIED = (
    "unique_key", "keys", "tags", "tags_code", "magic", "stored_body_size", "body_crc", "sys_flag", "flag",
    "born_timestamp", "born_host", "body",
)  # fmt: skip
_OF_THE_STORE = ("queue_offset", "commit_log_offset", "offset_msg_id", "store_timestamp", "store_size", "store_host",
                 "prepared_transaction_offset", "deliver_at")  # fmt: skip


COPY_COLUMNS = [*_COPIED, "properties", "offset_msg_id", "reconsume_times"]
"""The columns of a failed message from which its copy is made."""

PROPERTY_COLUMNS = {
    "unique_key": MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
    "keys": MessageConst.KEYS,
    "tags": MessageConst.TAGS,
}
"""Columns that repeat a property, by the property."""


def _copies(
    failed: Failures, chosen: Numbers, send_back: SendBack, topic: str, queue: MessageQueue, job: ConsumeJob
) -> pa.Table:
    """The copies of the ``chosen`` messages, which were first stored in ``topic``, for ``queue``."""
    n = len(chosen)
    is_all = n == failed.rows.num_rows
    rows = failed.rows if is_all else failed.rows.take(pa.array(chosen))
    answers = failed.answers if is_all else [failed.answers[row] for row in chosen.tolist()]
    own_ids = rows.column("offset_msg_id")
    if job.group.mode == "orderly":
        edits = sent_away_edits(send_back, topic, "", job.group.max_reconsume_times)
        own_ids = pc.coalesce(rows.column("unique_key"), own_ids)
    else:
        edits = property_edits(send_back, topic, "")
    per_row = {name: own_ids.combine_chunks() if value == "" else value for name, value in edits.put_if_absent.items()}
    columns = {name: rows.column(name) for name in _COPIED}
    columns |= {name: pa.nulls(n, tables.MSG.field(name).type) for name in _OF_THE_STORE}
    columns["properties"] = edit_maps(rows.column("properties").combine_chunks(), edits.put, per_row, edits.remove)
    constant = {
        "topic": queue.topic,
        "broker_name": queue.broker_name,
        "queue_id": queue.queue_id,
        "reconsume_times": send_back.reconsume_times,
        "attempt": send_back.reconsume_times,
        "origin_topic": topic,
    }
    columns |= {name: _repeat(value, n, tables.MSG.field(name).type) for name, value in constant.items()}
    which = pa.array(failed.of_origins(range(len(failed.origins)))[chosen])
    of_origins = {
        "pass": [origin.pass_ for origin in failed.origins],
        "origin_broker_name": [origin.queue.broker_name for origin in failed.origins],
        "origin_queue_id": [origin.queue.queue_id for origin in failed.origins],
    }
    for name, values in of_origins.items():
        columns[name] = pa.array(values, tables.MSG.field(name).type).take(which)
    columns["origin_queue_offset"] = pa.array(np.concatenate([origin.offsets for origin in failed.origins])[chosen])
    causes = [str(cause_of(send_back.cause, answer.error_type)) for answer in answers] if send_back.dead else None
    columns["cause"] = pa.array(causes, pa.string()) if causes else _repeat(str(send_back.cause), n, pa.string())
    columns["error_type"] = pa.array([answer.error_type for answer in answers], pa.string())
    columns["error_text"] = pa.array([answer.error_text for answer in answers], pa.string())
    return pa.table(columns)


def _repeat(value: object, n: int, type_: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, type_), n)
