"""What an orderly window records of the messages that block a queue: the next window begins at them, and counts on.

It is compared with the range of that window, the end of the queue, and the record of the window before
(``consumer/consume_orderly.py``). How often a window tries a message, and how often it may fail, are settings, which no record
has.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.sql.sql import Ask

_QUEUE = "shard, topic, broker_name, queue_id"
_OF_GROUP = f"group_name, {_QUEUE}"


def _tried_before(name: str, offset: str) -> str:
    """The join with the failed tries of one message by the record of the window before."""
    same = " AND ".join(f"{name}.{column} = b.{column}" for column in f"{_OF_GROUP}, before_id".split(", "))
    return f"LEFT JOIN tried {name} ON {same} AND {name}.begin_offset <= {offset} AND {offset} < {name}.end_offset"


_BLOCKED = f"""
WITH windows AS (
    SELECT {_OF_GROUP}, commit_id, end_offset AS waits_at,
        CASE WHEN lag(end_offset) OVER in_order = begin_offset AND lag(pass) OVER in_order = pass
            THEN lag(commit_id) OVER in_order END AS before_id
    FROM ctl_consumed SEMI JOIN ctl_blocked USING ({_OF_GROUP})
    WHERE action = 'consume'
    WINDOW in_order AS (PARTITION BY {_OF_GROUP} ORDER BY read_version, commit_id)
),
tried AS (
    SELECT {_OF_GROUP}, commit_id AS before_id, begin_offset, end_offset, max(attempts) AS attempts,
        min(coalesce(first_failed_at, store_timestamp)) AS since_ms
    FROM ctl_blocked WHERE attempts > 0 GROUP BY ALL
),
ranges AS (
    SELECT b.*, w.commit_id IS NOT NULL AS was_read, w.waits_at, w.before_id, p.value AS queue_end,
        lag(b.end_offset) OVER (
            PARTITION BY {_OF_GROUP}, commit_id ORDER BY b.begin_offset, b.end_offset
        ) AS covered_to
    FROM ctl_blocked b LEFT JOIN windows w USING ({_OF_GROUP}, commit_id)
    LEFT JOIN (SELECT * FROM positions WHERE kind = 'max') p USING ({_QUEUE})
),
judged AS (
    SELECT {", ".join(f"b.{column}" for column in _OF_GROUP.split(", "))}, b.commit_id, b.begin_offset, b.end_offset,
        concat_ws(', ',
            CASE WHEN b.attempts < 0 THEN b.attempts || ' attempts' END,
            CASE WHEN b.attempts < greatest(x.attempts, y.attempts)
                THEN b.attempts || ' attempts after ' || greatest(x.attempts, y.attempts) END,
            CASE WHEN b.first_failed_at IS DISTINCT FROM x.since_ms OR b.first_failed_at IS DISTINCT FROM y.since_ms
                THEN 'another first_failed_at than by the window before' END,
            CASE WHEN b.begin_offset >= b.end_offset THEN 'an empty range' END,
            CASE WHEN NOT b.was_read THEN 'a range of a queue that it did not read' END,
            CASE WHEN b.covered_to IS NULL AND b.begin_offset <> b.waits_at
                THEN 'a range that does not begin at ' || b.waits_at END,
            CASE WHEN b.begin_offset < b.covered_to THEN 'a range that begins before ' || b.covered_to END,
            CASE WHEN b.end_offset > coalesce(b.queue_end, 0) THEN 'a range that ends behind the queue' END
        ) AS facts
    FROM ranges b {_tried_before("x", "b.begin_offset")} {_tried_before("y", "b.end_offset - 1")}
)
SELECT DISTINCT * FROM judged WHERE facts <> '' ORDER BY ALL
"""
"""The first and the last offset of a range are of messages; in between may be filtered ones. A message that was tried without a
failure has 0 attempts. ``first_failed_at`` is null for a first failure in this window."""

TEXTS = (_BLOCKED,)
"""The statements of ``blocked``."""


def blocked(ask: Ask) -> Iterator[Finding]:
    """Ranges of messages that no window can have recorded so."""
    (rows,) = ask(TEXTS)
    for row in rows.to_pylist():
        facts, commit_id = row.pop("facts"), row.pop("commit_id")
        detail = f"the record of commit {commit_id}, action consume, has as blocked {facts}"
        yield Finding(problem=Problem.RECORD_NOT_VALID, detail=detail, **row)
