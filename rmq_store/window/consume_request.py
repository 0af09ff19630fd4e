"""What is asked of a window: a request of a consumer group, and the scope of a replay.

A request that a cap cuts into several windows has parts. Its bounds are chosen once, by part 1, whose ctl row records them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rmq_store.commit.ctl import Actor, Ctl
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue

_CLIENT_ID = re.compile(r"""[^\s,"'\\]{1,255}""")
"""RocketMQ's client ids look like 10.0.0.7@worker-1. A SQL view reads these from JSON text, hence no quotes or backslashes."""


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """A request to consume: up to where, how much, and for which consumer of the group.

    Raises WrongUse for an invalid client id, and when only one of ``client_id`` and ``client_ids`` is given.
    """

    request_id: str
    """Begins with its UTC date, ``YYYY-MM-DD``. The same id is the same request, which is done once."""
    actor: Actor
    reason: str = ""
    until_ms: int | None = None
    """Consume what was stored before this time (UTC ms); None: all that is there when part 1 is planned."""
    max_messages: int | None = None
    """The most messages that the request consumes, all parts together; None: no limit."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What else is recorded with the request, as JSON values."""
    client_id: str | None = None
    """The consumer that this request is for, when several share the group's queues."""
    client_ids: tuple[str, ...] = ()
    """All consumers of the group that run now."""

    def __post_init__(self) -> None:
        if (self.client_id is None) != (not self.client_ids):
            raise WrongUse(
                "consumers that share a group's queues need both: the id of this consumer, and the ids of all that run now"
            )
        for client_id in (self.client_id, *self.client_ids) if self.client_id is not None else ():
            if not _CLIENT_ID.fullmatch(client_id or ""):
                raise WrongUse(
                    f"invalid client id {client_id!r}: give 1 to 255 characters without space, comma, quote or backslash"
                )


@dataclass(frozen=True, slots=True)
class Scope:
    """What a window reads, where it is not an ordinary one. All fields empty: an ordinary window."""

    from_ms: int | None = None
    """A replay: it starts at the first message stored at this time (UTC ms) or later."""
    starts: Mapping[MessageQueue, int] | None = None
    """Where it starts, by queue, if that was chosen before: a replay that was shown starts where the dry run did, also if
    retention has removed messages since. Other queues start by ``from_ms``."""
    retries_only: bool = False
    """It reads only the retries of the group: the follow-up of a replay, or ``only_retries``."""
    bounds: Mapping[MessageQueue, int] | None = None
    """Where the request ends, by queue, if that was chosen before: a further attempt of a replay ends where the commit that
    began it says, and a replay that was shown where the dry run did. Other queues are not read."""


LIVE = Scope()

RETRIES_ONLY = "retries_only"
"""The parameter of a request that reads only the retries of a group which also has topics to read."""

_IDENTITY = ("topic", "from_ms", RETRIES_ONLY)


def only_retries(request: ConsumeRequest) -> tuple[ConsumeRequest, Scope]:
    """The request and its scope, to read only the retries of a group."""
    return replace(request, parameters={**request.parameters, RETRIES_ONLY: True}), Scope(retries_only=True)


def of_retries_only(window: Ctl) -> bool:
    """Whether it was the window of a request for ``only_retries``."""
    return bool(window.parameter(RETRIES_ONLY))


def messages_remaining(max_messages: int | None, parts: Sequence[Ctl]) -> int | None:
    """How many messages a request with that limit may still consume after its ``parts``; None: no limit. Lost offsets do not
    count."""
    if max_messages is None:
        return None
    return max(max_messages - sum(consumed.messages for part in parts for consumed in part.consumed), 0)


def identity_parameters(request: ConsumeRequest) -> dict[str, Any]:
    """The parameters that a request id stands for: the limits, what it leaves out, and of a replay its topic and start.

    A request that comes again with others is refused.
    """
    parameters: dict[str, Any] = {"until_ms": request.until_ms, "max_messages": request.max_messages}
    return parameters | {name: value for name, value in request.parameters.items() if name in _IDENTITY}


BOUNDS = "bounds"
"""The parameter of a request's part 1, and of the commit that begins an attempt of a replay, with its bounds."""


def bounds_of(commit: Ctl) -> dict[MessageQueue, int]:
    """The bounds that a commit has recorded: per queue the offset before which the request, or the attempt, ends."""
    return {MessageQueue(topic, broker, queue_id): end for topic, broker, queue_id, end in commit.parameter(BOUNDS)}


def bounds_parameter(bounds: Mapping[MessageQueue, int]) -> list[list[str | int]]:
    """The value of ``BOUNDS``."""
    return [[queue.topic, queue.broker_name, queue.queue_id, end] for queue, end in sorted(bounds.items())]
