"""What the workers do: commands of ``rmq``, chosen at random from a seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tests.faults.soak.broker import BROKER, FIRST_STORED_MS

DAY = "2025-01-01"
"""Request ids begin with a date: none before which their commits lie (docs/decisions/0001-one-commit-point.md)."""

GROUPS = ("plain", "small", "filtering", "in-order", "absorbing", "late")
CLIENTS = ("everyone@host-1", "everyone@host-2")
SENT_TOPICS = ("Sent", "Doubles", "Other")
SHARD_OF_SENDS = {"Sent": BROKER, "Doubles": BROKER, "Other": "live"}
_STEPS = ("retention", "messages", "derived", "checkpoint", "vacuum")
_REASON = ("--reason", "a test of faults")


@dataclass(frozen=True, slots=True)
class Operation:
    """One command. A run of it may be cut; the same command is then run again."""

    kind: str
    """Its row in the table."""
    arguments: tuple[str, ...]
    """Those of ``rmq``, without the store, the settings and the request."""
    request: str | None = None
    """None: the command takes no request id, and another run of it continues the work."""
    messages: tuple[str, ...] = ()
    """For a send: lines of JSON."""
    keys: tuple[str, ...] = ()
    """For a send: the keys of the messages, in their order."""
    topic: str = ""
    """For a send."""


@dataclass(frozen=True, slots=True)
class Context:
    """What an operation is chosen from."""

    rng: Random
    number: int
    """Of the operation, in its round."""
    broker: str
    """The broker's store directory, or its ``s3://`` prefix."""
    backup: str
    """The root of the backups."""
    engine: str
    """That of single groups: local or spark."""
    written: int
    """The messages that the broker has written."""

    @property
    def request(self) -> str:
        return f"{DAY}-soak-{self.number}"


def choose(context: Context) -> Operation:
    """The next operation."""
    kinds = list(_WEIGHTS)
    make = context.rng.choices(kinds, weights=[_WEIGHTS[kind] for kind in kinds])[0]
    return make(context)


def _window(context: Context) -> Operation:
    group = context.rng.choice(GROUPS)
    engine = () if context.engine == "local" else ("--engine", context.engine)
    return Operation(f"window {group}", ("consume", "--group", group, *engine), context.request)


def _shared_window(context: Context) -> Operation:
    client = context.rng.choice(("c1", "c2"))
    arguments = ("consume", "--group", "plain", "--client", client, "--clients", "c1,c2")
    return Operation("window of a client", arguments, context.request)


def _broadcasting_window(context: Context) -> Operation:
    return Operation("window broadcasting", ("consume", "--group", context.rng.choice(CLIENTS)), context.request)


def _all_windows(context: Context) -> Operation:
    arguments = ("consume", "--all", "--group", "planned-*", "--group", "plain")
    return Operation("consume --all", arguments, context.request)


def _deliver(context: Context) -> Operation:
    return Operation("deliver", ("deliver",), context.request)


def _send(context: Context) -> Operation:
    rng = context.rng
    return send(context.request, rng.choice(SENT_TOPICS), rng.randrange(1, 40), rng)


def send(request: str, topic: str, count: int, rng: Random) -> Operation:
    """Messages with keys of their own; in the topic Doubles, keys repeat."""
    keys = [f"d-{rng.randrange(200)}" if topic == "Doubles" else f"{request}-{n}" for n in range(count)]
    lines = []
    for key in keys:
        message: dict[str, object] = {"topic": topic, "body": key, "keys": [key], "tags": rng.choice("ABC")}
        if topic == "Sent" and rng.random() < 0.1:
            message |= {"delay_level": rng.randrange(1, 4)} if rng.random() < 0.5 else {"delay_ms": 1500}
        lines.append(json.dumps(message))
    arguments = ("send", "--create", "--queues", "2", "--shard", SHARD_OF_SENDS[topic])
    return Operation("send", arguments, request, tuple(lines), tuple(keys), topic)


def import_of(request: str, broker: str) -> Operation:
    return Operation("import", ("import-store", broker, "--broker", BROKER), request)


def _import(context: Context) -> Operation:
    return import_of(context.request, context.broker)


def _reset(context: Context) -> Operation:
    group = context.rng.choice(("plain", "small", "filtering"))
    to = context.rng.choice((("--to-min",), ("--to-max",), ("--to-time", str(_some_time(context)))))
    return Operation("reset", ("reset", "--group", group, "--topic", "Orders", *to, *_REASON), context.request)


def _undo(context: Context) -> Operation:
    group = context.rng.choice(("plain", "small", "filtering"))
    force = context.rng.choice(((), ("--force",)))
    return Operation("undo", ("undo", "--group", group, *force, *_REASON), context.request)


def _delete(context: Context) -> Operation:
    group = context.rng.choice(("plain", "absorbing", "in-order"))
    return Operation("delete-group", ("delete-group", "--group", group, *_REASON), context.request)


def _redrive(context: Context) -> Operation:
    group = context.rng.choice(("plain", "small", "filtering"))
    return Operation("redrive", ("redrive", "--group", group, "--all", *_REASON), context.request)


def _replay(context: Context) -> Operation:
    since = ("--from", str(_some_time(context)))
    return Operation("replay", ("replay", "--group", "plain", "--topic", "Orders", *since), context.request)


def _maintain(context: Context) -> Operation:
    steps: Sequence[str] = () if context.rng.random() < 0.5 else (context.rng.choice(_STEPS),)
    return Operation("maintain", ("maintain", *(word for step in steps for word in ("--step", step))))


def _backup(context: Context) -> Operation:
    return Operation("backup", ("backup", context.backup))


def _rebuild(context: Context) -> Operation:
    return Operation("dispatch --rebuild", ("dispatch", "--rebuild"))


def _audit(context: Context) -> Operation:
    return Operation("audit", ("audit",))


def _some_time(context: Context) -> int:
    """A time (UTC ms) at which the broker has stored a message."""
    return FIRST_STORED_MS + context.rng.randrange(max(context.written, 1))


_WEIGHTS: dict[Callable[[Context], Operation], int] = {
    _window: 34,
    _shared_window: 4,
    _broadcasting_window: 4,
    _all_windows: 6,
    _deliver: 12,
    _send: 12,
    _import: 8,
    _reset: 4,
    _undo: 2,
    _delete: 1,
    _redrive: 5,
    _replay: 2,
    _maintain: 5,
    _backup: 1,
    _rebuild: 1,
    _audit: 1,
}
