"""The calls of a concurrent listener in another process, and what follows when the process dies in one of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rmq_store.consumer.listener import Answer
from rmq_store.consumer.listener_death import Death, DeathKind, Ran, run_calls
from rmq_store.lake.listener.calls import Rows, RowsToConsume
from rmq_store.lake.listener.processes import ListenerProcess
from rmq_store.lake.listener.requests import Asking, Request, fields_of
from rmq_store.lake.listener.shared_memory import BadBoard


class ConcurrentCalls:
    """The calls for the rows of one batch."""

    def __init__(self, listener: Asking, rows: RowsToConsume) -> None:
        self._listener, self._rows = listener, rows
        self._written: ListenerProcess | None = None
        self._bytes = 0
        self._kept = False
        self._failed: list[Rows] = []
        self._answers: list[Answer] = []

    def answers(self, size: int) -> tuple[Rows, Sequence[Answer]]:
        """Call it for all rows, at most ``size`` in one call: those that failed, ascending, and their answers."""
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
            return Ran(judged) if judged == end or process.is_starter_dead else Ran(judged, answer)
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
            "queue": fields_of(self._rows.queue),
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
