"""A world: one engine with one shard, a clock in the test's hand, and what stories say and ask.

``projection`` is everything that must be the same in every engine: messages with their provenance, positions, outcomes,
history. The engines are in ``engines.py``.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any

from rmq_store.admin.dead_letters import DeadLetterFilter
from rmq_store.admin.delete_group import DeleteGroupRequest
from rmq_store.admin.diff import DiffReport
from rmq_store.admin.offset_moves import MoveReport, MoveRequest
from rmq_store.admin.redrive import RedriveReport, RedriveRequest
from rmq_store.admin.replay import as_replay
from rmq_store.admin.reset import ResetRequest, ResetTo
from rmq_store.admin.undo import ACTIONS, UndoRequest, last_action
from rmq_store.commit.ctl import (
    Action,
    Actor,
    Consumed,
    Ctl,
    Observed,
    Produced,
    Proposal,
    StagedFile,
    canonical_json,
)
from rmq_store.commit.positions import Claim, Positions, QueueRange, cutover_id, import_id, max_id, min_id, off_id
from rmq_store.consumer.listener import ConsumeConcurrentlyContext
from rmq_store.consumer.start import ConsumeFromWhere
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.message.message_const import MessageConst
from rmq_store.producer.producer import Message
from rmq_store.producer.send import SendReport
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import LIVE, ConsumeRequest, Scope
from rmq_store.window.deliver import CAP, DeliverReport
from rmq_store.window.plan import LISTENER_VERSION, TASK_MS
from tests.oracle.memory.rows import MessageRow, Stored

SHARD = "broker-a"
LOCAL = f"lake-{SHARD}"
NOON = 1_717_416_000_000
"""2024-06-03 12:00 UTC, where every clock of these tests begins."""
DAY = "2024-06-03"
HOUR = 3_600_000
ANA, BEN = Actor("ana", "test"), Actor("ben", "test")
ALL_LETTERS = DeadLetterFilter(all=True)

Asked = tuple[GroupSettings, ConsumeRequest, Scope]
"""What a window is asked for."""

Listen = Callable[[list[MessageExt], Any], Any]

# --- listeners -------------------------------------------------------------------------------------------------------

LISTENER = f"{__name__}:listen"
_LISTENING: list[Listen] = []


def listen(msgs: list[MessageExt], context: ConsumeConcurrentlyContext) -> Any:
    """The listener of all groups here: it asks what the running test gave to ``World.consume``."""
    return _LISTENING[-1](msgs, context)


def succeed(msgs: list[MessageExt], context: ConsumeConcurrentlyContext) -> Any:
    return "CONSUME_SUCCESS"


def fail(msgs: list[MessageExt], context: ConsumeConcurrentlyContext) -> Any:
    return "RECONSUME_LATER"


def fail_bodies(*bodies: bytes) -> Listen:
    """One status per message; these bodies fail."""
    return lambda msgs, context: ["RECONSUME_LATER" if m.body in bodies else "CONSUME_SUCCESS" for m in msgs]


@contextmanager
def listening(listener: Listen) -> Iterator[None]:
    _LISTENING.append(listener)
    try:
        yield
    finally:
        _LISTENING.pop()


# --- what a story is made of -----------------------------------------------------------------------------------------


class Clock:
    """Epoch ms that move only when a test (or a wait) moves them."""

    def __init__(self) -> None:
        self.now_ms = NOON

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


def orders(queue_id: int = 0, topic: str = "Orders") -> MessageQueue:
    return MessageQueue(topic, SHARD, queue_id)


def said(number: int, *, tag: str | None = None, at: int = NOON - HOUR, **properties: str) -> MessageRow:
    """An imported message: its body is its number, its id follows from it."""
    tags = {} if tag is None else {MessageConst.TAGS: tag}
    return MessageRow(
        body=b"%d" % number,
        properties={MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX: f"U{number}", **tags, **properties},
        store_timestamp=at,
        offset_msg_id=f"{number:032X}",
        born_timestamp=at - 5,
        born_host="10.0.0.1|4000",
    )


def several(count: int, first: int = 0, step_ms: int = 1000) -> list[MessageRow]:
    """``count`` messages, one every ``step_ms``."""
    return [said(first + n, at=NOON - HOUR + n * step_ms) for n in range(count)]


def group(
    name: str = "billing", topics: Mapping[str, str] | Sequence[str] = ("Orders",), **settings: Any
) -> GroupSettings:
    """A group that begins at the first message and gets whole batches, unless ``settings`` say otherwise."""
    expressions = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, "*")
    usual: dict[str, Any] = {
        "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        "consume_message_batch_max_size": 32,
        "listener_process": False,  # what a listener answers is a function of the running test
    }
    subscriptions = tuple(build_subscription_data(topic, expression) for topic, expression in expressions.items())
    return GroupSettings(name, LISTENER, subscriptions, **(usual | settings))


@dataclass(frozen=True, slots=True)
class Move:
    """One step in the history of an offset."""

    queue: MessageQueue
    from_offset: int | None
    to_offset: int
    pass_: int
    action: str
    request_id: str
    actor: str
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A range with an outcome and no message."""

    range: QueueRange
    pass_: int
    outcome: str


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """A key that a group has acked, and the group's epoch then."""

    key: str
    queue: MessageQueue
    offset: int
    epoch: int


def import_parameters(broker_name: str, *, end: int = 0) -> str:
    """What the record of every import has. ``end``: the position of the broker's import."""
    return canonical_json({"broker_name": broker_name, "range": [0, end], "messages": 0, "fingerprint": [0, ""]})


class World(ABC):
    """One engine with one shard."""

    name: str

    def __init__(self) -> None:
        self.clock = Clock()
        self.store_skew_ms = 0
        self._hosts = self._fills = 0
        self._seen: dict[tuple[str, MessageQueue], Observed] = {}
        self.host = self.another_host()

    def another_host(self, interruption: Callable[[], object] | None = None, before_id: int = 1) -> Host:
        """A host that lives in this world, with ids of its own. ``interruption``: what happens to the world just before
        the host makes its n-th id. The first one is that of its claim, the second that of what it does then."""
        self._hosts += 1
        entropy, made = Random(self._hosts).randbytes, count(1)

        def interrupted(size: int) -> bytes:
            if next(made) == before_id and interruption:
                interruption()
            return entropy(size)

        return Host(
            now_ms=self.clock,
            entropy=interrupted,
            sleep=lambda seconds: self.clock.advance(int(seconds * 1000) + 1),
            uniform=lambda least, most: most,
        )

    def store_clock(self) -> int:
        return self.clock() + self.store_skew_ms

    # --- what each engine does in its own way ---

    @abstractmethod
    def at_step(self, step: str, happens: Callable[[], object]) -> AbstractContextManager[None]:
        """Something happens when the next job reaches a step of the commit protocol."""

    @abstractmethod
    def in_shard(self, name: str) -> AbstractContextManager[None]:
        """What is done inside is done in this shard, which is made where it is missing."""

    @abstractmethod
    def stage(self, commit_id: str, queue: MessageQueue, rows: Sequence[MessageRow]) -> StagedFile: ...

    @abstractmethod
    def commit(self, proposal: Proposal) -> None: ...

    @abstractmethod
    def consume_window(
        self, group: GroupSettings, request: ConsumeRequest, host: Host, scope: Scope
    ) -> WindowReport: ...

    @abstractmethod
    def begin_attempt(self, group: GroupSettings, request: ConsumeRequest) -> Asked: ...

    @abstractmethod
    def diff(self, name: str, asked: tuple[int, int] | None = None, limit: int = 100) -> DiffReport:
        """Two attempts of a replay."""

    @abstractmethod
    def deliver_due(self, request_id: str, now_ms: int | None, cap: int, host: Host) -> DeliverReport: ...

    @abstractmethod
    def send_messages(
        self, messages: Sequence[Message], request_id: str, host: Host, create_queues: int | None, dry_run: bool
    ) -> SendReport: ...

    @abstractmethod
    def redrive_letters(self, request: RedriveRequest, host: Host) -> RedriveReport: ...

    @abstractmethod
    def move(self, request: MoveRequest, host: Host | None = None) -> MoveReport: ...

    @abstractmethod
    def search(self, queue: MessageQueue, time_ms: int, *, upper: bool = False) -> int: ...

    @abstractmethod
    def positions(self) -> Positions: ...

    @abstractmethod
    def ctls(self) -> list[Ctl]:
        """All commits, oldest first."""

    @abstractmethod
    def stored(self, queue: MessageQueue) -> list[Stored]:
        """All messages of a queue."""

    @abstractmethod
    def history(self, group: str) -> list[Move]: ...

    @abstractmethod
    def outcomes(self, group: str) -> list[Lost]: ...

    @abstractmethod
    def keys(self, group: str) -> list[Key]:
        """The keys that a group has acked."""

    # --- for stories ---

    def consume(
        self,
        group: GroupSettings,
        request_id: str,
        listener: Listen = succeed,
        *,
        actor: Actor = ANA,
        host: Host | None = None,
        scope: Scope = LIVE,
        until_ms: int | None = None,
        max_messages: int | None = None,
        client_id: str | None = None,
        client_ids: tuple[str, ...] = (),
    ) -> WindowReport:
        """One window of a request."""
        request = ConsumeRequest(
            request_id, actor, until_ms=until_ms, max_messages=max_messages, client_id=client_id, client_ids=client_ids
        )
        with listening(listener):
            return self.consume_window(group, request, host or self.host, scope)

    def replay(
        self, group: GroupSettings, topic: str, from_ms: int, request: ConsumeRequest, listener: Listen = succeed
    ) -> WindowReport:
        """One window of a replay."""
        replaying, recorded, scope = as_replay(group, topic, from_ms, request)
        with listening(listener):
            return self.consume_window(replaying, recorded, self.host, scope)

    def reprocess(
        self, name: str, request_id: str, listener: Listen = succeed, *, reason: str = "mended", **settings: Any
    ) -> WindowReport:
        """One window of another attempt of a replay."""
        asked = self.begin_attempt(group(name, **settings), ConsumeRequest(request_id, ANA, reason))
        with listening(listener):
            return self.consume_window(asked[0], asked[1], self.host, asked[2])

    def deliver(
        self, request_id: str, *, now_ms: int | None = None, cap: int = CAP, host: Host | None = None
    ) -> DeliverReport:
        """Everything that is due, in one commit."""
        return self.deliver_due(request_id, now_ms, cap, host or self.host)

    def send(
        self,
        messages: Sequence[Message],
        request_id: str,
        *,
        host: Host | None = None,
        create_queues: int | None = None,
        dry_run: bool = False,
    ) -> SendReport:
        """Messages into queues of the lake."""
        return self.send_messages(messages, request_id, host or self.host, create_queues, dry_run)

    def fill(self, queue: MessageQueue, rows: Sequence[MessageRow], base: int | None = None) -> None:
        """Store messages as an import does: at the queue's end, or from ``base`` on (a first one makes min)."""
        self._fills += 1
        at = self.positions().max_offset(queue) if base is None else base
        times = [row.store_timestamp or 0 for row in rows]
        ctl = self._import()
        file = self.stage(ctl.commit_id, queue, rows)
        segment = Produced(
            queue, 0, len(rows), 0, file.path, at, min_store_timestamp=min(times), max_store_timestamp=max(times)
        )
        advance = {max_id(queue): at + len(rows)}
        if at and self.positions().get(max_id(queue)) is None:
            advance[min_id(queue)] = at
        self.commit(Proposal(replace(ctl, produced=(segment,)), {}, advance, (file,), {max_id(queue): max(times)}))

    def fill_lake_born(self, queue_id: int, rows: Sequence[MessageRow], topic: str = "Orders") -> MessageQueue:
        """Store messages that are born in the lake: places, times and ids follow from the commit."""
        self._fills += 1
        queue = MessageQueue(topic, LOCAL, queue_id)
        ctl = self._import()
        file = self.stage(ctl.commit_id, queue, rows)
        segment = Produced(queue, 0, len(rows), 0, file.path)
        self.commit(Proposal(replace(ctl, produced=(segment,)), {}, {}, (file,)))
        return queue

    def trim(self, queue: MessageQueue, least: int) -> None:
        """Retention: messages before ``least`` cannot be read any more."""
        self.commit(Proposal(self._import(), {}, {min_id(queue): least}))

    def cut_over(self) -> None:
        """The broker's files are closed for good."""
        self.commit(Proposal(self._import(), {}, {cutover_id(SHARD): 1}))

    def observe(self, group: str, queue: MessageQueue, offset: int) -> None:
        """An import that saw this offset of a group at its broker, and those that earlier ones saw of other groups."""
        self._seen[group, queue] = Observed(group, queue, offset)
        facts = import_parameters(SHARD, end=self._fills)
        seen = self._import(parameters=facts, observed=tuple(self._seen.values()))
        self.commit(Proposal(seen, {}, {import_id(SHARD): self._fills}))

    def _import(self, **said: Any) -> Ctl:
        usual = {"request_id": f"{DAY}-fill-{self._fills}", "parameters": import_parameters("by hand")}
        return Ctl(self.host.new_commit_id(), Action.IMPORT, ANA, **(usual | said))

    def reset_to(
        self,
        to: ResetTo,
        value: int | None = None,
        *,
        request_id: str = f"{DAY}-reset",
        host: Host | None = None,
        **more: Any,
    ) -> MoveReport:
        """A reset of the group ``billing`` on ``Orders``."""
        usual: dict[str, Any] = {"group": "billing", "topic": "Orders", "actor": ANA, "reason": "wrong price"}
        return self.move(ResetRequest(to=to, value=value, request_id=request_id, **(usual | more)), host)

    def undo(self, request_id: str = f"{DAY}-undo", *, host: Host | None = None, **more: Any) -> MoveReport:
        """Of the last action on the group ``billing``."""
        usual: dict[str, Any] = {"group": "billing", "actor": ANA, "reason": "another group was meant"}
        arguments = usual | more
        commits = [ctl for ctl in self.ctls() if ctl.group == arguments["group"]]
        made = [ctl for ctl in commits if (ctl.action, ctl.request_id) == (Action.UNDO, request_id)]
        undone = next((ctl for ctl in commits if made and ctl.commit_id == made[0].parameter("undoes_commit")), None)
        undone = undone or last_action(ctl for ctl in commits if ctl.action in ACTIONS)
        if undone is None:
            raise WrongUse("no action to undo")
        return self.move(UndoRequest(undone=undone, request_id=request_id, **arguments), host)

    def delete(self, request_id: str = f"{DAY}-delete", host: Host | None = None, **more: Any) -> MoveReport:
        """Of the group ``billing``."""
        usual: dict[str, Any] = {"group": "billing", "actor": ANA, "reason": "nobody needs it"}
        return self.move(DeleteGroupRequest(request_id=request_id, **(usual | more)), host)

    def redrive(
        self,
        request_id: str = f"{DAY}-redrive",
        letters: DeadLetterFilter = ALL_LETTERS,
        *,
        host: Host | None = None,
        **more: Any,
    ) -> RedriveReport:
        """A part of a redrive of the group ``billing``."""
        usual: dict[str, Any] = {"group": "billing", "actor": ANA, "reason": "price is known"}
        request = RedriveRequest(dead_letters=letters, request_id=request_id, **(usual | more))
        return self.redrive_letters(request, host or self.host)

    def offset(self, queue: MessageQueue, group: str = "billing") -> int | None:
        return self.positions().get(off_id(group, queue))

    def lane(self, level: int, group: str = "billing") -> list[Stored]:
        """What waits, or waited, in a delay level of the group."""
        return self.stored(MessageQueue("SCHEDULE_TOPIC_XXXX", f"{LOCAL}~{group}", level - 1))

    def retries(self, group: str = "billing", queue_id: int = 0) -> list[Stored]:
        return self.stored(MessageQueue(f"%RETRY%{group}", LOCAL, queue_id))

    def dead_letters(self, group: str = "billing") -> list[Stored]:
        return self.stored(MessageQueue(f"%DLQ%{group}", LOCAL, 0))

    def due_at(self, queue: MessageQueue) -> dict[int, int | None]:
        """Per offset of a level queue the time it is due at."""
        return {
            (segment.base or 0) + n: segment.deliver_at
            for ctl in self.ctls()
            for segment in ctl.produced
            if segment.queue == queue
            for n in range(segment.count)
        }

    def projection(self) -> dict[str, Any]:
        """Everything that must be the same in every engine."""
        positions, ctls = self.positions(), [c for c in self.ctls() if c.action not in _CLAIMS]
        queues = positions.all_queues()
        stored = {queue: self.stored(queue) for queue in queues}
        places = {m.offset_msg_id: f"{m.queue}/{m.queue_offset}" for several in stored.values() for m in several}
        groups = sorted({ctl.group for ctl in ctls if ctl.group})
        return {
            "positions": {app_id: _value(app_id, value) for app_id, (value, _) in sorted(positions.items())},
            "messages": {str(queue): [_message(m, places) for m in stored[queue]] for queue in queues},
            "due": {str(queue): self.due_at(queue) for queue in queues},
            "commits": [_ctl(ctl) for ctl in ctls],
            "history": {name: self.history(name) for name in groups},
            "outcomes": {name: self.outcomes(name) for name in groups},
            "keys": {name: sorted(self.keys(name)) for name in groups},
        }


_CLAIMS = (Action.CLAIM, Action.RENEW, Action.RELEASE)


def _value(app_id: str, value: int) -> int:
    return Claim.of(value).number if app_id.startswith("own/") else value


UNIQUE_KEY_DIGITS, RANDOM_DIGITS = 32, 20


def _message(message: Stored, places: Mapping[str, str]) -> dict[str, Any]:
    """A message without ids that differ from run to run: the id of its first copy is told as that one's place, and of a
    key that a send made the random part is left out."""
    row, properties = message.row, dict(message.row.properties)
    if MessageConst.ORIGIN_MESSAGE_ID in properties:
        own = properties[MessageConst.ORIGIN_MESSAGE_ID]
        properties[MessageConst.ORIGIN_MESSAGE_ID] = places.get(own) or _not_by_chance(own)
    key = properties.get(MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
    if key is not None:
        properties[MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX] = _not_by_chance(key)
    return {
        "offset": message.queue_offset,
        "body": row.body,
        "properties": properties,
        "store_timestamp": message.store_timestamp,
        "reconsume_times": row.reconsume_times,
        "born": (row.born_timestamp, row.born_host),
        "provenance": row.provenance,
    }


def _not_by_chance(key: str) -> str:
    return key[RANDOM_DIGITS:] if len(key) == UNIQUE_KEY_DIGITS else key


def _ctl(ctl: Ctl) -> dict[str, Any]:
    names = (
        "action", "actor", "reason", "request_id", "request_part", "request_complete", "group", "epoch", "window_id",
        "read_version", "store_timestamp", "subscription", "listener", "moved", "blocked",
    )  # fmt: skip
    told = {name: getattr(ctl, name) for name in names}
    # "claim" and "undoes_commit" are random ids, TASK_MS depends on the machine; memory has no LISTENER_VERSION
    omitted = ("claim", "undoes_commit", TASK_MS, LISTENER_VERSION)
    parameters = {name: value for name, value in json.loads(ctl.parameters).items() if name not in omitted}
    return told | {"parameters": parameters, "consumed": [_consumed(c) for c in ctl.consumed]}


def _consumed(consumed: Consumed) -> tuple[Any, ...]:
    tallies = {outcome: tally for outcome, tally in consumed.tallies.items() if tally.count}
    return consumed.range, consumed.pass_, consumed.start_rule, tallies


# --- what tests ask --------------------------------------------------------------------------------------------------


def counts(report: WindowReport) -> dict[str, int]:
    """What became of the messages, by outcome; outcomes without any are left out."""
    return {str(outcome): count for outcome, count in report.counts().items() if count}


def consumed(report: WindowReport) -> dict[MessageQueue, tuple[int, int]]:
    """The range of every queue."""
    return {c.range.queue: (c.range.begin, c.range.end) for c in report.consumed}


def bodies(messages: Iterable[Stored]) -> list[bytes | None]:
    return [message.row.body for message in messages]


BILLING = group()
"""The group of most stories: everything of ``Orders``, from the first message on."""
