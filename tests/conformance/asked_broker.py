"""The broker that ``behaviour/NAME-requests`` asked, made again as far as its answers tell.

There is no store of it, but the copies of what was sent back show the messages of the topic that was asked for: their
properties, their host, and by the ids of the originals where each lay in the log. So a commit log with these messages is
written by our own encoder, the broker's config files by our own writers, and both are read and imported as any other
store. What no line tells is filled in: bodies have the length that fits, messages are stored 10 ms apart.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from rmq_store.broker_files.config_files import DataVersion, SubscriptionGroupConfig, TopicConfig, write_config
from rmq_store.broker_files.config_texts import consumer_offsets_text, subscription_groups_text, topics_text
from rmq_store.broker_files.consumer_offset_manager import ConsumerOffsetManager, key_of
from rmq_store.log.record import Record
from rmq_store.log.record_encoder import encode, new_record
from rmq_store.message.message_const import MessageConst
from rmq_store.message.message_id import decode_offset_message_id
from rmq_store.message.validators import REPLY_TOPIC_POSTFIX
from tests.conformance.broker_store import BrokerStore
from tests.conformance.checks import Line

SEND_BACK, STORED = "send back", "stored in "
ENABLED = "pull, group enabled again"
RESET = "reset by time"

LOG_FILE_BYTES = 1 << 20
STEP_MS = 10
BROKER_IN_WORDS = re.compile(r"BrokersSent: \[([^],]+)")
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
    def sent_back(self) -> dict[int, list[Copy]]:
        """What is stored of each message that was sent back, by its queue offset; the copies in the order of time."""
        found = [_copy(line) for line in self._lines if line["what"].startswith(STORED)]
        found.sort(key=lambda copy: (_position(copy), copy["storeTimestamp"]))
        offsets = sorted(int(request["queueOffset"]) for request in self.asked)
        if len(found) != len(offsets):
            raise NotTold(f"{len(offsets)} messages were sent back, and {len(found)} copies are told of")
        copies: dict[int, list[Copy]] = {}
        for offset, copy in zip(offsets, found, strict=True):
            copies.setdefault(offset, []).append(copy)
        return copies

    @cached_property
    def all_copies(self) -> list[Copy]:
        return [copy for copies in self.sent_back.values() for copy in copies]

    @cached_property
    def copies(self) -> dict[int, Copy]:
        """One copy of each message."""
        return {offset: copies[0] for offset, copies in self.sent_back.items()}

    @property
    def any_copy(self) -> Copy:
        """The one of the first message that was sent back."""
        if not self.copies:
            raise NotTold("no copy of what was sent back says what the messages carry")
        return self.copies[min(self.copies)]

    @property
    def topic(self) -> str:
        topics = {copy["properties"]["RETRY_TOPIC"] for copy in self.copies.values()}
        if len(topics) != 1:
            raise NotTold(f"the copies of what was sent back come from {len(topics)} topics; one is needed")
        (topic,) = topics
        return str(topic)

    @cached_property
    def own_names(self) -> set[str]:
        """The topics that a broker makes for itself and its cluster, as far as its names are told."""
        words = " ".join(str(line["answer"]) for line in self._lines)
        clusters = {copy["properties"].get(MessageConst.CLUSTER, "") for copy in self.all_copies}
        return {*clusters, *(cluster + REPLY_TOPIC_POSTFIX for cluster in clusters), *BROKER_IN_WORDS.findall(words)}

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
        return int(max([*most, *(offset + 1 for offset in self.copies)]))

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

    def not_told_of(self, text: str) -> Collection[int]:
        """The offsets of the messages of which no line tells a property that a text names."""
        open_ = [name for name in self._seen if name not in self._patterns]
        if any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for name in open_):
            return set(range(self.count)) - self.copies.keys()
        return ()

    @cached_property
    def _seen(self) -> Mapping[str, set[str]]:
        """The values of each property, each with NUMBER for the message's own; NONE where a copy has none."""
        originals = {offset: _original(copy) for offset, copy in self.copies.items()}
        names = {name for properties in originals.values() for name in properties}
        return {
            name: {_pattern(properties.get(name), offset) for offset, properties in originals.items()} for name in names
        }

    @cached_property
    def _patterns(self) -> Mapping[str, str]:
        return {name: next(iter(patterns)) for name, patterns in self._seen.items() if len(patterns) == 1}

    @cached_property
    def _host(self) -> str:
        return decode_offset_message_id(_origin(self.any_copy)).store_host

    @cached_property
    def _begins(self) -> list[int]:
        """Where each message lies in the log, and where the last one ends: what is not told lies as near to a message that
        is as the shortest body lets it."""
        told = {offset: _position(copy) for offset, copy in self.copies.items()}
        begins = [told[min(told)]]
        for offset in range(min(told) - 1, -1, -1):
            begins.insert(0, begins[0] - self._record(offset, 0, b" ").store_size)
        for offset in range(min(told), self.count):
            begins.append(told.get(offset + 1, begins[-1] + self._record(offset, 0, b" ").store_size))
        return begins

    def _records(self) -> Iterator[Record]:
        for offset, (begin, end) in enumerate(pairwise(self._begins)):
            body_bytes = end - begin - self._record(offset, begin, b"").store_size
            yield self._record(offset, begin, _body(body_bytes, begin))

    def _moment(self, offset: int) -> int:
        """The number of the first message that was stored in the same millisecond, as far as resets by time tell."""
        for line in self._lines:
            if line["what"] == RESET:
                asked = line["input"]["timestampOfOffset"]
                answered = int(dict(line["answer"]).get(0, asked))
                if answered <= offset <= asked:
                    return answered
        return offset

    @cached_property
    def _first_ms(self) -> int:
        return int(min(copy["storeTimestamp"] for copy in self.all_copies)) - self.count * STEP_MS

    def _record(self, offset: int, begin: int, body: bytes) -> Record:
        stored_ms = self._first_ms + self._moment(offset) * STEP_MS
        copy = self.copies.get(offset, self.any_copy)
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
            store_host=self._host,
        )

    @cached_property
    def store(self) -> BrokerStore:
        """The store as a folder, read and imported as those of ``stores/`` are."""
        folder, topic = self._work / "store", TopicConfig(self.topic, self.queues, self.queues)
        (folder / "commitlog").mkdir(parents=True)
        (folder / "config").mkdir()
        if self._begins[0] < 0:
            raise NotTold(f"{self.topic} has more messages than fit before {_position(self.any_copy)}")
        log = b"".join(map(encode, self._records()))
        (folder / "commitlog" / f"{self._begins[0]:020}").write_bytes(
            log + bytes(LOG_FILE_BYTES - len(log) % LOG_FILE_BYTES)
        )
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
NONE = "\0\0"
"""The pattern of what a message does not have."""


def _pattern(value: str | None, number: int) -> str:
    return NONE if value is None else value.replace(str(number), NUMBER)


def _body(size: int, begin: int) -> bytes:
    if size < 1:
        raise NotTold(f"the message at {begin} does not fit before the next one")
    return b" " * size


def _copy(line: Line) -> Copy:
    """``input``: queue and offset in the schedule topic, or the offset of a dead letter."""
    topic, place = line["what"].removeprefix(STORED), line["input"]
    queue_id, offset = place if isinstance(place, list) else (0, place)
    answer: Copy = line["answer"]
    return answer | {"topic": topic, "queueId": queue_id, "queueOffset": offset}


def _origin(copy: Copy) -> str:
    origin: str = copy["properties"]["ORIGIN_MESSAGE_ID"]
    return origin


def _position(copy: Copy) -> int:
    return decode_offset_message_id(_origin(copy)).commit_log_offset


def _original(copy: Copy) -> dict[str, str]:
    kept = {name: value for name, value in copy["properties"].items() if name not in OF_A_COPY}
    return kept | {"WAIT": "true"}
