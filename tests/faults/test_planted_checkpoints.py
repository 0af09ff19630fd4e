"""Changes in a checkpoint of the commit log, whose entries before it were cleaned up: no other record of what it says is left.

Each row of ``FAULTS`` is a change of its actions, and the problem that the audit must name. ``LESS_KNOWN``: facts of a record's
file that may be missing; the request is not done twice.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.positions import grp_id, import_id, max_id
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import Problem
from rmq_store.lake.table.delta_entry import STATS_COLUMNS
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from tests.faults.stores import BROKER, GROUP, SHARD, TOPIC, Lake, write_broker
from tests.planted_shard import PlantedShard, Row

RESET = "2026-01-02-reset"
QUEUE = MessageQueue(TOPIC, BROKER, 0)
Change = Callable[[list[Row]], list[Row]]


def of_first(kind: str, has: Callable[[Row], bool], change: Callable[[Row], list[Row]]) -> Change:
    """Others in the place of the first action of a kind that ``has`` something."""

    def changed(rows: list[Row]) -> list[Row]:
        at = next(number for number, row in enumerate(rows) if row[kind] is not None and has(row[kind]))
        return [*rows[:at], *(rows[at] | {kind: value} for value in change(rows[at][kind])), *rows[at + 1 :]]

    return changed


def of_file(prefix: str, change: Callable[[Row], list[Row]]) -> Change:
    return of_first("add", lambda add: add["path"].startswith(prefix), change)


def of_record(change: Callable[[Row], Row]) -> Change:
    """The file with the record of the reset."""
    return of_first("add", lambda add: "kind=ctl/" in add["path"] and RESET in add["stats"], lambda add: [change(add)])


def of_position(app_id: str, change: Callable[[Row], list[Row]]) -> Change:
    return of_first("txn", lambda txn: txn["appId"] == app_id, change)


def of_metadata(change: Callable[[dict[str, str]], dict[str, str]]) -> Change:
    def changed(metadata: Row) -> list[Row]:
        return [metadata | {"configuration": list(change(dict(metadata["configuration"])).items())}]

    return of_first("metaData", lambda _: True, changed)


def without_bounds(*columns: str) -> Callable[[Row], Row]:
    """The statistics do not say of which values the columns are."""

    def change(add: Row) -> Row:
        stats: dict[str, Any] = json.loads(add["stats"])
        for part in ("minValues", "maxValues"):
            stats[part] = {name: value for name, value in stats[part].items() if name not in columns}
        return add | {"stats": json.dumps(stats)}

    return change


def without_day(add: Row) -> Row:
    return add | {"partitionValues": [(name, None if name == "store_day" else v) for name, v in add["partitionValues"]]}


def without_rows(add: Row) -> Row:
    return add | {
        "stats": json.dumps({name: v for name, v in json.loads(add["stats"]).items() if name != "numRecords"})
    }


def with_deleted_rows(add: Row) -> list[Row]:
    vector = {"storageType": "u", "pathOrInlineDv": "x", "offset": 1, "sizeInBytes": 36, "cardinality": 2}
    return [add | {"deletionVector": vector}]


def one_less(txn: Row) -> Row:
    return txn | {"version": txn["version"] - 1}


FAULTS: dict[str, tuple[Change, Problem]] = {
    "a message file less": (of_file("kind=msg", lambda add: []), Problem.SEGMENT_FILE_NOT_LIVE),
    "a message file twice": (of_file("kind=msg", lambda add: [add, add]), Problem.NOT_AUDITED),
    "a record less": (of_file("kind=ctl", lambda add: []), Problem.ANOTHER_HISTORY),
    "deleted rows of a message file": (of_file("kind=msg", with_deleted_rows), Problem.NOT_AUDITED),
    "a record without the values of a column": (of_record(without_bounds("request_id")), Problem.STATISTICS_DIFFER),
    "a record of no day": (of_record(without_day), Problem.STATISTICS_DIFFER),
    "a record without its number of rows": (of_record(without_rows), Problem.FILE_ROWS_DIFFER),
    "an epoch less": (of_position(grp_id(GROUP), lambda txn: []), Problem.POSITION_NOT_RECORDED),
    "an epoch twice, the older one first": (
        of_position(grp_id(GROUP), lambda txn: [one_less(txn), txn]),
        Problem.POSITION_NOT_RECORDED,
    ),
    "an epoch twice, the older one last": (
        of_position(grp_id(GROUP), lambda txn: [txn, one_less(txn)]),
        Problem.POSITION_NOT_RECORDED,
    ),
    "another time of the newest import": (
        of_position(import_id(BROKER), lambda txn: [txn | {"lastUpdated": txn["lastUpdated"] - 1}]),
        Problem.POSITION_NOT_RECORDED,
    ),
    "the end of a queue less": (of_position(max_id(QUEUE), lambda txn: []), Problem.QUEUE_END_DIFFERS),
    "two descriptions of the table": (
        of_first("metaData", lambda _: True, lambda metadata: [metadata, metadata]),
        Problem.NOT_AUDITED,
    ),
    "two protocols": (of_first("protocol", lambda _: True, lambda protocol: [protocol, protocol]), Problem.NOT_AUDITED),
    "no properties of the table": (of_metadata(lambda _: {}), Problem.TABLE_PROPERTIES_DIFFER),
    "other columns with statistics": (
        of_metadata(
            lambda properties: (
                properties | {STATS_COLUMNS: "commit_id,rel,store_timestamp,action,request_id,group_name"}
            )
        ),
        Problem.TABLE_PROPERTIES_DIFFER,
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    lake = Lake(folder / "store")
    lake.load(write_broker(folder / "broker"))
    lake.consume()
    lake.reset(RESET, 3)
    PlantedShard(lake.folder, SHARD).leave_checkpoint()
    assert lake.audit() == []
    return lake.folder


@pytest.fixture
def at(sound: Path, tmp_path: Path) -> PlantedShard:
    return PlantedShard(Path(shutil.copytree(sound, tmp_path / "store")), SHARD)


@pytest.mark.parametrize("name", FAULTS)
def test_the_audit_finds(at: PlantedShard, name: str) -> None:
    change, problem = FAULTS[name]
    at.edit_checkpoint(change)
    assert problem in {finding.problem for finding in audit(LakeStore.open(Root.parse(str(at.root))))}


LESS_KNOWN: dict[str, Callable[[Row], Row]] = {
    "no request id": without_bounds("request_id"),
    "no values": without_bounds("commit_id", "store_timestamp", "action", "request_id", "group_name"),
    "no day": without_day,
    "no number of rows": without_rows,
}


@pytest.mark.parametrize("name", LESS_KNOWN)
def test_a_request_is_not_done_twice_where_less_is_known_of_its_record(at: PlantedShard, name: str) -> None:
    before = Lake(at.root).rows("windows", "offset_history")
    at.edit_checkpoint(of_record(LESS_KNOWN[name]))
    assert Lake(at.root).rows("windows", "offset_history") == before
    assert Lake(at.root).reset(RESET, 3).status == "already_committed"


@pytest.mark.parametrize("name", LESS_KNOWN)
def test_an_entry_that_says_less_of_a_record_is_read(at: PlantedShard, name: str) -> None:
    """Another tool wrote the entry again, after the checkpoint."""
    before = Lake(at.root).rows("windows", "offset_history")
    added: list[Row] = []

    def taken(rows: list[Row]) -> list[Row]:
        added.extend(row["add"] for row in rows if row["add"] is not None and RESET in row["add"]["stats"])
        return rows

    at.edit_checkpoint(taken)
    (add,) = map(LESS_KNOWN[name], added)
    names = ("path", "size", "modificationTime", "dataChange", "stats")
    at.add_entry({"add": {one: add[one] for one in names} | {"partitionValues": dict(add["partitionValues"])}})
    assert Lake(at.root).rows("windows", "offset_history") == before
    assert Lake(at.root).reset(RESET, 3).status == "already_committed"
