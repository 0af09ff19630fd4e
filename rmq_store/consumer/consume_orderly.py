"""One queue of an orderly window, consumed until nothing is left or the queue has to wait for the next window
(``ConsumeMessageOrderlyService``, rules 9.2). ``consume_result_orderly`` has the rules; both engines apply them here.

Differences from a client, which runs for ever:

- there is no sleep for a suspend time. The queue is tried again at once, and after ``tries_per_window`` failed tries in
  a row it waits for the next window, which begins at its first message that is not finished;
- the tries are kept: they are recorded in the commit (``Blocked``), and the next window continues the count;
- a message over the limit becomes a dead letter at once, as on a broker that has the group's lock, and only once: it is
  written with the commit. RocketMQ sends it at every try of its batch, so a message may get several dead letters, or
  one although a later try succeeds;
- messages that a listener without auto commit has not committed go back when the window ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice, takewhile
from typing import Any, TypeAlias

from rmq_store.commit.ctl import Blocked
from rmq_store.commit.positions import QueueRange, Tally, tally
from rmq_store.consumer.call_listener import call_listener
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
    """The settings of a group for consumption in order."""

    group: str
    batch_max_size: int
    max_reconsume_times: int
    """-1: no limit."""
    tries_per_window: int


@dataclass(frozen=True, slots=True)
class OrderlyAnswer:
    """What a listener answered for a batch, checked."""

    status: ConsumeOrderlyStatus
    failed: Answer
    """The answer for a message that is over the limit."""
    auto_commit: bool = True
    suspend_ms: int = -1
    """-1: the consumer's own setting."""


OrderlyCall: TypeAlias = Callable[[Sequence[MessageExt]], OrderlyAnswer]
"""Calls the listener with a batch of one queue, of at least one message."""


def orderly_call(listener: Listener, queue: MessageQueue, group: str) -> OrderlyCall:
    """The call of a listener of this process. It raises ListenerError as ``consume_orderly`` does."""

    def read(answer: Any, n: int, context: ConsumeOrderlyContext, error: BaseException | None) -> OrderlyAnswer:
        status = orderly_status_of(answer if error is None else None)
        failed = Answer(False) if error is None else failure(error, secrets=listener.secrets)
        return OrderlyAnswer(status, failed, *_context_values(context))

    def call(messages: Sequence[MessageExt]) -> OrderlyAnswer:
        begins_at = (queue, messages[0].queue_offset)
        return call_listener(listener, begins_at, messages, partial(ConsumeOrderlyContext, queue, group), read)

    return call


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message over the limit."""

    offset: int
    reconsume_times: int
    """Its failed tries before the last one."""
    answer: Answer
    """The listener's last answer about it."""


@dataclass(frozen=True, slots=True)
class OrderlyDone:
    """What became of a queue's messages."""

    waits_at: int | None
    """The first offset that is not finished; None when all are."""
    acked: Tally
    """Of the finished messages without the dead letters."""
    dead: tuple[DeadLetter, ...] = ()
    blocked: tuple[Blocked, ...] = ()

    def end(self, range_: QueueRange) -> int:
        """The offset up to which the range is finished (exclusive). Filtered offsets before it count as finished."""
        return range_.end if self.waits_at is None else self.waits_at


def consume_orderly(
    call: OrderlyCall,
    queue: MessageQueue,
    messages: Iterable[MessageExt],
    rules: OrderlyRules,
    tried: Sequence[Blocked] = (),
    is_over: Callable[[], bool] = lambda: False,
) -> OrderlyDone:
    """Consume messages of a queue, which come in offset order and match the subscription.

    ``call``: of the listener (``orderly_call``). ``tried``: the blocked messages of the last window.
    ``is_over``: whether the window's time is over, called before each batch but the first; the queue then waits at its next
    message.

    :raises ListenerError: an answer that is no orderly status, or an invalid value in the context.
    """
    return _InOrder(call, queue, iter(messages), rules, tried).run(is_over)


class _InOrder:
    """The state of the loop.

    ``_messages``: pulled and not finished, in offset order. ``_times``: the tries of each, since a listener may
    overwrite them in the message. ``_over``: the answers about messages over the limit.
    """

    def __init__(
        self,
        call: OrderlyCall,
        queue: MessageQueue,
        pulls: Iterator[MessageExt],
        rules: OrderlyRules,
        tried: Sequence[Blocked],
    ) -> None:
        self._call, self._queue, self._pulls, self._rules, self._tried = call, queue, pulls, rules, tried
        self._process_queue = ProcessQueue()
        self._messages: dict[int, MessageExt] = {}
        self._tries: dict[int, int] = defaultdict(int)
        self._times: dict[int, int] = {}
        self._over: dict[int, Answer] = {}
        self._acked = Tally()
        self._dead: list[DeadLetter] = []
        self._last_offset = -1
        self._status, self._answer = ConsumeOrderlyStatus.SUCCESS, Answer(False)

    def run(self, is_over: Callable[[], bool]) -> OrderlyDone:
        failures, is_first = 0, True
        while failures < self._rules.tries_per_window and (is_first or not is_over()) and (taken := self._take()):
            is_first = False
            result = self._batch(taken)
            committed = finish(self._process_queue, _sized(taken), result)
            if committed is not None:
                self._finish(committed)
                failures = 0
            if not result.continue_consume:
                failures += 1
        if not self._messages:  # the time is over, or there is nothing more
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
        """Call the listener with one batch, and decide what becomes of it."""
        messages = [self._messages[offset] for offset in taken]
        answer = self._call(messages)
        status = self._status = answer.status
        self._answer = answer.failed
        self._last_offset = taken[-1]
        batch = [OrderlyMessage(offset, self._times[offset]) for offset in taken]
        over = {offset for offset, _ in messages_over_limit(status, batch, self._rules.max_reconsume_times)}
        for offset in taken:  # only the newest answer decides whether a message is over the limit
            self._over.pop(offset, None)
        self._over.update(dict.fromkeys(over, self._answer))
        result = process_consume_result(
            status, batch, over, auto_commit=answer.auto_commit, suspend_ms=answer.suspend_ms
        )
        for offset in result.tried_again:
            self._tries[offset] += 1
            self._times[offset] += 1
            self._messages[offset].reconsume_times = self._times[offset]
        return result

    def _finish(self, committed: int) -> None:
        """All messages below the offset are finished: the taken ones are always the first of those not finished."""
        finished = list(takewhile(lambda offset: offset < committed, self._messages))
        self._acked += tally(offset for offset in finished if offset not in self._over)
        for offset in finished:
            answer, times = self._over.pop(offset, None), self._times.pop(offset)
            del self._messages[offset]
            self._tries.pop(offset, None)
            if answer is not None:
                self._dead.append(DeadLetter(offset, times, answer))

    def _blocked(self) -> Iterator[Blocked]:
        """The messages that were tried and are not finished; neighbours with the same tries since the same time are one
        range."""
        unfinished = ((offset, self._tries.get(offset, 0)) for offset in self._messages)
        tried = takewhile(lambda item: item[0] <= self._last_offset or item[1], unfinished)
        runs = groupby(tried, key=lambda item: (item[1], self._first_failed_at(*item)))
        for (attempts, first_failed_at), run in runs:
            offsets = [offset for offset, _ in run]
            yield Blocked(
                range=QueueRange(self._queue, offsets[0], offsets[-1] + 1),
                attempts=attempts,
                status=str(self._status),
                first_failed_at=first_failed_at,
                error_type=self._answer.error_type,
                error_text=self._answer.error_text,
            )

    def _first_failed_at(self, offset: int, attempts: int) -> int | None:
        before = (b for b in self._tried if b.range.begin <= offset < b.range.end and b.attempts)
        return next((blocked.first_failed_at for blocked in before), None) if attempts else None


def _sized(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Messages for a ProcessQueue. Sizes are for flow control, which a window does not need."""
    return [(offset, 0) for offset in offsets]


def _context_values(context: ConsumeOrderlyContext) -> tuple[bool, int]:
    """``auto_commit`` and the suspend time of a context, checked."""
    auto_commit: Any = context.auto_commit
    suspend_ms: Any = context.suspend_current_queue_time_millis
    if not isinstance(auto_commit, bool):
        raise ListenerError(f"auto_commit must be True or False, it is {quoted(auto_commit)}")
    if not isinstance(suspend_ms, int) or isinstance(suspend_ms, bool):
        raise ListenerError(f"suspend_current_queue_time_millis must be a whole number, it is {quoted(suspend_ms)}")
    return auto_commit, int.__index__(suspend_ms)
