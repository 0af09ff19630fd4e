"""The audit finds outcomes that no commit can have recorded: where counts, hash sums, rows and copies of a window were changed
together, so that they still agree with each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.positions import max_id, off_id, offset_hash
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.duplicates import AbsorbRule
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.commit.rebuild import rebuild
from rmq_store.producer.producer import Message
from rmq_store.utils.host import Host
from tests.contract.engines import LakeWorld
from tests.contract.world import DAY, HOUR, fail, fail_bodies, group, orders, said, several
from tests.faults.test_planted_faults import Plant, in_first, planted
from tests.planted_shard import PlantedShard, Row


def file_of(at: PlantedShard, kind: str, request_id: str) -> str:
    """The file of a kind that the commit of a request has written."""
    (ctl,) = (ctl for ctl in at.shard.ctls_since(0) if ctl.request_id == request_id and (ctl.consumed or ctl.produced))
    (file,) = (file for file in at.files(kind=kind) if ctl.commit_id in file)
    return file


def rewrite_record(at: PlantedShard, request_id: str, change: Callable[[Row], Row]) -> None:
    """And the derived tables agree with it."""
    at.rewrite_rows(file_of(at, "ctl", request_id), change)
    rebuild(at.shard, Host())


def rows(kind: str, request_id: str, change: Callable[[Row], Row]) -> Plant:
    def plant(at: PlantedShard) -> None:
        old = file_of(at, kind, request_id)
        at.rewrite_rows(old, change)
        new = file_of(at, kind, request_id)
        add = at.add_of(new)

        def recorded(row: Row) -> Row:
            named = {"path": new, "size": add["size"], "sha256": None}
            files = [one | named if one["path"] == old else one for one in row["files"]]
            produced = [one | {"file": new} if one["file"] == old else one for one in row["produced"] or ()]
            return row | {"files": files, "produced": produced}

        rewrite_record(at, request_id, recorded)

    return plant


def record(request_id: str, change: Callable[[Row], Row]) -> Plant:
    return lambda at: rewrite_record(at, request_id, change)


def both(*plants: Plant) -> Plant:
    def plant(at: PlantedShard) -> None:
        for one in plants:
            one(at)

    return plant


def as_outcome(request_id: str, before: str, after: str) -> Plant:
    """A range of outcomes is another one, in the rows and in the record of their window."""

    def change(row: Row) -> Row:
        def of_range(one: Row) -> Row:
            moved = {after: one[before], f"{after}_hash": one[f"{before}_hash"], before: 0, f"{before}_hash": 0}
            return one | moved if one[before] else one

        return row | {"consumed": [of_range(one) for one in row["consumed"]]}

    return both(rows("outcome", request_id, lambda row: row | {"outcome": after}), record(request_id, change))


def copies(change: Callable[[Row], Row | None]) -> Plant:
    """Some copies of the window in which messages fail for the first and for the last time."""
    return rows("msg", f"{DAY}-last", lambda row: row | (change(row) or {}))


def dead(**values: Any) -> Plant:
    return copies(lambda row: values if row["topic"].startswith("%DLQ%") else None)


def without_a_copy(at: PlantedShard) -> None:
    """The delivery of a message that was sent with a delay has passed over it."""
    (ctl,) = (ctl for ctl in at.shard.ctls_since(0, action="deliver") if ctl.request_id == f"{DAY}-deliver-sent")
    (segment,) = ctl.produced

    def change(row: Row) -> Row:
        (one,) = row["consumed"]
        passed = {"acked": 0, "acked_hash": 0, "filtered": one["acked"], "filtered_hash": one["acked_hash"]}
        return row | {"consumed": [one | passed], "produced": [], "files": []}

    rewrite_record(at, ctl.request_id, change)
    at.edit_log(lambda kind, value: None if kind == "add" and value["path"] == segment.file else value)
    at.set_position(max_id(segment.queue), 0)


def letters_of_another(at: PlantedShard) -> None:
    other = "%DLQ%other"
    rows("msg", f"{DAY}-redrive", lambda row: row | {"origin_topic": other})(at)
    rewrite_record(at, f"{DAY}-redrive", in_first("consumed", topic=other))


def behind_the_end(at: PlantedShard) -> None:
    """The group of the window has passed a message that comes later."""
    (ctl,) = (ctl for ctl in at.shard.ctls_since(0) if ctl.request_id == f"{DAY}-once" and ctl.consumed)
    queue, more = ctl.consumed[1].range.queue, offset_hash(3) + offset_hash(4)

    def change(row: Row) -> Row:
        first, second = row["consumed"]
        acked = {"acked": second["acked"] + 2, "acked_hash": (second["acked_hash"] + more + 2**63) % 2**64 - 2**63}
        return row | {"consumed": [first, second | acked | {"end_offset": 5}]}

    rewrite_record(at, ctl.request_id, change)
    at.set_position(off_id("once", queue), 5)


FAULTS: dict[str, tuple[Plant, str]] = {
    "dropped as lost": (as_outcome(f"{DAY}-radio", "dropped", "lost"), "lost messages that are there"),
    "dropped as skipped": (as_outcome(f"{DAY}-radio", "dropped", "skipped"), "1 skipped messages"),
    "dropped as duplicates": (as_outcome(f"{DAY}-radio", "dropped", "duplicate"), "duplicates, and no keys"),
    "duplicates as dropped": (
        as_outcome(f"{DAY}-once", "duplicate", "dropped"),
        "dropped messages, though its group was not deleted",
    ),
    "an outcome of another pass": (
        rows("outcome", f"{DAY}-radio", lambda row: row | {"pass": 3}),
        "an outcome of another pass",
    ),
    "an outcome of another window": (
        rows("outcome", f"{DAY}-radio", lambda row: row | {"window_id": "other"}),
        "an outcome of another window",
    ),
    "a delayed message that was not delivered": (without_a_copy, "messages that are not acked"),
    "dead letters of another group": (letters_of_another, "a range of a topic that it does not read"),
    "a range that ends behind the queue": (behind_the_end, "a range to 5, behind the end of the queue"),
    "a copy without a known cause": (
        copies(lambda row: {"cause": "luck"}),
        "copies that are not where their cause says",
    ),
    "a dead letter that is to be retried": (dead(cause="retry"), "copies that are not where their cause says"),
    "a dead letter that failed no more often than others": (
        dead(attempt=1),
        "a dead letter that failed no more often than a message that is retried",
    ),
    "a dead letter without a retry queue": (
        dead(cause="no_retry_queue"),
        "a dead letter without a retry queue, and retries",
    ),
}


def sound_store(folder: Path) -> Path:
    lake = LakeWorld(folder)
    lake.send([Message("Later", b"pay", delay_level=3)], f"{DAY}-send", create_queues=1)
    lake.clock.advance(HOUR)
    lake.deliver(f"{DAY}-deliver-sent")
    lake.fill(orders(0), several(4))
    lake.fill(orders(1), [said(1), said(2), said(1)])
    lake.consume(group("radio@a", message_model=MessageModel.BROADCASTING), f"{DAY}-radio", fail_bodies(b"0"))
    lake.consume(group("once", absorb_duplicates=AbsorbRule("UNIQ_KEY", HOUR)), f"{DAY}-once")
    billing = group(max_reconsume_times=1)
    lake.consume(billing, f"{DAY}-first", fail_bodies(b"3"))
    lake.clock.advance(HOUR)
    lake.deliver(f"{DAY}-deliver")
    lake.fill(orders(0), several(2, first=20))
    lake.consume(billing, f"{DAY}-last", fail)
    lake.redrive()
    assert audit(lake.store) == []
    return Path(lake.root.location)


STORES = ((sound_store, FAULTS),)


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Finding]]:
    faults = {name: (plant, Problem.RECORD_NOT_VALID) for name, (plant, _) in FAULTS.items()}
    sound = sound_store(tmp_path_factory.mktemp("sound"))
    return planted(sound, tmp_path_factory.mktemp("planted") / "store", list(faults), faults)


@pytest.mark.parametrize("name", FAULTS)
def test_the_audit_finds(findings: dict[str, list[Finding]], name: str) -> None:
    said_of = [one.detail or "" for one in findings[name] if one.problem is Problem.RECORD_NOT_VALID]
    assert FAULTS[name][1] in " | ".join(said_of)
