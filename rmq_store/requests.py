"""What an orchestrator's run asks for, as typed requests: parameters in, a checked value out, before anything is spent.

``Run`` holds the facts of a run that requests depend on. Its request id starts with the UTC date after which the run
was allowed to start, which no retry and no clear changes; so the same run is the same request, and asking again finds
what it has committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from rmq_store.errors import WrongUse
from rmq_store.message import MessageQueue
from rmq_store.store import Actor
from rmq_store.times import parse_time

RESET_TO = ("time", "offset", "min", "max")

_ON_ITS_OWN = ("scheduled", "asset_triggered")
"""Types of runs that no person asked for."""


class Until(NamedTuple):
    """The upper bound of a window, UTC ms (None: everything there is), and which rule gave it."""

    ms: int | None
    rule: str


@dataclass(frozen=True, slots=True)
class Run:
    """The facts of a run. Times have a zone; ``user``: who triggered it, if the orchestrator knows."""

    dag_id: str
    run_id: str
    run_type: str
    run_after: datetime
    user: str | None = None
    partition_key: str | None = None
    data_interval_end: datetime | None = None

    @property
    def request_id(self) -> str:
        """``YYYY-MM-DD/<dag_id>/<run_id>``."""
        return f"{self.run_after.astimezone(UTC).date().isoformat()}/{self.dag_id}/{self.run_id}"

    @property
    def actor(self) -> Actor:
        """Who asked, and how that is known: airflow (a login), schedule, or unverified."""
        if self.run_type in _ON_ITS_OWN:
            return Actor(self.dag_id, "schedule")
        return Actor(self.user, "airflow") if self.user else Actor("unknown", "unverified")

    def until(self, explicit_ms: int | None) -> Until:
        """The upper bound: explicit, else the partition key (a time, or ``begin/end``), else the end of the data
        interval, else none. Raises WrongUse for a partition key that is no time."""
        if explicit_ms is not None:
            return Until(explicit_ms, "params")
        if self.partition_key is not None:
            return Until(_partition_end(self.partition_key), "partition_key")
        if self.data_interval_end is not None:
            return Until(int(self.data_interval_end.timestamp() * 1000), "data_interval_end")
        return Until(None, "none")


def _partition_end(key: str) -> int:
    text = key.rpartition("/")[2]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise WrongUse(f"the partition key {key!r} is no time: write 2024-02-29T00:00:00, or begin/end") from None
    # Airflow writes its keys without a zone; the DAGs' timetables are all in UTC.
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@dataclass(frozen=True, slots=True)
class ConsumeParams:
    """A consumption window: ``until_ms`` (UTC ms) and ``max_messages`` end it."""

    until_ms: int | None = None
    max_messages: int | None = None

    def __post_init__(self) -> None:
        _check_count("max_messages", self.max_messages)

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> ConsumeParams:
        """Raises WrongUse."""
        return cls(_time(params, "until"), params.get("max_messages"))


@dataclass(frozen=True, slots=True)
class ResetParams:
    """A reset of a group's offsets of one topic. ``value``: the time (UTC ms) or the offset, None for min and max.

    ``queues`` empty: all queues of the topic. ``dry_run``: only say what would move.
    """

    group: str
    topic: str
    to: str
    reason: str
    value: int | None = None
    queues: tuple[MessageQueue, ...] = ()
    dry_run: bool = True

    def __post_init__(self) -> None:
        _check_text("group", self.group)
        _check_text("topic", self.topic)
        if self.to not in RESET_TO:
            raise WrongUse(f"to must be one of {', '.join(RESET_TO)}, it is {self.to!r}")
        if self.to in ("min", "max") and self.value is not None:
            raise WrongUse(f"a reset to {self.to} takes no {'time' if self.value > 10**9 else 'offset'}: leave it empty")
        if self.to in ("time", "offset") and self.value is None:
            raise WrongUse(f"a reset to {self.to} needs the {self.to}")
        if self.to == "offset" and self.value is not None and self.value < 0:
            raise WrongUse(f"an offset is 0 or more, it is {self.value}")
        if not self.reason.strip():
            raise WrongUse("a reset needs a reason: it stands in the offset history for good")

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> ResetParams:
        """From ``group, topic, to, time, offset, queues (["broker:0"]), reason, dry_run``. Raises WrongUse."""
        values = {"time": _time(params, "time"), "offset": params.get("offset")}
        topic, to = str(params.get("topic") or ""), str(params.get("to") or "")
        strange = [name for name, value in values.items() if value is not None and name != to]
        if strange:
            raise WrongUse(f"a reset to {to} takes no {strange[0]}: leave it empty")
        return cls(
            group=str(params.get("group") or ""),
            topic=topic,
            to=to,
            reason=str(params.get("reason") or ""),
            value=values.get(to),
            queues=tuple(_queue(topic, text) for text in params.get("queues") or ()),
            dry_run=params.get("dry_run") is not False,
        )


@dataclass(frozen=True, slots=True)
class ReplayParams:
    """A replay of a topic's messages stored in ``[from_ms, until_ms)`` (UTC ms), or, with neither topic nor time, the
    follow-up of an earlier replay: ``group`` is then its replay group, and its waiting retries are consumed."""

    group: str
    topic: str | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    max_messages: int | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        _check_text("group", self.group)
        _check_count("max_messages", self.max_messages)
        if (self.topic is None) != (self.from_ms is None):
            raise WrongUse("a replay needs topic and from; the follow-up of a replay takes neither")
        if self.from_ms is not None and self.until_ms is not None and self.until_ms <= self.from_ms:
            raise WrongUse(f"until ({self.until_ms}) must be later than from ({self.from_ms})")

    @property
    def is_follow_up(self) -> bool:
        return self.topic is None

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> ReplayParams:
        """From ``group, topic, from, until, max_messages, reason``. Raises WrongUse."""
        return cls(
            group=str(params.get("group") or ""),
            topic=params.get("topic") or None,
            from_ms=_time(params, "from"),
            until_ms=_time(params, "until"),
            max_messages=params.get("max_messages"),
            reason=str(params.get("reason") or ""),
        )


@dataclass(frozen=True, slots=True)
class ImportParams:
    """An import of a broker's store directory. ``shard`` defaults to the broker's name."""

    source: str
    broker_name: str
    shard: str
    salvage: bool = False
    engine: str = "spark"

    def __post_init__(self) -> None:
        _check_text("source", self.source)
        _check_text("broker_name", self.broker_name)
        if self.engine not in ("spark", "local"):
            raise WrongUse(f"engine must be spark or local, it is {self.engine!r}")

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> ImportParams:
        """From ``source, broker_name, shard, salvage, engine``. Raises WrongUse."""
        broker_name = str(params.get("broker_name") or "")
        return cls(
            source=str(params.get("source") or ""),
            broker_name=broker_name,
            shard=str(params.get("shard") or broker_name),
            salvage=params.get("salvage") is True,
            engine=str(params.get("engine") or "spark"),
        )


Params = TypeVar("Params", ConsumeParams, ResetParams, ReplayParams, ImportParams)


# --- one value -------------------------------------------------------------------------------------------------------


def _time(params: Mapping[str, Any], name: str) -> int | None:
    """The time of a parameter in UTC ms, None when it is empty."""
    given = params.get(name)
    if given is None or given == "":
        return None
    try:
        return parse_time(str(given))
    except WrongUse as error:
        raise WrongUse(f"{name}: {error}") from error


def _queue(topic: str, text: str) -> MessageQueue:
    broker_name, colon, queue_id = str(text).rpartition(":")
    if not (broker_name and colon and queue_id.isascii() and queue_id.isdecimal()):
        raise WrongUse(f"{text!r} names no queue: write BROKER:QUEUE, like broker-a:0")
    return MessageQueue(topic, broker_name, int(queue_id))


def _check_text(name: str, value: str) -> None:
    if not value.strip():
        raise WrongUse(f"{name} is missing")


def _check_count(name: str, value: int | None) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise WrongUse(f"{name} must be a whole number above 0, it is {value!r}")
