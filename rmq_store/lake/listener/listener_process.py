"""A listener in a process of its own, as one task uses it: its calls, and what follows when the process dies in one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, groupby
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from rmq_store.consumer.consume_orderly import OrderlyAnswer, OrderlyCall
from rmq_store.consumer.listener import Answer, ConsumeOrderlyStatus, ListenerKind
from rmq_store.consumer.listener_death import Death, DeathKind, DeathsInARow, Ran, run_calls
from rmq_store.errors import ListenerError
from rmq_store.lake.listener.calls import CallRules, Rows, RowsToConsume
from rmq_store.lake.listener.pool import Start, give_back, take
from rmq_store.lake.listener.processes import Limits, ListenerProcess, environment_of, import_path
from rmq_store.lake.listener.shared_memory import BadBoard, SharedRows
from rmq_store.lake.read.message_view import MessageColumns, MessageView
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.utils.redaction import NAME_BYTES, cleaned, secret_values

_STARTS = 3
"""So often a process is started again that ends before it begins with a request."""

_LOADING_S = 300
"""So long the import of a listener may take, if its calls may not take longer."""

Request = dict[str, Any]
Prepare = Callable[[ListenerProcess], tuple[Request, Sequence[int]]]
"""A request and its descriptors for a process, which may be a new one."""


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
        start = Start(name, tuple(environment.items()), tuple(import_path()), limits)
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
        self._start, self.rules, self._now_ms = start, rules, now_ms
        self._process: ListenerProcess | None = None
        self.deaths = DeathsInARow(start.listener)
        self._secrets: tuple[str, ...] | None = None
        self._in_order: WeakKeyDictionary[MessageColumns, int] = WeakKeyDictionary()
        self._numbers = count(1)

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
            "memory_mib": start.limits.memory_mib,
            "cpu_s": start.limits.cpu_s,
        }
        process = ListenerProcess()
        answer = self._loaded(process, {"first": first})
        if isinstance(answer, Death):
            raise ListenerError(f"listener {self.name} cannot be loaded: {answer.text}")
        return process

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
        self._process = process
        self.kind = ListenerKind(answer["kind"])
        self.columns = None if answer["columns"] is None else tuple(map(str, answer["columns"]))
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
        with the request is started again."""
        death = None
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
            self._process, death = None, answer
            if process.board.request != begun:  # nothing else than a request changes it
                return answer, process
        raise ListenerError(f"the process of listener {self.name} ends before it is called: {death and death.text}")

    # --- concurrent ---

    def ask(self, rows: RowsToConsume) -> tuple[Rows, Sequence[Answer]]:
        """See ``TaskListener``."""
        if self.kind is ListenerKind.BATCH and self.columns is not None:
            rows = replace(rows, batch=rows.batch.select(list(self.columns)))
        size = len(rows.offsets) if self.kind is ListenerKind.BATCH else self.rules.batch_max_size
        return _Asked(self, rows).answers(size)

    # --- in order ---

    def in_order(self, queue: MessageQueue) -> OrderlyCall:
        """See ``TaskListener``."""

        def call(messages: Sequence[MessageExt]) -> OrderlyAnswer:
            return self._call(queue, messages)

        return call

    def _call(self, queue: MessageQueue, messages: Sequence[MessageExt]) -> OrderlyAnswer:
        places = [message.place for message in messages if isinstance(message, MessageView)]
        runs = [(columns, [row for _, row in run]) for columns, run in groupby(places, key=lambda place: place[0])]

        def prepare(process: ListenerProcess) -> tuple[Request, Sequence[int]]:
            parts = [[self._shared(process, columns), rows[0], rows[-1] + 1] for columns, rows in runs]
            return {
                "do": "call",
                "queue": _fields(queue),
                "group": self.rules.group,
                "parts": parts,
                "times": [message.reconsume_times for message in messages],
                "oldest": min(self._in_order.values()),
            }, ()

        answer, _ = self.answered(prepare)
        if not isinstance(answer, Death):
            try:
                result = OrderlyAnswer(
                    ConsumeOrderlyStatus(answer["status"]),
                    self.clean(Answer(False, 0, answer["error_type"], answer["error_text"])),
                    bool(answer["auto_commit"]),
                    int(answer["suspend_ms"]),
                )
            except (KeyError, ValueError, TypeError):
                self.kill()
                answer = Death(DeathKind.KILLED, "its process has written into the pipe of its answers")
            else:
                self.deaths.returned()
                return result
        self.deaths.died(f"{queue}, offset {messages[0].queue_offset}", answer)
        return OrderlyAnswer(ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, self.clean(answer.answer()))

    def _shared(self, process: ListenerProcess, columns: MessageColumns) -> int:
        """The number of rows that the process has; it gets them here, if it does not."""
        number = self._in_order.get(columns)
        if number is None:
            number = self._in_order[columns] = next(self._numbers)
        if number not in process.shared:
            memory, rows = SharedRows(), RowsToConsume(*columns.rows)
            used = memory.write(rows)
            request = {
                "do": "share",
                "number": number,
                "queue": _fields(rows.queue),
                "bytes": used,
                "size": memory.size,
            }
            process.send(request, [memory.fd])
            memory.close()
            process.shared.add(number)
        return number

    # --- texts ---

    def clean(self, answer: Answer) -> Answer:
        """The answer without the secrets of this process: the listener has an environment of its own."""
        if answer.error_type is None:
            return answer
        kind = cleaned(answer.error_type, self._known_secrets(), NAME_BYTES)
        return replace(answer, error_type=kind, error_text=self._text(answer.error_text or ""))

    def _text(self, text: str) -> str:
        return cleaned(str(text), self._known_secrets())

    def _known_secrets(self) -> tuple[str, ...]:
        if self._secrets is None:
            self._secrets = secret_values(os.environ)
        return self._secrets


class _Asked:
    """The calls for the rows of one batch."""

    def __init__(self, listener: InItsProcess, rows: RowsToConsume) -> None:
        self._listener, self._rows = listener, rows
        self._written: ListenerProcess | None = None
        self._bytes = 0
        self._kept = False
        self._failed: list[Rows] = []
        self._answers: list[Answer] = []

    def answers(self, size: int) -> tuple[Rows, Sequence[Answer]]:
        run_calls(len(self._rows.offsets), size, self._run, self._fail)
        if self._written is not None:
            self._written.rows.let_go(kept=self._kept)
        failed, answers = self._failed, self._answers
        return np.concatenate(failed) if len(failed) > 1 else failed[0] if failed else (), answers

    def _run(self, begin: int, end: int, size: int) -> Ran:
        answer, process = self._listener.answered(lambda process: self._request(process, begin, end, size))
        board, death = process.board, answer if isinstance(answer, Death) else None
        judged = board.judged
        try:
            if not begin <= judged <= end or (judged == begin and death is None):
                raise BadBoard
            failed, answers = board.failures(begin, judged, self._listener.clean)
        except BadBoard:
            self._listener.kill()
            if death is None:
                death = Death(DeathKind.KILLED, "its process has overwritten the memory of its answers")
            return Ran(None, death)
        if len(failed):
            self._failed.append(failed)
            self._answers += answers
        if judged > begin:
            self._listener.deaths.returned()
        if isinstance(answer, Death):
            return Ran(judged) if judged == end else Ran(judged, answer)
        self._kept = self._kept or answer.get("kept") is not False
        return Ran(judged)

    def _request(self, process: ListenerProcess, begin: int, end: int, size: int) -> tuple[Request, Sequence[int]]:
        memory, rules = process.rows, self._listener.rules
        if self._written is not process:
            self._bytes = memory.write(self._rows)
            self._written, self._kept = process, False
        fds = []
        if process.mapped != memory.generation:
            process.mapped, fds = memory.generation, [memory.fd]
        return {
            "do": "ask",
            "queue": _fields(self._rows.queue),
            "rules": [rules.group, rules.batch_max_size, rules.timeout_ms, rules.all_or_nothing],
            "begin": begin,
            "end": end,
            "batch": size,
            "bytes": self._bytes,
            "size": memory.size,
        }, fds

    def _fail(self, row: int, death: Death) -> None:
        queue, offset = self._rows.queue, int(self._rows.offsets[row])
        self._listener.deaths.died(f"{queue}, offset {offset}", death)
        self._failed.append([row])
        self._answers.append(self._listener.clean(death.answer()))


def _fields(queue: MessageQueue) -> list[str | int]:
    return [queue.topic, queue.broker_name, queue.queue_id]
