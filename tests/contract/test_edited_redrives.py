"""Redrives with edits, as audits and SQL see them: an edited copy is what its commit says, and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from rmq_store.admin.dead_letters import DeadLetterFilter
from rmq_store.admin.redrive import RedriveRequest
from rmq_store.admin.redrive_edits import MessageEdits
from rmq_store.commit.ctl import canonical_json
from rmq_store.errors import WrongUse
from rmq_store.lake.admin.redrive import redrive, redrive_all, shards_with_dead_letters
from rmq_store.lake.audit.finding import Problem
from rmq_store.lake.audit.full import full
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.message.sys_flag import body_crc
from rmq_store.utils.json_text import JsonText
from rmq_store.window.consume_request import ConsumeRequest
from tests.contract.engines import LakeWorld
from tests.contract.test_engines_redrive import die
from tests.contract.world import BEN, BILLING, DAY, LOCAL, NOON, SHARD, counts, group, listening, orders, said
from tests.planted_shard import PlantedShard, Row

ORDERED = {"/sum": JsonText('{"z":12.50,"a":1E2,"a":-0}'), "/no": 1}
"""In the order that a copy has them, and digits that a number of Python does not keep."""
EDITS = MessageEdits(cast_json={"/price": "number"}, set_property={"region": "us"}, set_json=ORDERED)
COPY = b'{"price": 1,"sum":{"z":12.50,"a":1E2,"a":-0},"no":1}'


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> LakeWorld:
    """Six dead letters: two sent with edits, one without, one to which the edits did not apply, two that wait."""
    world = LakeWorld(tmp_path_factory.mktemp("edited") / "store")
    bodies = ['{"price": "1"}', "no JSON", '{"price": "3"}', '{"price": "4"}', "5", "6"]
    world.fill(orders(0), [replace(said(n), body=body.encode()) for n, body in enumerate(bodies)])
    world.consume(BILLING, f"{DAY}-1", die)
    world.clock.advance(1_000)
    world.redrive(f"{DAY}-edited", DeadLetterFilter(keys=frozenset({"U0", "U1", "U2"})), edits=EDITS, actor=BEN)
    world.clock.advance(1_000)
    world.redrive(f"{DAY}-plain", DeadLetterFilter(keys=frozenset({"U3"})))
    world.clock.advance(1_000)
    failed = DeadLetterFilter(keys=frozenset({"U4"}))
    world.redrive(f"{DAY}-failed", failed, edits=MessageEdits(remove_property=("region",)))
    return world


def problems(world: LakeWorld, folder: Path) -> set[str]:
    store = LakeStore.open(Root.parse(str(folder)))
    return {Problem.of(finding.problem) for finding in full(store, LocalEngine(world.host)).findings}


def test_audits_of_edited_copies_have_no_finding(world: LakeWorld) -> None:
    report = full(world.store, LocalEngine(world.host))
    assert (report.findings, report.copies) == ([], 6 + 3)
    assert query(world.store, "SELECT * FROM audit", host=world.host).to_pylist() == []


def other(rows: list[Row], number: int, body: bytes) -> list[Row]:
    changed = rows[number] | {"body": body, "body_crc": body_crc(body), "stored_body_size": len(body)}
    return [*rows[:number], changed, *rows[number + 1 :]]


def with_property(rows: list[Row], name: str, value: str | None) -> list[Row]:
    """Another value of a property of the first row; None: it lacks the property."""
    properties = dict(rows[0]["properties"]) | {name: value}
    return [rows[0] | {"properties": [(k, v) for k, v in properties.items() if v is not None]}, *rows[1:]]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(lambda rows: other(rows, 0, b'{"price": 2}'), Problem.COPY_BODY_DIFFERS, id="another value"),
        pytest.param(lambda rows: other(rows, 1, b'{"price": "3"}'), Problem.COPY_BODY_DIFFERS, id="without the edits"),
        pytest.param(
            lambda rows: other(other(rows, 0, rows[1]["body"]), 1, rows[0]["body"]),
            Problem.COPY_BODY_DIFFERS,
            id="swapped",
        ),
        pytest.param(
            lambda rows: with_property(rows, "region", "eu"), Problem.COPY_PROPERTIES_DIFFER, id="another property"
        ),
        pytest.param(
            lambda rows: with_property(rows, "region", None), Problem.COPY_PROPERTIES_DIFFER, id="without the property"
        ),
        pytest.param(
            lambda rows: [rows[0] | {"reconsume_times": 1, "attempt": 1}, *rows[1:]],
            Problem.COPY_PROPERTIES_DIFFER,
            id="tried before",
        ),
    ],
)
def test_an_edited_copy_that_was_changed_by_hand_is_found(
    world: LakeWorld, tmp_path: Path, change: Callable[[list[Row]], list[Row]], problem: Problem
) -> None:
    root = tmp_path / "store"
    shutil.copytree(world.root.location, root)
    shard = PlantedShard(root, SHARD)
    (file,) = (
        file
        for file in shard.files(kind="msg")
        if pc.any(pc.equal(shard.shard.commitlog.read([file], ["body"]).column("body"), COPY)).as_py()
    )
    shard.rewrite(file, lambda rows: pa.Table.from_pylist(change(rows.to_pylist()), rows.schema))
    assert problems(world, root) == {Problem.FILE_CHANGED, problem}


def edits_in_record(text: str | None) -> Callable[[Row], Row]:
    def change(row: Row) -> Row:
        parameters = json.loads(row["parameters"]) | {"edits": text}
        return row | {"parameters": canonical_json({k: v for k, v in parameters.items() if v is not None})}

    return change


@pytest.mark.parametrize(
    ("text", "oldest", "problem"),
    [
        (EDITS.text.replace("us", "eu"), True, Problem.COPY_PROPERTIES_DIFFER),
        (replace(EDITS, remove_property=("KEYS",)).text, True, Problem.COPY_PROPERTIES_DIFFER),
        (replace(EDITS, set_property={}).text, True, Problem.COPY_PROPERTIES_DIFFER),
        (MessageEdits(set_property={"region": "us"}).text, True, Problem.COPY_BODY_DIFFERS),
        (None, True, Problem.COPY_PROPERTIES_DIFFER),
        (MessageEdits(set_property={"region": "us"}).text, False, Problem.COPY_PROPERTIES_DIFFER),
        (MessageEdits(remove_property=("region",)).text, False, Problem.COPY_PROPERTIES_DIFFER),
    ],
    ids=["another value", "one more", "one less", "no body", "none", "where none were", "that do not apply"],
)
def test_other_edits_in_the_record_of_a_redrive_are_found(
    world: LakeWorld, tmp_path: Path, text: str | None, oldest: bool, problem: Problem
) -> None:
    """``oldest``: the record of the redrive with edits, else that without."""
    root = tmp_path / "store"
    shutil.copytree(world.root.location, root)
    shard = PlantedShard(root, SHARD)
    records = [file for file in shard.files(kind="ctl") if has_sent(shard, file)]
    shard.rewrite_rows(records[0 if oldest else 1], edits_in_record(text))
    assert problem in problems(world, root) <= {Problem.COPY_BODY_DIFFERS, Problem.COPY_PROPERTIES_DIFFER}


def has_sent(at: PlantedShard, file: str) -> bool:
    (row,) = at.shard.commitlog.read([file], ["action", "produced"]).to_pylist()
    return row["action"] == "redrive" and bool(row["produced"])


def test_a_group_of_dead_letters_gets_them_as_they_are(world: LakeWorld, tmp_path: Path) -> None:
    """Its copies of a dead letter that was sent with edits have no edits."""
    root = tmp_path / "store"
    shutil.copytree(world.root.location, root)
    shard = Shard(Root.parse(str(root)), SHARD)
    wanted, engine = ConsumeRequest(f"{DAY}-readers", BEN), LocalEngine(world.host)
    with listening(die):
        readers = group("readers", ("%DLQ%billing",))
        report = consume_window(LakeStore.open(shard.root), shard, readers, wanted, lambda _: engine, world.host)
    assert counts(report) == {"dead": 6}
    assert problems(world, root) == set()


def test_of_several_shards_none_sends_anything_when_an_edit_does_not_apply_in_one(
    world: LakeWorld, tmp_path: Path
) -> None:
    root = tmp_path / "store"
    shutil.copytree(world.root.location, root)
    shutil.copytree(root / SHARD, root / "second")
    (root / "shards" / "second.json").write_text(json.dumps({"name": "second"}))
    first, second = (Shard(Root.parse(str(root)), name) for name in (SHARD, "second"))
    request = RedriveRequest(
        group="billing",
        dead_letters=DeadLetterFilter(keys=frozenset({"U1", "U5"})),
        request_id=f"{DAY}-all",
        actor=BEN,
        reason="all or nothing",
        edits=MessageEdits(set_json={"": 0}),
        all_or_nothing=True,
    )
    others = replace(request, request_id=f"{DAY}-one", dead_letters=DeadLetterFilter(keys=frozenset({"U1"})))
    plain = replace(others, edits=MessageEdits())
    assert redrive(first, plain, world.host).letters == 1
    before = first.commitlog.version
    with pytest.raises(WrongUse, match="of the dead letters of shard second, so nothing was sent"):
        shards_with_dead_letters([first, second], request)
    first.commitlog.refresh()
    assert first.commitlog.version == before
    assert redrive(second, replace(plain, request_id=f"{DAY}-two"), world.host).letters == 1
    for shard, of_shard in shards_with_dead_letters([first, second], request):
        assert redrive_all(shard, of_shard, world.host).letters == 1


def rows(world: LakeWorld, text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = query(world.store, text, host=world.host).to_pylist()
    return found


def test_outcomes_has_no_row_of_a_redrive(world: LakeWorld) -> None:
    assert rows(world, "SELECT DISTINCT outcome FROM outcomes") == [{"outcome": "dead"}]


def test_the_state_of_each_dead_letter_is_in_sql(world: LakeWorld) -> None:
    """``redrives``: pending, sent or failed, with who, when, where to and why."""
    shown = rows(
        world,
        "SELECT unique_key, state, request_id, actor, reason, committed_at, to_topic, to_broker_name, to_queue_id,"
        " to_queue_offset, error_text, parameters FROM redrives WHERE group_name = 'billing' ORDER BY unique_key",
    )
    retry = {"to_topic": "%RETRY%billing", "to_broker_name": LOCAL, "to_queue_id": 0}
    nowhere: dict[str, Any] = dict.fromkeys((*retry, "to_queue_offset"))
    edited = {"request_id": f"{DAY}-edited", "actor": "ben", "reason": "price is known", "committed_at": NOON + 1_000}
    plain = {"request_id": f"{DAY}-plain", "actor": "ana", "reason": "price is known", "committed_at": NOON + 2_000}
    failed = plain | {"request_id": f"{DAY}-failed", "committed_at": NOON + 3_000}
    pending = dict.fromkeys(("request_id", "actor", "reason", "committed_at", "error_text"))
    parameters = [json.loads(row.pop("parameters") or "{}") for row in shown]
    assert [values.get("edits") for values in parameters] == [
        EDITS.text,
        EDITS.text,
        EDITS.text,
        None,
        '{"remove_property": ["region"]}',
        None,
    ]
    assert shown == [
        {"unique_key": "U0", "state": "sent", **edited, **retry, "to_queue_offset": 0, "error_text": None},
        {"unique_key": "U1", "state": "failed", **edited, **nowhere, "error_text": "the body is not JSON"},
        {"unique_key": "U2", "state": "sent", **edited, **retry, "to_queue_offset": 1, "error_text": None},
        {
            "unique_key": "U3",
            "state": "sent",
            **plain,
            **retry,
            "to_queue_offset": 2,
            "error_text": None,
        },
        {
            "unique_key": "U4",
            "state": "failed",
            **failed,
            **nowhere,
            "error_text": "there is no property region",
        },
        {"unique_key": "U5", "state": "pending", **pending, **nowhere},
    ]


def test_only_the_dead_letters_that_were_sent_are_redriven(world: LakeWorld) -> None:
    text = (
        "SELECT unique_key, redriven_at, redriven_to FROM dead_letters WHERE group_name = 'billing' ORDER BY unique_key"
    )
    sent_ms = {"U0": NOON + 1_000, "U2": NOON + 1_000, "U3": NOON + 2_000}
    assert rows(world, text) == [
        {
            "unique_key": f"U{n}",
            "redriven_at": sent_ms.get(f"U{n}"),
            "redriven_to": "%RETRY%billing" if f"U{n}" in sent_ms else None,
        }
        for n in range(6)
    ]
