"""The broker's table of offsets and what may be done to it: RocketMQ's ``ConsumerOffsetManager`` (rules 3.1, 3.5).

Three tables of ``topic@group`` -> queue id -> offset. ``offset_table`` holds the commits and is the only one that is
written and read back; ``pull_offset_table`` what was pulled last, which is not a commit; ``reset_offset_table`` the
resets that the next pull of a queue removes.

As on the broker, offsets are not checked against the queue: a commit may go backwards or beyond the queue's end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rmq_store.broker_files.config_files import TOPIC_GROUP_SEPARATOR, ConsumerOffsets, DataVersion, split_key
from rmq_store.broker_files.config_texts import consumer_offsets_text
from rmq_store.errors import WrongUse

NOT_FOUND = -1

Table = dict[str, dict[int, int]]


@dataclass(slots=True)
class ConsumerOffsetManager:
    """``use_server_side_reset_offset``: a pending reset answers queries before the commit does; on since 5.2.0."""

    offset_table: Table = field(default_factory=dict)
    pull_offset_table: Table = field(default_factory=dict)
    reset_offset_table: Table = field(default_factory=dict)
    use_server_side_reset_offset: bool = True

    @classmethod
    def of(cls, offsets: ConsumerOffsets) -> ConsumerOffsetManager:
        """With the commits of a file; the other two tables start empty."""
        return cls({key: dict(queues) for key, queues in offsets.offset_table.items()})

    def text(self, data_version: DataVersion) -> str:
        """``consumerOffset.json``."""
        return consumer_offsets_text(self.offset_table, data_version)

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Store the offset, also a smaller one. Returns the one before, None when there was none."""
        queues = self.offset_table.setdefault(key_of(topic, group), {})
        before = queues.get(queue_id)
        queues[queue_id] = offset
        return before

    def commit_pull_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.pull_offset_table.setdefault(key_of(topic, group), {})[queue_id] = offset

    def query_offset(self, group: str, topic: str, queue_id: int) -> int:
        """A pending reset, else the commit, else -1."""
        key = key_of(topic, group)
        if self.use_server_side_reset_offset and queue_id in self.reset_offset_table.get(key, {}):
            return self.reset_offset_table[key][queue_id]
        return self.offset_table.get(key, {}).get(queue_id, NOT_FOUND)

    def query_on_the_wire(
        self, group: str, topic: str, queue_id: int, *, young: bool = False, set_zero_if_not_found: bool = True
    ) -> int:
        """The answer to QUERY_CONSUMER_OFFSET (``ConsumerManageProcessor#queryConsumerOffset``, rules 5.4): a stored offset
        from 0 on; one below counts as none. Without one it is 0 for a ``young`` queue, whose first message is still in the
        broker's memory, unless the request forbids that; else -1, not found."""
        offset = self.query_offset(group, topic, queue_id)
        if offset >= 0:
            return offset
        return 0 if young and set_zero_if_not_found else NOT_FOUND

    def query_pull_offset(self, group: str, topic: str, queue_id: int) -> int:
        """What was pulled last, else as ``query_offset``."""
        pulled = self.pull_offset_table.get(key_of(topic, group), {}).get(queue_id)
        return self.query_offset(group, topic, queue_id) if pulled is None else pulled

    def assign_reset_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Record a reset and commit it.

        :raises WrongUse: no topic or group, or a negative number. RocketMQ only logs that.
        """
        if not topic or not group or queue_id < 0 or offset < 0:
            raise WrongUse(
                f"cannot reset {topic!r} queue {queue_id} to {offset} for group {group!r}: topic and group must not be "
                "empty, queue and offset must not be negative"
            )
        self.reset_offset_table.setdefault(key_of(topic, group), {})[queue_id] = offset
        self.commit_offset(group, topic, queue_id, offset)

    def has_offset_reset(self, group: str, topic: str, queue_id: int) -> bool:
        return queue_id in self.reset_offset_table.get(key_of(topic, group), {})

    def query_then_erase_reset_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The pending reset, once."""
        return self.reset_offset_table.get(key_of(topic, group), {}).pop(queue_id, None)

    def remove_offset(self, group: str) -> None:
        """Remove a group from all three tables. Keys that are not ``topic@group`` have no group and stay."""
        for table in self._tables():
            for key in [key for key in table if _part(key, 1) == group]:
                del table[key]

    def clean_offset_by_topic(self, topic: str) -> None:
        """Remove a topic's commits, and what was pulled or reset under the same keys; keys as above."""
        for key in [key for key in self.offset_table if _part(key, 0) == topic]:
            for table in self._tables():
                table.pop(key, None)

    def clone_offset(self, source_group: str, group: str, topic: str) -> None:
        """Replace the group's offsets of a topic by a copy of another's; nothing changes if that has none."""
        source = self.offset_table.get(key_of(topic, source_group))
        if source is not None:
            self.offset_table[key_of(topic, group)] = dict(source)

    def which_topic_by_consumer(self, group: str) -> set[str]:
        """The topics of which the group has commits."""
        return {pair[0] for pair in map(split_key, self.offset_table) if pair and pair[1] == group}

    def which_group_by_topic(self, topic: str) -> set[str]:
        """The groups that have commits of the topic."""
        return {pair[1] for pair in map(split_key, self.offset_table) if pair and pair[0] == topic}

    def _tables(self) -> tuple[Table, Table, Table]:
        return self.offset_table, self.pull_offset_table, self.reset_offset_table


def key_of(topic: str, group: str) -> str:
    return f"{topic}{TOPIC_GROUP_SEPARATOR}{group}"


def _part(key: str, index: int) -> str | None:
    pair = split_key(key)
    return pair[index] if pair else None
