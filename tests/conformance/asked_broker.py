"""The broker that ``behaviour/NAME-requests`` asked, made again as far as its answers tell.

There is no store of it, but the copies of what was sent back show the messages of the topic that was asked for: their
properties, their host, and by the ids of the originals where each lay in the log. So a commit log with these messages is
written by our own encoder, the broker's config files by our own writers, and both are read and imported as any other
store. What no line tells is filled in: bodies have the length that fits, messages are stored 10 ms apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rmq_store.broker_files.config_files import DataVersion, SubscriptionGroupConfig, TopicConfig, write_config
from rmq_store.broker_files.config_texts import consumer_offsets_text, subscription_groups_text, topics_text
from rmq_store.broker_files.consumer_offset_manager import ConsumerOffsetManager, key_of
from rmq_store.message_id import decode_offset_message_id
from rmq_store.record import Record, encode, new_record
from tests.conformance.broker_store import BrokerStore
from tests.conformance.checks import Line

SEND_BACK, STORED = "send back", "stored in "
ENABLED = "pull, group enabled again"
RESET = "reset by time"

LOG_FILE_BYTES = 1 << 20
BODY_BYTES = 10
STEP_MS = 10
OF_A_COPY = ("DELAY", "ORIGIN_MESSAGE_ID", "REAL_QID", "REAL_TOPIC", "RETRY_TOPIC")
"""Properties that the original does not have."""

Copy = dict[str, Any]


class NotTold(ValueError):
    """The lines do not say something that an answer needs."""


class AskedBroker:
    """``topic``: the one that was asked about; its messages all lie in queue 0. Nothing is read before it is needed."""

    def __init__(self, lines: Sequence[Line], work: Path) -> None:
        self._lines = lines
        self._work = work
        self.manager = ConsumerOffsetManager()

    # --- what the lines say ------------------------------------------------------------------------------------------

    @cached_property
    def asked(self) -> list[Line]:
        """The send-backs that say which message, by its offset."""
        return [line["input"] for line in self._lines if line["what"] == SEND_BACK]

    @cached_property
    def copies(self) -> dict[int, Copy]:
        """What is stored of each message that was sent back, by its queue offset."""
        found = [_copy(line) for line in self._lines if line["what"].startswith(STORED)]
        offsets = sorted(request["queueOffset"] for request in self.asked)
        if len(found) != len(offsets):
            raise NotTold(f"{len(offsets)} messages were sent back, and {len(found)} copies are told of")
        return dict(zip(offsets, sorted(found, key=_position), strict=True))

    @property
    def topic(self) -> str:
        topics = {copy["properties"]["RETRY_TOPIC"] for copy in self.copies.values()}
        if len(topics) != 1:
            raise NotTold(f"the copies of what was sent back come from {len(topics)} topics; one is needed")
        (topic,) = topics
        return str(topic)

    @cached_property
    def queues(self) -> int:
        """A reset names all of them."""
        resets = [len(line["answer"]) for line in self._lines if line["what"] == RESET]
        if not resets:
            raise NotTold("no reset by time says how many queues the topic has")
        return resets[0]

    @cached_property
    def count(self) -> int:
        """How many messages the topic has while it is asked about."""
        most = [line["answer"]["max"] for line in self._lines if line["what"] == ENABLED]
        return max([*most, *(offset + 1 for offset in self.copies)])

    def config_of(self, group: str) -> SubscriptionGroupConfig | None:
        return None if group in self._named(0, "unknown group") else SubscriptionGroupConfig(group)

    def topic_of(self, topic: str) -> TopicConfig | None:
        return TopicConfig(topic, self.queues, self.queues) if topic == self.topic else None

    def _named(self, place: int, words: str) -> set[str]:
        """What requests name at a place, of those whose description has the words."""
        return {
            line["input"][place]
            for line in self._lines
            if isinstance(line["input"], list) and words in line["what"] and isinstance(line["input"][0], str)
        }

    # --- the messages ------------------------------------------------------------------------------------------------

    def properties_of(self, offset: int) -> dict[str, str]:
        """Of the message as it was sent. What no copy shows follows the copies, if they all follow one pattern."""
        patterned = {name: pattern.replace(NUMBER, str(offset)) for name, pattern in self._patterns.items()}
        if offset not in self.copies:
            return patterned | {"UNIQ_KEY": f"{offset:032X}"}
        return _original(self.copies[offset]) | patterned

    @cached_property
    def _patterns(self) -> Mapping[str, str]:
        originals = {offset: _original(copy) for offset, copy in self.copies.items()}
        seen: dict[str, set[str]] = {}
        for offset, properties in originals.items():
            for name, value in properties.items():
                seen.setdefault(name, set()).add(value.replace(str(offset), NUMBER))
        return {name: patterns.pop() for name, patterns in seen.items() if len(patterns) == 1}

    def _records(self) -> Iterator[Record]:
        positions = {offset: _position(copy) for offset, copy in self.copies.items()}
        host = decode_offset_message_id(_origin(self.copies[min(self.copies)])).store_host
        first_ms = min(copy["storeTimestamp"] for copy in self.copies.values()) - self.count * STEP_MS
        begin, body_bytes = 0, BODY_BYTES
        if first := positions.get(0, 0):  # something else was stored before it
            begin = self._record(0, 0, b"", host, first_ms).store_size
            yield replace(self._record(0, 0, _body(first - begin, 0), host, first_ms), topic=self.topic[::-1])
        for offset in range(self.count):
            begin = positions.get(offset, begin)
            if offset + 1 in positions:
                body_bytes = positions[offset + 1] - begin - self._record(offset, begin, b"", host, first_ms).store_size
            record = self._record(offset, begin, _body(body_bytes, begin), host, first_ms)
            yield record
            begin += record.store_size

    def _moment(self, offset: int) -> int:
        """The number of the first message that was stored in the same millisecond, as far as resets by time tell."""
        for line in self._lines:
            if line["what"] == RESET:
                asked = line["input"]["timestampOfOffset"]
                answered = int(dict(line["answer"]).get(0, asked))
                if answered <= offset <= asked:
                    return answered
        return offset

    def _record(self, offset: int, begin: int, body: bytes, host: str, first_ms: int) -> Record:
        stored_ms = first_ms + self._moment(offset) * STEP_MS
        copy = self.copies.get(offset, self.copies[min(self.copies)])
        return new_record(
            topic=self.topic,
            queue_id=0,
            queue_offset=offset,
            commit_log_offset=begin,
            stored_body=body,
            properties=self.properties_of(offset),
            born_timestamp=stored_ms,
            store_timestamp=stored_ms,
            born_host=copy["bornHost"],
            store_host=host,
        )

    @cached_property
    def store(self) -> BrokerStore:
        """The store as a folder, read and imported as those of ``stores/`` are."""
        folder, topic = self._work / "store", TopicConfig(self.topic, self.queues, self.queues)
        (folder / "commitlog").mkdir(parents=True)
        (folder / "config").mkdir()
        log = b"".join(map(encode, self._records()))
        (folder / "commitlog" / f"{0:020}").write_bytes(log.ljust(LOG_FILE_BYTES, b"\0"))
        groups = sorted(
            {request["group"] for request in self.asked} | self._named(0, "") - self._named(0, "unknown group")
        )
        texts = {
            "topics.json": topics_text([topic], DataVersion()),
            "subscriptionGroup.json": subscription_groups_text(map(SubscriptionGroupConfig, groups), DataVersion()),
            "consumerOffset.json": consumer_offsets_text(
                {key_of(self.topic, group): {0: 0} for group in groups}, DataVersion()
            ),
        }
        for name, text in texts.items():
            write_config(folder / "config" / name, text)
        return BrokerStore("asked", folder, self._work / "lake")


NUMBER = "\0"
"""Stands in a pattern for the message's own number."""


def _body(size: int, begin: int) -> bytes:
    if size < 1:
        raise NotTold(f"the message at {begin} does not fit before the next one")
    return b" " * size


def _copy(line: Line) -> Copy:
    """``input``: queue and offset in the schedule topic, or the offset of a dead letter."""
    topic, place = line["what"].removeprefix(STORED), line["input"]
    queue_id, offset = place if isinstance(place, list) else (0, place)
    return line["answer"] | {"topic": topic, "queueId": queue_id, "queueOffset": offset}


def _origin(copy: Copy) -> str:
    origin: str = copy["properties"]["ORIGIN_MESSAGE_ID"]
    return origin


def _position(copy: Copy) -> int:
    return decode_offset_message_id(_origin(copy)).commit_log_offset


def _original(copy: Copy) -> dict[str, str]:
    kept = {name: value for name, value in copy["properties"].items() if name not in OF_A_COPY}
    return kept | {"WAIT": "true"}
