"""``consumers.toml``: which groups there are, what they read, and how.

    [[group]]
    name = "orders"
    listener = "shop.listeners:Orders"

    [[group.subscription]]
    topic = "OrderEvents"
    expression = "TagA || TagB"

A table ``[planned]`` has the schedule of the groups with ``schedule = "planned"``, which Airflow consumes for together;
``[spark]`` says where Spark runs (``spark_settings.py``), ``[[retention]]`` how long messages are kept
(``retention_settings.py``).

The root of the store is not among the settings. All problems of a group are reported at once, and the other groups can
still be used. The keys of a group are the fields of ``GroupSettings``, with their ranges in ``settings_values.py``;
``docs/settings.md`` has them all, with RocketMQ's names.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from shlex import quote
from typing import Any

from rmq_store.consumer.allocate_rule import AVG, AllocateRule, allocate_rule_of
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.delay import GroupRetryPolicy, retry_policy_of
from rmq_store.consumer.duplicates import AbsorbRule, absorb_rule_of
from rmq_store.consumer.replay_name import replayed_group
from rmq_store.consumer.start import ConsumeFromWhere, StartSwitches
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import SubscriptionData, build_subscription_data
from rmq_store.message.message_const import retry_topic
from rmq_store.message.validators import check_topic
from rmq_store.settings.ignored_settings import WITHOUT_EFFECT, snake_case
from rmq_store.settings.retention_settings import NO_GROUP_READS, WAITING_TOPICS, RetentionRule, retention_tables
from rmq_store.settings.settings_values import CHECKS, PLANNED, check_planned_schedule, is_int, value_problems
from rmq_store.settings.spark_settings import SparkSettings, spark_table
from rmq_store.utils.arguments import check_types
from rmq_store.utils.small_file import read_small_file
from rmq_store.utils.suggestions import did_you_mean
from rmq_store.utils.times import parse_consume_timestamp

EVERY_FIVE_MINUTES = "*/5 * * * *"


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """One ``[[group]]``. Raises WrongUse with all its problems."""

    name: str
    """Of a group, or of one client of a broadcasting group: ``group@client``."""
    listener: str
    """``module:attribute``."""
    subscriptions: tuple[SubscriptionData, ...]
    """The ``[[group.subscription]]`` tables."""
    subscription_version: int = 1
    mode: str = "concurrently"
    """One of ``settings_values.MODES``."""
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_message_batch_max_size: int = 1
    consume_timeout: int = 15
    """Minutes: the messages of a longer call of the listener are retried, whatever it answers."""
    max_reconsume_times: int = -1
    """-1 means 16 for concurrent consumption, no limit in order."""
    suspend_tries_per_window: int = 3
    """After so many failed tries in a row a queue that is consumed in order waits for the next window."""
    retry_queue_nums: int = 1
    """0: a failed message is a dead letter at once."""
    retry_policy: GroupRetryPolicy | None = None
    """How long a retry waits whose listener names no level; None: by delay level."""
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_timestamp: str | None = None
    """A time that ``parse_consume_timestamp`` reads."""
    young_topic_starts_at_zero: bool = False
    later_queues_start_at_min: bool = True
    all_or_nothing: bool = False
    """An exception fails the whole batch."""
    listener_process: bool = True
    """The listener runs in a process of its own."""
    listener_timeout: int | None = None
    """Seconds: a longer call of the listener is ended with its process; None: ``consume_timeout``."""
    listener_memory: int | None = None
    """MiB that the listener's process may allocate, None: no limit."""
    listener_cpu: int | None = None
    """Seconds of CPU time for a call of the listener, None: no limit."""
    listener_environment: tuple[str, ...] | None = None
    """Variables of the environment that the listener's process gets besides the usual ones."""
    absorb_duplicates: AbsorbRule | None = None
    """Messages whose key was acked before are not consumed again (``duplicates.py``); None: they are."""
    on_offset_out_of_range: str = "stop"
    """One of ``settings_values.ON_OFFSET_OUT_OF_RANGE``."""
    max_messages: int | None = None
    """Of one window, None: no limit."""
    max_bytes: int | None = None
    """Bytes of bodies in one window, None: no limit."""
    max_minutes: int | None = None
    """Of one window, None: no limit."""
    consumers: int | None = None
    """How many share the queues of a window; None: as many as the engine has task slots."""
    allocate_strategy: AllocateRule = AVG
    engine: str = "auto"
    """One of ``settings_values.ENGINES``."""
    schedule: str | None = EVERY_FIVE_MINUTES
    """When Airflow starts a window; None: only an operator does; ``PLANNED``: with the other planned groups."""
    consume_retries: bool = False
    """Airflow starts a window of the group's retries whenever some have been delivered."""
    shards: tuple[str, ...] | None = None
    """Names of shards, None: all."""

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in _KEYS}
        problems = value_problems(values) + _group_problems(values, self.subscriptions)
        if problems:
            raise WrongUse(_listed(f"group {self.name}", problems))

    @property
    def broadcasting(self) -> bool:
        """Every client gets all messages, at offsets of its own (rules 4), and consumes under the name
        ``group@client``."""
        return self.message_model is MessageModel.BROADCASTING

    @property
    def own_schedule(self) -> str | None:
        """When Airflow starts a window of this group alone; None: never, which does not keep an operator from it."""
        return None if self.schedule == PLANNED else self.schedule

    @property
    def consume_timeout_ms(self) -> int | None:
        """None where nothing is sent back: in order, where only the listener's status counts, and for broadcasting."""
        return None if self.mode == "orderly" or self.broadcasting else self.consume_timeout * 60_000

    @property
    def start_switches(self) -> StartSwitches:
        return StartSwitches(self.young_topic_starts_at_zero, self.later_queues_start_at_min)

    @property
    def consume_timestamp_ms(self) -> int | None:
        """``consume_timestamp`` as epoch ms."""
        return None if self.consume_timestamp is None else parse_consume_timestamp(self.consume_timestamp)


_NO_GROUP = "there is no group: add a [[group]] with a name, a listener and a [[group.subscription]]"
_NEEDS_NO_GROUP = frozenset({"retention", "spark"})
"""The tables that a store without groups has a use for, with ``rmq maintain`` and ``rmq audit``."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A settings file."""

    source: str
    """Its name in errors."""
    groups: tuple[GroupSettings, ...]
    """The groups without problems, in the file's order."""
    wrong: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The other groups by name (``number 2``, where it has none), each with its problems."""
    planned_schedule: str | None = EVERY_FIVE_MINUTES
    """When Airflow consumes for the planned groups; None: only when an operator starts it."""
    spark: SparkSettings = field(default_factory=SparkSettings)
    """The table ``[spark]``."""
    retention: tuple[RetentionRule, ...] = ()
    """The tables ``[[retention]]``."""

    @property
    def planned_groups(self) -> tuple[GroupSettings, ...]:
        """The groups that share their runs, in the file's order."""
        return tuple(group for group in self.groups if group.schedule == PLANNED)

    def group(self, name: str) -> GroupSettings:
        """The group's settings; ``group@client`` is a client of a broadcasting group. Raises WrongUse with the group's
        problems, or naming the known groups."""
        check_types(str, group=name)
        for group in self.groups:
            if group.name == name:
                return group
            if group.broadcasting and "@" not in group.name and name.startswith(f"{group.name}@"):
                return replace(group, name=name)
        for wrong in (name, name.partition("@")[0]):
            if wrong in self.wrong:
                raise WrongUse(_listed(f"{self.source}: group {wrong}", self.wrong[wrong]))
        known = [group.name for group in self.groups]
        listed = (", ".join(known) or "none") + (f"; with problems: {', '.join(self.wrong)}" if self.wrong else "")
        raise WrongUse(f"{self.source} has no group {name!r}{did_you_mean(name, known)}; known: {listed}")

    def need_any_group(self) -> None:
        """Raises WrongUse where the file has no group."""
        if not (self.groups or self.wrong):
            raise WrongUse(_listed(self.source, [_NO_GROUP]))

    def check(self) -> None:
        """Raises WrongUse with every problem of every group."""
        if self.wrong:
            raise WrongUse(_listed(self.source, _lines(self.wrong)))


def read_settings(path: str | Path) -> Settings:
    """Settings from a file. Raises WrongUse when it cannot be read, and as ``load_settings`` does."""
    try:
        text = read_small_file(Path(path)).decode("utf-8")
    except FileNotFoundError as error:
        raise WrongUse(
            f"the settings {path} cannot be read: no such file. Create it (docs/settings.md), or name another with "
            "--settings or RMQ_SETTINGS"
        ) from error
    except OSError as error:
        raise WrongUse(f"the settings {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise WrongUse(f"the settings {path} cannot be read: {error}") from error
    settings = load_settings(text, str(path))
    # A relative path is one from the file's folder, wherever the process runs.
    py_files = tuple(str(Path(path).parent / file) for file in settings.spark.py_files)
    return replace(settings, spark=replace(settings.spark, py_files=py_files))


def load_settings(text: str, source: str) -> Settings:
    """Settings from TOML; ``source`` names it in errors. A group with problems does not affect the others.

    Raises WrongUse for a text that is not TOML, for a wrong table ``[spark]`` or ``[[retention]]``, for a file with nothing but
    ``[planned]``, and for one with other tables: below a misspelled ``[[group]]`` TOML adds each ``[[group.subscription]]`` to
    the group above.
    """
    try:
        document = tomllib.loads(text.removeprefix("\ufeff"))  # editors of Windows write a byte order mark
        _check_values(document)
    except RecursionError as error:
        raise WrongUse(f"{source} nests lists or tables more than {_MOST_NESTED} levels deep") from error
    except tomllib.TOMLDecodeError as error:
        raise WrongUse(f"{source} is not TOML: {error}") from error
    except ValueError as error:  # also Python's own, of a number of very many digits
        raise WrongUse(f"{source} is not TOML: a number does not fit into 64 bits") from error
    problems = _unknown_keys(document, ["group", "planned", "retention", "spark"], "the file")
    planned = document.get("planned", {})
    problems += _planned_problems(planned)
    spark, of_spark = spark_table(document.get("spark"))
    retention, of_retention = retention_tables(document.get("retention"))
    problems += of_spark + of_retention
    tables = document.get("group", [])
    if not _is_tables(tables):
        problems.append("group must be a table [[group]]")
        tables = []
    elif not (tables or _NEEDS_NO_GROUP & document.keys()):
        problems.append(_NO_GROUP)
    groups, wrong = _load_groups(tables)
    if problems:
        raise WrongUse(_listed(source, problems + _lines(wrong)))
    return Settings(source, groups, wrong, planned.get("schedule", EVERY_FIVE_MINUTES) or None, spark, retention)


def load_group(table: Mapping[str, Any]) -> GroupSettings:
    """One group from a table like a ``[[group]]`` of the file. Raises WrongUse with everything that is wrong in it."""
    try:
        _check_values(table)
    except (RecursionError, ValueError) as error:
        raise WrongUse(
            f"group {_name(table, 1)}: a value does not fit into 64 bits, or is nested more than {_MOST_NESTED} levels deep"
        ) from error
    group, problems = _load_group(table)
    if group is None:
        raise WrongUse(_listed(f"group {_name(table, 1)}", problems))
    return group


def _planned_problems(table: Any) -> list[str]:
    """Of the table ``[planned]``."""
    if not isinstance(table, dict):
        return ["planned must be a table [planned]"]
    problems = _unknown_keys(table, ["schedule"], "[planned]")
    if table.get("schedule", "") != "" and (problem := check_planned_schedule(table["schedule"])):
        problems.append(f"[planned] schedule: {problem}")
    return problems


def _load_groups(tables: Sequence[Mapping[str, Any]]) -> tuple[tuple[GroupSettings, ...], dict[str, list[str]]]:
    """The groups without problems, and the problems of the others. Two groups with one name are both refused."""
    groups: list[GroupSettings] = []
    wrong: dict[str, list[str]] = {}
    names = [_name(table, number) for number, table in enumerate(tables, 1)]
    for name, table in zip(names, tables, strict=True):
        group, problems = _load_group(table)
        groups += [group] if group else []
        if problems:
            wrong.setdefault(name, []).extend(problems)
    for name, count in Counter(names).items():
        if count > 1:
            wrong.setdefault(name, []).append(f"{count} groups have this name")
    wrong |= _client_problems(group for group in groups if group.name not in wrong)
    return tuple(group for group in groups if group.name not in wrong), wrong


def _name(table: Mapping[str, Any], number: int) -> str:
    name = table.get("name")
    return name if isinstance(name, str) and name else f"number {number}"


def _check_values(document: Mapping[str, Any]) -> None:
    """Raises ValueError for a number beyond TOML's 64 bits, RecursionError beyond ``_MOST_NESTED`` levels."""
    level: list[Any] = [document]
    for _ in range(_MOST_NESTED):
        inner = [value for table in level for value in (table.values() if isinstance(table, Mapping) else table)]
        if any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in inner):
            raise ValueError
        level = [value for value in inner if isinstance(value, Mapping | list | tuple)]
    if level:
        raise RecursionError


def _client_problems(groups: Iterable[GroupSettings]) -> dict[str, list[str]]:
    """Clients of one broadcasting group with ``[[group]]`` tables of their own must have the same subscriptions."""
    first: dict[str, GroupSettings] = {}
    problems = {}
    for group in groups:
        other = first.setdefault(group.name.partition("@")[0], group)
        if _versioned(group) != _versioned(other):
            problems[group.name] = [
                f"subscriptions and subscription_version must be those of {other.name}: clients of one group share them"
            ]
    return problems


def _versioned(group: GroupSettings) -> tuple[int, set[SubscriptionData]]:
    return group.subscription_version, set(group.subscriptions)


def _load_group(table: Mapping[str, Any]) -> tuple[GroupSettings | None, list[str]]:
    problems = _unknown_keys(table, [*_KEYS, "subscription"], "it")
    problems += [f"{key} is missing" for key in _REQUIRED if key not in table]
    values: dict[str, Any] = {key: value for key, value in table.items() if key in _KEYS}
    if isinstance(values.get("consume_timestamp"), datetime):  # TOML has times of its own
        values["consume_timestamp"] = values["consume_timestamp"].isoformat()
    for key in ("shards", "listener_environment"):
        if isinstance(values.get(key), list):
            values[key] = tuple(values[key])
    if values.get("schedule") == "":
        values["schedule"] = None
    problems += value_problems(values)
    if isinstance(values.get("name"), str) and (replayed := replayed_group(values["name"])):
        problems.append(
            f"name is that of a replay of {replayed}: retention would not wait for this group, and no command would move its "
            "offsets. Give it another name, then 'rmq clone' its offsets. Retries that wait stay with the old name: "
            f"'rmq consume --group {quote(values['name'])} --retries-only' consumes them where the settings have "
            f"a group {replayed}"
        )
    for key, parse in _PARSERS.items():
        if values.get(key) is not None and not CHECKS[key](values[key]):
            values[key] = parse(values[key])

    subscriptions, refused = _load_subscriptions(table.get("subscription"), values.get("subscription_version", 1))
    problems += refused
    known = {key: values.get(key, default) for key, default in _DEFAULTS.items()} | {"name": values.get("name")}
    problems += _group_problems(known, None if refused else subscriptions)
    if problems:
        return None, problems
    for key, enum in (("message_model", MessageModel), ("consume_from_where", ConsumeFromWhere)):
        if key in values:
            values[key] = enum(values[key])
    return GroupSettings(subscriptions=subscriptions, **values), []


def _load_subscriptions(tables: Any, version: Any) -> tuple[tuple[SubscriptionData, ...], list[str]]:
    if not tables or not _is_tables(tables):
        return (), ["a [[group.subscription]] with a topic is missing"]
    subscriptions, problems = [], []
    for number, table in enumerate(tables, 1):
        where = f"subscription {number}"
        texts = {key: table.get(key) for key in ("topic", "expression", "type")}
        problems += [f"{where}: {problem}" for problem in _unknown_keys(table, list(texts), "it")]
        not_text = [key for key, value in texts.items() if key in table and not isinstance(value, str)]
        problems += [f"{where}: {key} must be text, it is {texts[key]!r}" for key in not_text]
        if "topic" not in table:
            problems.append(f"{where}: topic is missing")
        if not_text or "topic" not in table:
            continue
        try:
            check_topic(texts["topic"])
            subscriptions.append(
                build_subscription_data(
                    str(texts["topic"]), texts["expression"], texts["type"], version if is_int(version) else 1
                )
            )
        except WrongUse as error:
            problems.append(f"{where}: {error}")
    return tuple(subscriptions), problems


# --- the rules -------------------------------------------------------------------------------------------------------

_MOST_NESTED = 20
_KEYS = tuple(CHECKS)
_REQUIRED = ("name", "listener")
_DEFAULTS = {f.name: None if f.default is MISSING else f.default for f in fields(GroupSettings)}

_PARSERS: dict[str, Callable[[Any], Any]] = {
    "retry_policy": retry_policy_of,
    "absorb_duplicates": absorb_rule_of,
    "allocate_strategy": allocate_rule_of,
}
"""Keys that a file has as a table or a text, and a group as a value."""


def _group_problems(values: Mapping[str, Any], subscriptions: tuple[SubscriptionData, ...] | None) -> list[str]:
    """What is wrong between the keys of a group. ``subscriptions``: None when they have problems of their own."""
    problems = []
    from_time = values["consume_from_where"] == ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    if from_time and values["consume_timestamp"] is None:
        problems.append("consume_from_where CONSUME_FROM_TIMESTAMP needs a consume_timestamp")
    if values["consume_timestamp"] is not None and not from_time:
        problems.append("consume_timestamp applies only with consume_from_where CONSUME_FROM_TIMESTAMP")
    broadcasting = values["message_model"] == MessageModel.BROADCASTING
    if "@" in str(values["name"]) and not broadcasting:
        problems.append("a name with a client (GROUP@CLIENT) needs message_model BROADCASTING")
    if broadcasting and values["schedule"] == PLANNED and "@" not in str(values["name"]):
        problems.append(f"schedule {PLANNED} with message_model BROADCASTING needs a name with a client (GROUP@CLIENT)")
    in_order = values["mode"] == "orderly"
    if in_order and broadcasting:
        problems.append("mode orderly cannot be combined with message_model BROADCASTING, which retries nothing")
    if in_order and values["all_or_nothing"]:
        problems.append("all_or_nothing applies only with mode concurrently: in order a batch always has one status")
    if in_order and values["absorb_duplicates"] is not None:
        problems.append(
            "absorb_duplicates cannot be combined with mode orderly: queues cannot wait for each other there"
        )
    if (in_order or broadcasting) and values["consume_timeout"] != _DEFAULTS["consume_timeout"]:
        problems.append("consume_timeout applies only with mode concurrently and message_model CLUSTERING")
    if (in_order or broadcasting) and values["consume_retries"]:
        problems.append("consume_retries applies only with mode concurrently and message_model CLUSTERING")
    if values["max_minutes"] is not None and values["absorb_duplicates"] is not None:
        problems.append(
            "max_minutes cannot be combined with absorb_duplicates, which reads a window's messages several times"
        )
    if not in_order and values["suspend_tries_per_window"] != _DEFAULTS["suspend_tries_per_window"]:
        problems.append("suspend_tries_per_window applies only with mode orderly")
    if values["listener_process"] is False:
        keys = ("listener_timeout", "listener_memory", "listener_cpu", "listener_environment")
        problems += [f"{key} applies only with listener_process true" for key in keys if values[key] is not None]
    if subscriptions is None:
        return problems
    if not subscriptions:
        problems.append("it subscribes to no topic")
    topics = Counter(subscription.topic for subscription in subscriptions)
    problems += [
        f"topic {topic} has {count} subscriptions; a group has one expression per topic"
        for topic, count in topics.items()
        if count > 1
    ]
    for subscription in subscriptions:
        if subscription.takes_none:
            problems.append(f"topic {subscription.topic}: the expression {subscription.expression!r} matches nothing")
        if subscription.topic in WAITING_TOPICS:
            problems.append(f"topic {subscription.topic} {NO_GROUP_READS}")
        if values["name"] and subscription.topic == retry_topic(str(values["name"])):
            problems.append(f"topic {subscription.topic}: remove it, a group always reads its own retry topic")
    return problems


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(table, dict) for table in value)


def _unknown_keys(table: Mapping[str, Any], known: list[str], what: str) -> list[str]:
    """RocketMQ's own spelling gets a suggestion, but is refused: a setting has one name here."""
    problems = []
    for key in table:
        name = snake_case(key)
        if key not in known and name in WITHOUT_EFFECT:
            problems.append(f"{what} has a key {key!r}, which has no effect in a window: {WITHOUT_EFFECT[name].why}")
        elif key not in known:
            problems.append(f"{what} has an unknown key {key!r}{did_you_mean(name, known)}")
    return problems


def _lines(wrong: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"group {name}: {problem}" for name, problems in wrong.items() for problem in problems]


def _listed(what: str, problems: Sequence[str]) -> str:
    return f"{what} has {len(problems)} problem(s):\n" + "\n".join(f"- {problem}" for problem in problems)
