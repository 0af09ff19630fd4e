"""A real broker's store: its files read by our rules, and the same files imported into a lake."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmq_store.broker_files.commit_log_file import list_commit_log, read_log
from rmq_store.broker_files.config_files import (
    SubscriptionGroupConfig,
    TopicConfig,
    read_subscription_groups,
    read_topics,
)
from rmq_store.broker_files.consume_queue_file import ConsumeQueueFiles, QueueBounds, list_consume_queues
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.broker_files.mapped_file_queue import MappedFileQueue
from rmq_store.commit.ctl import Actor
from rmq_store.commit.positions import Positions
from rmq_store.consumer.delay import MESSAGE_DELAY_LEVEL, DelayLevels
from rmq_store.lake.broker.import_request import ImportReport, ImportRequest
from rmq_store.lake.broker.import_store import import_store
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.log.commit_log import Stop
from rmq_store.log.consume_queue import UNIT_BYTES, is_indexed
from rmq_store.log.record import Record, parse_level
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, MessageConst
from rmq_store.utils.host import Host
from tests.oracle.get_message import ENTRIES_PER_FILE

BROKER = "broker-a"
"""The name to import under; no answer that is compared names the broker."""

QueueKey = tuple[str, int]
MessageKey = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Imported:
    """The lake into which the store was imported."""

    store: LakeStore
    shard: Shard
    report: ImportReport

    def rows(self, text: str) -> list[dict[str, Any]]:
        """What SQL answers; maps are dicts."""
        found: list[dict[str, Any]] = query(self.store, text).to_pylist(maps_as_pydicts="strict")
        return found


class BrokerStore:
    """Everything is read when it is first asked for. ``lines(kind)`` reads what a scripted consumer saw of this store,
    ``local_offsets`` is the text of a broadcasting client's offset file."""

    def __init__(
        self,
        name: str,
        folder: Path,
        lake_folder: Path,
        lines: Callable[[str], list[Any]] | None = None,
        local_offsets: str | None = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self._lake_folder = lake_folder
        self.lines = lines or (lambda kind: [])
        self.local_offsets = local_offsets

    # --- the files, by our rules -------------------------------------------------------------------------------------

    @cached_property
    def source(self) -> LocalFileSource:
        return LocalFileSource(self.folder)

    @cached_property
    def log(self) -> MappedFileQueue:
        return list_commit_log(self.source)

    @cached_property
    def log_items(self) -> list[Record | Stop]:
        """The log as it is walked."""
        return [item for _, item in read_log(self.source, self.log)]

    @cached_property
    def records(self) -> list[Record]:
        return [item for item in self.log_items if isinstance(item, Record)]

    @cached_property
    def log_end(self) -> int:
        return self.records[-1].commit_log_offset + self.records[-1].store_size

    @cached_property
    def topics(self) -> dict[str, TopicConfig]:
        """``topics.json``."""
        return read_topics(self.source).value

    def is_left_over(self, topic: str, queue_id: int) -> bool:
        """A queue that its topic has no more to read: a broker's clients and tools do not see its messages."""
        config = self.topics.get(topic)
        if config is None or queue_id < config.read_queue_nums:
            return False
        return (topic, queue_id) in self.on_disk or (topic, queue_id) in self.made

    def is_deleted(self, topic: str) -> bool:
        """Its messages are still in the log, which is all that a lake is made of; the broker has forgotten it."""
        if self.was_killed or topic in self.topics:
            return False
        return all(of != topic for of, _ in self.on_disk)

    @cached_property
    def groups(self) -> dict[str, SubscriptionGroupConfig]:
        """``subscriptionGroup.json``."""
        return read_subscription_groups(self.source).value

    @cached_property
    def on_disk(self) -> dict[QueueKey, ConsumeQueueFiles]:
        return {(queue.topic, queue.queue_id): queue for queue in list_consume_queues(self.source)}

    @property
    def was_killed(self) -> bool:
        """A broker removes the file ``abort`` when it stops."""
        return (self.folder / "abort").exists()

    @property
    def entries_per_file(self) -> int:
        """Of every consume queue: the broker's setting, which its files show."""
        sizes = (file.size_bytes for queue in self.on_disk.values() for file in queue.files)
        return next(sizes, ENTRIES_PER_FILE * UNIT_BYTES) // UNIT_BYTES

    @cached_property
    def made(self) -> dict[QueueKey, dict[int, Record]]:
        """Per queue the records that make its entries, by queue offset. A queue whose topic was deleted and made again
        begins anew: what was before has no entry."""
        made: dict[QueueKey, dict[int, Record]] = {}
        for record in self.records:
            if is_indexed(record.sys_flag):
                queue = made.setdefault((record.topic, record.queue_id), {})
                if record.queue_offset in queue:
                    queue.clear()
                queue[record.queue_offset] = record
        return {key: queue for key, queue in made.items() if not self.is_deleted(key[0])}

    def bounds(self, queue: QueueKey) -> QueueBounds:
        """After recovery: what is on disk, and what the log makes."""
        made = self.made.get(queue, {})
        files = self.on_disk.get(queue)
        on_disk = files.bounds(self.log.files[0].start_offset, self.log_end) if files else QueueBounds(0, 0, 0)
        return on_disk.with_log(range(min(made), max(made) + 1) if made else range(0))

    @cached_property
    def levels(self) -> DelayLevels:
        """The broker's table. No file of the store names it: its schedule entries show it, ours says the rest. The highest
        level of which there is a message counts as the last one: what asked for more was given it, or nothing did."""
        seen = dict(self._delays_seen())
        used = [queue_id + 1 for topic, queue_id in self.made if topic == SCHEDULE_TOPIC]
        ours = DelayLevels(MESSAGE_DELAY_LEVEL)
        delays_ms = [seen.get(level, ours.delay_ms(level)) for level in range(1, max(used, default=ours.max_level) + 1)]
        return DelayLevels(" ".join(f"{delay_ms // 1000}s" for delay_ms in delays_ms))

    @property
    def delays_ms(self) -> dict[int, int]:
        """The same as RocketMQ's delayLevelTable."""
        return dict(enumerate(self.levels.delays_ms, 1))

    def _delays_seen(self) -> Iterator[tuple[int, int]]:
        for (topic, queue_id), files in self.on_disk.items():
            if topic != SCHEDULE_TOPIC:
                continue
            written = files.written()
            made = self.made.get((topic, queue_id), {})
            for offset in sorted(made.keys() & set(written))[:1]:
                level = parse_level(made[offset].properties.get(MessageConst.DELAY_TIME_LEVEL, ""))
                if level == queue_id + 1:
                    yield level, files.entry(offset).tags_code - made[offset].store_timestamp

    # --- the lake ----------------------------------------------------------------------------------------------------

    @cached_property
    def imported(self) -> Imported:
        store, _ = LakeStore.init(Root.parse(str(self._lake_folder)), levels=self.levels.text)
        host = Host()
        actor = Actor("conformance", "conformance")
        source = Root.parse(str(self.folder))
        request = ImportRequest(
            broker_name=BROKER, shard_name=BROKER, request_id=f"2026-01-01-{self.name}", actor=actor
        )
        report = import_store(store, source, request, host, LocalEngine(host))
        (shard,) = store.shards()
        return Imported(store, shard, report)

    @cached_property
    def message_table(self) -> pa.Table:
        """The view ``messages`` of the lake, ordered by queue and offset, of the topics that the broker has."""
        rows = query(self.imported.store, "SELECT * FROM messages ORDER BY topic, queue_id, queue_offset")
        has = {topic: not self.is_deleted(topic) for topic in rows.column("topic").unique().to_pylist()}
        return (
            rows if all(has.values()) else rows.filter(pa.array([has[topic.as_py()] for topic in rows.column("topic")]))
        )

    @cached_property
    def messages(self) -> dict[MessageKey, dict[str, Any]]:
        """The same, by queue and offset; maps are dicts."""
        rows = self.message_table.to_pylist(maps_as_pydicts="strict")
        return {(row["topic"], row["queue_id"], row["queue_offset"]): row for row in rows}

    @cached_property
    def by_queue(self) -> dict[QueueKey, list[dict[str, Any]]]:
        """The same, per queue in order."""
        found: dict[QueueKey, list[dict[str, Any]]] = {}
        for (topic, queue_id, _), row in self.messages.items():
            found.setdefault((topic, queue_id), []).append(row)
        return found

    @cached_property
    def batches(self) -> dict[QueueKey, pa.RecordBatch]:
        """The same as one batch a queue."""
        table, row, found = self.message_table.combine_chunks(), 0, {}
        for queue, rows in self.by_queue.items():
            (found[queue],) = table.slice(row, len(rows)).to_batches()
            row += len(rows)
        return found

    @cached_property
    def lag(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        """The view of that name, by group, topic and queue."""
        rows = self.imported.rows("SELECT * FROM lag")
        return {(row["group_name"], row["topic"], row["queue_id"]): row for row in rows}

    @cached_property
    def positions(self) -> Positions:
        return self.imported.shard.positions()

    def queue(self, line: dict[str, Any]) -> MessageQueue:
        """The queue that a line names."""
        return MessageQueue(line["topic"], BROKER, line["queueId"])
