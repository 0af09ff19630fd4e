"""RocketMQ's consumer settings without effect in a window, and why (``DefaultMQPushConsumer``, rules 7.6).

A settings file with a key of this table is refused with the reason, so that every key in a file has an effect.
``docs/settings.md`` shows the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class WithoutEffect(NamedTuple):
    rocketmq: str
    """RocketMQ's name of the setting."""
    default: str
    """RocketMQ's default."""
    why: str
    """Why it has no effect, as the error message and the page say it."""


_THREADS = "`consumers` divides the work of a window; Spark's task slots or this process run it"
_CACHE = "a task reads one record batch after another and caches nothing; `max_messages` and `max_bytes` limit a window"
_PULLS = "a window reads exact rows of files and pulls nothing, so neither the broker's limits nor these apply"
_POP = "pop is another protocol; a window claims whole queues"
_NO_BROKER = "there is no broker or name server to send it to"

_TABLE = (
    ("consumeThreadMin", "20", _THREADS),
    ("consumeThreadMax", "20", _THREADS),
    ("adjustThreadPoolNumsThreshold", "100000", _THREADS),
    (
        "consumeConcurrentlyMaxSpan",
        "2000",
        "it limits how far finished messages are ahead of the committed offset; a window commits its range at once",
    ),
    ("pullThresholdForQueue", "1000", _CACHE),
    ("pullThresholdForTopic", "-1", _CACHE),
    ("pullThresholdSizeForQueue", "100 MiB", _CACHE),
    ("pullThresholdSizeForTopic", "-1", _CACHE),
    ("pullInterval", "0", "`schedule` or an operator starts a window"),
    ("pullBatchSize", "32", _PULLS),
    ("pullBatchSizeInBytes", "256 KiB", _PULLS),
    ("pullTimeDelayMillsWhenException", "1000", "a window that fails has changed nothing; Airflow retries it"),
    ("popInvisibleTime", "60000", _POP),
    ("popBatchNums", "32", _POP),
    (
        "suspendCurrentQueueTimeMillis",
        "1000",
        "a suspended queue is tried again at once; `suspend_tries_per_window` limits the failed tries in a row",
    ),
    ("persistConsumerOffsetInterval", "5000", "offsets are part of the window's one commit"),
    ("awaitTerminationMillisWhenShutdown", "0", "a window that is stopped has changed nothing and can run again"),
    ("heartbeatBrokerInterval", "30000", _NO_BROKER),
    ("pollNameServerInterval", "30000", _NO_BROKER),
    ("postSubscriptionWhenPull", "false", _NO_BROKER),
    ("clientRebalance", "true", "`allocate_strategy` allocates the queues for each window"),
    ("autoCommit", "true", "applies to the lite pull consumer only; an orderly listener sets `context.auto_commit`"),
)


def snake_case(name: str) -> str:
    """``pullBatchSize`` as ``pull_batch_size``; a name in snake case stays as it is."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


WITHOUT_EFFECT: Mapping[str, WithoutEffect] = {snake_case(row[0]): WithoutEffect(*row) for row in _TABLE}
"""By RocketMQ's name in snake case."""
