"""The actions that move offsets: each raises the epoch of its groups by one, and every other commit of a group has its epoch; a
window has the pass that its queue is in; and an action has the moves that follow from it.

Of two commits of a group one has seen the other, since each expects the group's epoch: ``read_version`` and ``commit_id`` say
which came first. That a move begins where the group was is proved by the view ``audit``, and that the pass of moves is the
epoch of their record by ``records.py``. A clone and a cut-over do not expect what they copy, and a reset may set offsets that
were shown before: of these the commits do not say which offset was right at that time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rmq_store.admin.reset import ResetTo
from rmq_store.admin.set_offsets import FILE, digest_of
from rmq_store.admin.undo import MOVES
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action
from rmq_store.consumer.start import StartRule
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.audit.move_parameters import wrong_parameters
from rmq_store.lake.audit.written_files import FIRST_LISTED
from rmq_store.lake.sql.sql import Ask
from rmq_store.lake.table.tables import json_object, queue_of_row

Row = Mapping[str, Any]
MovesOf = Mapping[tuple[str, str], Sequence[Row]]
"""The moves of each action, by shard and commit."""

_QUEUE = "shard, topic, broker_name, queue_id"
_MOVED_QUEUE = ", ".join(f"m.{name}" for name in _QUEUE.split(", "))
_OF_GROUP = f"group_name, {_QUEUE}"
_MOVES = tuple(map(str, MOVES))
_OF_BROKER = tuple(map(str, (Action.IMPORT, Action.SALVAGE, Action.CUTOVER, Action.HAND_BACK)))
"""Actions on a broker that move groups. They have no epoch of their own: the pass of its moves is that of a group."""

_EPOCHS = f"""
SELECT shard, group_name, commit_id, action, 'the epoch ' || epoch || ' after ' || before || ' of its group' AS fact
FROM (
    SELECT e.*, coalesce(lag(epoch) OVER (PARTITION BY shard, group_name ORDER BY read_version, commit_id), 0) AS before
    FROM (
        SELECT shard, group_name, commit_id, read_version, action, epoch, CAST(action IN {_MOVES} AS INT) AS raised
        FROM ctl WHERE epoch IS NOT NULL AND group_name IS NOT NULL
        UNION ALL
        SELECT DISTINCT shard, group_name, commit_id, read_version, action, pass, 1
        FROM ctl_moved WHERE action IN {_OF_BROKER}
    ) e
) c WHERE epoch IS DISTINCT FROM before + raised
"""

_PASSES = f"""
SELECT {_OF_GROUP}, begin_offset, end_offset, commit_id, action, concat_ws(', ',
    CASE WHEN action = 'consume' AND pass <> expected THEN 'the pass ' || pass || ' and not ' || expected END,
    CASE WHEN is_known IS NOT TRUE THEN 'the start_rule ' || start_rule || ', which none has' END,
    CASE WHEN start_rule <> 'stored' AND stood_at = begin_offset
        THEN 'the start_rule ' || start_rule || ' where its group has an offset' END
) AS fact
FROM (
    SELECT s.*, s.start_rule IN (CASE WHEN s.action = 'deliver' THEN 'first_offset' ELSE s.start_rule END, 'stored')
            AND s.start_rule IN {tuple(map(str, StartRule))} AS is_known,
        CASE WHEN s.start_rule = 'stored' THEN s.pass_before ELSE c.epoch END AS expected
    FROM (
        SELECT t.*, nullif(lag(end_offset) OVER in_order, -1) AS stood_at, coalesce(lag(pass) OVER in_order, 0) AS pass_before
        FROM (
            SELECT {_OF_GROUP}, read_version, commit_id, action, pass, start_rule, begin_offset, end_offset
            FROM ctl_consumed WHERE action IN ('consume', 'deliver')
            UNION ALL
            SELECT {_OF_GROUP}, read_version, commit_id, action, pass, NULL, NULL, to_offset FROM ctl_moved
        ) t
        WINDOW in_order AS (PARTITION BY {_OF_GROUP} ORDER BY read_version, commit_id)
    ) s
    LEFT JOIN (SELECT shard, commit_id, epoch FROM ctl) c
        ON c.shard = s.shard AND c.commit_id = s.commit_id AND s.start_rule <> 'stored'
) j WHERE start_rule IS NOT NULL AND fact <> ''
"""
"""A first window in a queue begins the pass of the group's epoch; later ones stay in that of the newest move."""

_SHAPES = f"""
SELECT m.group_name, {_QUEUE}, commit_id, action, concat_ws(', ',
    CASE WHEN (to_offset = -1) <> CASE action
            WHEN 'delete' THEN topic <> '%RETRY%' || m.group_name
            WHEN 'hand_back' THEN TRUE
            WHEN 'undo' THEN to_offset = -1
            ELSE FALSE
        END THEN CASE to_offset WHEN -1 THEN 'a move that deletes the offset' ELSE 'a move to ' || to_offset END END,
    CASE WHEN to_offset > coalesce(p.value, 0) THEN 'a move to ' || to_offset || ', behind the end of the queue' END
) AS fact
FROM ctl_moved m
LEFT JOIN (SELECT * FROM positions WHERE kind = 'max') p USING (shard, topic, broker_name, queue_id)
WHERE fact <> ''
"""
"""No offset is set behind the last message. A delete keeps the offsets of its group's own retry topic
(``docs/decisions/0007-delete-a-group.md``)."""

_ACTS = f"""
SELECT a.*, a.read_version < f.read_version OR f.read_version IS NULL AS is_early FROM (
    SELECT shard, group_name, commit_id, action, read_version, parameters, lag(commit_id) OVER in_order AS before_commit,
        lag(action) OVER in_order AS before_action, lag(request_id) OVER in_order AS before_request,
        row_number() OVER (PARTITION BY shard, group_name, action ORDER BY read_version, commit_id) AS number
    FROM ctl WHERE action IN {_MOVES}
    WINDOW in_order AS (PARTITION BY shard, group_name ORDER BY read_version, commit_id)
) a LEFT JOIN ({FIRST_LISTED}) f ON f.shard = a.shard
ORDER BY a.shard, a.read_version, commit_id
"""
"""``is_early``: an earlier version may have made it, which chose the action that an undo takes back by its time."""

_ACT_MOVES = f"SELECT {_OF_GROUP}, commit_id, action, from_offset, to_offset FROM ctl_moved WHERE action IN {_MOVES}"

_SOURCES = f"""
SELECT {_OF_GROUP}, commit_id, action, 'a move to ' || to_offset || ', where its source never was' AS fact FROM (
    SELECT m.group_name, {_MOVED_QUEUE}, m.commit_id, m.action, m.to_offset, m.read_version, c.source
    FROM ctl_moved m JOIN (
        SELECT shard, commit_id, regexp_extract(parameters, '"source":"([^"]*)"', 1) AS source FROM ctl
        WHERE action = 'clone' AND parameters LIKE '%"source":%'
    ) c USING (shard, commit_id)
) clones
ANTI JOIN (
    SELECT {_OF_GROUP.replace("group_name", "group_name AS source")}, end_offset AS to_offset, min(read_version) AS since
    FROM (
        SELECT {_OF_GROUP}, end_offset, read_version FROM ctl_consumed WHERE action <> 'redrive'
        UNION ALL
        SELECT {_OF_GROUP}, to_offset, read_version FROM ctl_moved
        UNION ALL
        SELECT {_OF_GROUP}, observed_offset, read_version FROM ctl_observed
    ) steps GROUP BY ALL
) sources ON sources.source = clones.source AND {" AND ".join(f"sources.{c} = clones.{c}" for c in _QUEUE.split(", "))}
    AND sources.to_offset = clones.to_offset AND sources.since <= clones.read_version
"""

_HANDED = f"""
SELECT {_OF_GROUP}, m.commit_id, m.action, CASE m.action
    WHEN 'cutover' THEN 'a move to ' || to_offset || ', which no import observed'
    ELSE 'a move from ' || from_offset || ', which it does not observe'
END AS fact
FROM (
    SELECT m.*, CASE action WHEN 'cutover' THEN to_offset ELSE from_offset END AS observed_offset
    FROM ctl_moved m WHERE action = 'hand_back' OR action = 'cutover' AND group_name <> '{SCHEDULE_GROUP}'
) m
ANTI JOIN (
    SELECT {_OF_GROUP}, observed_offset, action AS of_action, commit_id AS of_commit, read_version AS of_version
    FROM ctl_observed
) o ON {" AND ".join(f"o.{name} = m.{name}" for name in _OF_GROUP.split(", "))} AND o.observed_offset = m.observed_offset
    AND CASE m.action WHEN 'hand_back' THEN o.of_commit = m.commit_id ELSE o.of_version < m.read_version END
WHERE m.observed_offset IS NOT NULL
"""
"""A cut-over takes over what an import has observed; a hand-back observes what it gives back. How far delay levels have come,
the messages say."""

_KEPT = f"""
SELECT {_OF_GROUP}, commit_id, action, 'no move of a queue in which its group was at ' || stood_at AS fact FROM (
    SELECT s.group_name, {_QUEUE.replace("shard", "s.shard")}, stood_at, d.commit_id, d.action, row_number() OVER (
        PARTITION BY d.commit_id, s.group_name, {_QUEUE.replace("shard", "s.shard")}
        ORDER BY s.read_version DESC, s.commit_id DESC
    ) AS from_last
    FROM (SELECT shard, group_name, commit_id, action, read_version FROM ctl WHERE action = 'delete') d
    JOIN (
        SELECT {_OF_GROUP}, read_version, commit_id, end_offset AS stood_at FROM ctl_consumed WHERE action = 'consume'
        UNION ALL
        SELECT {_OF_GROUP}, read_version, commit_id, to_offset FROM ctl_moved
    ) s ON s.shard = d.shard AND s.group_name = d.group_name
        AND (s.read_version < d.read_version OR s.read_version = d.read_version AND s.commit_id < d.commit_id)
) steps
ANTI JOIN (SELECT {_OF_GROUP}, commit_id FROM ctl_moved WHERE action = 'delete') m USING ({_OF_GROUP}, commit_id)
WHERE from_last = 1 AND stood_at > CASE topic WHEN '%RETRY%' || group_name THEN 0 ELSE -1 END
"""
"""A delete voids each offset of its group, and no window gets one in between. A group may be at 0 of a retry queue that does
not exist, by the files of its broker: a delete passes over it."""

_ACTIONS = "SELECT DISTINCT action FROM ctl"
_OF_ACTIONS: Mapping[str, Sequence[Action]] = {
    _SHAPES: (*MOVES, Action.IMPORT, Action.SALVAGE, Action.CUTOVER, Action.HAND_BACK),
    _SOURCES: (Action.CLONE,),
    _KEPT: (Action.DELETE,),
    _HANDED: (Action.CUTOVER, Action.HAND_BACK),
}
"""The statements about some actions only: most stores have none of them."""

TEXTS = (_EPOCHS, _PASSES, _ACTIONS, *_OF_ACTIONS, _ACTS, _ACT_MOVES)
"""The statements of ``moves``."""


def moves(ask: Ask) -> Iterator[Finding]:
    """Records of which the epoch, the passes or the moves do not follow from the commits before."""
    (answer,) = ask((_ACTIONS,))
    actions = set(answer.column("action").to_pylist())
    texts = (text for text, of_text in _OF_ACTIONS.items() if not actions.isdisjoint(of_text))
    for answer in ask((_EPOCHS, _PASSES, *texts)):
        for row in answer.to_pylist():
            yield _finding(row, row["fact"])
    if not actions.isdisjoint(MOVES):
        acts, act_moves = (answer.to_pylist() for answer in ask((_ACTS, _ACT_MOVES)))
        by_commit = _by_commit(act_moves)
        for act in acts:
            yield from (_finding(row, fact) for row, fact in act_facts(act, by_commit))


def _by_commit(rows: Sequence[Row]) -> MovesOf:
    by_commit: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        by_commit[row["shard"], row["commit_id"]].append(row)
    return by_commit


def act_facts(act: Row, moves_of: MovesOf) -> Iterator[tuple[Row, str]]:
    """What is wrong with the parameters of an action, or with its moves by them, and the row that shows it: of the action or of
    a move. ``act``: a row of ``_ACTS``."""
    parameters = json_object(act["parameters"])
    if parameters is None:  # whoever reads the record says so
        return
    if not act["is_early"] and (fact := wrong_parameters(act["action"], act["parameters"], parameters)):
        yield act, fact
        return
    moves = moves_of.get((act["shard"], act["commit_id"]), ())
    match act["action"]:
        case Action.UNDO if fact := _undo_fact(act, parameters, moves_of):
            yield act, fact
        case Action.REPLAY if parameters.get("attempt", act["number"] + 1) != act["number"] + 1:
            yield act, f"the attempt {parameters['attempt']} and not {act['number'] + 1}"
        case Action.RESET:
            yield from _reset_facts(act, parameters, moves)
    topic = parameters.get("topic")
    if act["action"] != Action.UNDO and topic is not None:
        yield from ((move, f"a move in another topic than {topic}") for move in moves if move["topic"] != topic)


def _reset_facts(act: Row, parameters: Row, moves: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    to, value = parameters.get("to"), parameters.get("value")
    offsets = {queue_of_row(move): move["to_offset"] for move in moves}
    if to == FILE and parameters.get("offsets") not in (None, digest_of(offsets)):
        yield act, "other moves than the offsets of its file"
    if to == ResetTo.OFFSET:
        yield from (
            (move, f"a move to {move['to_offset']} and not {value}") for move in moves if move["to_offset"] != value
        )
    queues = parameters.get("queues")
    moved = {f"{move['broker_name']}:{move['queue_id']}" for move in moves}
    if queues is not None and moved != set(map(str, queues)):
        yield act, "moves of other queues than it names"


def _undo_fact(undo: Row, parameters: Row, moves_of: MovesOf) -> str | None:
    """It names another commit than the group's last action before it, or does not give back what that took."""
    commit_id = str(parameters.get("undoes_commit"))
    before = {"undoes": "before_request", "undoes_action": "before_action", "undoes_commit": "before_commit"}
    if not undo["is_early"]:
        for name, column in before.items():
            if parameters[name] != undo[column]:
                return f"another {name} than the action before it"
    undone = {
        (row["group_name"], queue_of_row(row)): -1 if row["from_offset"] is None else row["from_offset"]
        for row in moves_of.get((undo["shard"], commit_id), ())
    }
    given_back = {
        (row["group_name"], queue_of_row(row)): row["to_offset"]
        for row in moves_of.get((undo["shard"], undo["commit_id"]), ())
    }
    return None if given_back == undone else "other moves than those that undo its action"


def _finding(row: Row, fact: str) -> Finding:
    names = ("group_name", "topic", "broker_name", "queue_id", "begin_offset", "end_offset")
    place = {name: row.get(name) for name in names}
    detail = f"the record of commit {row['commit_id']}, action {row['action']}, has {fact}"
    return Finding(shard=row["shard"], problem=Problem.RECORD_NOT_VALID, detail=detail, **place)
