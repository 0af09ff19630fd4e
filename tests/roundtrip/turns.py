"""The turns of a round trip: what the broker does, and what the lake does then."""

from __future__ import annotations

import json
import signal
import subprocess
from dataclasses import dataclass, field
from typing import Any

from rmq_store.broker_files.config_files import read_consumer_offsets
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.utils.host import Host, monotonic_ms
from tests.roundtrip.books import Balance, Delivery, Ledger, Queue, Sent, balance, read_ledger, repeatable
from tests.roundtrip.broker import RocketMQ, finish
from tests.roundtrip.lake import GROUPS, Lake

TOPICS = ("RtNormal", "RtOrdered", "RtDelayed", "RtBig", "RtTransaction", "RtBatch")
SUBSCRIPTIONS = {
    "g_all": {topic: "*" for topic in TOPICS if topic != "RtOrdered"},
    "g_tags": {"RtNormal": "TagA || TagB"},
    "g_order": {"RtOrdered": "*"},
}
_IDLE_MS = 6_000
"""A consumer ends when no message came for so long: longer than the last delay level."""
_PATIENCE_MS = 120_000
_NEVER_MS = 24 * 3600 * 1000


@dataclass(slots=True)
class Books:
    """What is to be known of a broker and its lake at the end."""

    repeats: set[Delivery] = field(default_factory=set)
    turns: list[dict[str, Any]] = field(default_factory=list)

    def close(self, written: Ledger, lake: Lake) -> Balance:
        return balance(
            due=_deliveries(written.sent),
            possible=_deliveries(written.unsure),
            finished=[*(place.delivery for place in written.acked), *lake.finished()],
            repeats=self.repeats,
        )


def _deliveries(messages: set[Sent]) -> list[Delivery]:
    return [
        Delivery(group, message.key)
        for message in messages
        for group, topics in SUBSCRIPTIONS.items()
        if message.topic in topics and (topics[message.topic] == "*" or message.tag in topics[message.topic])
    ]


def broker_turn(broker: RocketMQ, number: int, count: int, limit: int, *, kill: bool) -> None:
    """Producers send ``count`` messages of each kind, and each group acks up to ``limit``; then the broker ends.

    ``kill``: producers and consumers run side by side until all groups together have acked ``limit`` messages, and then
    every process is killed.
    """
    if not kill:
        broker.run("produce", number, count)
        finish(consumers(broker, limit))
        broker.stop()
        return
    before = len(ledger_of(broker).acked)
    running = [consumers(broker, limit * 10), broker.client("produce", number, count * 100)]
    _wait_for_reads(broker, before + limit)
    broker.stop(signal.SIGKILL)
    for process in running:
        process.kill()
        process.wait()


def consumers(broker: RocketMQ, limit: int) -> subprocess.Popen[bytes]:
    """The consumers of all groups, until each has acked ``limit`` messages or none come any more."""
    triples = [(group, topic, tags) for group, topics in SUBSCRIPTIONS.items() for topic, tags in topics.items()]
    return broker.client("consume", limit, _IDLE_MS, *(part for triple in triples for part in triple))


def trim(broker: RocketMQ) -> int:
    """Lets the broker delete its old log files; how many that were. All their messages must be finished. The newest file stays,
    and one that the broker has prepared for later.

    The broker must not check its transactions meanwhile: it would write a record for each that is older than the time for
    which files are kept, and delete what it wrote before the lake imports it.
    """
    before = log_files(broker)
    broker.start(fileReservedTime=0, transactionCheckInterval=_NEVER_MS)
    broker.run("trim", broker.address)
    until = monotonic_ms() + _PATIENCE_MS
    while before[0] in log_files(broker):
        if monotonic_ms() > until:
            raise RuntimeError(f"the broker has deleted none of {len(before)} log files")
        Host().sleep(0.2)
    broker.stop()
    return len(set(before) - set(log_files(broker)))


def lake_turn(broker: RocketMQ, lake: Lake, books: Books, most: int, *, killed: bool) -> None:
    """Takes over, consumes at most so many new messages for each group, and hands back."""
    ledger = ledger_of(broker)
    if killed:
        books.repeats |= repeatable([*ledger.acked, *ledger.failed], stored_offsets(broker))
    adopted = lake.take_over(broker.store)
    lake.consume(most)
    lake.check()
    lake.hand_back(broker.store / "config" / "consumerOffset.json")
    books.turns.append(
        {
            "killed": killed,
            "log_files": len(log_files(broker)),
            "read_at_broker": len(ledger.acked) + len(ledger.failed),
            "read_in_lake": lake.read(),
            "retries_taken_over": adopted["waiting"],
        }
    )
    print(json.dumps(books.turns[-1]), flush=True)


def ledger_of(broker: RocketMQ) -> Ledger:
    with broker.ledger.open(encoding="utf-8") as lines:
        return read_ledger(lines)


def stored_offsets(broker: RocketMQ) -> dict[str, dict[Queue, int]]:
    """The offsets in the broker's file, by group and queue."""
    offsets: dict[str, dict[Queue, int]] = {group: {} for group in GROUPS}
    for topic, group, queue_id, offset in read_consumer_offsets(LocalFileSource(broker.store)).value.commits():
        if group in offsets:
            offsets[group][topic, queue_id] = offset
    return offsets


def log_files(broker: RocketMQ) -> list[str]:
    return sorted(path.name for path in (broker.store / "commitlog").iterdir())


def _wait_for_reads(broker: RocketMQ, acked: int) -> None:
    until = monotonic_ms() + _PATIENCE_MS
    while len(ledger_of(broker).acked) < acked:
        if monotonic_ms() > until:
            raise RuntimeError(f"the consumers read too slowly; see the logs in {broker.folder}")
        Host().sleep(0.1)
