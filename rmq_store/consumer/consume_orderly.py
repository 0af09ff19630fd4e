"""One queue of an orderly window, consumed until nothing is left or the queue has to wait for the next window
(``ConsumeMessageOrderlyService``, rules 9.2). ``consume_result_orderly`` has the rules; both engines apply them here.

Where a window differs from a client that runs for ever:

- a suspend time is not slept. The queue is tried again at once, and after ``tries_per_window`` vain tries in a row it
  waits for the next window, which begins at its first message that is not finished;
- the tries are not forgotten: they stand in the commit (``Blocked``), and the next window goes on counting;
- what is over the limit goes straight to the dead letters, as a broker does that knows the group's lock, and once: it
  leaves with the commit. RocketMQ sends it at every try of its batch, so that a message that holds up others may have
  several dead letters, or one although a later try succeeded;
- what an answer without auto commit has kept, and no COMMIT has finished, goes back when the window ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice, takewhile
from typing import Any

from rmq_store.commit.ctl import Blocked
from rmq_store.commit.positions import QueueRange, Tally, tally
from rmq_store.consumer.ask import ask
from rmq_store.consumer.consume_result_orderly import (
    OrderlyMessage,
    OrderlyResult,
    finish,
    messages_over_limit,
    orderly_status_of,
    process_consume_result,
)
from rmq_store.consumer.listener import (
    Answer,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Listener,
    failure,
    quoted,
)
from rmq_store.consumer.process_queue import ProcessQueue
from rmq_store.errors import ListenerError
from rmq_store.message.message import MessageExt, MessageQueue

PULL_BATCH_SIZE = 32
"""How many messages are cached at a time (rules 7.6): what is cached is sorted at every take."""


@dataclass(frozen=True, slots=True)
class OrderlyRules:
    """What a group says about consuming in order. ``max_reconsume_times`` -1: no limit."""

    group: str
    batch_max_size: int
    max_reconsume_times: int
    tries_per_window: int


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message over the limit, and what the listener said of it last. ``reconsume_times``: its vain tries before."""

    offset: int
    reconsume_times: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class OrderlyDone:
    """What became of a queue's messages.

    ``waits_at``: the first one that is not finished; None when all are. ``acked``: below that, without the dead ones.
    """

    waits_at: int | None
    acked: Tally
    dead: tuple[DeadLetter, ...] = ()
    blocked: tuple[Blocked, ...] = ()

    def end(self, range_: QueueRange) -> int:
        """Up to where the range is done. Filtered offsets hold nothing up: they count once all before them are done."""
        return range_.end if self.waits_at is None else self.waits_at


def consume_orderly(
    listener: Listener,
    queue: MessageQueue,
    messages: Iterable[MessageExt],
    rules: OrderlyRules,
    tried: Sequence[Blocked] = (),
    is_over: Callable[[], bool] = lambda: False,
) -> OrderlyDone:
    """Consume the wanted messages of a queue, which come in offset order. ``tried``: what held the queue up before.
    ``is_over``: asked before each batch but the first; the queue then waits where it stands.

    :raises ListenerError: an answer that is no orderly status, a context with something else than it may hold.
    """
    return _InOrder(listener, queue, iter(messages), rules, tried).run(is_over)


class _InOrder:
    """The loop's state: ``_messages`` are those that were pulled and are not finished, in offset order. ``_times``: how
    often each was tried, which a listener may write over in the message."""

    def __init__(
        self,
        listener: Listener,
        queue: MessageQueue,
        pulls: Iterator[MessageExt],
        rules: OrderlyRules,
        tried: Sequence[Blocked],
    ) -> None:
        self._listener, self._queue, self._pulls, self._rules, self._tried = listener, queue, pulls, rules, tried
        self._process_queue = ProcessQueue()
        self._messages: dict[int, MessageExt] = {}
        self._tries: dict[int, int] = defaultdict(int)
        self._times: dict[int, int] = {}
        self._over: dict[int, Answer] = {}
        self._acked = Tally()
        self._dead: list[DeadLetter] = []
        self._asked_to = -1
        self._status, self._why = ConsumeOrderlyStatus.SUCCESS, Answer(False)

    def run(self, is_over: Callable[[], bool]) -> OrderlyDone:
        vain, asked = 0, False
        while vain < self._rules.tries_per_window and not (asked and is_over()) and (taken := self._take()):
            asked = True
            result = self._batch(taken)
            committed = finish(self._process_queue, _sized(taken), result)
            if committed is not None:
                self._finish(committed)
                vain = 0
            if not result.continue_consume:
                vain += 1
        if not self._messages:  # it is over, or there is nothing more
            for message in islice(self._pulls, 1):
                self._pull(message)
        return OrderlyDone(next(iter(self._messages), None), self._acked, tuple(self._dead), tuple(self._blocked()))

    def _take(self) -> list[int]:
        size = self._rules.batch_max_size
        taken = self._process_queue.take_messages(size)
        while len(taken) < size and (pulled := list(islice(self._pulls, PULL_BATCH_SIZE))):
            for message in pulled:
                self._pull(message)
            self._process_queue.put_message(_sized(message.queue_offset for message in pulled))
            taken += self._process_queue.take_messages(size - len(taken))
        return taken

    def _pull(self, message: MessageExt) -> None:
        offset = message.queue_offset
        self._messages[offset] = message
        for before in self._tried:
            if before.range.begin <= offset < before.range.end and before.attempts:
                self._tries[offset] = before.attempts
                message.reconsume_times += before.attempts
        self._times[offset] = message.reconsume_times

    def _batch(self, taken: Sequence[int]) -> OrderlyResult:
        """Ask the listener about one batch, and decide what becomes of it."""
        messages = [self._messages[offset] for offset in taken]
        context = partial(ConsumeOrderlyContext, self._queue, self._rules.group)
        told = ask(self._listener, (self._queue, taken[0]), messages, context, self._read)
        self._status, self._why, auto_commit, suspend_ms = told
        status = self._status
        self._asked_to = taken[-1]
        batch = [OrderlyMessage(offset, self._times[offset]) for offset in taken]
        over = {offset for offset, _ in messages_over_limit(status, batch, self._rules.max_reconsume_times)}
        for offset in taken:  # what is tried again is not over any more, until its new answer says so
            self._over.pop(offset, None)
        self._over.update(dict.fromkeys(over, self._why))
        result = process_consume_result(status, batch, over, auto_commit=auto_commit, suspend_ms=suspend_ms)
        for offset in result.tried_again:
            self._tries[offset] += 1
            self._times[offset] += 1
            self._messages[offset].reconsume_times = self._times[offset]
        return result

    def _read(
        self, answer: Any, n: int, context: ConsumeOrderlyContext, error: BaseException | None
    ) -> tuple[ConsumeOrderlyStatus, Answer, bool, int]:
        status = orderly_status_of(answer if error is None else None)
        why = Answer(False) if error is None else failure(error, secrets=self._listener.secrets)
        return status, why, *_said(context)

    def _finish(self, committed: int) -> None:
        """Everything below the offset is finished: what was taken is always the first of what is left."""
        finished = list(takewhile(lambda offset: offset < committed, self._messages))
        self._acked += tally(offset for offset in finished if offset not in self._over)
        for offset in finished:
            answer, times = self._over.pop(offset, None), self._times.pop(offset)
            del self._messages[offset]
            self._tries.pop(offset, None)
            if answer is not None:
                self._dead.append(DeadLetter(offset, times, answer))

    def _blocked(self) -> Iterator[Blocked]:
        """The messages that were tried and are left; those that failed as often and as long as each other are one run."""
        left = ((offset, self._tries.get(offset, 0)) for offset in self._messages)
        tried = takewhile(lambda item: item[0] <= self._asked_to or item[1], left)
        alike = groupby(tried, key=lambda item: (item[1], self._first_failed_at(*item)))
        for (attempts, first_failed_at), run in alike:
            offsets = [offset for offset, _ in run]
            range_ = QueueRange(self._queue, offsets[0], offsets[-1] + 1)
            why = self._why
            yield Blocked(range_, attempts, str(self._status), first_failed_at, why.error_type, why.error_text)

    def _first_failed_at(self, offset: int, attempts: int) -> int | None:
        before = (b for b in self._tried if b.range.begin <= offset < b.range.end and b.attempts)
        return next((blocked.first_failed_at for blocked in before), None) if attempts else None


def _sized(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """As a ProcessQueue takes them. Sizes are for flow control, which a window does not need."""
    return [(offset, 0) for offset in offsets]


def _said(context: ConsumeOrderlyContext) -> tuple[bool, int]:
    """``auto_commit`` and the suspend time of a context, checked."""
    auto_commit: Any = context.auto_commit
    suspend_ms: Any = context.suspend_current_queue_time_millis
    if not isinstance(auto_commit, bool):
        raise ListenerError(f"auto_commit must be True or False, it is {quoted(auto_commit)}")
    if not isinstance(suspend_ms, int) or isinstance(suspend_ms, bool):
        raise ListenerError(f"suspend_current_queue_time_millis must be a whole number, it is {quoted(suspend_ms)}")
    return auto_commit, int.__index__(suspend_ms)
