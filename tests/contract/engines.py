"""The two engines behind one interface: memory, and the lake on local disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.admin.diff import DiffReport
from rmq_store.admin.offset_moves import MoveReport, MoveRequest
from rmq_store.admin.redrive import RedriveReport, RedriveRequest
from rmq_store.commit.ctl import Ctl, Proposal, StagedFile, lake_message_id
from rmq_store.commit.positions import Positions, QueueRange
from rmq_store.consumer.pull import Slice, cover
from rmq_store.lake.admin.diff import diff as diff_in_lake
from rmq_store.lake.admin.offset_moves import move_in_all
from rmq_store.lake.admin.redrive import redrive as redrive_in_lake
from rmq_store.lake.admin.replay import begin_attempt as begin_in_lake
from rmq_store.lake.commit import commit as commit_steps
from rmq_store.lake.commit.commit import commit as commit_in_lake
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.read.time_search import search_offsets
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.deliver import deliver as deliver_in_lake
from rmq_store.lake.window.engine import Engine, LocalEngine
from rmq_store.lake.window.send import send as send_in_lake
from rmq_store.lake.window.window import consume_window as consume_in_lake
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import MessageConst
from rmq_store.producer.producer import Message
from rmq_store.producer.send import SendReport
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host, day_of
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import ConsumeRequest, Scope
from rmq_store.window.deliver import DeliverReport
from tests.contract.world import ANA, SHARD, Asked, Key, Lost, Move, World
from tests.oracle.memory.commit import commit as commit_in_memory
from tests.oracle.memory.deliver import deliver as deliver_in_memory
from tests.oracle.memory.diff import diff as diff_in_memory
from tests.oracle.memory.offset_moves import move_offsets as move_in_memory
from tests.oracle.memory.redrive import redrive as redrive_in_memory
from tests.oracle.memory.replay import begin_attempt as begin_in_memory
from tests.oracle.memory.rows import MessageRow, Provenance, Stored
from tests.oracle.memory.send import send as send_in_memory
from tests.oracle.memory.store import MemoryStore
from tests.oracle.memory.window import consume_window as consume_in_memory

# --- the memory engine -----------------------------------------------------------------------------------------------


class MemoryWorld(World):
    name = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(clock=self.store_clock)
        self.shard = self.store.create_shard(SHARD)

    @contextmanager
    def in_shard(self, name: str) -> Iterator[None]:
        before, self.shard = self.shard, self.store.create_shard(name)
        try:
            yield
        finally:
            self.shard = before

    @contextmanager
    def at_step(self, step: str, happens: Callable[[], object]) -> Iterator[None]:
        before, self.shard.on_step = self.shard.on_step, once(step, happens)
        try:
            yield
        finally:
            self.shard.on_step = before

    def stage(self, commit_id: str, queue: MessageQueue, rows: Sequence[MessageRow]) -> StagedFile:
        return self.shard.stage(f"{commit_id}-00000", list(rows))

    def commit(self, proposal: Proposal) -> None:
        commit_in_memory(self.shard, proposal, self.host, started_ms=self.clock())

    def consume_window(self, group: GroupSettings, request: ConsumeRequest, host: Host, scope: Scope) -> WindowReport:
        return consume_in_memory(self.store, self.shard, group, request, host, scope)

    def begin_attempt(self, group: GroupSettings, request: ConsumeRequest) -> Asked:
        return begin_in_memory(self.shard, group, request, self.host)

    def diff(self, name: str, asked: tuple[int, int] | None = None, limit: int = 100) -> DiffReport:
        return diff_in_memory(self.shard, name, asked, limit)

    def deliver_due(self, request_id: str, now_ms: int | None, cap: int, host: Host) -> DeliverReport:
        return deliver_in_memory(self.store, self.shard, request_id, ANA, host, now_ms=now_ms, cap=cap)

    def send_messages(
        self, messages: Sequence[Message], request_id: str, host: Host, create_queues: int | None, dry_run: bool
    ) -> SendReport:
        return send_in_memory(
            self.store, self.shard, messages, request_id, ANA, host, create_queues=create_queues, dry_run=dry_run
        )

    def redrive_letters(self, request: RedriveRequest, host: Host) -> RedriveReport:
        return redrive_in_memory(self.shard, request, host)

    def move(self, request: MoveRequest, host: Host | None = None) -> MoveReport:
        return move_in_memory(self.shard, request, host or self.host)

    def search(self, queue: MessageQueue, time_ms: int, *, upper: bool = False) -> int:
        return self.shard.search_offsets(self.positions(), [queue], time_ms, upper=upper)[queue]

    def positions(self) -> Positions:
        return self.shard.positions()

    def ctls(self) -> list[Ctl]:
        return self.shard.ctls()

    def stored(self, queue: MessageQueue) -> list[Stored]:
        return self.shard.stored(queue)

    def history(self, group: str) -> list[Move]:
        return [
            Move(
                move.queue, move.from_offset, move.to_offset, move.pass_, str(move.ctl.action), move.ctl.request_id,
                move.ctl.actor.name, move.ctl.reason,
            )
            for move in self.shard.offset_history(group)
        ]  # fmt: skip

    def outcomes(self, group: str) -> list[Lost]:
        return [Lost(row.range, row.pass_, str(row.outcome)) for row in self.shard.outcomes(group)]

    def keys(self, group: str) -> list[Key]:
        return [Key(row.key, row.queue, row.offset, row.epoch) for row in self.shard.keys(group)]


# --- the lake --------------------------------------------------------------------------------------------------------


class LakeWorld(World):
    """The lake on local disk. Whoever acts while somebody else is at work opens the shard anew, as processes do."""

    name = "lake"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        clocked: Any = type(
            "ClockedRoot", (Root,), {"__slots__": (), "server_time_ms": lambda root, host: self.store_clock()}
        )
        self.root: Root = clocked.parse(str(folder))
        self.store, _ = LakeStore.init(self.root)
        self._shard = self.store.create_shard(SHARD)
        self._at_work = 0
        self._ctls: tuple[tuple[str, int], list[Ctl]] = (("", -1), [])

    @property
    def shard(self) -> Shard:
        """At its newest version."""
        shard = self.store.shards(self._shard.name)[0] if self._at_work else self._shard
        shard.commitlog.refresh()
        return shard

    @contextmanager
    def in_shard(self, name: str) -> Iterator[None]:
        before, self._shard = self._shard, self.store.create_shard(name)
        try:
            yield
        finally:
            self._shard = before

    @contextmanager
    def _working(self) -> Iterator[Shard]:
        shard = self.shard
        self._at_work += 1
        try:
            yield shard
        finally:
            self._at_work -= 1

    @contextmanager
    def at_step(self, step: str, happens: Callable[[], object]) -> Iterator[None]:
        before, commit_steps.on_step = commit_steps.on_step, once(step, happens)
        try:
            yield
        finally:
            commit_steps.on_step = before
            self._shard = self.store.shards(SHARD)[0]

    def stage(self, commit_id: str, queue: MessageQueue, rows: Sequence[MessageRow]) -> StagedFile:
        stored = [_lake_row(commit_id, queue, rel, row) for rel, row in enumerate(rows)]
        table, name = pa.Table.from_pylist(stored, schema=tables.MSG), f"{commit_id}-00000"
        times = [row.store_timestamp for row in rows if row.store_timestamp]
        day = day_of(times[0]) if times else None  # as an import does it; else it is that of the commit
        return stage(self.root, self.shard.commitlog.path, NewFile(kind="msg", name=name, rows=table, store_day=day))

    def commit(self, proposal: Proposal) -> None:
        shard = self.shard
        commit_in_lake(shard, proposal, self.host, started_ms=self.clock(), quiet=True)
        dispatch(shard, self.host)

    def consume_window(self, group: GroupSettings, request: ConsumeRequest, host: Host, scope: Scope) -> WindowReport:
        with self._working() as shard:
            return consume_in_lake(self.store, shard, group, request, lambda plan: self.engine(host), host, scope)

    def engine(self, host: Host) -> Engine:
        """Where windows run."""
        return LocalEngine(host)

    def begin_attempt(self, group: GroupSettings, request: ConsumeRequest) -> Asked:
        with self._working() as shard:
            return begin_in_lake(shard, group, request, self.host)

    def diff(self, name: str, asked: tuple[int, int] | None = None, limit: int = 100) -> DiffReport:
        (report,) = diff_in_lake(self.store, [self.shard], name, asked, limit)
        return report

    def deliver_due(self, request_id: str, now_ms: int | None, cap: int, host: Host) -> DeliverReport:
        with self._working() as shard:
            return deliver_in_lake(self.store, shard, request_id, ANA, host, now_ms=now_ms, cap=cap)

    def send_messages(
        self, messages: Sequence[Message], request_id: str, host: Host, create_queues: int | None, dry_run: bool
    ) -> SendReport:
        with self._working() as shard:
            return send_in_lake(
                self.store, shard, messages, request_id, ANA, host, create_queues=create_queues, dry_run=dry_run
            )

    def redrive_letters(self, request: RedriveRequest, host: Host) -> RedriveReport:
        with self._working() as shard:
            return redrive_in_lake(shard, request, host)

    def move(self, request: MoveRequest, host: Host | None = None) -> MoveReport:
        with self._working() as shard:
            (report,) = move_in_all([(shard, request)], host or self.host)
            return report

    def search(self, queue: MessageQueue, time_ms: int, *, upper: bool = False) -> int:
        shard = self.shard
        return search_offsets(shard, shard.positions(), [queue], time_ms, upper=upper)[queue]

    def positions(self) -> Positions:
        return self.shard.positions()

    def ctls(self) -> list[Ctl]:
        shard = self.shard
        version = shard.name, shard.commitlog.version
        if self._ctls[0] != version:
            self._ctls = version, shard.ctls_since(0)
        return list(self._ctls[1])

    def stored(self, queue: MessageQueue) -> list[Stored]:
        shard = self.shard
        whole = QueueRange(queue, 0, shard.positions().max_offset(queue))
        slices, _ = cover(whole, segments_of(shard, [whole]).get(queue, ()))
        found = []
        for slice_ in slices:
            rows = shard.commitlog.rows(slice_.file, slice_.first_row, len(slice_), tables.MSG.names).to_pylist()
            found += [_stored(slice_, n, row) for n, row in enumerate(rows)]
        return found

    def history(self, group: str) -> list[Move]:
        shard = self.shard
        dispatch(shard, self.host)
        rows = shard.offsets.read(shard.offsets.files().column("path").to_pylist()).to_pylist()
        return [
            Move(
                _queue(r),
                r["from_offset"],
                r["to_offset"],
                r["pass"],
                r["action"],
                r["request_id"],
                r["actor"],
                r["reason"],
            )
            for r in sorted(rows, key=lambda row: row["read_version"])
            if r["group_name"] == group
        ]

    def outcomes(self, group: str) -> list[Lost]:
        shard = self.shard
        files = shard.commitlog.files(pc.field("partition.kind") == "outcome").column("path").to_pylist()
        rows = sorted(shard.commitlog.read(files).to_pylist(), key=lambda row: row["commit_id"])
        return [
            Lost(QueueRange(_queue(r), r["begin_offset"], r["end_offset"]), r["pass"], r["outcome"])
            for r in rows
            if r["group_name"] == group
        ]

    def keys(self, group: str) -> list[Key]:
        shard = self.shard
        files = shard.commitlog.files(pc.field("partition.kind") == "key").column("path").to_pylist()
        found: list[Key] = []
        for rows in shard.commitlog.read_each(files):
            assert rows.column("rel").to_pylist() == list(range(rows.num_rows))
            of_group = (row for row in rows.to_pylist() if row["group_name"] == group)
            found += [Key(row["key_text"], _queue(row), row["queue_offset"], row["epoch"]) for row in of_group]
        return found


def once(step: str, happens: Callable[[], object]) -> Callable[[str], None]:
    """For ``on_step``: something that happens when the step is reached first."""
    left = [step]

    def reached(now: str) -> None:
        if now in left:
            left.clear()
            happens()

    return reached


def _lake_row(commit_id: str, queue: MessageQueue, rel: int, row: MessageRow) -> dict[str, Any]:
    return {
        "commit_id": commit_id,
        "part": 0,
        "rel": rel,
        "topic": queue.topic,
        "broker_name": queue.broker_name,
        "queue_id": queue.queue_id,
        "offset_msg_id": row.offset_msg_id,
        "store_timestamp": row.store_timestamp,
        "unique_key": row.properties.get(MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
        "keys": row.properties.get(MessageConst.KEYS),
        "tags": row.tags,
        "tags_code": row.tags_code,
        "born_timestamp": row.born_timestamp,
        "born_host": row.born_host,
        "flag": row.flag,
        "sys_flag": row.sys_flag,
        "reconsume_times": row.reconsume_times,
        "properties": list(row.properties.items()),
        "body": row.body,
        "stored_body_size": len(row.body or b""),
    }


def _queue(row: Mapping[str, Any], prefix: str = "") -> MessageQueue:
    return MessageQueue(row[f"{prefix}topic"], row[f"{prefix}broker_name"], row[f"{prefix}queue_id"])


def _stored(slice_: Slice, n: int, row: Mapping[str, Any]) -> Stored:
    """A row of the lake as the value that the memory engine holds."""
    origin = None
    if row["group_name"] is not None:
        origin = Provenance(
            row["group_name"], row["pass"], _queue(row, "origin_"), row["origin_queue_offset"], row["cause"],
            row["attempt"], row["error_type"], row["error_text"], row["window_id"], row["epoch"],
        )  # fmt: skip
    message = MessageRow(
        row["body"], dict(row["properties"]), row["reconsume_times"], row["store_timestamp"], row["offset_msg_id"],
        row["born_timestamp"], row["born_host"], row["flag"], row["sys_flag"], origin,
    )  # fmt: skip
    assert _queue(row) == slice_.queue
    assert (row["tags"], row["tags_code"]) == (message.tags, message.tags_code)
    assert row["unique_key"] == message.properties.get(MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
    return Stored(
        slice_.queue,
        slice_.begin + n,
        (slice_.store_timestamp if row["store_timestamp"] is None else row["store_timestamp"]) or 0,
        row["offset_msg_id"] or lake_message_id(slice_.commit_id, slice_.part, slice_.first_row + n),
        message,
    )


# --- stories ---------------------------------------------------------------------------------------------------------


def story(test: Callable[..., None]) -> Callable[..., None]:
    """A test of one world. What another engine than memory makes of it must be what memory makes of it."""

    @wraps(test)
    def told(world: World, **others: Any) -> None:
        test(world, **others)
        if not isinstance(world, MemoryWorld):
            twin = MemoryWorld()
            test(twin, **others)
            assert world.projection() == twin.projection()

    return told
