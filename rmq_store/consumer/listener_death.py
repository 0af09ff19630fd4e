"""What follows when the process of a listener dies, or a call in it does not end (``docs/decisions/0019-listener-process.md``).

A call is for a batch of messages, and its process says how many messages had an answer before. The batch of the call that did
not return is halved until the one message is known that the listener cannot take. That message is a failed attempt, like one
for which the listener raised; the messages before and after it go on, in a new process.

For example, the listener gets batches of four, and dies at message 6 of eight:

    calls 0..3, 4..7 dies; 4..5, 6 dies (alone: it has failed), 7
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rmq_store.consumer.consume_result import EXPIRED_DELAY_LEVEL
from rmq_store.consumer.listener import Answer
from rmq_store.consumer.retry import Cause
from rmq_store.errors import ListenerError, ListenerNotStarted

MOST_IN_A_ROW: Final = 10
"""So many messages after each other in a task, each alone in its call, with no call between them that returned, or so many in
all tasks of a window of which no call returned: the listener is broken for all of them. The run then ends with an error instead
of a retry of every message."""

MOST_WITH_STARTER: Final = 3
"""So often in a row a call may end with the process that starts those of listeners. That was killed from outside, or by a
listener, which may be another group's, so no message has failed."""


class DeathKind(StrEnum):
    """Why a call did not return. The values are the ``error_type`` of its message."""

    KILLED = "ListenerKilled"
    """Its process died."""
    TIMEOUT = "ListenerTimeout"
    """It took longer than the limit, and its process was killed."""


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a process in the middle of a call. ``text``: the signal, the exit code or the limit."""

    kind: DeathKind
    text: str

    def answer(self) -> Answer:
        """Of the message that was alone in the call. A timeout is retried at the level of ``clean_expired_msg``."""
        level = EXPIRED_DELAY_LEVEL if self.kind is DeathKind.TIMEOUT else 0
        return Answer(False, level, str(self.kind), self.text)


def cause_of(cause: Cause, error_type: str | None) -> Cause:
    """The cause of a copy. A message that is dead because it may not be tried again says what its last attempt did."""
    if cause not in (Cause.MAX_RECONSUME_TIMES, Cause.NO_RETRY_QUEUE):
        return cause
    return {str(DeathKind.KILLED): Cause.KILLED, str(DeathKind.TIMEOUT): Cause.TIMEOUT}.get(error_type or "", cause)


class DeathsInARow:
    """Counts the messages that ended the process of a listener, each alone in its call, without a call that returned between
    two of them."""

    def __init__(self, listener: str) -> None:
        self._listener = listener
        self._places: list[str] = []
        self._with_starter = 0
        self._has_returned = False

    @property
    def of_task(self) -> int | None:
        """How many messages ended the process; None: a call returned."""
        return None if self._has_returned else len(self._places)

    def returned(self) -> None:
        """A call has returned: the listener is not broken for every message."""
        self._places.clear()
        self._with_starter = 0
        self._has_returned = True

    def ended_with_starter(self) -> None:
        """A call has ended with the process that started its process. Raises ListenerNotStarted when there are too many."""
        self._with_starter += 1
        if self._with_starter >= MOST_WITH_STARTER:
            raise ListenerNotStarted(
                f"the process that starts those of listeners ended {self._with_starter} times in a row in a call of listener "
                f"{self._listener}: it was killed, from outside or by a listener that runs beside it. Nothing was committed: "
                "run the request again. If it ends so again, look for a listener that kills its parent process"
            )

    def died(self, place: str, death: Death) -> None:
        """``place``: of the message, which may be tried several times. Raises ListenerError when there are too many."""
        if place not in self._places:
            self._places.append(place)
        if len(self._places) >= MOST_IN_A_ROW:
            raise ListenerError(
                f"listener {self._listener} ended its process at {len(self._places)} messages in a row, and no call "
                f"returned between them: the last was {place} ({death.text}). Nothing was committed: correct the listener, "
                "or reset the offset to a message behind them"
            )


def refuse_deaths_only(listener: str, deaths: Iterable[int | None]) -> None:
    """Raise ListenerError for a window in which the listener did nothing but end its process.

    ``deaths``: ``DeathsInARow.of_task`` of each task. A task has few of the messages if a window has many tasks.
    """
    counts = list(deaths)
    total = sum(count or 0 for count in counts)
    if None not in counts and total >= MOST_IN_A_ROW:
        raise ListenerError(
            f"listener {listener} ended its process at each of {total} messages, in {len(counts)} tasks, and no call of it "
            "returned. Nothing was committed: correct the listener, or reset the offset to a message behind them"
        )


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a run of calls over ``[begin, end)``."""

    judged: int | None
    """The rows ``[begin, judged)`` have answers; None: none has, and it is not known which call did not return."""
    death: Death | None = None
    """Of the call that began at ``judged``; None: it returned, and the other rows are run by another call of ``run``."""


def run_calls(rows: int, batch: int, run: Callable[[int, int, int], Ran], failed: Callable[[int, Death], None]) -> None:
    """Have every row of ``[0, rows)`` answered, in order.

    ``run(begin, end, batch)`` calls the listener for the rows ``[begin, end)``, at most ``batch`` in one call;
    ``failed(row, death)`` takes the row that was alone in a call which did not return.
    """
    work = [(0, rows, batch)]
    while work:
        begin, end, size = work.pop()
        ran = run(begin, end, size)
        if ran.death is None:
            if ran.judged is not None and ran.judged < end:
                work.append((ran.judged, end, size))
            continue
        first, last = (begin, end) if ran.judged is None else (ran.judged, min(ran.judged + size, end))
        if last < end:
            work.append((last, end, size))
        if last - first == 1:
            failed(first, ran.death)
            continue
        half = (last - first + 1) // 2
        work += [(first + half, last, min(size, half)), (first, first + half, min(size, half))]
