"""A listener in a process of its own, as one task uses it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rmq_store.consumer.consume_orderly import OrderlyCall
from rmq_store.consumer.listener import Answer, ListenerKind
from rmq_store.consumer.listener_death import Death, DeathsInARow
from rmq_store.errors import ListenerError, ListenerNotStarted
from rmq_store.lake.listener.calls import CallRules, Rows, RowsToConsume
from rmq_store.lake.listener.concurrent_calls import ConcurrentCalls
from rmq_store.lake.listener.orderly_calls import OrderlyCalls
from rmq_store.lake.listener.pool import Start, give_back, take
from rmq_store.lake.listener.processes import (
    ENDED_TWICE,
    STARTS,
    Limits,
    ListenerProcess,
    current_folder,
    environment_of,
    import_path,
)
from rmq_store.lake.listener.redaction_hook import redaction_hook
from rmq_store.lake.listener.requests import Prepare, Request
from rmq_store.message.message import MessageQueue
from rmq_store.utils.redaction import NAME_BYTES, cleaned, secret_values

_STARTS = 3
"""So often a process is started again that ends before it begins with a request."""

_LOADING_S = 300
"""So long the import of a listener may take, if its calls may not take longer."""


class InItsProcess:
    """A listener that is loaded in another process."""

    @classmethod
    @contextmanager
    def opened(
        cls, name: str, rules: CallRules, limits: Limits, variables: Sequence[str], now_ms: Callable[[], int]
    ) -> Iterator[InItsProcess]:
        """For one task: the process waits for the next task afterwards; it is killed if the task fails.

        ``variables``: names of the environment that the listener gets. Raises ListenerError when it cannot be loaded.
        """
        environment = environment_of(variables)
        start = Start(name, tuple(environment.items()), tuple(import_path()), current_folder(), limits)
        listener = cls(start, rules, now_ms)
        try:
            listener.load()
            yield listener
        except BaseException:
            listener.kill()
            raise
        listener.give_back()

    def __init__(self, start: Start, rules: CallRules, now_ms: Callable[[], int]) -> None:
        self.name = start.listener
        self.kind = ListenerKind.MESSAGE
        self.columns: tuple[str, ...] | None = None
        self.version = ""
        self._start, self.rules, self._now_ms = start, rules, now_ms
        self._process: ListenerProcess | None = None
        self.deaths = DeathsInARow(start.listener)
        self._redact = redaction_hook()
        self._secrets: tuple[str, ...] | None = None
        self._in_order: OrderlyCalls | None = None

    # --- the process ---

    def load(self) -> None:
        """Load the listener. Raises ListenerError."""
        if (idle := take(self._start)) is not None:
            answer = self._loaded(idle, {})
            if not isinstance(answer, Death):
                return
        self._started()

    def _started(self) -> ListenerProcess:
        """A new process that has loaded the listener."""
        start = self._start
        first = {
            "environment": dict(start.environment),
            "path": start.path,
            "folder": start.folder,
            "memory_mib": start.limits.memory_mib,
            "cpu_s": start.limits.cpu_s,
        }
        for _ in range(STARTS):
            process = ListenerProcess()
            answer = self._loaded(process, {"first": first})
            if not isinstance(answer, Death):
                return process
            if not process.is_starter_dead:
                raise ListenerError(f"listener {self.name} cannot be loaded: {answer.text}")
        raise ListenerNotStarted(ENDED_TWICE)

    def _loaded(self, process: ListenerProcess, more: Request) -> Request | Death:
        number = process.send({"do": "load", "listener": self.name} | more)
        limits = self._start.limits
        most_s = limits.timeout_s and max(limits.timeout_s, _LOADING_S)
        answer = process.answer(number, replace(limits, timeout_s=most_s), self._now_ms)
        if isinstance(answer, Death):
            return answer
        if "error" in answer:
            process.kill()
            raise ListenerError(self._text(answer["error"]))
        process.shared.clear()
        self._process = process
        self.kind = ListenerKind(answer["kind"])
        self.columns = None if answer["columns"] is None else tuple(map(str, answer["columns"]))
        self.version = str(answer["version"])
        return answer

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def give_back(self) -> None:
        """Leave the process to the next task."""
        if self._process is not None:
            give_back(self._start, self._process)
            self._process = None

    def answered(self, prepare: Prepare) -> tuple[Request | Death, ListenerProcess]:
        """The answer to a request, or why there is none, and the process that had it. A process that ends before it begins
        with the request is started again. Raises ListenerError."""
        kind, text = ListenerError, ""
        for _ in range(_STARTS):
            process = self._process or self._started()
            request, fds = prepare(process)
            begun = process.board.request
            number = process.send(request, fds)
            answer = process.answer(number, self._start.limits, self._now_ms)
            if not isinstance(answer, Death):
                if "error" in answer:
                    raise ListenerError(self._text(answer["error"]))
                return answer, process
            self._process = None
            kind, text = ListenerNotStarted if process.is_starter_dead else ListenerError, answer.text
            if process.board.request != begun:  # nothing else than a request changes it
                if process.is_starter_dead:
                    self.deaths.ended_with_starter()
                return answer, process
        raise kind(f"the process of listener {self.name} ends before it is called: {text}")

    # --- calls ---

    def ask(self, rows: RowsToConsume) -> tuple[Rows, Sequence[Answer]]:
        """See ``TaskListener``."""
        if self.kind is ListenerKind.BATCH and self.columns is not None:
            rows = replace(rows, batch=rows.batch.select(list(self.columns)))
        size = len(rows.offsets) if self.kind is ListenerKind.BATCH else self.rules.batch_max_size
        return ConcurrentCalls(self, rows).answers(size)

    def in_order(self, queue: MessageQueue, *, ahead: bool) -> OrderlyCall:
        """See ``TaskListener``."""
        self._in_order = OrderlyCalls(self, queue, ahead=ahead)
        return self._in_order

    @property
    def deaths_of_task(self) -> int | None:
        """See ``TaskListener``."""
        return self.deaths.of_task

    @property
    def is_ahead(self) -> bool:
        """See ``TaskListener``."""
        return self._in_order is not None and self._in_order.is_ahead

    # --- texts ---

    def clean(self, answer: Answer) -> Answer:
        """The answer without the secrets of this process: the listener has an environment of its own."""
        if answer.error_type is None:
            return answer
        kind = cleaned(answer.error_type, self._known_secrets(), NAME_BYTES)
        return self._redact(replace(answer, error_type=kind, error_text=self._text(answer.error_text or "")))

    def _text(self, text: str) -> str:
        return cleaned(str(text), self._known_secrets())

    def _known_secrets(self) -> tuple[str, ...]:
        if self._secrets is None:
            self._secrets = secret_values(os.environ)
        return self._secrets
