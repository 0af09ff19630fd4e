"""``consumers.toml``: which groups there are, what they read, and how.

    [[group]]
    name = "orders"
    listener = "shop.listeners:Orders"

    [[group.subscription]]
    topic = "OrderEvents"
    expression = "TagA || TagB"

Settings are numbers and names; where the store lies is not among them. All that is wrong with a group is said at once, and
the other groups can be used all the same. The keys of a group are the fields of ``GroupSettings``, with their ranges in
``settings_values.py``; ``docs/settings.md`` tells them all, with RocketMQ's names.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rmq_store.consumer.allocate_rule import AVG, AllocateRule, allocate_rule_of
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.delay import GroupRetryPolicy, retry_policy_of
from rmq_store.consumer.duplicates import AbsorbRule, absorb_rule_of
from rmq_store.consumer.start import ConsumeFromWhere, StartSwitches
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import SubscriptionData, build_subscription_data
from rmq_store.message.message import retry_topic
from rmq_store.message.validators import check_topic
from rmq_store.settings.settings_values import CHECKS, is_int, value_problems
from rmq_store.settings.without_effect import WITHOUT_EFFECT, snake_case
from rmq_store.utils.known_names import did_you_mean
from rmq_store.utils.small_file import read_small_file
from rmq_store.utils.times import parse_consume_timestamp


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """One ``[[group]]``. Raises WrongUse with everything that is wrong in it.

    ``subscriptions`` are the ``[[group.subscription]]`` tables. ``consume_timeout``: after so many minutes in one call of the
    listener its messages are retried, whatever it answers. ``max_reconsume_times`` -1 is 16, in order no limit.
    ``suspend_tries_per_window``: after so many vain tries in a row a queue that is consumed in order waits for the next
    window. ``retry_queue_nums`` 0: what fails is dead at once. ``retry_policy``: how long a retry waits whose listener
    names no level (see ``retry_policy_of``), None is by delay level. ``consume_timestamp``: see
    ``parse_consume_timestamp``. ``all_or_nothing``: an exception fails the whole batch. ``absorb_duplicates``: messages
    whose key was acked before are not consumed again (``duplicates.py``), None: they are. ``max_messages``, ``max_bytes``
    (of bodies) and ``max_minutes`` cap one window, None is no cap. ``consumers``: how many share the queues, None is as
    many as Spark has task slots. A ``name`` is that of a group, or of one client of a broadcasting group:
    ``group@client``. ``schedule``: when Airflow consumes, None is only when somebody triggers it. ``shards``: None is all.
    """

    name: str
    listener: str
    subscriptions: tuple[SubscriptionData, ...]
    subscription_version: int = 1
    mode: str = "concurrently"
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_message_batch_max_size: int = 1
    consume_timeout: int = 15
    max_reconsume_times: int = -1
    suspend_tries_per_window: int = 3
    retry_queue_nums: int = 1
    retry_policy: GroupRetryPolicy | None = None
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    consume_timestamp: str | None = None
    young_topic_starts_at_zero: bool = False
    later_queues_start_at_min: bool = True
    all_or_nothing: bool = False
    absorb_duplicates: AbsorbRule | None = None
    on_offset_out_of_range: str = "stop"
    max_messages: int | None = None
    max_bytes: int | None = None
    max_minutes: int | None = None
    consumers: int | None = None
    allocate_strategy: AllocateRule = AVG
    engine: str = "spark"
    schedule: str | None = "*/5 * * * *"
    shards: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in _KEYS}
        problems = value_problems(values) + _group_problems(values, self.subscriptions)
        if problems:
            raise WrongUse(_listed(f"group {self.name}", problems))

    @property
    def broadcasting(self) -> bool:
        """Every client gets all messages, at offsets of its own (rules 4), and consumes under the name ``group@client``."""
        return self.message_model is MessageModel.BROADCASTING

    @property
    def consume_timeout_ms(self) -> int | None:
        """None where nothing is sent back: in order, where only the listener's status counts, and to broadcasting clients."""
        return None if self.mode == "orderly" or self.broadcasting else self.consume_timeout * 60_000

    @property
    def start_switches(self) -> StartSwitches:
        return StartSwitches(self.young_topic_starts_at_zero, self.later_queues_start_at_min)

    @property
    def consume_timestamp_ms(self) -> int | None:
        """``consume_timestamp`` as epoch ms."""
        return None if self.consume_timestamp is None else parse_consume_timestamp(self.consume_timestamp)


@dataclass(frozen=True, slots=True)
class Settings:
    """The groups of a file, in its order. ``wrong``: the others by name (``number 2``, where it has none), each with its
    problems."""

    source: str
    groups: tuple[GroupSettings, ...]
    wrong: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def group(self, name: str) -> GroupSettings:
        """The group's settings; ``group@client`` is a client of a broadcasting group. Raises WrongUse with the group's
        problems, or naming the known groups."""
        for group in self.groups:
            if group.name == name:
                return group
            if group.broadcasting and "@" not in group.name and name.startswith(f"{group.name}@"):
                return replace(group, name=name)
        for wrong in (name, name.partition("@")[0]):
            if wrong in self.wrong:
                raise WrongUse(_listed(f"{self.source}: group {wrong}", self.wrong[wrong]))
        known = [group.name for group in self.groups]
        listed = (", ".join(known) or "none") + (f"; wrong: {', '.join(self.wrong)}" if self.wrong else "")
        raise WrongUse(f"{self.source} has no group {name!r}{did_you_mean(name, known)}; known: {listed}")

    def check(self) -> None:
        """Raises WrongUse listing every problem of every group that is wrong."""
        if self.wrong:
            raise WrongUse(_listed(self.source, _lines(self.wrong)))


def read_settings(path: str | Path) -> Settings:
    """Settings from a file. Raises WrongUse when it cannot be read, and as ``load_settings`` does."""
    try:
        text = read_small_file(Path(path)).decode("utf-8")
    except FileNotFoundError as error:
        raise WrongUse(
            f"the settings {path} cannot be read: no such file. Write it (docs/settings.md), or name another (--settings, or "
            "RMQ_SETTINGS)"
        ) from error
    except OSError as error:
        raise WrongUse(f"the settings {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise WrongUse(f"the settings {path} cannot be read: {error}") from error
    return load_settings(text, str(path))


def load_settings(text: str, source: str) -> Settings:
    """Settings from TOML; ``source`` names it in errors. A group that is wrong takes no other with it.

    Raises WrongUse for what is no TOML, and for a file without groups or with other tables: below a misspelled ``[[group]]``
    TOML adds each ``[[group.subscription]]`` to the group above it.
    """
    try:
        document = tomllib.loads(text)
        _check_values(document)
    except RecursionError as error:
        raise WrongUse(f"{source} has lists or tables in each other, deeper than settings go") from error
    except tomllib.TOMLDecodeError as error:
        raise WrongUse(f"{source} is not TOML: {error}") from error
    except ValueError as error:  # also Python's own, of a number of very many digits
        raise WrongUse(f"{source} is not TOML: a number does not fit into 64 bits") from error
    problems = _unknown_keys(document, ["group"], "the file")
    tables = document.get("group", [])
    if not _is_tables(tables):
        problems.append("a group is written as a table [[group]]")
        tables = []
    elif not tables:
        problems.append("there is no group: add a [[group]] with a name, a listener and a [[group.subscription]]")
    groups, wrong = _load_groups(tables)
    if problems:
        raise WrongUse(_listed(source, problems + _lines(wrong)))
    return Settings(source, groups, wrong)


def load_group(table: Mapping[str, Any]) -> GroupSettings:
    """One group from a table like a ``[[group]]`` of the file. Raises WrongUse with everything that is wrong in it."""
    group, problems = _load_group(table)
    if group is None:
        raise WrongUse(_listed(f"group {_name(table, 1)}", problems))
    return group


def _load_groups(tables: Sequence[Mapping[str, Any]]) -> tuple[tuple[GroupSettings, ...], dict[str, list[str]]]:
    """The groups, and the problems of those that are wrong. Of a name that is written twice nobody knows which is meant."""
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
            wrong.setdefault(name, []).append(f"written {count} times")
    wrong |= _client_problems(group for group in groups if group.name not in wrong)
    return tuple(group for group in groups if group.name not in wrong), wrong


def _name(table: Mapping[str, Any], number: int) -> str:
    name = table.get("name")
    return name if isinstance(name, str) and name else f"number {number}"


def _check_values(document: Mapping[str, Any]) -> None:
    """Raises ValueError for a number beyond TOML's 64 bits, RecursionError for tables that are nested too deep to be said."""
    level: list[Any] = [document]
    for _ in range(_MOST_NESTED):
        inner = [value for table in level for value in (table.values() if isinstance(table, dict) else table)]
        if any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in inner):
            raise ValueError
        level = [value for value in inner if isinstance(value, dict | list)]
    if level:
        raise RecursionError


def _client_problems(groups: Iterable[GroupSettings]) -> dict[str, list[str]]:
    """Clients of a broadcasting group that are written out have one subscription, as their group has."""
    first: dict[str, GroupSettings] = {}
    problems = {}
    for group in groups:
        other = first.setdefault(group.name.partition("@")[0], group)
        mine, theirs = ((one.subscription_version, set(one.subscriptions)) for one in (group, other))
        if mine != theirs:
            problems[group.name] = [f"it must have the subscriptions and the version of {other.name}"]
    return problems


def _load_group(table: Mapping[str, Any]) -> tuple[GroupSettings | None, list[str]]:
    problems = _unknown_keys(table, [*_KEYS, "subscription"], "it")
    problems += [f"{key} is missing" for key in _REQUIRED if key not in table]
    values: dict[str, Any] = {key: value for key, value in table.items() if key in _KEYS}
    if isinstance(values.get("consume_timestamp"), datetime):  # TOML has times of its own
        values["consume_timestamp"] = values["consume_timestamp"].isoformat()
    if isinstance(values.get("shards"), list):
        values["shards"] = tuple(values["shards"])
    if values.get("schedule") == "":
        values["schedule"] = None
    problems += value_problems(values)
    for key, made_of in _MADE.items():
        if key in values and not CHECKS[key](values[key]):
            values[key] = made_of(values[key])

    subscriptions, found = _load_subscriptions(table.get("subscription"), values.get("subscription_version", 1))
    problems += found
    known = {key: values.get(key, default) for key, default in _DEFAULTS.items()} | {"name": values.get("name")}
    problems += _group_problems(known, None if found else subscriptions)
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
        no_text = [key for key, value in texts.items() if key in table and not isinstance(value, str)]
        problems += [f"{where}: {key} must be text, it is {texts[key]!r}" for key in no_text]
        if "topic" not in table:
            problems.append(f"{where}: topic is missing")
        if no_text or "topic" not in table:
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

_MADE: dict[str, Callable[[Any], Any]] = {
    "retry_policy": retry_policy_of,
    "absorb_duplicates": absorb_rule_of,
    "allocate_strategy": allocate_rule_of,
}
"""What a file says as a table or a text, and a group has as a value."""


def _group_problems(values: Mapping[str, Any], subscriptions: tuple[SubscriptionData, ...] | None) -> list[str]:
    """What only shows when a group is seen as a whole; subscriptions None: already found to be wrong."""
    problems = []
    from_time = values["consume_from_where"] == ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    if from_time and values["consume_timestamp"] is None:
        problems.append("consume_from_where CONSUME_FROM_TIMESTAMP needs a consume_timestamp")
    if values["consume_timestamp"] is not None and not from_time:
        problems.append("consume_timestamp counts only with consume_from_where CONSUME_FROM_TIMESTAMP")
    broadcasting = values["message_model"] == MessageModel.BROADCASTING
    if "@" in str(values["name"]) and not broadcasting:
        problems.append("a client (@...) is named only with message_model BROADCASTING")
    in_order = values["mode"] == "orderly"
    if in_order and broadcasting:
        problems.append("mode orderly is not there with message_model BROADCASTING, which retries nothing")
    if in_order and values["all_or_nothing"]:
        problems.append("all_or_nothing counts only with mode concurrently: in order a batch has one status anyway")
    if in_order and values["absorb_duplicates"] is not None:
        problems.append("absorb_duplicates is not there with mode orderly, where a queue cannot wait for another one")
    if (in_order or broadcasting) and values["consume_timeout"] != _DEFAULTS["consume_timeout"]:
        problems.append("consume_timeout counts only with mode concurrently and message_model CLUSTERING")
    if values["max_minutes"] is not None and values["absorb_duplicates"] is not None:
        problems.append(
            "max_minutes is not there with absorb_duplicates, which asks about a window's messages in turns"
        )
    if not in_order and values["suspend_tries_per_window"] != _DEFAULTS["suspend_tries_per_window"]:
        problems.append("suspend_tries_per_window counts only with mode orderly")
    if subscriptions is None:
        return problems
    if not subscriptions:
        problems.append("it subscribes to no topic")
    topics = Counter(subscription.topic for subscription in subscriptions)
    problems += [
        f"topic {topic} has {count} subscriptions; a group has one expression for a topic"
        for topic, count in topics.items()
        if count > 1
    ]
    for subscription in subscriptions:
        if subscription.takes_none:
            problems.append(f"topic {subscription.topic}: the expression {subscription.expression!r} matches nothing")
        if values["name"] and subscription.topic == retry_topic(str(values["name"])):
            problems.append(f"topic {subscription.topic}: a group reads its own retry topic by itself")
    return problems


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(table, dict) for table in value)


def _unknown_keys(table: Mapping[str, Any], known: list[str], what: str) -> list[str]:
    """RocketMQ's own spelling is understood, but not taken: one setting has one name here."""
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
