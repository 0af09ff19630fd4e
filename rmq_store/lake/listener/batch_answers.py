"""The answers of Arrow listeners: ``judge`` of ``consumer/listener.py`` for a record batch, without an object per message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.consumer.listener import Answer, ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, java_int, judge
from rmq_store.errors import ListenerError

_SUCCESS = str(ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
_KNOWN = pa.array([str(status) for status in ConsumeConcurrentlyStatus])


def judge_batch(
    answer: Any,
    n: int,
    context: ConsumeConcurrentlyContext,
    error: BaseException | None,
    *,
    all_or_nothing: bool,
    secrets: Sequence[str] = (),
) -> tuple[npt.NDArray[np.bool_] | None, Sequence[Answer]]:
    """Which of ``n`` rows failed (None: none), and an Answer for each of these.

    An array answers per row: booleans (true is CONSUME_SUCCESS) or names of ConsumeConcurrentlyStatus; null is
    RECONSUME_LATER. Any other answer is read as that of a message listener. Raises ListenerError for an invalid answer.
    """
    if error is None and isinstance(answer, pa.Array | pa.ChunkedArray):
        later = Answer(False, java_int("delay_level_when_next_consume", context.delay_level_when_next_consume))
        acked = _acked(answer, n)
        if acked.all():
            return None, ()
        return ~acked, [later] * int(n - acked.sum())
    answers = judge(answer, n, context, error, all_or_nothing=all_or_nothing, secrets=secrets)
    failed = np.fromiter((not one.acked for one in answers), dtype=np.bool_, count=n)
    return (failed, [one for one in answers if not one.acked]) if failed.any() else (None, ())


def _acked(answer: pa.Array | pa.ChunkedArray, n: int) -> npt.NDArray[np.bool_]:
    if len(answer) != n:
        raise ListenerError(f"the listener answered {len(answer)} statuses for {n} messages")
    if pa.types.is_dictionary(answer.type):
        answer = answer.cast(answer.type.value_type)
    if pa.types.is_boolean(answer.type):
        acked = pc.fill_null(answer, False)
    elif pa.types.is_string(answer.type) or pa.types.is_large_string(answer.type):
        known = pc.is_in(answer, value_set=_KNOWN.cast(answer.type), skip_nulls=False)
        if not pc.all(pc.or_(known, answer.is_null())).as_py():
            unknown = answer.filter(pc.invert(pc.or_(known, answer.is_null())))[0].as_py()
            raise ListenerError(
                f"the listener answered {unknown!r:.200}; known are {', '.join(ConsumeConcurrentlyStatus)}"
            )
        acked = pc.fill_null(pc.equal(answer, _SUCCESS), False)
    else:
        raise ListenerError(f"the listener answered an array of {answer.type}; it must be of booleans or status names")
    mask: npt.NDArray[np.bool_] = acked.to_numpy(zero_copy_only=False)
    return mask
