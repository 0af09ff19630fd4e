"""Replays and their attempts, operators' requests, claims, and what maintenance did."""

from __future__ import annotations

from collections.abc import Mapping

from rmq_store.console.listing import Listing, filters_of

_TIMES = {"since": "committed_at >= $since", "until": "committed_at < $until"}

REPLAYS = Listing(
    title="Replays",
    source="""(
        SELECT
            group_name, replay_of, attempt, max(attempts) AS attempts, min(committed_at) AS begun_at,
            max(committed_at) AS last_at, count(*) AS windows, CAST(sum(messages) AS BIGINT) AS messages,
            CAST(sum(acked) AS BIGINT) AS acked, CAST(sum(filtered) AS BIGINT) AS filtered,
            CAST(sum(retried) AS BIGINT) AS retried, CAST(sum(dead) AS BIGINT) AS dead,
            min_by(actor, committed_at) AS actor, min_by(reason, committed_at) AS reason,
            max_by(listener, committed_at) AS listener, min_by(request_id, committed_at) AS request_id
        FROM windows WHERE replay_of IS NOT NULL GROUP BY group_name, replay_of, attempt
    )""",
    columns=(
        "group_name", "replay_of", "attempt", "attempts", "begun_at", "last_at", "windows", "messages", "acked", "filtered",
        "retried", "dead", "actor", "reason", "listener", "request_id",
    ),
    order="last_at DESC, group_name, attempt DESC",
    filters=filters_of("group", replay_of="replay_of = $replay_of"),
)  # fmt: skip

_REQUESTS = """(
    SELECT
        shard, action, group_name, store_timestamp AS committed_at, actor, actor_source, reason, request_id, request_part,
        request_complete, substr(parameters, 1, 2000) AS parameters, read_version, commit_id
    FROM ctl WHERE action {condition}
)"""
_REQUEST_COLUMNS = (
    "committed_at", "action", "shard", "group_name", "actor", "actor_source", "reason", "request_id", "request_part",
    "request_complete", "parameters", "commit_id", "read_version",
)  # fmt: skip

MAINTENANCE = Listing(
    title="Maintenance",
    source=_REQUESTS.format(condition="IN ('compact', 'vacuum', 'retention')"),
    columns=_REQUEST_COLUMNS,
    order="committed_at DESC, shard, read_version DESC",
    filters=filters_of("action", **_TIMES),
)

REQUESTS = Listing(
    title="Operators' requests",
    source=_REQUESTS.format(
        condition="NOT IN ('claim', 'renew', 'release', 'consume', 'deliver', 'compact', 'vacuum', 'retention')"
    ),
    columns=_REQUEST_COLUMNS,
    order="committed_at DESC, shard, read_version DESC",
    filters=filters_of("group", "action", "actor", **_TIMES),
)

REMOVED = Listing(
    title="Messages that retention removed",
    source="removed_ranges",
    columns=(
        "removed_at", "shard", "topic", "broker_name", "queue_id", "begin_offset", "end_offset", "actor", "actor_source",
        "reason", "request_id",
    ),
    order="removed_at DESC, shard, topic, broker_name, queue_id, begin_offset",
    filters=filters_of("topic"),
)  # fmt: skip

OWNERS = Listing(
    title="Claims",
    source="queue_owners",
    columns=(
        "claimed_at", "held_until", "ended_by", "shard", "group_name", "topic", "broker_name", "queue_id", "claim_number",
        "client_id", "actor", "request_id", "scope",
    ),
    order="claimed_at DESC, shard, scope, claim_number DESC",
    filters=filters_of("group", "topic"),
)  # fmt: skip

LISTINGS: Mapping[str, Listing] = {
    "replays": REPLAYS,
    "requests": REQUESTS,
    "maintenance": MAINTENANCE,
    "removed": REMOVED,
    "owners": OWNERS,
}
