"""The audit finds what was changed in the record of an action that moves offsets, or of a window after it: epochs, passes, and
moves that do not follow from the action.

Each fault agrees with the positions and the derived tables, so that only the order of the commits shows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.admin.clone import CloneRequest
from rmq_store.admin.reset import ResetTo
from rmq_store.admin.set_offsets import SetOffsetsRequest
from rmq_store.commit.ctl import canonical_json
from rmq_store.commit.positions import grp_id, off_id, pas_id
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.broker.cutover import cutover
from rmq_store.lake.broker.hand_back import hand_back
from rmq_store.window.consume_request import ConsumeRequest
from tests.contract.engines import LakeWorld
from tests.contract.world import ANA, DAY, HOUR, NOON, fail_bodies, group, orders, several
from tests.faults.stores import GROUP, TESTS, TOPIC, Lake, write_broker
from tests.faults.test_planted_faults import SHARD, Plant, in_first, planted
from tests.planted_shard import PlantedShard, Row

Change = Callable[[Row], Row]


def record(action: str, change: Change, *, oldest: bool = False) -> Plant:
    return lambda at: at.rewrite_record(action, change, oldest=oldest)


def of_epoch(epoch: int) -> Change:
    """Another epoch, which the moves have too."""
    return lambda row: row | {"epoch": epoch, "moved": [move | {"pass": epoch} for move in row["moved"] or ()]}


def in_parameters(**values: Any) -> Change:
    return lambda row: row | {"parameters": canonical_json(json.loads(row["parameters"]) | values)}


def to_offset(group_name: str, offset: int, action: str, *, more: Change | None = None) -> Plant:
    """The first move of the group of the newest commit with an action goes elsewhere, and the group is there."""

    def plant(at: PlantedShard) -> None:
        (*_, ctl) = at.shard.ctls_since(0, action=action)
        (number, move) = next((n, move) for n, move in enumerate(ctl.moved) if move.group == group_name)

        def elsewhere(row: Row) -> Row:
            moved = [one | {"to_offset": offset} if n == number else one for n, one in enumerate(row["moved"])]
            return row | {"moved": moved}

        at.rewrite_record(action, elsewhere)
        at.set_position(off_id(group_name, move.queue), offset)
        if more:
            at.rewrite_record(action, more)

    return plant


def behind_the_end(at: PlantedShard) -> None:
    (*_, ctl) = at.shard.ctls_since(0, action="reset")
    assert "file" in ctl.parameters
    to_offset("setting", 99, "reset", more=in_parameters(to="max", offsets=None))(at)


def early_undo(at: PlantedShard) -> None:
    """And all windows after it, and the positions."""
    (ctl,) = at.shard.ctls_since(0, action="undo")
    at.rewrite_record("undo", of_epoch(2))
    at.rewrite_record("consume", lambda row: row | {"epoch": 2})
    at.set_position(grp_id(ctl.group or ""), 2)
    for move in ctl.moved:
        at.set_position(pas_id(ctl.group or "", move.queue), 2)


def another_pass(at: PlantedShard) -> None:
    """The newest window of a group of which a reset named the queue."""
    (*_, ctl) = at.shard.ctls_since(0, action="consume")
    at.rewrite_record("consume", in_first("consumed", **{"pass": 0}))
    at.set_position(pas_id(ctl.group or "", ctl.consumed[0].range.queue), 0)


def without_move(action: str, group_name: str, topic: str) -> Plant:
    """The newest action of a kind on the group leaves out the last queue of the topic, in which the group is as before."""

    def plant(at: PlantedShard) -> None:
        ctl = next(ctl for ctl in reversed(at.shard.ctls_since(0, action=action)) if ctl.group == group_name)
        (*_, move) = (move for move in ctl.moved if move.queue.topic == topic)
        passes = [
            one.pass_
            for other in at.shard.ctls_since(0, group=group_name)
            for one in other.moved
            if one.queue == move.queue and one.pass_ < move.pass_
        ]
        number = ctl.moved.index(move)
        at.rewrite_record(action, lambda row: row | {"moved": row["moved"][:number] + row["moved"][number + 1 :]})
        at.set_position(off_id(group_name, move.queue), -1 if move.from_offset is None else move.from_offset)
        at.set_position(pas_id(group_name, move.queue), max(passes, default=0))

    return plant


def in_text(old: str, new: str) -> Change:
    """Another text of the parameters."""

    def change(row: Row) -> Row:
        assert old in row["parameters"]
        return row | {"parameters": row["parameters"].replace(old, new)}

    return change


def without(name: str) -> Change:
    def change(row: Row) -> Row:
        parameters = json.loads(row["parameters"])
        del parameters[name]
        return row | {"parameters": canonical_json(parameters)}

    return change


UNUSUAL = "parameters in a form in which no commit has them"

FAULTS: dict[str, tuple[Plant, str]] = {
    "a reset of the epoch of the delete after it": (
        record("reset", of_epoch(2), oldest=True),
        "the epoch 2 after 0 of its",
    ),
    "an undo of the epoch before": (early_undo, "the epoch 2 after 2 of its group"),
    "a window of another epoch": (
        record("consume", lambda row: row | {"epoch": -1}, oldest=True),
        "the epoch -1 after 0 of its group",
    ),
    "a redrive of another epoch": (
        record("redrive", lambda row: row | {"epoch": -1}),
        "the epoch -1 after 0 of its group",
    ),
    "a window of the pass before": (another_pass, "the pass 0 and not 1"),
    "a first window of another pass": (
        record("consume", in_first("consumed", **{"pass": 1}), oldest=True),
        "the pass 1 and not 0",
    ),
    "a start_rule that is none": (
        record("consume", in_first("consumed", start_rule="luck"), oldest=True),
        "the start_rule luck, which none has",
    ),
    "a start_rule where the group has an offset": (
        record("consume", in_first("consumed", start_rule="timestamp")),
        "the start_rule timestamp where its group has an offset",
    ),
    "a reset behind the end of the queue": (behind_the_end, "a move to 99, behind the end of the queue"),
    "a reset to another offset than that of its request": (
        record("reset", in_parameters(value=5), oldest=True),
        "a move to 2 and not 5",
    ),
    "a reset in another topic than that of its request": (
        record("reset", in_parameters(topic="Bills"), oldest=True),
        "a move in another topic than Bills",
    ),
    "a reset that deletes an offset": (to_offset("setting", -1, "reset"), "a move that deletes the offset"),
    "offsets of another file": (to_offset("setting", 2, "reset"), "other moves than the offsets of its file"),
    "a clone to where its source never was": (
        to_offset("cloned", 7, "clone"),
        "a move to 7, where its source never was",
    ),
    "a clone of another topic": (record("clone", in_parameters(topic="Bills")), "a move in another topic than Bills"),
    "a delete that keeps an offset": (to_offset("leaving", 8, "delete"), "a move to 8"),
    "a delete that leaves a queue out": (
        without_move("delete", "leaving", "Orders"),
        "no move of a queue in which its group was at 4",
    ),
    "a delete that leaves a retry queue out": (
        without_move("delete", "leaving", "%RETRY%leaving"),
        "no move of a queue in which its group was at 1",
    ),
    "an undo of another request": (
        record("undo", in_parameters(undoes="other")),
        "another undoes than the action before it",
    ),
    "an undo of another commit": (
        record("undo", in_parameters(undoes_commit="0" * 32)),
        "another undoes_commit than the action before it",
    ),
    "an undo of another action": (
        record("undo", in_parameters(undoes_action="clone")),
        "another undoes_action than the action before it",
    ),
    "an undo to another offset": (to_offset("billing", 7, "undo"), "other moves than those that undo its action"),
    "a reset of other queues than its request names": (
        record("reset", in_parameters(queues=["broker-a:1"]), oldest=True),
        "moves of other queues than it names",
    ),
    "a reset of fewer queues than its request names": (
        record("reset", in_parameters(queues=["broker-a:0", "broker-a:1"]), oldest=True),
        "moves of other queues than it names",
    ),
    "a reset to a negative offset": (
        record("reset", in_parameters(value=-4), oldest=True),
        "a move to 2 and not -4",
    ),
    "a reset to an offset that is a text": (
        record("reset", in_parameters(value="4"), oldest=True),
        'a parameter that it cannot have: "value":"4"',
    ),
    "a reset to an offset that is true": (
        record("reset", in_parameters(value=True), oldest=True),
        'a parameter that it cannot have: "value":true',
    ),
    "a reset with a space in its parameters": (
        record("reset", in_text('"value":2', '"value": 5'), oldest=True),
        UNUSUAL,
    ),
    "a reset with two values": (record("reset", in_text('"value":2', '"value":2,"value":5'), oldest=True), UNUSUAL),
    "a reset without its topic": (record("reset", without("topic"), oldest=True), "no parameter topic"),
    "a reset without its value": (record("reset", without("value"), oldest=True), "no parameter value"),
    "a reset with a parameter that none has": (
        record("reset", in_parameters(luck=1), oldest=True),
        'a parameter that it cannot have: "luck":1',
    ),
    "a reset to what no reset has": (
        record("reset", in_parameters(to="elsewhere"), oldest=True),
        'a reset to "elsewhere", which none has',
    ),
    "a reset to a file without its digest": (record("reset", without("offsets")), "no parameter offsets"),
    "a clone without its source": (record("clone", without("source")), "no parameter source"),
    "an attempt without its number": (record("replay", without("attempt")), "no parameter attempt"),
    "an undo that does not name its commit": (record("undo", without("undoes_commit")), "no parameter undoes_commit"),
    "a delete with other parameters": (
        record("delete", in_parameters(retries=None)),
        'a parameter that it cannot have: "retries":null',
    ),
    "an action with parameters that are no JSON": (
        lambda at: at.rewrite_rows(at.record("clone"), lambda row: row | {"parameters": "{clone}"}),
        "has parameters that are no JSON object",
    ),
    "another number of an attempt": (record("replay", in_parameters(attempt=5)), "the attempt 5 and not 2"),
}

FAULTS_OF_BROKERS: dict[str, tuple[Plant, str]] = {
    "a cut-over of another epoch": (
        record("cutover", lambda row: row | {"moved": [move | {"pass": 2} for move in row["moved"]]}),
        "the epoch 2 after 0 of its group",
    ),
    "a hand-back that keeps an offset": (to_offset(GROUP, 9, "hand_back"), "a move to 9"),
    "a hand-back that observes another offset": (
        record("hand_back", in_first("observed", offset=1)),
        "which it does not observe",
    ),
    "a cut-over that takes over another offset": (
        record(
            "import",
            lambda row: row | {"observed": [one | {"offset": one["offset"] + 1} for one in row["observed"] or ()]},
        ),
        "which no import observed",
    ),
}


def sound_store(folder: Path) -> Path:
    """The small history of four groups: reset and undone, cloned, deleted and made again, set by a file; and a replay."""
    lake = LakeWorld(folder)
    lake.fill(orders(0), several(8))
    lake.fill(orders(1), several(4, first=8))
    numbers = iter(range(99))

    def consume(*names: str, **settings: Any) -> None:
        for name in names:
            some = fail_bodies(b"3")
            lake.consume(group(name, max_reconsume_times=1, **settings), f"{DAY}-{next(numbers)}", some)

    consume("leaving", "source")
    lake.clock.advance(HOUR)
    lake.deliver(f"{DAY}-deliver")
    consume("source", "leaving")  # a dead letter of each
    lake.redrive(group="source")
    lake.reset_to(ResetTo.OFFSET, 2, queues=(orders(0),), group="leaving", request_id=f"{DAY}-first")
    lake.delete(group="leaving")
    consume("billing")
    lake.reset_to(ResetTo.OFFSET, 3, queues=(orders(0),))
    consume("billing", max_messages=1)
    lake.reset_to(ResetTo.OFFSET, 1, queues=(orders(1),), request_id=f"{DAY}-again")
    lake.undo()
    lake.move(CloneRequest("cloned", "source", f"{DAY}-clone", ANA, "a test"))
    offsets = {orders(0): 3, orders(1): 1}
    lake.move(SetOffsetsRequest("setting", offsets, "offsets.json", f"{DAY}-file", ANA, "a test"))
    lake.replay(group("billing"), "Orders", NOON - HOUR, ConsumeRequest(f"{DAY}-replay", ANA))
    name = next(ctl.group for ctl in lake.ctls() if "-replay-" in (ctl.group or ""))
    lake.reprocess(str(name), f"{DAY}-replay-2")
    consume("billing")
    assert audit(lake.store) == []
    return Path(lake.root.location)


def store_of_broker(folder: Path) -> Path:
    """A broker that was cut over and handed back."""
    lake = Lake(folder / "store", shard_name=SHARD)
    offsets = {"offsetTable": {f"{TOPIC}@{GROUP}": {"0": 2}}}
    config = write_broker(folder / "broker") / "config"
    config.mkdir()
    (config / "consumerOffset.json").write_text(json.dumps(offsets))
    lake.load(folder / "broker", name=SHARD)
    arguments: dict[str, Any] = {"actor": TESTS, "reason": "a test"}
    cutover(lake.store, lake.shard, SHARD, lake.host, request_id="2026-01-02-c", **arguments)
    lake.consume()
    hand_back(lake.shard, SHARD, lake.host, request_id="2026-01-03-h", **arguments)
    assert lake.audit() == []
    return lake.folder


STORES = ((sound_store, FAULTS), (store_of_broker, FAULTS_OF_BROKERS))


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for make, faults in STORES:
        sound = make(tmp_path_factory.mktemp("sound"))
        plants = {name: (plant, Problem.RECORD_NOT_VALID) for name, (plant, _) in faults.items()}
        found |= planted(sound, tmp_path_factory.mktemp("planted") / "store", list(faults), plants)
    return found


@pytest.mark.parametrize("name", FAULTS | FAULTS_OF_BROKERS)
def test_the_audit_finds(findings: dict[str, list[Finding]], name: str) -> None:
    expected = (FAULTS | FAULTS_OF_BROKERS)[name][1]
    said = " | ".join(one.detail or "" for one in findings[name])
    assert expected in said
