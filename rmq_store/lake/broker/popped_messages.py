"""What groups of a broker have popped and not acked: a cut-over takes over their offsets, which are beyond these messages.

They wait in the pop retry topics, in check points of the revive log or of the timer that delivers to it, or in a database of
the broker (``popConsumerKVServiceEnable``), which is not read. Pop is not supported here: no window reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rmq_store.broker_files.pop_check_points import REVIVE_GROUP, REVIVE_TOPIC_PREFIX, not_acked
from rmq_store.broker_files.pop_retry_topics import is_given_out, pop_retry_topics
from rmq_store.commit.ctl import Ctl
from rmq_store.commit.positions import Positions
from rmq_store.errors import WrongUse
from rmq_store.lake.read.message_search import quoted
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.imports import KV_STORE, POP_GROUPS
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import TIMER_TOPIC

_MOST_RECORDS = 200_000
"""More records of the revive log are not read: then it is not known which messages wait."""


@dataclass(frozen=True, slots=True)
class PoppedMessages:
    """Of one group of the broker."""

    group: str
    retries: int
    """Messages in its pop retry topics that it has not read."""
    not_acked: int
    """Messages of check points that the broker has not read."""

    def __str__(self) -> str:
        return f"group {self.group}: {self.retries:,} in its pop retry topics, {self.not_acked:,} popped and not acked"


@dataclass(frozen=True, slots=True)
class Popped:
    """Of a broker."""

    groups: tuple[PoppedMessages, ...] = ()
    has_kv_store: bool = False
    """Whether the broker has a database of popped messages."""
    unread_records: int = 0
    """Records of the revive log, if they are too many to be read."""

    def __bool__(self) -> bool:
        return bool(self.groups) or self.has_kv_store or bool(self.unread_records)

    @property
    def notes(self) -> tuple[str, ...]:
        kv_store = (
            "the broker has a folder kvStore, in which it keeps popped messages (popConsumerKVServiceEnable): how many wait "
            "there is not known"
        )
        many = f"the broker has not read {self.unread_records:,} records of its revive log, too many to count what waits there"
        return (
            *(f"messages that wait for pop, {group}" for group in self.groups),
            *([kv_store] if self.has_kv_store else []),
            *([many] if self.unread_records else []),
        )

    def refuse(self, broker_name: str) -> None:
        """Raises WrongUse where messages wait: after the cut-over no group would read them."""
        if self:
            raise WrongUse(
                f"groups of broker {broker_name} use pop, which is not supported here, and their offsets are beyond messages "
                f"that they have not acked: {'; '.join(self.notes)}. No group would read them here. Start the broker and let "
                "its consumers read all of them, and import again; or give --leave-popped, and these messages stay unread "
                "here. Nothing was changed"
            )


NOTHING_POPPED = Popped()


def popped_of(cutover: Ctl) -> Popped:
    """What a cut-over left unread."""
    recorded = cutover.parameter("popped")
    if recorded is None:
        return NOTHING_POPPED
    return Popped(**recorded | {"groups": tuple(PoppedMessages(**one) for one in recorded["groups"])})


def popped_messages(store: LakeStore, shard: str, positions: Positions, names: Sequence[str], newest: Ctl) -> Popped:
    """As far as the broker's log was imported under these names. ``newest``: the import that recorded its configuration. What
    was deleted with its topic at the broker does not count: no consumer gets it there."""
    offsets = {(seen.group, seen.queue): seen.offset for seen in newest.observed}
    queues = [queue for queue in positions.all_queues() if queue.broker_name in names]
    retries: Counter[str] = Counter()
    owners, topics = pop_topics(newest, queues), newest.parameter("topics") or ()
    for queue in queues:
        group = owners.get(queue.topic)
        if group and is_given_out(queue.topic, group, topics):
            begin = max(offsets.get((group, queue), 0), positions.min_offset(queue))
            retries[group] += max(positions.max_offset(queue) - begin, 0)
    texts = _unread_records(shard, positions, names, queues, offsets)
    unread = sum(query(store, f"SELECT count(*) AS records FROM ({text})").to_pylist()[0]["records"] for text in texts)
    is_read = unread <= _MOST_RECORDS
    popped = not_acked((record for text in texts for record in _records(store, text)), topics) if is_read else {}
    groups = sorted({group for group, count in retries.items() if count} | popped.keys())
    return Popped(
        tuple(PoppedMessages(group, retries[group], popped.get(group, 0)) for group in groups),
        bool(newest.parameter(KV_STORE)),
        0 if is_read else unread,
    )


def _records(store: LakeStore, text: str) -> Iterator[tuple[str, bytes]]:
    """Tag and body of each."""
    rows: list[dict[str, Any]] = query(store, text).to_pylist()
    for row in rows:
        yield row["tags"] or "", row["body"] or b""


def pop_topics(newest: Ctl, queues: Iterable[MessageQueue]) -> dict[str, str]:
    """The group of each pop retry topic, also of one that the broker has not any more."""
    topics = {queue.topic for queue in queues} | set(newest.parameter("topics") or ())
    readers = [(seen.queue.topic, seen.group) for seen in newest.observed]
    groups = set(newest.parameter("groups") or ()) | {group for _, group in readers}
    popping = [(topic, group) for topic, group in newest.parameter(POP_GROUPS) or ()]
    return pop_retry_topics(topics, groups, popping, readers)


def _unread_records(
    shard: str,
    positions: Positions,
    names: Sequence[str],
    queues: Iterable[MessageQueue],
    offsets: dict[tuple[str, MessageQueue], int],
) -> list[str]:
    """The statements for the records that the broker has not read from its revive log: those in the log, and those that its
    timer has not delivered to it. Its offset in the log is that of the last check point that it has read
    (``PopReviveService#mergeAndRevive``)."""
    logs = [queue for queue in queues if queue.topic.startswith(REVIVE_TOPIC_PREFIX)]
    read = {queue: offsets.get((REVIVE_GROUP, queue), -1) for queue in logs}
    of_brokers = f"shard = {quoted(shard)} AND broker_name IN ({', '.join(map(quoted, names))})"
    of_logs = " OR ".join(
        f"(topic = {quoted(queue.topic)} AND broker_name = {quoted(queue.broker_name)} AND queue_id = {queue.queue_id} "
        f"AND queue_offset > {read[queue]})"
        for queue in logs
        if positions.max_offset(queue) > read[queue] + 1
    )
    texts = [_IN_LOGS.format(of_brokers=of_brokers, of_logs=of_logs)] if of_logs else []
    if any(queue.topic == TIMER_TOPIC and positions.max_offset(queue) for queue in queues):
        topics = ", ".join(map(quoted, sorted({TIMER_TOPIC, *(queue.topic for queue in logs)})))
        texts.append(
            _IN_TIMER.format(
                of_brokers=of_brokers,
                topics=topics,
                timer=quoted(TIMER_TOPIC),
                revive=quoted(REVIVE_TOPIC_PREFIX),
            )
        )
    return texts


_IN_LOGS = "SELECT tags, body FROM messages WHERE {of_brokers} AND ({of_logs})"

_IN_TIMER = """
WITH ours AS (
    SELECT topic, tags, unique_key, properties['REAL_TOPIC'] AS real_topic, body
    FROM messages
    WHERE {of_brokers} AND topic IN ({topics})
)
SELECT tags, body
FROM ours
WHERE topic = {timer} AND starts_with(real_topic, {revive}) AND NOT EXISTS (
    SELECT 1 FROM ours AS arrived
    WHERE arrived.topic = ours.real_topic AND arrived.unique_key = ours.unique_key
)
"""
