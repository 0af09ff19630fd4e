"""``offsets.json`` of a broadcasting client: ``LocalFileOffsetStore`` (rules 4).

Its keys are objects, which is not standard JSON. The text is RocketMQ's own, byte for byte, also in the order of its queues,
which is that of a ``ConcurrentHashMap``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rmq_store.broker_files.broker_json import key_text, number_of, object_of, parse, render
from rmq_store.broker_files.config_files import write_config
from rmq_store.errors import BadData
from rmq_store.message.java_hash import in_hash_map_order
from rmq_store.message.message import MessageQueue
from rmq_store.utils.small_file import read_small_file


def local_offsets_path(root: Path, client_id: str, group: str) -> Path:
    """Where RocketMQ keeps it; ``root`` is ``rocketmq.client.localOffsetStoreDir``, ``~/.rocketmq_offsets`` without."""
    return root / client_id / group / "offsets.json"


def local_offsets_text(offsets: Mapping[MessageQueue, int]) -> str:
    """The file of these offsets."""
    table = {_key(queue): offsets[queue] for queue in in_hash_map_order(offsets)}
    return render({"offsetTable": table})


def parse_local_offsets(text: str) -> dict[MessageQueue, int]:
    """The offsets of a file's text, in its order.

    :raises BadData: it cannot be read, or an offset is not a 64-bit number.
    """
    table = object_of(object_of(parse(text)).get("offsetTable"))
    return {_queue(key): number_of(offset, 64) for key, offset in table.items()}


def usable_local_offsets(text: str | None, bak: str | None) -> dict[MessageQueue, int]:
    """What RocketMQ takes from the two files: a main file that is missing, empty or unreadable gives way to ``.bak``.

    None: there is no such file. Without both files the table is empty.

    :raises BadData: the main file does not count and the ``.bak`` cannot be read.
    """
    try:
        if text:
            return parse_local_offsets(text)
    except BadData:
        pass
    return parse_local_offsets(bak) if bak else {}


@dataclass(frozen=True, slots=True)
class LocalOffsetsFile:
    """The file on this machine, read and written as ``LocalFileOffsetStore`` does."""

    path: Path

    def read(self) -> dict[MessageQueue, int]:
        """The offsets.

        :raises BadData: neither the file nor its ``.bak`` can be read.
        """
        bak = self.path.with_name(f"{self.path.name}.bak")
        try:
            return usable_local_offsets(_text(self.path), _text(bak))
        except BadData as error:
            raise BadData(f"neither {self.path} nor its .bak can be read ({error}): restore one of the two") from error

    def write(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Write the file; the one before becomes ``.bak``."""
        write_config(self.path, local_offsets_text(offsets))


def _key(queue: MessageQueue) -> tuple[tuple[str, Any], ...]:
    return ("brokerName", queue.broker_name), ("queueId", queue.queue_id), ("topic", queue.topic)


def _queue(key: Any) -> MessageQueue:
    try:
        named = dict(key)
        names = [key_text(named[name]) for name in ("topic", "brokerName") if named[name] is not None]
        topic, broker_name = names
        return MessageQueue(topic, broker_name, number_of(named["queueId"], 32))
    except (KeyError, TypeError, ValueError) as error:
        raise BadData(f"{key!r} is not a queue: expected topic, brokerName and queueId") from error


def _text(path: Path) -> str | None:
    """None also for a file that cannot be opened; RocketMQ then reads the ``.bak``."""
    try:
        return read_small_file(path).decode("utf-8", "replace")
    except OSError:
        return None
