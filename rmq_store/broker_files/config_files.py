"""The broker's ``config/*.json``: offsets, delay offsets, topics, groups, filters (rules 3).

Loading follows ``ConfigManager#load``: a main file that is missing, blank or unreadable gives way to its ``.bak``; one
that can be read counts, even if it is an empty table. RocketMQ does this silently and removes the bad file; here the
result names the file that was used and the reason, and nothing is removed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from rmq_store.broker_files.broker_json import key_text, number_of, numbers_of, object_of, parse
from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.limits import MAX_CONFIG_BYTES
from rmq_store.errors import BadData
from rmq_store.message.message_const import LMQ_PREFIX

FOLDER: Final = "config"
TOPIC_GROUP_SEPARATOR: Final = "@"
_LONGS: Final = ("born_time", "dead_time", "client_version")
_FIELDS_OF_OFFSETS: Final = ("offsetTable", "dataVersion", "groupTopicMap", "pullOffsetTable")

CONSUMER_OFFSETS: Final = "consumerOffset.json"
LMQ_OFFSETS: Final = "lmqConsumerOffset.json"
"""The file in which a broker with ``enableLmq=true`` keeps all offsets, and then it reads no other (rules 3.1)."""

EMPTY_TABLE: Final = ": an empty table is used, as RocketMQ would"
"""The end of the note where neither the file nor its ``.bak`` has a table."""

OffsetTable = Mapping[str, Mapping[int, int]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConfigFile(Generic[T]):
    """The content of a configuration file."""

    value: T
    used: str | None
    """The file that was read: the main file or its ``.bak``; None: neither."""
    note: str
    """Why it was this file."""


@dataclass(frozen=True, slots=True)
class DataVersion:
    """RocketMQ's counter of changes."""

    state_version: int = 0
    timestamp: int = 0
    """UTC ms."""
    counter: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerOffsets:
    """``consumerOffset.json``: ``topic@group`` -> queue id -> next offset to consume.

    ``pullOffsetTable`` is left out: it names every group that ever pulled, and its offsets are not commits (rules 3.1).
    """

    offset_table: OffsetTable
    data_version: DataVersion = DataVersion()
    lmq_table: Mapping[str, int] = field(default_factory=dict)
    """Of ``lmqConsumerOffset.json``: ``topic@group`` of a group ``%LMQ%...`` -> next offset. No commits: these queues are
    not imported."""

    def commits(self) -> Iterator[tuple[str, str, int, int]]:
        """Topic, group, queue id, offset; keys that are not of the form ``topic@group`` are ignored, as in RocketMQ."""
        for key, offsets in self.offset_table.items():
            topic_and_group = split_key(key)
            if topic_and_group:
                for queue_id, offset in offsets.items():
                    yield *topic_and_group, queue_id, offset


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic of ``topics.json`` (``TopicConfig``)."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    """Bits: 4 read, 2 write, 1 inherit."""
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """One group of ``subscriptionGroup.json`` (``SubscriptionGroupConfig``), RocketMQ's defaults."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: Mapping[str, Any] = field(default_factory=dict)
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: Sequence[Mapping[str, Any]] | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerFilterData:
    """One SQL92 subscription of ``consumerFilter.json`` (``ConsumerFilterData``)."""

    consumer_group: str
    topic: str
    expression: str
    expression_type: str = "SQL92"
    born_time: int = 0
    """UTC ms."""
    dead_time: int = 0
    """UTC ms."""
    client_version: int = 0
    bloom_filter_data: Mapping[str, Any] | None = None
    """The bits of topic and group, ``{"bitNum": n, "bitPos": [...]}``, as the broker computed them."""

    @property
    def dead(self) -> bool:
        """No consumer subscribes any more (``ConsumerFilterData#isDead``)."""
        return self.dead_time >= self.born_time


def read_consumer_offsets(source: FileSource, most_bytes: int = MAX_CONFIG_BYTES) -> ConfigFile[ConsumerOffsets]:
    """The committed offsets of a store: those of ``consumerOffset.json``, or of ``lmqConsumerOffset.json`` where only that is.

    :raises BadData: neither the file nor its ``.bak`` can be read (there RocketMQ's load answers false), or both files are
        there: which one the broker reads is not known.
    :raises OverLimit: the file has more than ``most_bytes``.
    """
    if not _is_there(source, LMQ_OFFSETS, most_bytes):
        return load_config(source, CONSUMER_OFFSETS, parse_consumer_offsets, most_bytes)
    if _is_there(source, CONSUMER_OFFSETS, most_bytes):
        raise BadData(
            f"{source} has {FOLDER}/{CONSUMER_OFFSETS} and {FOLDER}/{LMQ_OFFSETS}, or their .bak files. With enableLmq=true in "
            "its broker.conf a broker reads only the second, else only the first, and the other one may be old. Nothing was "
            "changed. Import a copy of the store without the one that it does not read, and without its .bak"
        )
    return load_config(source, LMQ_OFFSETS, parse_lmq_offsets, most_bytes)


def read_delay_offsets(source: FileSource, most_bytes: int = MAX_CONFIG_BYTES) -> ConfigFile[dict[int, int]]:
    """Delay level -> next offset to deliver of its schedule queue. Raises as :func:`read_consumer_offsets`."""
    return load_config(source, "delayOffset.json", parse_delay_offsets, most_bytes)


def read_topics(source: FileSource, most_bytes: int = MAX_CONFIG_BYTES) -> ConfigFile[dict[str, TopicConfig]]:
    """The topics by name. Raises as :func:`read_consumer_offsets`."""
    return load_config(source, "topics.json", parse_topics, most_bytes)


def read_subscription_groups(
    source: FileSource, most_bytes: int = MAX_CONFIG_BYTES
) -> ConfigFile[dict[str, SubscriptionGroupConfig]]:
    """The groups by name. Raises as :func:`read_consumer_offsets`."""
    return load_config(source, "subscriptionGroup.json", parse_subscription_groups, most_bytes)


def read_pop_groups(source: FileSource, most_bytes: int = MAX_CONFIG_BYTES) -> ConfigFile[set[tuple[str, str]]]:
    """Topic and group of those that are set to pop. Raises as :func:`read_consumer_offsets`."""
    return load_config(source, "messageRequestMode.json", parse_pop_groups, most_bytes)


def read_consumer_filters(source: FileSource) -> ConfigFile[dict[tuple[str, str], ConsumerFilterData]]:
    """The SQL92 subscriptions by topic and group. Raises as :func:`read_consumer_offsets`."""
    return load_config(source, "consumerFilter.json", parse_consumer_filters)


def has_abort_file(source: FileSource) -> bool:
    """Whether the broker's file ``abort`` is there: it is made at the start and removed by a clean shutdown."""
    try:
        source.read("abort", 0, 1)
    except BadData:
        return False
    return True


def load_config(
    source: FileSource, name: str, parse_text: Callable[[str], T], most_bytes: int = MAX_CONFIG_BYTES
) -> ConfigFile[T]:
    """Read a configuration file by RocketMQ's rule; ``parse_text("")`` is the empty table. Nothing else is opened."""
    return chosen_config(f"{FOLDER}/{name}", lambda path: _text(source, path, most_bytes), parse_text, f"{source}: ")


def chosen_config(
    main: str, text_of: Callable[[str], str | None], parse_text: Callable[[str], T], where: str = ""
) -> ConfigFile[T]:
    """RocketMQ's rule for the file ``main`` and its ``.bak``. ``text_of``: None for a file that is missing.

    :raises BadData: neither can be read; its message begins with ``where``.
    """
    bak = f"{main}.bak"
    text = text_of(main)
    why_not_main = "is missing" if text is None else "is empty"
    if text and text.strip():
        try:
            return ConfigFile(parse_text(text), main, f"{main} is readable")
        except BadData as error:
            why_not_main = f"cannot be read ({error})"
    text = text_of(bak)
    if not text:
        why_not_bak = "is missing" if text is None else "is empty"
        return ConfigFile(
            parse_text(""),
            None,
            f"{main} {why_not_main} and {bak} {why_not_bak}{EMPTY_TABLE}",
        )
    try:
        return ConfigFile(parse_text(text), bak, f"{main} {why_not_main}: {bak} is used, as RocketMQ would")
    except BadData as error:
        raise BadData(
            f"{where}{main} {why_not_main} and {bak} cannot be read ({error}). "
            "RocketMQ would not start with them: restore one of the two"
        ) from error


def parse_consumer_offsets(text: str) -> ConsumerOffsets:
    """``consumerOffset.json`` of any version.

    :raises BadData: it cannot be read, or an offset is not a 64-bit number.
    """
    return _offsets_of(_root(text, _FIELDS_OF_OFFSETS))


def parse_lmq_offsets(text: str) -> ConsumerOffsets:
    """``lmqConsumerOffset.json``. Raises as :func:`parse_consumer_offsets`."""
    root = _root(text, (*_FIELDS_OF_OFFSETS, "lmqOffsetTable"))
    lmq_table = {key_text(key): number_of(offset, 64) for key, offset in _object_in(root, "lmqOffsetTable").items()}
    return replace(_offsets_of(root), lmq_table=lmq_table)


def _offsets_of(root: Mapping[Any, Any]) -> ConsumerOffsets:
    table = _offset_table(root, "offsetTable")
    _offset_table(root, "pullOffsetTable")  # a value that the broker's class cannot read makes it refuse the whole file
    if any(isinstance(topics, int | float) for topics in _object_in(root, "groupTopicMap").values()):
        raise BadData("groupTopicMap holds a number where a group's topics are expected")
    return ConsumerOffsets(table, _data_version(root))


def parse_delay_offsets(text: str) -> dict[int, int]:
    """``delayOffset.json``. Raises as :func:`parse_consumer_offsets`."""
    return numbers_of(_root(text).get("offsetTable"), 64)


def parse_topics(text: str) -> dict[str, TopicConfig]:
    """``topics.json``. Raises as :func:`parse_consumer_offsets`."""
    table = object_of(_root(text).get("topicConfigTable"))
    return {
        name: TopicConfig(**_known_fields(TopicConfig, {"topicName": name}, value)) for name, value in _texts(table)
    }


def parse_subscription_groups(text: str) -> dict[str, SubscriptionGroupConfig]:
    """``subscriptionGroup.json``. Raises as :func:`parse_consumer_offsets`."""
    table = object_of(_root(text).get("subscriptionGroupTable"))
    return {
        name: SubscriptionGroupConfig(**_known_fields(SubscriptionGroupConfig, {"groupName": name}, value))
        for name, value in _texts(table)
    }


def parse_consumer_filters(text: str) -> dict[tuple[str, str], ConsumerFilterData]:
    """``consumerFilter.json`` by topic and group. Raises as :func:`parse_consumer_offsets`."""
    return {
        (topic, group): ConsumerFilterData(
            **_known_fields(ConsumerFilterData, {"topic": topic, "consumerGroup": group, "expression": ""}, value)
        )
        for topic, by_topic in _texts(object_of(_root(text).get("filterDataByTopic")))
        for group, value in _texts(object_of(object_of(by_topic).get("groupFilterData")))
    }


def parse_pop_groups(text: str) -> set[tuple[str, str]]:
    """``messageRequestMode.json``: topic and group where the mode is POP. Raises as :func:`parse_consumer_offsets`."""
    return {
        (topic, group)
        for topic, groups in _texts(object_of(_root(text).get("messageRequestModeMap")))
        for group, value in _texts(object_of(groups))
        if object_of(value).get("mode") == "POP"
    }


def parse_forbidden_table(text: str) -> dict[str, dict[str, int]]:
    """Of ``subscriptionGroup.json``: group -> topic -> bits of what is forbidden to the group there.

    Raises as :func:`parse_consumer_offsets`.
    """
    table = object_of(_root(text).get("forbiddenTable"))
    return {
        group: {topic: number_of(bits, 32) for topic, bits in _texts(object_of(topics))}
        for group, topics in _texts(table)
    }


def parse_data_version(text: str) -> DataVersion:
    """The version that every file but ``consumerFilter.json`` carries. Raises as :func:`parse_consumer_offsets`."""
    return _data_version(_root(text))


def write_config(path: Path, text: str, *, keep_bak: bool = False) -> None:
    """Write a configuration file in ``MixAll#string2File``'s order: the old one becomes ``.bak``, then the new one.

    A link stays and its target is written; the mode and, where allowed, the owner are kept from the file or its ``.bak``.
    Both files get their names when they are complete, so they can be read whenever the process dies. A file without an
    object, which RocketMQ removes when it loads, does not become the ``.bak``: it would replace a good one. With
    ``keep_bak`` no file does, for a table that came from the ``.bak``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    bak = path.with_name(f"{path.name}.bak")
    before = next((file.stat() for file in (path, bak) if file.exists()), None)
    if not keep_bak and _is_readable(path):
        _write_whole(bak, path.read_bytes(), before)
    _write_whole(path, text.encode(), before)


def _write_whole(path: Path, content: bytes, before: os.stat_result | None) -> None:
    """The file gets the whole content or stays as it was. ``before``: the owner and mode to give it."""
    path = Path(os.path.realpath(path))
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "wb") as file:
            if before is not None and os.name == "posix":
                _give_to(file.fileno(), before)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _give_to(handle: int, before: os.stat_result) -> None:
    """Owner and group as far as this process may, and the mode."""
    for owner, group in ((-1, before.st_gid), (before.st_uid, -1)):
        with suppress(PermissionError):
            os.fchown(handle, owner, group)
    os.fchmod(handle, stat.S_IMODE(before.st_mode))


def split_key(key: str) -> tuple[str, str] | None:
    """Topic and group of an offset table's key; None unless it has exactly these two parts.

    Java's split drops empty parts at the end: ``topic@`` has no group, and ``topic@group@`` has one.
    """
    parts = key.rstrip(TOPIC_GROUP_SEPARATOR).split(TOPIC_GROUP_SEPARATOR)
    return (parts[0], parts[1]) if len(parts) == 2 else None


def is_lmq_key(key: str) -> bool:
    """Whether the key is one of an LMQ group (``MixAll#isLmq``)."""
    pair = split_key(key)
    return pair is not None and pair[1].startswith(LMQ_PREFIX)


def _is_readable(path: Path) -> bool:
    try:
        object_of(parse(path.read_text("utf-8", "replace")))
    except (FileNotFoundError, BadData):
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Names are on disk only when their folder is; Windows cannot open one."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _is_there(source: FileSource, name: str, most_bytes: int) -> bool:
    """Whether the store has the file or its ``.bak``."""
    return any(source.whole(f"{FOLDER}/{name}{end}", most_bytes) is not None for end in ("", ".bak"))


def _text(source: FileSource, path: str, most_bytes: int) -> str | None:
    content = source.whole(path, most_bytes)
    return None if content is None else content.decode("utf-8", "replace")


def _root(text: str, known: Collection[str] | None = None) -> dict[Any, Any]:
    return object_of(parse(text, known)) if text else {}


def _texts(table: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """The entries of a table whose keys are names."""
    return ((key_text(key), value) for key, value in table.items())


def _object_in(fields: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    """A field that is an object; null and "" are an empty one, as in RocketMQ."""
    value = fields.get(name)
    return object_of(None if value == "" else value)


def _offset_table(root: Mapping[Any, Any], name: str) -> dict[str, dict[int, int]]:
    """Raises BadData also for null instead of the queues of a key."""
    table = _object_in(root, name)
    if None in table.values():
        raise BadData(f"{name} holds null where a key's queues are expected")
    return {key_text(key): numbers_of(offsets, 64) for key, offsets in table.items()}


def _data_version(root: Mapping[Any, Any]) -> DataVersion:
    version = _object_in(root, "dataVersion")
    numbers = (version.get(name) for name in ("stateVersion", "timestamp", "counter"))
    return DataVersion(*(0 if value in (None, "") else number_of(value, 64) for value in numbers))


def _known_fields(kind: type, first: dict[str, Any], value: Any) -> dict[str, Any]:
    """``first`` and the entries of ``value`` that are fields of the dataclass ``kind``, by its names and in its types. Null
    and the new fields of a later broker are left out. Raises BadData for another type."""
    types = {java_name(field.name): (field.name, str(field.type)) for field in fields(kind)}
    known = first | {key: item for key, item in object_of(value).items() if key in types and item is not None}
    return {types[key][0]: _typed(*types[key], item) for key, item in known.items()}


def _typed(name: str, type_: str, value: Any) -> Any:
    """A field's value. ``type_``: the annotation in the dataclass."""
    match type_.removesuffix(" | None"):
        case "int":
            return number_of(value, 64 if name in _LONGS else 32)
        case "bool":
            return bool(number_of(value, 32))
        case "str":
            return key_text(value)
        case "Mapping[str, str]":
            return {key_text(key): key_text(item) for key, item in object_of(value).items()}
        case "Mapping[str, Any]":
            return _with_text_keys(object_of(value))
        case _ if isinstance(value, list):
            return [_with_text_keys(object_of(item)) for item in value]
    raise BadData(f"{name}: expected a list, found {type(value).__name__}")


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_text_keys(item) for item in value]
    return {key_text(key): _with_text_keys(item) for key, item in value.items()} if isinstance(value, dict) else value


def java_name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(map(str.capitalize, rest))
