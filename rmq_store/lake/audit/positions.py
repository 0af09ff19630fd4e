"""Every position is what the commits made it: epochs, passes, claims, subscriptions, counts, and how far imports are.

The offsets of groups, and where queues begin and end, are proved elsewhere: by the view ``audit`` and by ``segments.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rmq_store.commit.ctl import Action
from rmq_store.commit.positions import (
    Claim,
    PositionKind,
    SubVersion,
    arc_id,
    cutover_id,
    diverged_id,
    import_id,
    kind_of,
    own_id,
    queue_of,
    send_id,
    sub_id,
)
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.audit.written_files import FIRST_LISTED
from rmq_store.lake.sql.sql import Ask
from rmq_store.lake.table.import_parameters import IMPORTS, misshaped
from rmq_store.lake.table.imports import CONTINUES
from rmq_store.lake.table.tables import json_object
from rmq_store.utils.times import format_time
from rmq_store.window.sub_version import sub_version_of

Row = Mapping[str, Any]
Expected = dict[tuple[str, str], int]
"""The value of a position by shard and application id."""

_OF_GROUP = "shard, group_name, topic, broker_name, queue_id"

_EPOCHS = """
SELECT shard, group_name, max(epoch) AS expected FROM (
    SELECT shard, group_name, epoch FROM ctl WHERE group_name IS NOT NULL AND epoch IS NOT NULL
    UNION ALL
    SELECT shard, group_name, pass FROM ctl_moved
) epochs GROUP BY shard, group_name
"""
"""An operator's action raises the epoch, and each window has that of its group."""

_DELETES = (
    "SELECT shard, group_name, max(epoch) AS expected FROM ctl WHERE action = 'delete' GROUP BY shard, group_name"
)
_REDRIVES = (
    "SELECT shard, group_name, count(*) AS expected FROM ctl WHERE action = 'redrive' GROUP BY shard, group_name"
)

_PASSES = f"""
SELECT {_OF_GROUP}, max_by(pass, (read_version, commit_id)) AS expected FROM (
    SELECT {_OF_GROUP}, pass, read_version, commit_id FROM ctl_consumed WHERE action = 'consume'
    UNION ALL
    SELECT {_OF_GROUP}, pass, read_version, commit_id FROM ctl_moved
) passes GROUP BY {_OF_GROUP}
"""

_BLOCKS = f"""
SELECT {_OF_GROUP}, max_by(blocked_ms, (read_version, commit_id)) AS expected FROM (
    SELECT {_OF_GROUP}, read_version, commit_id, CAST('0x' || left(commit_id, 12) AS BIGINT) AS blocked_ms FROM ctl_blocked
    UNION ALL
    SELECT {_OF_GROUP}, read_version, commit_id, 0
    FROM ctl_consumed SEMI JOIN ctl_blocked USING ({_OF_GROUP}) ANTI JOIN ctl_blocked USING ({_OF_GROUP}, commit_id)
    UNION ALL
    SELECT {_OF_GROUP}, read_version, commit_id, 0
    FROM (SELECT DISTINCT {_OF_GROUP} FROM ctl_blocked) queues
    JOIN (SELECT shard, group_name, read_version, commit_id FROM ctl WHERE action = 'delete') USING (shard, group_name)
) blocks GROUP BY {_OF_GROUP}
"""
"""A window blocks a queue and sets its own time, or frees it. A delete frees all queues of the group, another action none."""

_CLAIMS = f"""
SELECT shard, app_id, max_by(claim_number * {Claim(1, 0).packed()} + lease_end_s, (read_version, commit_id)) AS expected
FROM (
    SELECT shard, app_id, claim_number, CASE WHEN action = 'release' THEN 0 ELSE lease_end_s END AS lease_end_s,
        read_version, commit_id
    FROM ctl_claims
    UNION ALL
    SELECT c.shard, c.app_id, c.claim_number, 0, e.read_version, e.commit_id
    FROM ctl_claims c JOIN (
        SELECT shard, read_version, commit_id, regexp_extract(parameters, '"claim":"([0-9a-f]+)"', 1) AS claim_commit_id
        FROM ctl WHERE action NOT IN ('claim', 'renew')
    ) e ON e.shard = c.shard AND e.claim_commit_id = c.commit_id
) claims GROUP BY shard, app_id
"""
"""A claim and its renewals set the end of the lease. A release ends it, and so does the commit that names the claim's."""


_EARLY_CLAIMS = """
SELECT shard, scope, max(number) AS number FROM (
    SELECT shard, TRY_CAST(regexp_extract(parameters, '^[{]"claim":([0-9]+),', 1) AS BIGINT) AS number,
        regexp_extract(parameters, '"scope":"([^"]*)"[}]$', 1) AS scope
    FROM ctl WHERE action = 'claim'
) c WHERE number IS NOT NULL AND scope <> '' GROUP BY shard, scope
"""
"""The claims of versions that recorded the scope of a claim and its number, and no end of a lease."""


def _differing(kind: PositionKind, expected: str, keys: Sequence[str]) -> str:
    """The statement for the positions of a kind that differ from those expected; an absent one is 0."""
    same = " AND ".join(f"p.{key} = e.{key}" for key in keys)
    both = ", ".join(f"coalesce(p.{key}, e.{key}) AS {key}" for key in keys)
    return (
        f"SELECT {both}, p.app_id AS stored_id, coalesce(e.expected, 0) AS expected, coalesce(p.value, 0) AS stored"
        f" FROM ({expected}) e FULL OUTER JOIN"
        f" (SELECT * FROM positions WHERE kind = '{kind}') p ON {same}"
        f" WHERE coalesce(e.expected, 0) <> coalesce(p.value, 0)"
    )


_GROUP = ("shard", "group_name")
_QUEUE_OF_GROUP = (*_GROUP, "topic", "broker_name", "queue_id")
_COMPARED: Mapping[str, str] = {
    "the epoch of a group": _differing(PositionKind.EPOCH, _EPOCHS, _GROUP),
    "the epoch of a delete": _differing(PositionKind.DELETED, _DELETES, _GROUP),
    "the number of redrives": _differing(PositionKind.REDRIVES, _REDRIVES, _GROUP),
    "the pass of a queue": _differing(PositionKind.PASS, _PASSES, _QUEUE_OF_GROUP),
    "when a queue was blocked": _differing(PositionKind.BLOCKED, _BLOCKS, _QUEUE_OF_GROUP),
    "a claim": _differing(PositionKind.CLAIM, _CLAIMS, ("shard", "app_id")),
}

_RARE_ACTIONS = ("import", "salvage", "cutover", "hand_back", "retention")

_RARE = f"""
SELECT c.shard, action, commit_id, parameters, store_timestamp,
    f.read_version IS NULL OR c.read_version < f.read_version AS is_early
FROM ctl c LEFT JOIN ({FIRST_LISTED}) f ON f.shard = c.shard WHERE action IN {_RARE_ACTIONS}
ORDER BY c.shard, c.read_version, commit_id
"""
"""``is_early``: it may be of an earlier version."""

_LOST_CLAIMS = """
SELECT shard, group_name, commit_id, parameters FROM (
    SELECT shard, group_name, commit_id, parameters, regexp_extract(parameters, '"claim":"([0-9a-f]+)"', 1) AS claim_id
    FROM ctl WHERE action NOT IN ('claim', 'renew')
) c ANTI JOIN (SELECT shard, commit_id AS claim_id FROM ctl WHERE action = 'claim') USING (shard, claim_id)
WHERE claim_id <> ''
"""
"""The commits that name a claim which the log does not have."""

_SENDS = """
SELECT shard, topics, count(*) AS sends FROM (
    SELECT shard, regexp_extract(parameters, '"topics":(\\[[^]]*\\])', 1) AS topics FROM ctl WHERE action = 'send'
) s WHERE topics <> '' GROUP BY shard, topics
"""

_SUBSCRIPTIONS = f"""
SELECT s.shard, group_name, subscription, subscription_version,
    f.read_version IS NULL OR s.read_version < f.read_version AS is_early
FROM (
    SELECT shard, split_part(group_name, '@', 1) AS group_name, subscription, subscription_version, read_version,
        row_number() OVER (
            PARTITION BY shard, split_part(group_name, '@', 1) ORDER BY read_version DESC, commit_id DESC
        ) AS from_last
    FROM ctl
    WHERE (action = 'consume' AND subscription IS NOT NULL) OR (action = 'delete' AND group_name NOT LIKE '%@%')
) s LEFT JOIN ({FIRST_LISTED}) f ON f.shard = s.shard WHERE from_last = 1 AND subscription IS NOT NULL
"""
"""``is_early``: as of ``_RARE``."""

_TEXTS_OF_SUBSCRIPTIONS = """
SELECT shard, subscription, min(commit_id) AS commit_id, max(group_name) AS group_name FROM ctl
WHERE subscription IS NOT NULL GROUP BY shard, subscription
"""

_ACTIONS = (
    f"SELECT shard, commit_id, group_name, action FROM ctl WHERE coalesce(action, '') NOT IN {tuple(map(str, Action))}"
)

_PARAMETERS = f"""
SELECT shard, commit_id, group_name FROM ctl
WHERE coalesce(parameters, '') NOT LIKE '{{%}}' AND coalesce(action, '') NOT IN {_RARE_ACTIONS}
"""
"""Parameters that cannot be a JSON object. They are not parsed: the store has one for each of its commits."""

_KINDS = (
    PositionKind.IMPORT,
    PositionKind.DIVERGED,
    PositionKind.CUTOVER,
    PositionKind.ARCHIVED,
    PositionKind.SENDS,
    PositionKind.SUBSCRIPTION,
)
_STORED = f"SELECT shard, app_id, value, updated_ms FROM positions WHERE kind IN {tuple(map(str, _KINDS))}"
_UNKNOWN = f"SELECT shard, app_id, value FROM positions WHERE kind NOT IN {tuple(map(str, PositionKind))}"


TEXTS = (
    *_COMPARED.values(),
    _RARE,
    _LOST_CLAIMS,
    _EARLY_CLAIMS,
    _SENDS,
    _SUBSCRIPTIONS,
    _TEXTS_OF_SUBSCRIPTIONS,
    _ACTIONS,
    _PARAMETERS,
    _STORED,
    _UNKNOWN,
)
"""The statements of ``positions``."""


_NO_OBJECT = "parameters that are no JSON object"


def positions(ask: Ask) -> Iterator[Finding]:
    """The positions that are not what the commits made them."""
    *compared, rare, lost_claims, early_claims, sends, subscriptions, texts, actions, parameters, stored, unknown = (
        answer.to_pylist() for answer in ask(TEXTS)
    )
    for row in actions:
        yield _not_understood(row, f"an action {row['action']!r}, which this version of rmq does not know")
    for row in texts:
        if json_object(row["subscription"]) is None:
            yield _not_understood(row, "a subscription that is no JSON object, so that what it filtered is not known")
    for row in parameters:
        yield _not_understood(row, _NO_OBJECT)
    for row in lost_claims:
        if claim := (json_object(row["parameters"]) or {}).get("claim"):
            detail = f"commit {row['commit_id']} was decided with the claim {claim}, which the log does not have"
            yield Finding(
                shard=row["shard"], problem=Problem.ANOTHER_HISTORY, group_name=row["group_name"], detail=detail
            )
    understood = []
    for row in rare:
        read = json_object(row["parameters"])
        wrong = _NO_OBJECT if read is None else misshaped(row["action"], read)
        if wrong:
            yield _not_understood(row, wrong)
        else:
            understood.append(row | {"parameters": read})
    early = {(row["shard"], own_id(*row["scope"].split("/"))): row["number"] for row in early_claims}
    for what, rows in zip(_COMPARED, compared, strict=True):
        for row in rows:
            if _is_early_claim(row, early):
                continue
            stored_, expected_ = (_shown(row.get("app_id") or "", row[name]) for name in ("stored", "expected"))
            yield _finding(row, f"{what}: {stored_}, by the commits {expected_}")
    expected = _of_rare(understood) | _of_sends(sends) | _of_subscriptions(subscriptions)
    # The first versions recorded the subscription of a window, and set no position.
    unset = {(row["shard"], sub_id(row["group_name"])) for row in subscriptions if row["is_early"]}
    values = {(row["shard"], row["app_id"]): row["value"] for row in stored}
    for shard, app_id in sorted(expected.keys() | values.keys()):
        pair = expected.get((shard, app_id)), values.get((shard, app_id))
        if pair[1] is None and (shard, app_id) in unset:
            continue
        if (pair[0] or 0) != (pair[1] or 0):
            yield _finding(
                {"shard": shard}, f"{app_id}: {_shown(app_id, pair[1])}, by the commits {_shown(app_id, pair[0])}"
            )
    yield from _import_times(understood, stored)
    for row in unknown:
        yield _finding({"shard": row["shard"]}, f"{row['app_id']}: {row['value']}, of a kind that no commit sets")


def _is_early_claim(row: Row, early: Mapping[tuple[str, str], int]) -> bool:
    """Whether a row of the claims that differ has a claim as an early version recorded it, and no later one. ``early``: the
    numbers of these claims, by shard and application id."""
    number = early.get((row["shard"], row.get("app_id") or ""))
    return number is not None and not row["expected"] and Claim.of(row["stored"]).number == number


def _not_understood(row: Row, what: str) -> Finding:
    detail = f"the record of commit {row['commit_id']} has {what}"
    return Finding(shard=row["shard"], problem=Problem.NOT_AUDITED, group_name=row.get("group_name"), detail=detail)


def _finding(row: Row, detail: str) -> Finding:
    place = {name: row.get(name) for name in ("group_name", "topic", "broker_name", "queue_id")}
    if row.get("app_id"):
        detail += f" ({row['app_id']})"
    return Finding(shard=row["shard"], problem=Problem.POSITION_NOT_RECORDED, detail=detail, **place)


def _shown(app_id: str, value: int | None) -> str:
    if kind_of(app_id) == PositionKind.CLAIM:
        claim = Claim.of(value)
        lease = f"lease to {format_time(claim.lease_end_s * 1000)}" if claim.lease_end_s else "no lease"
        return f"number {claim.number}, {lease}"
    recorded = SubVersion.of(value) if kind_of(app_id) == PositionKind.SUBSCRIPTION else None
    return f"version {recorded.version}, hash {recorded.text_hash:x}" if recorded else str(value)


def _of_rare(rows: Sequence[Row]) -> Expected:
    """After imports, cut-overs, hand-backs and retention. ``rows``: in commit order, their parameters read."""
    expected: Expected = {}
    before: dict[tuple[str, str], str] = {}
    for row in rows:
        shard, parameters = row["shard"], row["parameters"]
        match Action(row["action"]):
            case Action.IMPORT | Action.SALVAGE if _is_placed(parameters):
                name = parameters["broker_name"]
                expected[shard, import_id(name)] = parameters["range"][1]
                if continued := parameters.get(CONTINUES):
                    expected[shard, diverged_id(continued["broker_name"])] = continued["end"]
                    before[shard, name] = continued["broker_name"]
            case Action.CUTOVER | Action.HAND_BACK as action:
                name = parameters.get("broker_name")
                while name is not None:
                    expected[shard, cutover_id(name)] = int(action is Action.CUTOVER)
                    name = before.get((shard, name))
            case Action.RETENTION:
                ends = {
                    arc_id(queue_of(app_id)): end for app_id, end, is_archived in removals(parameters) if is_archived
                }
                expected |= {(shard, app_id): end for app_id, end in ends.items()}
            case _:
                pass
    return expected


def removals(parameters: Mapping[str, Any]) -> Iterator[tuple[str, int, bool]]:
    """What retention has removed, by its parameters: the position of the first offset of a queue, the first offset that stays,
    and whether what is before it is archived."""
    archived = {app_id.partition("/")[2] for app_id in parameters.get("archived") or ()}
    for app_id, (_, end) in (parameters.get("removed") or {}).items():
        yield app_id, end, app_id.partition("/")[2] in archived


def _is_placed(parameters: Mapping[str, Any]) -> bool:
    """Whether an import says of which broker it is and how far it came. That it lacks one is a finding of ``records.py``."""
    return {"broker_name", "range"} <= parameters.keys()


def _import_times(rare: Sequence[Row], stored: Sequence[Row]) -> Iterator[Finding]:
    """Brokers whose newest import was at another time than their position says: by it that import is found, and with it what
    the broker's groups have consumed. Where the position has no time, or that of no import, all imports are read. A cut-over by
    an earlier version gave the position its own time. ``rare``: as in ``_of_rare``."""
    times: dict[tuple[str, str], list[int]] = {}
    for row in rare:
        shard, action, name = row["shard"], row["action"], row["parameters"].get("broker_name")
        if action in IMPORTS and _is_placed(row["parameters"]):
            times[shard, import_id(name)] = [row["store_timestamp"]]
        elif action == Action.CUTOVER and row["is_early"] and name is not None:
            times.get((shard, import_id(name)), []).append(row["store_timestamp"])
    for row in stored:
        time, recorded = row["updated_ms"], times.get((row["shard"], row["app_id"]))
        if time and recorded and time not in recorded:
            detail = f"the time of the newest import: {format_time(time)}, by the commits {format_time(recorded[0])}"
            yield _finding({"shard": row["shard"], "app_id": row["app_id"]}, detail)


def _of_sends(rows: Sequence[Row]) -> Expected:
    expected: Expected = {}
    for row in rows:
        for topic in json.loads(row["topics"]):
            key = row["shard"], send_id(topic)
            expected[key] = expected.get(key, 0) + row["sends"]
    return expected


def _of_subscriptions(rows: Sequence[Row]) -> Expected:
    return {
        (row["shard"], sub_id(row["group_name"])): sub_version_of(
            row["subscription_version"], row["subscription"]
        ).packed()
        for row in rows
    }
