"""The parameters of DAG runs, checked and turned into typed requests.

``Run`` has the facts of a run that requests depend on. Its request id starts with the UTC date of ``run_after``, which no
retry and no clear changes. So the same run is the same request, and a second try finds what the first has committed.

``params`` come from a form or an API call: times as ``parse_time`` reads them, switches as true and false; None and "" mean
"not given".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple

from rmq_store.admin.dead_letters import DeadLetterFilter, Place
from rmq_store.admin.interval_replay import IntervalReplay
from rmq_store.admin.redrive import RedriveRequest
from rmq_store.admin.redrive_edits import MessageEdits
from rmq_store.admin.reset import ResetRequest, ResetTo
from rmq_store.broker_files.limits import MAX_CONFIG_BYTES, MAX_QUEUES
from rmq_store.commit.ctl import Actor
from rmq_store.commit.request import client_ids_of, refuse_part
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.message.sys_flag import MAX_BODY_BYTES
from rmq_store.settings.settings_values import ENGINES
from rmq_store.utils.arguments import check_characters, check_types, items_of
from rmq_store.utils.numbers import whole_number
from rmq_store.utils.suggestions import did_you_mean, listed
from rmq_store.utils.times import format_time, ms_of, parse_time
from rmq_store.window.consume_request import ConsumeRequest

_ON_THEIR_OWN = ("scheduled", "asset_triggered")
"""Run types that no person triggered."""

_OF_AIRFLOW = "openlineage"
"""The parameter that Airflow's TriggerDagRunOperator adds."""


_LONGEST_DAG_ID = 250
"""Airflow's limit, in characters."""


def dag_id_of(group: str) -> str:
    """``rmq_consume__<group>``; what RocketMQ allows in a name and Airflow does not ("%", "|") becomes ".25", ".7c". Where that
    is longer than Airflow allows, its end is "..", which no other id has, and the beginning of the name's SHA-256."""
    signs = [sign if re.fullmatch("[A-Za-z0-9_-]", sign) else f".{ord(sign):x}" for sign in group]
    dag_id = "".join(["rmq_consume__", *signs])
    if len(dag_id) <= _LONGEST_DAG_ID:
        return dag_id
    end = f"..{sha256(group.encode()).hexdigest()[:10]}"
    while len(dag_id) + len(end) > _LONGEST_DAG_ID:
        dag_id = dag_id.removesuffix(signs.pop())
    return dag_id + end


class Until(NamedTuple):
    """The upper bound of a window."""

    ms: int | None
    """UTC ms, excluded; None: everything."""
    rule: str
    """Where it comes from: params, partition_key, data_interval_end or none."""

    def __str__(self) -> str:
        """The bound and why it holds, for the log."""
        if self.ms is None:
            return "no upper bound: 'until' is empty, and the run has neither a partition key nor an interval of the schedule"
        return f"only messages stored before {format_time(self.ms)}: {_RULES[self.rule]}"


_RULES = {
    "params": "the parameter 'until'",
    "partition_key": "the run's partition key",
    "data_interval_end": "the end of the scheduled run's data interval",
}


@dataclass(frozen=True, slots=True)
class Run:
    """The facts of a DAG run. Times have a zone."""

    dag_id: str
    run_id: str
    run_type: str
    run_after: datetime
    user: str | None = None
    """Who triggered it, if Airflow knows."""
    partition_key: str | None = None
    data_interval_start: datetime | None = None
    data_interval_end: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("run_after", "data_interval_start", "data_interval_end"):
            moment = getattr(self, name)
            if moment is not None and moment.tzinfo is None:
                raise ValueError(f"{name} {moment} has no zone")

    @property
    def request_id(self) -> str:
        """``YYYY-MM-DD/<dag_id>/<run_id>``. Raises WrongUse for a run id that ends as the id of a part (``part_id``)."""
        request_id = f"{self.run_after.astimezone(UTC).date().isoformat()}/{self.dag_id}/{self.run_id}"
        refuse_part("the request of the run", request_id)
        return request_id

    @property
    def is_backfill(self) -> bool:
        """Whether Airflow's backfill made the run, or took it over."""
        return self.run_type == "backfill"

    @property
    def on_its_own(self) -> bool:
        """Whether no person triggered it."""
        return self.run_type in _ON_THEIR_OWN

    @property
    def actor(self) -> Actor:
        """Who triggered it, and how that is known: airflow (a login), schedule, or unverified."""
        if self.on_its_own:
            return Actor(self.dag_id, "schedule")
        return Actor(self.user, "airflow") if self.user else Actor("unknown", "unverified")

    def until(self, explicit_ms: int | None) -> Until:
        """The upper bound: explicit, else the partition key (a time, or ``begin/end``), else the end of a scheduled run's data
        interval, else none. Raises WrongUse for a partition key that is not a time.

        Airflow also gives a run that a person triggers with a logical date, as its form does, a data interval: the last
        complete one. It is no bound, since the person did not choose it.
        """
        if explicit_ms is not None:
            return Until(explicit_ms, "params")
        if self.partition_key is not None:
            return Until(_partition_end(self.partition_key), "partition_key")
        if self.run_type == "scheduled" and self.data_interval_end is not None:
            return Until(_ms(self.data_interval_end), "data_interval_end")
        return Until(None, "none")


def check_names(given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise WrongUse for unknown parameters: a misspelt one would not narrow the run, which would then cover more."""
    names = sorted(known)
    unknown = [f"{name!r}{did_you_mean(name, names)}" for name in given if name not in {*names, _OF_AIRFLOW}]
    if unknown:
        raise WrongUse(f"unknown parameter {'; '.join(unknown)}; known: {listed(names)}")


def consume_request(run: Run, params: Mapping[str, Any]) -> ConsumeRequest:
    """A consumption window, from ``until, max_messages, client, clients``. Raises WrongUse, also for a backfill (see
    ``interval_replay``) and for ``reprocess``, which is for one."""
    if run.is_backfill:
        raise WrongUse(
            "a backfill replays intervals of one group: trigger rmq_replay with 'from' and 'until', or backfill the DAG of a "
            "group with a schedule of its own"
        )
    if params.get("reprocess"):
        raise WrongUse(
            "'reprocess' is for a backfill: trigger rmq_replay to consume messages again under a replay group, or "
            "rmq_reset_offset to move the group's offsets"
        )
    until = run.until(_time(params, "until"))
    return ConsumeRequest(
        run.request_id,
        run.actor,
        until_ms=until.ms,
        max_messages=_count(params, "max_messages"),
        parameters={"until_rule": until.rule},
        client_id=_optional_text(params, "client"),
        client_ids=client_ids_of(_optional_text(params, "clients")),
    )


def interval_replay(run: Run, params: Mapping[str, Any]) -> IntervalReplay:
    """The replay of a backfill's run, from ``reprocess``: its data interval. Raises WrongUse for the other parameters of
    ``consume_request``, and for a run without an interval."""
    narrowing = [name for name in ("until", "max_messages", "client", "clients") if params.get(name)]
    if narrowing:
        raise WrongUse(f"a backfill replays whole intervals: leave {' and '.join(narrowing)} empty")
    if run.data_interval_start is None or run.data_interval_end is None:
        raise WrongUse("the run has no data interval: a backfill needs a DAG with a schedule of intervals")
    return IntervalReplay(
        run_id=run.request_id,
        actor=run.actor,
        from_ms=_ms(run.data_interval_start),
        until_ms=_ms(run.data_interval_end),
        reprocess=_optional_text(params, "reprocess") or "",
    )


def reset_request(run: Run, params: Mapping[str, Any]) -> ResetRequest:
    """A reset of a group's offsets of one topic, from ``group, topic, to, time, offset, queues, reason, dry_run``.

    ``queues``: ``["broker-a:0"]``, None: all. A reset is a dry run unless ``dry_run`` is false. Raises WrongUse.
    """
    to = _text(params, "to")
    if to not in list(ResetTo):
        raise WrongUse(f"invalid value of 'to', {to!r}: expected one of {', '.join(ResetTo)}")
    topic = _text(params, "topic")
    values = {ResetTo.TIME: _time(params, "time"), ResetTo.OFFSET: _count(params, "offset", least=0)}
    for name, value in values.items():
        if value is not None and name != to:
            raise WrongUse(f"a reset to {to} takes no {name}: leave it empty")
    if to in values and values[ResetTo(to)] is None:
        raise WrongUse(f"a reset to {to} needs the {to}")
    return ResetRequest(
        group=_text(params, "group"),
        topic=topic,
        to=ResetTo(to),
        request_id=run.request_id,
        actor=run.actor,
        reason=_text(params, "reason"),
        value=values.get(ResetTo(to)),
        queues=tuple(_queue(topic, text) for text in _texts(params, "queues") or ()),
        dry_run=switch_of(params, "dry_run", default=True),
    )


@dataclass(frozen=True, slots=True)
class UndoParams:
    """An undo of a group's last action of an operator."""

    group: str
    reason: str
    shard: str | None = None
    """None: all shards that have the action."""
    force: bool = False
    """Also when windows were committed in its queues since."""
    dry_run: bool = True

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> UndoParams:
        """From ``group, shard, force, reason, dry_run``. An undo is a dry run unless ``dry_run`` is false. Raises WrongUse."""
        return cls(
            group=_text(params, "group"),
            reason=_text(params, "reason"),
            shard=_optional_text(params, "shard"),
            force=switch_of(params, "force"),
            dry_run=switch_of(params, "dry_run", default=True),
        )


def redrive_request(run: Run, params: Mapping[str, Any]) -> RedriveRequest:
    """A redrive of dead letters, from ``group, all, from, until, original_topic, keys, where, letters, limit, edits,
    all_or_nothing, rate, to_topic, reason, dry_run``.

    ``letters``: ``["lake-broker-a:0:17"]``. ``edits``: a text of JSON, or an object. A redrive is a dry run unless ``dry_run``
    is false. Raises WrongUse.
    """
    keys, letters = _texts(params, "keys"), _texts(params, "letters")
    return RedriveRequest(
        group=_text(params, "group"),
        dead_letters=DeadLetterFilter(
            from_ms=_time(params, "from"),
            until_ms=_time(params, "until"),
            original_topic=_optional_text(params, "original_topic"),
            keys=None if keys is None else frozenset(keys),
            places=None if letters is None else tuple(map(dead_letter_place, letters)),
            where=_optional_text(params, "where"),
            all=switch_of(params, "all"),
        ),
        request_id=run.request_id,
        actor=run.actor,
        reason=_text(params, "reason"),
        to_topic=_optional_text(params, "to_topic"),
        limit=_count(params, "limit"),
        edits=MessageEdits.of_parameter(params.get("edits")),
        all_or_nothing=switch_of(params, "all_or_nothing"),
        rate=_count(params, "rate"),
        dry_run=switch_of(params, "dry_run", default=True),
    )


def dead_letter_place(text: str) -> Place:
    """``BROKER:QUEUE:OFFSET``. A broker name may hold colons. Raises WrongUse."""
    broker_name, *numbers = text.rsplit(":", 2)
    read = [number for text in numbers if (number := whole_number(text)) is not None]
    if not broker_name or len(read) != 2:
        raise WrongUse(f"invalid dead letter {text!r}: expected BROKER:QUEUE:OFFSET, like lake-broker-a:0:17")
    return Place(broker_name, *read)


@dataclass(frozen=True, slots=True)
class ReplayParams:
    """A replay of a topic's messages that were stored in ``[from_ms, until_ms)`` (UTC ms).

    With neither topic nor time it is the follow-up of an earlier replay: ``group`` is then the replay group, whose waiting
    retries are consumed. With ``reprocess`` (a reason) it is the next attempt of that replay instead.
    """

    group: str
    topic: str | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    max_messages: int | None = None
    reason: str = ""
    reprocess: str | None = None

    def __post_init__(self) -> None:
        bounded = any(value is not None for value in (self.topic, self.from_ms, self.until_ms, self.max_messages))
        if self.reprocess is not None and bounded:
            raise WrongUse("another attempt of a replay reads what the first one read: give only the replay group")
        if (self.topic is None) != (self.from_ms is None):
            raise WrongUse("a replay needs a topic and a time to begin from; the follow-up of a replay takes neither")
        if self.from_ms is not None and self.until_ms is not None and self.until_ms <= self.from_ms:
            raise WrongUse(f"empty time range: until ({self.until_ms}) must be later than from ({self.from_ms})")

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> ReplayParams:
        """From ``group, topic, from, until, max_messages, reason, reprocess``. Raises WrongUse."""
        return cls(
            group=_text(params, "group"),
            topic=_optional_text(params, "topic"),
            from_ms=_time(params, "from"),
            until_ms=_time(params, "until"),
            max_messages=_count(params, "max_messages"),
            reason=_optional_text(params, "reason") or "",
            reprocess=_optional_text(params, "reprocess"),
        )

    def request(self, run: Run) -> ConsumeRequest:
        """The request of its windows."""
        return ConsumeRequest(
            run.request_id, run.actor, self.reprocess or self.reason, self.until_ms, self.max_messages
        )


@dataclass(frozen=True, slots=True)
class ImportParams:
    """An import of a broker's store directory into a shard."""

    source: str
    broker_name: str
    shard: str
    salvage: bool = False
    engine: str | None = None
    """One of ``settings_values.ENGINES``; None: as the deployment says."""
    max_body_bytes: int = MAX_BODY_BYTES
    max_config_bytes: int = MAX_CONFIG_BYTES
    max_queues: int = MAX_QUEUES

    def __post_init__(self) -> None:
        if self.engine not in (None, *ENGINES):
            raise WrongUse(f"invalid engine {self.engine!r}: expected one of {', '.join(ENGINES)}")

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> ImportParams:
        """From ``source, broker_name, shard, salvage, engine, max_body_bytes, max_config_bytes, max_queues``; the shard
        is the broker's name unless given. Raises WrongUse."""
        broker_name = _text(params, "broker_name")
        return cls(
            source=_text(params, "source"),
            broker_name=broker_name,
            shard=_optional_text(params, "shard") or broker_name,
            salvage=switch_of(params, "salvage"),
            engine=_optional_text(params, "engine"),
            max_body_bytes=_count(params, "max_body_bytes") or MAX_BODY_BYTES,
            max_config_bytes=_count(params, "max_config_bytes") or MAX_CONFIG_BYTES,
            max_queues=_count(params, "max_queues") or MAX_QUEUES,
        )


def switch_of(params: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    """A parameter that is true or false; ``default`` where it is not given.

    Raises WrongUse for any other value, such as the text "false": who reads it as one of them does more or less than was asked.
    """
    given = params.get(name)
    if given is None or given == "":
        return default
    check_types(bool, **{name: given})
    return bool(given)


# --- one value -------------------------------------------------------------------------------------------------------


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _partition_end(key: str) -> int:
    try:
        moment = datetime.fromisoformat(key.rpartition("/")[2])
    except ValueError:
        raise WrongUse(
            f"invalid partition key {key!r}: expected a time like 2024-02-29T00:00:00, or begin/end"
        ) from None
    # Airflow writes its keys without a zone; here they are in UTC, like every timetable of the DAGs.
    return _ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def _text(params: Mapping[str, Any], name: str) -> str:
    given = params.get(name)
    if not isinstance(given, str) or not given.strip():
        raise WrongUse(f"{name} is missing")
    check_characters(name, given)
    return given.strip()


def _optional_text(params: Mapping[str, Any], name: str) -> str | None:
    """Raises WrongUse for a blank text, which is not the same as none: the run would cover more."""
    given = params.get(name)
    if given is None or given == "":
        return None
    check_types(str, **{name: given})
    if not given.strip():
        raise WrongUse(f"{name} is blank: leave it out")
    return str(given.strip())


def _texts(params: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """Raises WrongUse for an empty list, which is not the same as none."""
    given = params.get(name)
    return None if given is None or given == "" else items_of(str, name, given)


def _number(params: Mapping[str, Any], name: str) -> Any:
    """The value; ``3.0`` as 3: to JSON Schema, and so to Airflow's form, it is an integer."""
    given = params.get(name)
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _time(params: Mapping[str, Any], name: str) -> int | None:
    given = _number(params, name)
    if given is None or given == "":
        return None
    try:
        return parse_time(given) if isinstance(given, str) else ms_of(given)
    except WrongUse as error:
        raise WrongUse(f"{name}: {error}") from error


def _count(params: Mapping[str, Any], name: str, least: int = 1) -> int | None:
    given = _number(params, name)
    if given is None or given == "":
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise WrongUse(f"{name} must be a whole number, {least} or more; it is {given!r}")
    return given


def _queue(topic: str, text: str) -> MessageQueue:
    broker_name, _, digits = text.rpartition(":")
    queue_id = whole_number(digits)
    if not broker_name or queue_id is None:
        raise WrongUse(f"invalid queue {text!r}: expected BROKER:QUEUE, like broker-a:0")
    return MessageQueue(topic, broker_name, queue_id)
