"""The calls of a concurrent listener over the rows of a record batch, and what it answers for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.consumer.call_listener import call_listener
from rmq_store.consumer.consume_result import clean_expired_msg, is_expired
from rmq_store.consumer.listener import (
    ACKED,
    INT_MAX,
    Answer,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    Listener,
    ListenerKind,
    judge,
)
from rmq_store.lake.listener.batch_answers import judge_batch
from rmq_store.lake.read.message_view import MessageViews
from rmq_store.message.message import MessageQueue

Offsets = npt.NDArray[np.int64]
Rows = Sequence[int] | npt.NDArray[np.int64]

_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@dataclass(frozen=True, slots=True)
class CallRules:
    """The settings of a group for its calls."""

    group: str
    batch_max_size: int
    """Messages in one call; a listener of record batches gets all rows."""
    timeout_ms: int | None
    """None: no call takes too long."""
    all_or_nothing: bool


@dataclass(frozen=True, slots=True)
class RowsToConsume:
    """Rows of a queue. ``offsets``: of each row of ``batch``, ascending."""

    queue: MessageQueue
    offsets: Offsets
    batch: pa.RecordBatch


class _Switches(TypedDict):
    all_or_nothing: bool
    secrets: Sequence[str]


def calls_of(
    listener: Listener,
    rules: CallRules,
    rows: RowsToConsume,
    begin: int,
    end: int,
    size: int,
    now_ms: Callable[[], int],
) -> Iterator[tuple[int, Rows, Sequence[Answer]]]:
    """Call the listener for the rows ``[begin, end)``, with at most ``size`` rows in a call.

    Yields after each call (the end of its rows, the rows that failed, the answer for each of these). Raises as
    ``call_listener``.
    """
    calls = _batch_calls if listener.kind is ListenerKind.BATCH else _message_calls
    return calls(listener, rules, rows, begin, end, size, now_ms)


def _batch_calls(
    listener: Listener,
    rules: CallRules,
    rows: RowsToConsume,
    begin: int,
    end: int,
    size: int,
    now_ms: Callable[[], int],
) -> Iterator[tuple[int, Rows, Sequence[Answer]]]:
    context = partial(ConsumeConcurrentlyContext, rows.queue, rules.group)
    read = partial(judge_batch, **_switches(listener, rules))
    whole = rows.batch if listener.columns is None else rows.batch.select(list(listener.columns))
    for first in range(begin, end, size):
        last = min(first + size, end)
        view = whole if last - first == whole.num_rows else whole.slice(first, last - first)
        began_ms = now_ms()
        mask, answers = call_listener(listener, (rows.queue, int(rows.offsets[first])), view, context, read)
        took_ms = now_ms() - began_ms
        if not is_expired(took_ms, rules.timeout_ms):
            yield last, () if mask is None else np.flatnonzero(mask) + first, answers
            continue
        rest = iter(answers)
        every = [ACKED] * (last - first) if mask is None else [next(rest) if no else ACKED for no in mask.tolist()]
        yield last, range(first, last), clean_expired_msg(every, took_ms, rules.timeout_ms)


def _message_calls(
    listener: Listener,
    rules: CallRules,
    rows: RowsToConsume,
    begin: int,
    end: int,
    size: int,
    now_ms: Callable[[], int],
) -> Iterator[tuple[int, Rows, Sequence[Answer]]]:
    context = partial(ConsumeConcurrentlyContext, rows.queue, rules.group)
    read = partial(_read, _switches(listener, rules))
    views = MessageViews(rows.queue, rows.offsets, rows.batch)
    timeout_ms = rules.timeout_ms
    began_ms = now_ms()
    for first in range(begin, end, size):
        last = min(first + size, end)
        begins_at = (rows.queue, int(rows.offsets[first]))
        judged = call_listener(listener, begins_at, views.messages(first, last), context, read)
        ended_ms = now_ms()
        began_ms, took_ms = ended_ms, ended_ms - began_ms
        if judged is None:
            if not is_expired(took_ms, timeout_ms):
                yield last, (), ()
                continue
            judged = (ACKED,) * (last - first)
        answers = clean_expired_msg(judged, took_ms, timeout_ms)
        failed = [row for row, answer in enumerate(answers, first) if not answer.acked]
        yield last, failed, [answers[row - first] for row in failed]


def _switches(listener: Listener, rules: CallRules) -> _Switches:
    return {"all_or_nothing": rules.all_or_nothing, "secrets": listener.secrets}


def _read(
    switches: _Switches, answer: Any, n: int, context: ConsumeConcurrentlyContext, error: BaseException | None
) -> tuple[Answer, ...] | None:
    """The answer for each message; None: all are acked."""
    if error is None and _all_succeeded(answer, context):
        return None
    return judge(answer, n, context, error, **switches)


def _all_succeeded(answer: object, context: ConsumeConcurrentlyContext) -> bool:
    """The usual answer, recognised without building an Answer per message, and without a ``==`` of the listener's own."""
    is_success = answer is _SUCCESS or (type(answer) is str and answer == _SUCCESS)
    return is_success and _is_untouched(context)


def _is_untouched(context: ConsumeConcurrentlyContext) -> bool:
    level = getattr(context, "delay_level_when_next_consume", None)
    return getattr(context, "ack_index", None) is INT_MAX and type(level) is int and level == 0
