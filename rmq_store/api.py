"""The Python API: a store and its operations. ``import rmq_store`` offers these names.

A method does the same as the command of its name. It raises the command's errors, subclasses of RmqError, and returns a
report. A method that works in several shards or commits returns a report for each of them. ``docs/python.md`` shows all of it.

A time is a ``datetime`` with a zone, or epoch milliseconds. A ``request_id`` begins with its UTC date, ``YYYY-MM-DD``: the
same id with the same arguments is the same request and is done once; None makes a new one.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from rmq_store.admin.dead_letters import DeadLetterFilter
from rmq_store.admin.offset_moves import MoveReport
from rmq_store.admin.redrive import RedriveReport, RedriveRequest
from rmq_store.admin.redrive_edits import MessageEdits
from rmq_store.admin.replay import as_replay
from rmq_store.admin.reset import ResetRequest, ResetTo
from rmq_store.commit.ctl import Actor
from rmq_store.commit.positions import Outcome
from rmq_store.commit.request import Status, actor_of, overall, reason_of, request_id_of
from rmq_store.consumer.listener import listener_name
from rmq_store.consumer.replay_name import replayed_group
from rmq_store.errors import WrongUse
from rmq_store.lake.admin.groups import need_group
from rmq_store.lake.admin.offset_moves import move_in_all
from rmq_store.lake.admin.redrive import redrive_all, shards_with_dead_letters
from rmq_store.lake.admin.replay import replay_notes
from rmq_store.lake.admin.undo import actions_to_undo, undo
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import table_of, without_repeats
from rmq_store.lake.audit.full import full as audit_contents
from rmq_store.lake.broker import import_store as broker_import
from rmq_store.lake.broker.import_request import ImportReport, ImportRequest
from rmq_store.lake.sql import sql
from rmq_store.lake.sql.query_limits import QueryLimits
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.consume_all import THREADS, ConsumeAllReport, consume_all
from rmq_store.lake.window.consumption import Consumption, outcomes_of, shards_of, shards_with_queues
from rmq_store.lake.window.deliver import deliver
from rmq_store.lake.window.dry_run import plan_request
from rmq_store.lake.window.engine import Engine, LocalEngine
from rmq_store.lake.window.send_request import placed_request, send_parts
from rmq_store.lake.window.window import consume_window
from rmq_store.message.message import MessageQueue
from rmq_store.producer.producer import Message, check_messages
from rmq_store.producer.send import SendReport
from rmq_store.settings.settings import GroupSettings, load_group
from rmq_store.utils.arguments import check_type, check_types, items_of
from rmq_store.utils.host import Host
from rmq_store.utils.times import Time, ms_of
from rmq_store.window.consume_request import LIVE, ConsumeRequest, Scope, only_retries
from rmq_store.window.deliver import DeliverReport, Delivery
from rmq_store.window.dry_run import ConsumePlan
from rmq_store.window.range_notes import until_notes


def create_store(root: str | os.PathLike[str], *, levels: str | None = None, actor: str | None = None) -> Store:
    """Create the store at ``root``, a folder or ``s3://bucket/prefix``, if it does not exist, and open it.

    ``levels``: the delay levels, as in a broker's ``messageDelayLevel``; None: RocketMQ's 18, or those of the existing
    store. ``actor``: as in ``open_store``. Raises StoreUnusable, and WrongUse if the existing store has other levels.
    """
    check_types(str | None, levels=levels, actor=actor)
    store, _ = LakeStore.init(_root("root", root), levels=levels)
    return Store(store, actor_of(actor))


def open_store(root: str | os.PathLike[str], *, actor: str | None = None) -> Store:
    """Open the store at ``root``, a folder or ``s3://bucket/prefix`` (credentials from the ``AWS_*`` variables).

    ``actor``: who makes the requests, for the history; None: the user of this process. Raises StoreUnusable when there is
    no store.
    """
    check_types(str | None, actor=actor)
    return Store(LakeStore.open(_root("root", root)), actor_of(actor))


def consumer_group(
    name: str,
    listener: str | Callable[..., Any],
    subscriptions: Mapping[str, str | Mapping[str, str]],
    **settings: Any,
) -> GroupSettings:
    """The settings of a group, like a ``[[group]]`` of ``consumers.toml``.

    ``listener``: a function or class of a module, or its name, ``module:attribute``. ``subscriptions``: by topic the tags,
    ``"TagA || TagB"`` or ``"*"``, or ``{"expression": "price > 100", "type": "SQL92"}``. ``settings``: the other keys of
    ``docs/settings.md``. Raises WrongUse, which lists all problems.
    """
    check_types(Mapping, subscriptions=subscriptions)
    for expression in subscriptions.values():
        check_types(str | Mapping, expression=expression)
    tables = [
        {"topic": topic} | ({"expression": expression} if isinstance(expression, str) else dict(expression))
        for topic, expression in subscriptions.items()
    ]
    return load_group({"name": name, "listener": listener_name(listener), "subscription": tables, **settings})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeReport:
    """What a request of a group did, in all its shards."""

    group: str
    """For a replay: the replay group."""
    request_id: str
    shards: tuple[Consumption, ...]

    @property
    def status(self) -> Status:
        """committed, already_committed, or empty: there was nothing to do."""
        return overall(shard.status for shard in self.shards)

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """The number of messages per outcome; outcomes without messages are left out."""
        return outcomes_of(self.shards)

    @property
    def messages(self) -> int:
        return sum(shard.messages for shard in self.shards)

    @property
    def warnings(self) -> list[str]:
        """What is no longer kept of the range of a replay; errors after a commit, such as a failed dispatch; and that queues of
        an orderly group are blocked."""
        return [warning for shard in self.shards for warning in shard.warnings]


@dataclass(frozen=True, slots=True)
class Store:
    """An opened store. Make one with ``create_store`` or ``open_store``."""

    lake: LakeStore
    """The store as the functions of ``rmq_store.lake`` take it, for what this class does not offer."""
    actor: Actor
    host: Host = field(default_factory=Host)

    @property
    def root(self) -> str:
        """An absolute folder, or ``s3://bucket[/prefix]``."""
        return self.lake.root.location

    # --- messages ----------------------------------------------------------------------------------------------------

    def import_store(
        self,
        source: str | os.PathLike[str],
        broker_name: str,
        *,
        shard: str | None = None,
        salvage: bool = False,
        engine: Engine | None = None,
        request_id: str | None = None,
    ) -> ImportReport:
        """Import the new messages of a broker's store directory, a folder or ``s3://bucket/prefix``, in parts
        of 1 to 4 GiB of its log, each all or nothing.

        ``shard``: None is the shard with the broker's name. ``salvage``: skip what is damaged or missing, and record it.
        ``engine``: as in ``consume``. Raises BadData, WrongUse, HeldByAnother.
        """
        check_types(str, broker_name=broker_name)
        check_types(str | None, shard=shard, request_id=request_id)
        check_types(bool, salvage=salvage)
        request = ImportRequest(
            broker_name=broker_name,
            shard_name=broker_name if shard is None else shard,
            request_id=request_id_of(request_id, "import", self.host),
            actor=self.actor,
            salvage=salvage,
        )
        return broker_import.import_store(self.lake, _root("source", source), request, self.host, self._engine(engine))

    def send(
        self,
        messages: Iterable[Message],
        *,
        create_queues: int | None = None,
        shard: str | None = None,
        dry_run: bool = False,
        request_id: str | None = None,
    ) -> list[SendReport]:
        """Send messages into queues of the lake; a report per commit, which holds at most 10,000 messages.

        All messages are checked before the first commit. ``create_queues``: create a topic that does not exist, with this
        number of queues; None: such a topic is refused. ``shard``: None is the shard with the topic. Raises WrongUse.
        """
        check_types(int | None, create_queues=create_queues)
        if create_queues is not None and create_queues < 1:
            raise WrongUse(f"create_queues must be at least 1, it is {create_queues}")
        check_types(str | None, shard=shard, request_id=request_id)
        check_types(bool, dry_run=dry_run)
        messages = items_of(Message, "messages", messages)
        check_messages(messages, self.host.now_ms())
        id_ = request_id_of(request_id, "send", self.host)
        request = placed_request(
            self.lake, messages, id_, shard, is_new=request_id is None, create=create_queues is not None
        )
        return list(send_parts(self.lake, request, self.actor, self.host, create_queues=create_queues, dry_run=dry_run))

    def consume(
        self,
        group: GroupSettings,
        *,
        until: Time | None = None,
        max_messages: int | None = None,
        replay: str | None = None,
        retries_only: bool = False,
        engine: Engine | None = None,
        request_id: str | None = None,
    ) -> ConsumeReport:
        """Consume what the group has not consumed yet, shard by shard, in one window or more; each window is one commit.

        ``until``: only messages stored before this time. ``max_messages``: at most this many from each shard. ``replay``:
        consume the retries of a replay instead; the value is the ``group`` of its report. ``retries_only``: read only the
        group's retries, and no new messages. ``engine``: where the listener
        runs; None: in this process; for Spark ``spark_jobs.engine.SparkEngine.of(session)``. (The setting ``engine`` of the
        group applies to the command line and the DAGs only.)

        Raises WrongUse, NothingThere, HeldByAnother, ListenerError, StaleAttempt.
        """
        request = self._consume_request(until, max_messages, request_id)
        return self._consumed(*_scoped(group, request, replay, retries_only), engine)

    def plan(
        self,
        group: GroupSettings,
        *,
        until: Time | None = None,
        max_messages: int | None = None,
        replay: str | None = None,
        retries_only: bool = False,
        request_id: str | None = None,
    ) -> ConsumePlan:
        """What ``consume`` with the same arguments would do: per shard, window and queue the offsets, messages and bytes, exact
        while the data stays as it is. Nothing is written. The listener is loaded, and not called.

        An error with which the request would end after some windows is in the plan; before the first one it is raised.
        """
        request = self._consume_request(until, max_messages, request_id)
        notes = [] if request.until_ms is None else until_notes(request.until_ms, self.host.now_ms())
        group, request, scope = _scoped(group, request, replay, retries_only)
        return plan_request(
            self.lake, shards_of(self.lake, group, scope), group, request, self.host, scope, notes=notes
        )

    def plan_replay(
        self,
        group: GroupSettings,
        topic: str,
        since: Time,
        *,
        until: Time | None = None,
        request_id: str | None = None,
    ) -> ConsumePlan:
        """What ``replay`` with the same arguments would do, as ``plan``. ``notes`` say what is unusual about the range: it has
        no messages, or begins before those that are kept. Raises WrongUse for a time in the future."""
        group, request, scope = self._replay_request(group, topic, since, until, request_id)
        shards = shards_of(self.lake, group, scope)
        notes = replay_notes(shards, group, request, self.host, scope)
        return plan_request(self.lake, shards, group, request, self.host, scope, notes=notes)

    def consume_all(
        self,
        groups: Iterable[GroupSettings],
        *,
        until: Time | None = None,
        max_messages: int | None = None,
        engine: Engine | None = None,
        threads: int = THREADS,
        request_id: str | None = None,
    ) -> ConsumeAllReport:
        """``consume`` for each of these groups, side by side, with common commits; a report per group.

        ``threads``: how many windows run at once; a listener that groups share must allow that. The error of a group is in
        its report, and the others go on. Raises WrongUse.
        """
        groups = items_of(GroupSettings, "groups", groups)
        check_types(int, threads=threads)
        if threads < 1:
            raise WrongUse(f"invalid threads {threads}: it must be 1 or more")
        request, chosen = self._consume_request(until, max_messages, request_id), self._engine(engine)
        return consume_all(self.lake, groups, request, lambda plan: chosen, self.host, threads=threads)

    def _consume_request(self, until: Time | None, max_messages: int | None, request_id: str | None) -> ConsumeRequest:
        check_types(int | None, max_messages=max_messages)
        check_types(str | None, request_id=request_id)
        if max_messages is not None and max_messages < 1:
            raise WrongUse(f"invalid max_messages {max_messages}: it must be 1 or more")
        return ConsumeRequest(
            request_id_of(request_id, "consume", self.host),
            self.actor,
            until_ms=None if until is None else ms_of(until),
            max_messages=max_messages,
        )

    def replay(
        self,
        group: GroupSettings,
        topic: str,
        since: Time,
        *,
        until: Time | None = None,
        engine: Engine | None = None,
        request_id: str | None = None,
    ) -> ConsumeReport:
        """Consume the messages of a topic that were stored in [``since``, ``until``) again, under a replay group's name: the
        group's own offsets do not move.

        A message that fails is retried under that name: ``deliver``, then ``consume(group, replay=report.group)``. Raises as
        ``consume`` does.
        """
        return self._consumed(*self._replay_request(group, topic, since, until, request_id), engine)

    def _replay_request(
        self, group: GroupSettings, topic: str, since: Time, until: Time | None, request_id: str | None
    ) -> tuple[GroupSettings, ConsumeRequest, Scope]:
        check_types(GroupSettings, group=group)
        check_types(str, topic=topic)
        check_types(str | None, request_id=request_id)
        until_ms = None if until is None else ms_of(until)
        request = ConsumeRequest(request_id_of(request_id, "replay", self.host), self.actor, until_ms=until_ms)
        return as_replay(group, topic, ms_of(since), request)

    def deliver(self, *, now: Time | None = None, request_id: str | None = None) -> list[DeliverReport]:
        """Deliver the retries and delayed messages that are due; a report per commit, at least one per shard.

        ``now``: deliver what is due by this time; None: now, by this host's clock. All shards are tried; then the error of one
        is raised, such as HeldByAnother, whose text names the shards and whose ``reports`` are those of the others; BadData
        where a message does not say where it goes, once the rest is delivered.
        """
        check_types(str | None, request_id=request_id)
        id_ = request_id_of(request_id, "deliver", self.host)
        deliver_in = partial(
            deliver, self.lake, actor=self.actor, host=self.host, now_ms=None if now is None else ms_of(now)
        )
        delivery = Delivery(id_)
        delivery.run({shard.name: partial(deliver_in, shard) for shard in self.lake.shards()})
        delivery.raise_error()
        return delivery.reports

    def _consumed(
        self, group: GroupSettings, request: ConsumeRequest, scope: Scope, engine: Engine | None
    ) -> ConsumeReport:
        chosen = self._engine(engine)
        window = partial(
            consume_window,
            self.lake,
            group=group,
            request=request,
            engine_of=lambda plan: chosen,
            host=self.host,
            scope=scope,
        )
        shards = tuple(Consumption.of(partial(window, shard)) for shard in shards_of(self.lake, group, scope))
        return ConsumeReport(group=group.name, request_id=request.request_id, shards=shards)

    def _engine(self, given: Engine | None) -> Engine:
        if given is not None and not callable(given):
            raise WrongUse(f"engine must be an engine, such as SparkEngine.of(session), or None; it is {given!r:.80}")
        return LocalEngine(self.host) if given is None else given

    # --- operators ---------------------------------------------------------------------------------------------------

    def reset(
        self,
        group: str,
        topic: str,
        to: datetime | int | Literal["min", "max"],
        *,
        reason: str,
        queues: Iterable[MessageQueue] | None = None,
        dry_run: bool = False,
        request_id: str | None = None,
    ) -> list[MoveReport]:
        """Move a group's offsets of one topic; a report per shard. A window that was running cannot commit after it.

        ``to``: a ``datetime`` (the first message stored at or after it), an offset, "min" (the first readable message) or
        "max" (the end). ``queues``: None means all queues of the topic. ``reason`` is recorded; it may be empty only for a
        ``dry_run``. Raises WrongUse, and StaleAttempt where another move of the group came first. What was moved in some
        shards before an error stays: the error's ``reports``.
        """
        check_types(str, group=group, topic=topic, reason=reason)
        check_types(str | None, request_id=request_id)
        check_types(bool, dry_run=dry_run)
        chosen = () if queues is None else _queues(queues)
        target, value = _target(to)
        request = ResetRequest(
            group,
            topic,
            target,
            request_id=request_id_of(request_id, "reset", self.host),
            actor=self.actor,
            reason=reason_of(reason, dry_run),
            value=value,
            dry_run=dry_run,
        )
        if not request.passes_delayed:
            need_group(self.lake, group)
        every = self.lake.shards()
        shards = shards_with_queues(every, topic, chosen)
        requests = [(shard, replace(request, queues=of_shard)) for shard, of_shard in shards]
        return move_in_all(requests, self.host, every=every)

    def undo(
        self,
        group: str,
        *,
        reason: str,
        force: bool = False,
        dry_run: bool = False,
        request_id: str | None = None,
    ) -> list[MoveReport]:
        """Undo the last action of an operator on a group's offsets: a reset, a skip, a clone, an import of offsets, or an undo,
        which does the action again. A report for each shard that has the action.

        ``force``: also when windows were committed in its queues since. ``reason`` is recorded; it may be empty only for a
        ``dry_run``. Raises WrongUse, also for an action that cannot be undone, and StaleAttempt, as ``reset`` does.
        """
        check_types(str, group=group, reason=reason)
        check_types(str | None, request_id=request_id)
        check_types(bool, force=force, dry_run=dry_run)
        need_group(self.lake, group)
        request_id = request_id_of(request_id, "undo", self.host)
        shards = self.lake.shards()
        return undo(
            actions_to_undo(shards, group, request_id),
            group,
            self.host,
            request_id=request_id,
            actor=self.actor,
            reason=reason_of(reason, dry_run),
            force=force,
            dry_run=dry_run,
            among=shards,
        )

    def redrive(
        self,
        group: GroupSettings,
        dead_letters: DeadLetterFilter,
        *,
        reason: str,
        to_topic: str | None = None,
        limit: int | None = None,
        edits: MessageEdits | None = None,
        all_or_nothing: bool = False,
        rate: int | None = None,
        dry_run: bool = False,
        request_id: str | None = None,
    ) -> list[RedriveReport]:
        """Send dead letters of a group again, each once; a report per shard that has some.

        ``dead_letters``: which of them. ``to_topic``: None is the group's retry topic, which only this group reads. ``limit``:
        at most this many from each shard, oldest first. ``edits``: what is changed in the copies; a dead letter to which they
        do not apply is not sent, or with ``all_or_nothing`` none is. ``rate``: at most so many a second and shard, over a
        minute; the call waits. ``reason`` is recorded. In a group that absorbs duplicates, a copy whose key was acked meanwhile
        is absorbed. Raises WrongUse, HeldByAnother.
        """
        check_types(GroupSettings, group=group)
        check_types(DeadLetterFilter, dead_letters=dead_letters)
        check_types(str, reason=reason)
        check_types(str | None, to_topic=to_topic, request_id=request_id)
        check_types(int | None, limit=limit, rate=rate)
        check_types(MessageEdits | None, edits=edits)
        check_types(bool, all_or_nothing=all_or_nothing, dry_run=dry_run)
        request = RedriveRequest(
            group=group.name,
            dead_letters=dead_letters,
            request_id=request_id_of(request_id, "redrive", self.host),
            actor=self.actor,
            reason=reason_of(reason, dry_run),
            to_topic=to_topic,
            limit=limit,
            retry_queue_nums=group.retry_queue_nums,
            edits=edits or MessageEdits(),
            all_or_nothing=all_or_nothing,
            rate=rate,
            dry_run=dry_run,
        )
        shards = shards_with_dead_letters(self.lake.shards(), request)
        if not shards:
            need_group(self.lake, group.name, [group.name])
        return [redrive_all(shard, of_shard, self.host) for shard, of_shard in shards]

    # --- what the tables say -----------------------------------------------------------------------------------------

    def query(self, text: str) -> pa.Table:
        """The rows of one SELECT over the views of ``docs/sql.md``. Raises WrongUse for SQL that is invalid or writes, and
        for a query over the limits of ``RMQ_SQL_TIMEOUT``, ``RMQ_SQL_MEMORY`` and ``RMQ_SQL_SPILL``."""
        check_types(str, text=text)
        return sql.query(self.lake, text, host=self.host, limits=QueryLimits.of_environment())

    def audit(self, *, full: bool = False) -> pa.Table:
        """The whole audit: a row per contradiction, none when nothing is lost and nothing is counted twice. The columns are
        those of the view ``audit``, then ``file`` and ``detail``. ``full``: read every file too, in this process."""
        check_types(bool, full=full)
        findings = audit(self.lake)
        if full:
            findings = without_repeats([*findings, *audit_contents(self.lake, LocalEngine(self.host)).findings])
        return table_of(findings)


def _root(name: str, given: str | os.PathLike[str]) -> Root:
    """A folder or ``s3://bucket/prefix``. Raises WrongUse for what is neither a text nor a path, such as bytes."""
    path = os.fspath(given) if isinstance(given, os.PathLike) else given
    check_type(str, name, path)
    return Root.parse(path)


def _scoped(
    group: GroupSettings, request: ConsumeRequest, replay: str | None, retries_only: bool
) -> tuple[GroupSettings, ConsumeRequest, Scope]:
    """The group, request and scope of ``consume``."""
    check_types(GroupSettings, group=group)
    check_types(str | None, replay=replay)
    check_types(bool, retries_only=retries_only)
    scope = LIVE
    if retries_only:
        request, scope = only_retries(request)
    if replay is not None:
        group, scope = _of_replay(group, replay)
    return group, request, scope


def _of_replay(group: GroupSettings, name: str) -> tuple[GroupSettings, Scope]:
    """The settings of a replay of the group, and the scope of its follow-up windows."""
    if replayed_group(name) != group.name:
        raise WrongUse(f"{name} is not a replay of group {group.name}: give the group of the replay's report")
    return replace(group, name=name), Scope(retries_only=True)


def _queues(given: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
    """The given queues, with the values that a store can compare with its own."""
    queues = items_of(MessageQueue, "queues", given)
    for queue in queues:
        check_types(str, topic=queue.topic, broker_name=queue.broker_name)
        try:
            queue_id = operator.index(queue.queue_id)
        except TypeError:
            raise WrongUse(
                f"queue_id must be a whole number, it is of the type {type(queue.queue_id).__name__}"
            ) from None
        check_types(int, queue_id=queue_id)
    return queues


def _target(to: datetime | int | str) -> tuple[ResetTo, int | None]:
    if isinstance(to, datetime):
        return ResetTo.TIME, ms_of(to)
    if isinstance(to, int) and not isinstance(to, bool):
        check_types(int, to=to)
        return ResetTo.OFFSET, to
    if isinstance(to, str) and to in (ResetTo.MIN, ResetTo.MAX):
        return ResetTo(to), None
    given = repr(to) if isinstance(to, str | bool | float | None) else f"a value of the type {type(to).__name__}"
    raise WrongUse(f"reset to {given}: give a time (a datetime with a zone), an offset, 'min' or 'max'")
