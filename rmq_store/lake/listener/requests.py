"""What calls need of a listener in another process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from rmq_store.consumer.listener import Answer
from rmq_store.consumer.listener_death import Death, DeathsInARow
from rmq_store.lake.listener.calls import CallRules
from rmq_store.lake.listener.processes import ListenerProcess
from rmq_store.message.message import MessageQueue

Request: TypeAlias = dict[str, Any]
Prepare: TypeAlias = Callable[[ListenerProcess], tuple[Request, Sequence[int]]]
"""A request and its descriptors for a process, which may be a new one."""


class Asking(Protocol):
    """A listener that is loaded in another process (``InItsProcess``)."""

    rules: CallRules
    deaths: DeathsInARow

    def answered(self, prepare: Prepare) -> tuple[Request | Death, ListenerProcess]:
        """The answer to a request, or why there is none, and the process that had it. If it ended with the process that started
        it (``is_starter_dead``), the call is no message's fault, and is made again. Raises ListenerError."""
        ...

    def clean(self, answer: Answer) -> Answer:
        """The answer without the secrets of this process."""
        ...

    def kill(self) -> None:
        """End the process at once."""
        ...


def fields_of(queue: MessageQueue) -> list[str | int]:
    """A queue in a request."""
    return [queue.topic, queue.broker_name, queue.queue_id]
