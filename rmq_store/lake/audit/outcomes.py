"""What a commit recorded for its messages follows RocketMQ's rules: which outcomes its action and its group can have, and why a
message became a dead letter.

How often a message may fail, and at which level it is retried, are settings and answers of the listener, which no record has.
But all messages of a window have the same settings: one that is retried has failed less often than each that is dead because
it may not be tried again.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmq_store.consumer.retry import Cause
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.sql.sql import Ask
from rmq_store.settings.retention_settings import WAITING_TOPICS

_QUEUE = "shard, topic, broker_name, queue_id"
_OF_GROUP = f"group_name, {_QUEUE}"
_WAITING = tuple(sorted(WAITING_TOPICS))
_DEAD = tuple(str(cause) for cause in Cause if cause is not Cause.RETRY)
_EXHAUSTED = tuple(map(str, (Cause.MAX_RECONSUME_TIMES, Cause.KILLED, Cause.TIMEOUT)))

_RANGES = f"""
SELECT {_OF_GROUP}, begin_offset, end_offset, commit_id, action, concat_ws(', ',
    CASE WHEN skipped <> 0 THEN skipped || ' skipped messages' END,
    CASE WHEN action <> 'consume' AND (filtered <> 0 OR retried <> 0 OR dead <> 0 OR duplicate <> 0 OR dropped <> 0
        OR action = 'redrive' AND lost <> 0) THEN 'messages that are not acked' END,
    CASE WHEN CASE action
            WHEN 'deliver' THEN topic NOT IN {_WAITING}
            WHEN 'redrive' THEN topic <> '%DLQ%' || group_name
            ELSE topic IN {_WAITING}
        END THEN 'a range of a topic that it does not read' END,
    CASE WHEN dropped <> 0 AND group_name NOT LIKE '%@%' AND (topic <> '%RETRY%' || group_name OR NOT is_made_again)
        THEN 'dropped messages, though its group was not deleted' END,
    CASE WHEN duplicate <> 0 AND NOT absorbs THEN 'duplicates, and no keys' END,
    CASE WHEN end_offset > coalesce(queue_end, 0) THEN 'a range to ' || end_offset || ', behind the end of the queue' END
) AS fact
FROM (
    SELECT c.*, p.value AS queue_end, coalesce(d.read_version < c.read_version, FALSE) AS is_made_again,
        k.commit_id IS NOT NULL AS absorbs
    FROM ctl_consumed c
    LEFT JOIN (SELECT * FROM positions WHERE kind = 'max') p
        ON {" AND ".join(f"p.{name} = c.{name}" for name in _QUEUE.split(", "))}
    LEFT JOIN (
        SELECT shard, group_name, min(read_version) AS read_version FROM ctl WHERE action = 'delete' GROUP BY ALL
    ) d ON c.dropped <> 0 AND d.shard = c.shard AND d.group_name = c.group_name
    LEFT JOIN (SELECT shard, commit_id FROM ctl WHERE parameters LIKE '%"key_rows":%') k
        ON c.duplicate <> 0 AND k.shard = c.shard AND k.commit_id = c.commit_id
) r WHERE fact <> ''
"""
"""A client that is broadcasting drops what fails. Another group drops its retries from before its delete."""

_COPIES = f"""
SELECT shard, commit_id, group_name, min(of_action) AS action, concat_ws(', ',
    CASE WHEN bool_or(NOT fits) THEN 'copies that are not where their cause says' END,
    CASE WHEN max(CASE WHEN cause = 'retry' THEN most END) >= min(CASE WHEN cause IN {_EXHAUSTED} THEN least END)
        THEN 'a dead letter that failed no more often than a message that is retried' END,
    CASE WHEN bool_or(cause = 'retry') AND bool_or(cause = '{Cause.NO_RETRY_QUEUE}')
        THEN 'a dead letter without a retry queue, and retries' END
) AS fact
FROM (
    SELECT shard, commit_id, group_name, cause, bool_and(CASE
            WHEN cause = 'retry' THEN topic IN {_WAITING}
            WHEN cause IN {_DEAD} THEN topic = '%DLQ%' || group_name
            WHEN cause = 'deliver' THEN group_name = 'CID_RMQ_SYS_SCHEDULE'
            ELSE cause = 'redrive' AND topic NOT IN {_WAITING}
        END) AS fits,
        CASE cause WHEN 'deliver' THEN 'deliver' WHEN 'redrive' THEN 'redrive' ELSE 'consume' END AS of_action,
        min(failed) AS least, max(failed) AS most
    FROM (
        SELECT shard, commit_id, group_name, cause, topic, {{failed}} AS failed FROM msg WHERE group_name IS NOT NULL
        UNION ALL
        SELECT shard, commit_id, group_name, reason,
            CASE outcome WHEN 'dead' THEN '%DLQ%' || group_name ELSE '{_WAITING[0]}' END, {{failed}}
        FROM outcome_ranges WHERE outcome IN ('retried', 'dead')
    ) c GROUP BY ALL
) g GROUP BY shard, commit_id, group_name HAVING fact <> ''
""".format(failed="CASE attempt WHEN -2147483648 THEN 2147483647 ELSE attempt - 1 END")
"""``failed``: how often the message had failed before. ``attempt`` is a Java int, which wraps."""

_ROWS = f"""
SELECT o.group_name, {", ".join(f"o.{name}" for name in _QUEUE.split(", "))}, o.begin_offset, o.end_offset, o.commit_id,
    c.action, concat_ws(', ',
    CASE WHEN o.pass IS DISTINCT FROM c.pass THEN 'an outcome of another pass' END,
    CASE WHEN o.window_id IS DISTINCT FROM c.window_id THEN 'an outcome of another window' END
) AS fact
FROM outcome_ranges o JOIN (
    SELECT DISTINCT {_OF_GROUP}, commit_id, action, pass, window_id FROM ctl_consumed
) c ON {" AND ".join(f"c.{name} = o.{name}" for name in f"{_OF_GROUP}, commit_id".split(", "))}
WHERE fact <> ''
"""

_LOST = f"""
SELECT o.group_name, {", ".join(f"o.{name}" for name in _QUEUE.split(", "))},
    greatest(o.begin_offset, s.base_offset, p.value) AS begin_offset, least(o.end_offset, s.end_offset) AS end_offset,
    o.commit_id, 'consume' AS action, 'lost messages that are there' AS fact
FROM outcome_ranges o
JOIN segments s
    ON {" AND ".join(f"s.{name} = o.{name}" for name in _QUEUE.split(", "))}
    AND s.base_offset < o.end_offset AND o.begin_offset < s.end_offset
LEFT JOIN (SELECT * FROM positions WHERE kind = 'min') p
    ON {" AND ".join(f"p.{name} = o.{name}" for name in _QUEUE.split(", "))}
WHERE o.outcome = 'lost' AND s.action <> 'compact'
    AND least(o.end_offset, s.end_offset) > greatest(o.begin_offset, s.base_offset, p.value)
"""

TEXTS = (_RANGES, _COPIES, _ROWS, _LOST)
"""The statements of ``outcomes``."""


def outcomes(ask: Ask) -> Iterator[Finding]:
    """Outcomes that no commit can have recorded so."""
    for answer in ask(TEXTS):
        for row in answer.to_pylist():
            fact, commit_id, action = (row.pop(name) for name in ("fact", "commit_id", "action"))
            detail = f"commit {commit_id}, action {action}, has {fact}"
            yield Finding(problem=Problem.RECORD_NOT_VALID, detail=detail, **row)
