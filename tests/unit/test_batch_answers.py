"""What an Arrow listener tells besides its array is checked as a message listener's is."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rmq_store.consumer.listener import ConsumeConcurrentlyContext
from rmq_store.errors import ListenerError
from rmq_store.lake.listener.batch_answers import judge_batch
from rmq_store.message.message import MessageQueue


@pytest.mark.parametrize("acked", [True, False])
@pytest.mark.parametrize("level", [2**31, -(2**31) - 1, 1.5, "3", None])
def test_a_delay_level_that_is_no_int_of_java_is_refused_also_where_nothing_failed(level: Any, acked: bool) -> None:
    context = ConsumeConcurrentlyContext(MessageQueue("T", "broker-a", 0), "g", delay_level_when_next_consume=level)
    with pytest.raises(ListenerError, match="delay_level_when_next_consume must be a"):
        judge_batch(pa.array([acked]), 1, context, None, all_or_nothing=False)
