"""RocketMQ's consumer settings that mean nothing to a window, and why (``DefaultMQPushConsumer``, rules 7.6).

A key of this table in a settings file is refused with its reason, like any key that is not known: what is written there
has an effect. ``docs/settings.md`` shows the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class WithoutEffect(NamedTuple):
    """RocketMQ's name and default, and what is there instead."""

    rocketmq: str
    default: str
    why: str


_THREADS = "a window's messages are shared by `consumers`, and Spark's task slots or this process run them"
_CACHE = "a task reads record batches one after the other and caches none; `max_messages` and `max_bytes` cap a window"
_PULLS = "a window reads exact rows of files and pulls nothing, so neither the broker's limits nor these apply"
_POP = "Pop is another protocol; a window claims whole queues"
_NO_BROKER = "there is no broker that it would be said to"

_TABLE = (
    ("consumeThreadMin", "20", _THREADS),
    ("consumeThreadMax", "20", _THREADS),
    ("adjustThreadPoolNumsThreshold", "100000", _THREADS),
    (
        "consumeConcurrentlyMaxSpan",
        "2000",
        "it keeps finished messages from running far ahead of the committed offset; a window commits its whole range at once",
    ),
    ("pullThresholdForQueue", "1000", _CACHE),
    ("pullThresholdForTopic", "-1", _CACHE),
    ("pullThresholdSizeForQueue", "100 MiB", _CACHE),
    ("pullThresholdSizeForTopic", "-1", _CACHE),
    ("pullInterval", "0", "windows come by `schedule`, or when somebody asks for one"),
    ("pullBatchSize", "32", _PULLS),
    ("pullBatchSizeInBytes", "256 KiB", _PULLS),
    ("pullTimeDelayMillsWhenException", "1000", "a window that fails has changed nothing; Airflow's retries ask again"),
    ("popInvisibleTime", "60000", _POP),
    ("popBatchNums", "32", _POP),
    (
        "suspendCurrentQueueTimeMillis",
        "1000",
        "a suspended queue is tried again at once, `suspend_tries_per_window` times, and then waits for the next window",
    ),
    ("persistConsumerOffsetInterval", "5000", "offsets are part of the window's one commit"),
    ("awaitTerminationMillisWhenShutdown", "0", "a window that is stopped has changed nothing, and is done again"),
    ("heartbeatBrokerInterval", "30000", _NO_BROKER),
    ("pollNameServerInterval", "30000", _NO_BROKER),
    ("postSubscriptionWhenPull", "false", _NO_BROKER),
    ("clientRebalance", "true", "queues are shared within each window, by `allocate_strategy`"),
    (
        "autoCommit",
        "true",
        "of a lite pull consumer, which loses messages by it; a listener in order has its context's",
    ),
)


def snake_case(name: str) -> str:
    """``pullBatchSize`` as ``pull_batch_size``; what is written so already stays."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


WITHOUT_EFFECT: Mapping[str, WithoutEffect] = {snake_case(row[0]): WithoutEffect(*row) for row in _TABLE}
"""By the key that somebody would write."""
