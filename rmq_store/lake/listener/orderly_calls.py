"""The calls of an orderly listener in another process.

Each call waits for the one before, so that a message could cost two switches between processes. Therefore a request is for
several batches: the process goes on to the next as long as the listener answers SUCCESS, and the answers are kept here until
they are asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count, groupby
from typing import Final
from weakref import WeakKeyDictionary

from rmq_store.consumer.consume_orderly import OrderlyAnswer
from rmq_store.consumer.listener import Answer, ConsumeOrderlyStatus
from rmq_store.consumer.listener_death import Death, DeathKind
from rmq_store.lake.listener.calls import RowsToConsume
from rmq_store.lake.listener.processes import ListenerProcess
from rmq_store.lake.listener.requests import Asking, Request, fields_of
from rmq_store.lake.listener.shared_memory import SharedRows
from rmq_store.lake.read.message_view import MessageColumns, MessageView
from rmq_store.message.message import MessageExt, MessageQueue

MOST_AHEAD: Final = 256
"""Messages of a request behind those that were asked for."""

_NUMBERS: Final = count(1)
"""Of rows that a process has; a process has those of one queue after the other."""

_SUCCESS: Final = OrderlyAnswer(ConsumeOrderlyStatus.SUCCESS, Answer(False))


class OrderlyCalls:
    """The calls for one queue: an ``OrderlyCall`` for batches of MessageViews, each of which goes on where the last one that
    succeeded ended.

    ``ahead``: whether the process may go on to messages that were not asked for yet.
    """

    def __init__(self, listener: Asking, queue: MessageQueue, *, ahead: bool) -> None:
        self._listener, self._queue, self._ahead = listener, queue, ahead
        self._answers: deque[tuple[int, OrderlyAnswer | Death]] = deque()
        """By the first offset of each batch."""
        self._numbers: WeakKeyDictionary[MessageColumns, int] = WeakKeyDictionary()
        """Of the rows that are in use."""

    @property
    def is_ahead(self) -> bool:
        """Whether there are answers that were not asked for yet."""
        return bool(self._answers)

    def __call__(self, messages: Sequence[MessageExt]) -> OrderlyAnswer:
        """The answer for a batch. Raises ListenerError."""
        first = messages[0].queue_offset
        most_ahead = MOST_AHEAD if self._ahead else 0
        while not self._answers:
            views = [message for message in messages if isinstance(message, MessageView)]
            if not self._request(views, most_ahead):
                most_ahead = 0
        offset, answer = self._answers.popleft()
        if offset != first:
            raise AssertionError(f"{self._queue}: the batch at offset {first} is asked for after that at {offset}")
        if isinstance(answer, Death):
            self._listener.deaths.died(f"{self._queue}, offset {first}", answer)
            failed = self._listener.clean(answer.answer())
            return OrderlyAnswer(ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, failed)
        self._listener.deaths.returned()
        return answer

    def _request(self, messages: Sequence[MessageView], most_ahead: int) -> bool:
        """Call the listener for the messages and ``most_ahead`` behind them at most, and keep the answers. Returns whether
        it can be made so again, if it has no answers: not if the process has ended, and it is not known in which of several
        calls."""
        runs = [
            (columns, [message.place[1] for message in run])
            for columns, run in groupby(messages, key=lambda message: message.place[0])
        ]
        columns, rows = runs[-1]
        size, behind = len(messages), rows[-1] + 1
        more = min(most_ahead, len(columns.rows[1]) - behind) // size * size
        firsts = [messages[0].queue_offset, *columns.rows[1][behind : behind + more : size].tolist()]
        times = [message.reconsume_times for message in messages]
        if more:
            times += columns.reconsume_times[behind : behind + more]

        def prepare(process: ListenerProcess) -> tuple[Request, Sequence[int]]:
            parts = [[self._shared(process, columns), rows[0], rows[-1] + 1] for columns, rows in runs]
            parts[-1][2] += more
            return {
                "do": "call",
                "queue": fields_of(self._queue),
                "group": self._listener.rules.group,
                "parts": parts,
                "times": times,
                "batch": size,
                "oldest": min(self._numbers.values()),
            }, ()

        answer, process = self._listener.answered(prepare)
        succeeded = process.board.judged
        try:
            if not 0 <= succeeded <= len(firsts):
                raise ValueError
            last = answer if isinstance(answer, Death) else self._last(answer)
        except (KeyError, ValueError, TypeError):
            self._listener.kill()
            if more:
                return False
            succeeded, last = 0, Death(DeathKind.KILLED, "its process has written into the pipe of its answers")
        if last is None and not succeeded:
            last = Death(DeathKind.KILLED, "its process has not called it")
        self._answers.extend((offset, _SUCCESS) for offset in firsts[:succeeded])
        if process.is_starter_dead and isinstance(answer, Death):
            return True
        if last is not None and succeeded < len(firsts):
            self._answers.append((firsts[succeeded], last))
        return True

    def _last(self, answer: Request) -> OrderlyAnswer | None:
        """The answer that ended a request; None: all batches succeeded. Raises KeyError, ValueError, TypeError."""
        if answer["status"] is None:
            return None
        return OrderlyAnswer(
            ConsumeOrderlyStatus(answer["status"]),
            self._listener.clean(Answer(False, 0, answer["error_type"], answer["error_text"])),
            bool(answer["auto_commit"]),
            int(answer["suspend_ms"]),
        )

    def _shared(self, process: ListenerProcess, columns: MessageColumns) -> int:
        """The number of rows that the process has; it gets them here, if it does not."""
        number = self._numbers.get(columns)
        if number is None:
            number = self._numbers[columns] = next(_NUMBERS)
        if number not in process.shared:
            memory, rows = SharedRows(), RowsToConsume(*columns.rows)
            used = memory.write(rows)
            queue = fields_of(rows.queue)
            request = {"do": "share", "number": number, "queue": queue, "bytes": used, "size": memory.size}
            process.send(request, [memory.fd])
            memory.close()
            process.shared.add(number)
        return number
