"""The groups, and one group: its queues, windows and offset history, and its lag over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rmq_store.admin.dag_params import dag_id_of
from rmq_store.console.listing import Listing, Question, Row, filters_of
from rmq_store.consumer.replay_name import replayed_group

GROUPS = Listing(
    title="Groups",
    source="""(
        SELECT
            g.group_name, CAST(sum(g.lag) AS BIGINT) AS lag, CAST(sum(g.readable_lag) AS BIGINT) AS readable_lag,
            CAST(sum(g.dead_letters) AS BIGINT) AS dead_letters, CAST(sum(g.queues) AS BIGINT) AS queues,
            CAST(count(*) AS BIGINT) AS shards, max(g.updated_at) AS updated_at,
            max(CASE WHEN g.claimed_until > c.now_ms THEN g.claimed_until END) AS claimed_until,
            min(g.held_by) AS held_by, max(g.deleted_at) AS deleted_at
        FROM groups g CROSS JOIN clock c
        WHERE g.group_name <> 'CID_RMQ_SYS_SCHEDULE'
        GROUP BY g.group_name
    )""",
    columns=(
        "group_name", "lag", "readable_lag", "dead_letters", "queues", "shards", "updated_at", "claimed_until", "held_by",
        "deleted_at",
    ),
    order="group_name",
    filters=filters_of("group", name="contains(lower(group_name), lower($name))"),
)  # fmt: skip

BLOCKED = Listing(
    title="Blocked queues",
    source="blocked",
    columns=(
        "shard", "group_name", "topic", "broker_name", "queue_id", "next_offset", "begin_offset", "end_offset", "attempts",
        "status", "first_failed_at", "last_tried_at", "error_type", "error_text", "request_id",
    ),
    order="group_name, shard, topic, broker_name, queue_id, begin_offset",
    filters=filters_of("group", "topic"),
)  # fmt: skip

_OWNED = """
    SELECT shard, group_name, topic, broker_name, queue_id, max_by(coalesce(client_id, actor), claimed_at) AS owner
    FROM queue_owners
    WHERE group_name = $group AND ended_by IS NULL AND topic IS NOT NULL
    GROUP BY shard, group_name, topic, broker_name, queue_id"""
_LAST = """
    SELECT
        shard, group_name, topic, broker_name, queue_id, max(committed_at) AS last_window_at,
        max_by(request_id, read_version) AS last_request
    FROM consumed_ranges
    WHERE group_name = $group AND action = 'consume'
    GROUP BY shard, group_name, topic, broker_name, queue_id"""
_OF_QUEUE = ("shard", "group_name", "topic", "broker_name", "queue_id")


def _on(one: str, other: str) -> str:
    return " AND ".join(f"{one}.{name} = {other}.{name}" for name in _OF_QUEUE)


QUEUES = Listing(
    title="Queues of the group",
    source=f"""(
        SELECT l.*, w.last_window_at, w.last_request, o.owner
        FROM lag l
        LEFT JOIN ({_LAST}) w ON {_on("w", "l")}
        LEFT JOIN ({_OWNED}) o ON {_on("o", "l")}
    )""",
    columns=(
        *_OF_QUEUE, "next_offset", "has_offset", "min_offset", "max_offset", "lag", "readable_lag", "last_window_at",
        "last_request", "owner",
    ),
    order="topic, broker_name, queue_id, shard",
    filters=filters_of("group", "topic"),
    needs=("group",),
)  # fmt: skip

WINDOWS = Listing(
    title="Windows",
    source="windows",
    columns=(
        "shard", "group_name", "committed_at", "messages", "acked", "filtered", "retried", "dead", "duplicate", "dropped",
        "lost", "skipped", "queues", "actor", "actor_source", "reason", "listener", "listener_version", "subscription_version",
        "request_id", "request_part", "request_complete", "replay_of", "attempt", "window_id", "read_version",
    ),
    order="committed_at DESC, shard, group_name, read_version DESC",
    filters=filters_of(
        "group", request="request_id = $request", since="committed_at >= $since", until="committed_at < $until"
    ),
)  # fmt: skip

RETRY_WINDOWS = Listing(
    title="Windows that read its retries",
    source="""(
        SELECT
            c.shard, c.group_name, f.request_id AS failed_in, c.committed_at, count(*) AS retries, c.request_id,
            c.window_id, c.read_version
        FROM retries r
        JOIN (SELECT DISTINCT shard, window_id, request_id FROM consumed_ranges) f
            ON f.shard = r.shard AND f.window_id = r.window_id
        JOIN message_rows d
            ON d.shard = r.shard AND d.cause = 'deliver' AND d.origin_topic = r.topic
            AND d.origin_broker_name = r.broker_name AND d.origin_queue_id = r.queue_id
            AND d.origin_queue_offset = r.queue_offset
        JOIN consumed_ranges c
            ON c.action = 'consume' AND c.shard = d.shard AND c.group_name = r.group_name AND c.topic = d.topic
            AND c.broker_name = d.broker_name AND c.queue_id = d.queue_id
            AND d.queue_offset >= c.begin_offset AND d.queue_offset < c.end_offset
        GROUP BY ALL
    )""",
    columns=("committed_at", "retries", "request_id", "shard", "group_name", "failed_in", "window_id", "read_version"),
    order="committed_at, shard, read_version",
    filters=filters_of("group", request="failed_in = $request"),
    needs=("group", "request"),
)

OFFSETS = Listing(
    title="Offset history",
    source="offset_history",
    columns=(
        "committed_at", "shard", "group_name", "topic", "broker_name", "queue_id", "action", "from_offset", "to_offset",
        "actor", "actor_source", "reason", "request_id", "window_id", "pass", "read_version",
    ),
    order="committed_at DESC, read_version DESC, shard, topic, broker_name, queue_id",
    filters=filters_of(
        "group", "topic", "broker", "queue_id", "action", "actor",
        since="committed_at >= $since", until="committed_at < $until",
    ),
    needs=("group",),
)  # fmt: skip

LISTINGS: Mapping[str, Listing] = {
    "groups": GROUPS,
    "blocked": BLOCKED,
    "queues": QUEUES,
    "windows": WINDOWS,
    "retry-windows": RETRY_WINDOWS,
    "offsets": OFFSETS,
}


def dag_of(group: str) -> str:
    """The DAG whose permissions those of the group are: a replay's are those of the group that it replays."""
    return dag_id_of(replayed_group(group) or group)


# --- lag over time ---------------------------------------------------------------------------------------------------

BUCKETS = 60
MOST_GROUPS = 50

# Offsets only where the group has read: what it would have had to read before its first window is not known. -1: its offset
# was deleted.
_HISTORY = """
WITH moves AS (
    SELECT shard, group_name, topic, broker_name, queue_id, committed_at, read_version,
        coalesce(to_offset, -1) AS to_offset
    FROM offset_history
    WHERE list_contains($groups, group_name) AND NOT starts_with(topic, '%RETRY%') AND NOT starts_with(topic, '%DLQ%')
),
span AS (
    SELECT begin_ms, greatest(now_ms - begin_ms, $buckets) AS length_ms
    FROM (SELECT coalesce($since, min(committed_at)) AS begin_ms, max(now_ms) AS now_ms FROM moves CROSS JOIN clock) b
),
ends AS (
    SELECT
        m.shard, m.group_name, m.topic, m.broker_name, m.queue_id,
        greatest(0, least($buckets - 1, (m.committed_at - s.begin_ms) * $buckets // s.length_ms)) AS bucket,
        max_by(m.to_offset, m.read_version) AS next_offset
    FROM moves m CROSS JOIN span s
    GROUP BY ALL
),
written AS (
    SELECT
        q.shard, q.topic, q.broker_name, q.queue_id,
        greatest(0, least($buckets - 1, (q.store_timestamp - s.begin_ms) * $buckets // s.length_ms)) AS bucket,
        max(q.end_offset) AS max_offset
    FROM segments q CROSS JOIN span s
    WHERE EXISTS (FROM moves m WHERE m.topic = q.topic AND m.shard = q.shard)
    GROUP BY ALL
),
grid AS (
    SELECT DISTINCT m.shard, m.group_name, m.topic, m.broker_name, m.queue_id, b.bucket
    FROM (SELECT DISTINCT shard, group_name, topic, broker_name, queue_id FROM moves) m
    CROSS JOIN (SELECT unnest(range($buckets)) AS bucket) b
),
filled AS (
    SELECT
        g.group_name, g.bucket,
        last_value(e.next_offset IGNORE NULLS) OVER of_queue AS next_offset,
        max(w.max_offset) OVER of_queue AS max_offset
    FROM grid g
    LEFT JOIN ends e
        ON e.shard = g.shard AND e.group_name = g.group_name AND e.topic = g.topic AND e.broker_name = g.broker_name
        AND e.queue_id = g.queue_id AND e.bucket = g.bucket
    LEFT JOIN written w
        ON w.shard = g.shard AND w.topic = g.topic AND w.broker_name = g.broker_name AND w.queue_id = g.queue_id
        AND w.bucket = g.bucket
    WINDOW of_queue AS (
        PARTITION BY g.shard, g.group_name, g.topic, g.broker_name, g.queue_id ORDER BY g.bucket
    )
)
SELECT
    f.group_name, s.begin_ms + (f.bucket + 1) * s.length_ms // $buckets AS until_ms,
    CAST(sum(greatest(0, f.max_offset - f.next_offset)) AS BIGINT) AS lag
FROM filled f CROSS JOIN span s
WHERE f.next_offset >= 0 AND f.max_offset IS NOT NULL
GROUP BY ALL
ORDER BY f.group_name, until_ms
"""


def lag_history(groups: Sequence[str], since_ms: int | None = None) -> Question:
    """The lag of each group in its topics (not in its retry topic) at ``BUCKETS`` times from ``since_ms`` until now, UTC ms;
    None: from the first move of an offset of these groups. A queue counts from the first move of the group's offset there."""
    return Question(_HISTORY, {"groups": list(groups), "since": since_ms, "buckets": BUCKETS})


def series(rows: Sequence[Row]) -> dict[str, list[tuple[int, int]]]:
    """``(time, lag)`` by group, oldest first."""
    by_group: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        by_group[row["group_name"]].append((row["until_ms"], row["lag"]))
    return dict(by_group)


_TOPICS = """
SELECT DISTINCT topic FROM lag
WHERE group_name = $group AND NOT starts_with(topic, '%RETRY%') AND NOT starts_with(topic, '%DLQ%') ORDER BY topic
"""


def topics_of(group: str) -> Question:
    """The topics in which the group has an offset, its retry and dead-letter topics left out."""
    return Question(_TOPICS, {"group": group})


def run_of(request_id: str) -> dict[str, Any] | None:
    """The DAG run of a request, ``YYYY-MM-DD/<dag_id>/<run_id>``; None for a request of the command line."""
    _, _, rest = request_id.partition("/")
    dag_id, _, run_id = rest.partition("/")
    return {"dag_id": dag_id, "run_id": run_id} if dag_id.startswith("rmq_") and run_id else None
