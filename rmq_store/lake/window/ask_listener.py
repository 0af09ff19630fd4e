"""How a task calls the listener: the columns that it gets, and what it answers for each row of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypedDict

import numpy as np
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
from rmq_store.consumer.pull import Slice
from rmq_store.errors import ListenerError
from rmq_store.filter.subscription import SubscriptionData
from rmq_store.lake.read.filter import Mask, filter_columns
from rmq_store.lake.read.message_view import MessageViews
from rmq_store.lake.read.slice_reader import MESSAGE_COLUMNS
from rmq_store.lake.table import tables
from rmq_store.lake.window.batch_answers import judge_batch
from rmq_store.lake.window.consume_job import ConsumeJob, Offsets

_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class _Switches(TypedDict):
    all_or_nothing: bool
    secrets: Sequence[str]


def columns_for(listener: Listener, subscription: SubscriptionData) -> list[str] | None:
    """The columns that the listener and the filter need; None: all."""
    if listener.columns is None:
        return None
    return [*dict.fromkeys([*listener.columns, *filter_columns(subscription)])]


def refuse_unknown_columns(listener: Listener) -> None:
    """Raise ListenerError for a listener that names a column which no message has."""
    if unknown := [name for name in listener.columns or () if name not in tables.MSG.names]:
        raise ListenerError(
            f"listener {listener.name}: unknown columns {', '.join(unknown):.200}; known columns are "
            f"{', '.join(MESSAGE_COLUMNS)}"
        )


def ask_listener(
    job: ConsumeJob, listener: Listener, slice_: Slice, offsets: Offsets, batch: pa.RecordBatch
) -> tuple[Mask | None, Sequence[Answer]]:
    """Call the listener: which rows failed (None: none), and the answer for each of these."""
    group, timeout_ms = job.group, job.group.consume_timeout_ms
    switches: _Switches = {"all_or_nothing": group.all_or_nothing, "secrets": listener.secrets}
    context = partial(ConsumeConcurrentlyContext, slice_.queue, group.name)
    if listener.kind is ListenerKind.BATCH:
        view = batch if listener.columns is None else batch.select(list(listener.columns))
        began_ms = job.now_ms()
        mask, answers = call_listener(
            listener, (slice_.queue, int(offsets[0])), view, context, partial(judge_batch, **switches)
        )
        took_ms = job.now_ms() - began_ms
        return _unless_expired(mask, answers, batch.num_rows, took_ms, timeout_ms)
    views = MessageViews(slice_, offsets, batch)
    size = group.consume_message_batch_max_size
    failed: list[int] = []
    failed_answers: list[Answer] = []
    now_ms = job.now_ms
    read = partial(_read, switches)
    began_ms = now_ms()
    for begin in range(0, batch.num_rows, size):
        end = min(begin + size, batch.num_rows)
        judged = call_listener(listener, (slice_.queue, int(offsets[begin])), views.messages(begin, end), context, read)
        ended_ms = now_ms()
        began_ms, took_ms = ended_ms, ended_ms - began_ms
        if judged is None:
            if not is_expired(took_ms, timeout_ms):
                continue
            judged = (ACKED,) * (end - begin)
        for index, answer in enumerate(clean_expired_msg(judged, took_ms, timeout_ms), begin):
            if not answer.acked:
                failed.append(index)
                failed_answers.append(answer)
    if not failed:
        return None, failed_answers
    mask = np.zeros(batch.num_rows, dtype=np.bool_)
    mask[failed] = True
    return mask, failed_answers


def _read(
    switches: _Switches, answer: Any, n: int, context: ConsumeConcurrentlyContext, error: BaseException | None
) -> tuple[Answer, ...] | None:
    """The answer for each message; None: all are acked."""
    if error is None and _all_succeeded(answer, context):
        return None
    return judge(answer, n, context, error, **switches)


def _unless_expired(
    failed: Mask | None, failed_answers: Sequence[Answer], n: int, took_ms: int, timeout_ms: int | None
) -> tuple[Mask | None, Sequence[Answer]]:
    """Which of the ``n`` rows of a call failed, with their answers: all of them if the call took too long."""
    if not is_expired(took_ms, timeout_ms):
        return failed, failed_answers
    rest = iter(failed_answers)
    answers = [ACKED] * n if failed is None else [next(rest) if no else ACKED for no in failed.tolist()]
    return np.ones(n, dtype=np.bool_), clean_expired_msg(answers, took_ms, timeout_ms)


def _all_succeeded(answer: object, context: ConsumeConcurrentlyContext) -> bool:
    """The usual answer, recognised without building an Answer per message, and without a ``==`` of the listener's own."""
    is_success = answer is _SUCCESS or (type(answer) is str and answer == _SUCCESS)
    return is_success and _is_untouched(context)


def _is_untouched(context: ConsumeConcurrentlyContext) -> bool:
    level = getattr(context, "delay_level_when_next_consume", None)
    return getattr(context, "ack_index", None) is INT_MAX and type(level) is int and level == 0
