"""The audit finds what was changed in the files of a store, however carefully.

Each row of ``FAULTS`` is a fault, how it is planted, and the problem that the audit must name. The faults of ``FAULTS`` are
planted in shards of one store, which is audited once; those of ``UNREADABLE``, which end a query, each in a store of its own.
``tests/lake_damages.py`` has the damages that the view ``audit`` finds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store import Message, open_store
from rmq_store.commit.ctl import canonical_json
from rmq_store.commit.positions import (
    Claim,
    blk_id,
    cutover_id,
    del_id,
    grp_id,
    import_id,
    max_id,
    min_id,
    own_id,
    own_queue_id,
    pas_id,
    red_id,
    send_id,
    sub_id,
)
from rmq_store.consumer.timer import SLOT_MS
from rmq_store.errors import BadData, LogDamaged
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import ADVICE, Finding, Problem
from rmq_store.lake.broker.cutover import cutover
from rmq_store.lake.commit.cursor import COMMITS, commits_at_cursor
from rmq_store.lake.commit.derived_tables import KINDS
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.commit.rebuild import rebuild
from rmq_store.lake.maintain.compact import CompactRequest, compact
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.checkpoint import write_checkpoint
from rmq_store.lake.table.delta_table import CONFIGURATION
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.maintain.files_to_join import Limits
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_store.utils.host import Host
from tests.contract.test_import_store import store_of
from tests.faults.answers import Clock, set_clock
from tests.faults.stores import HOUR_MS, TESTS, Lake, write_broker
from tests.faults.test_planted_contents import FAULTS as CONTENT_FAULTS
from tests.lake_damages import DAMAGES
from tests.lake_fixtures import SmallStore, small_store
from tests.planted_shard import PlantedShard, Row

SHARD = "broker-a"
QUEUE = MessageQueue("Orders", SHARD, 0)
SENT = MessageQueue("Notes", f"lake-{SHARD}", 0)
RETRY = MessageQueue("%RETRY%shop", f"lake-{SHARD}", 0)

Plant = Callable[[PlantedShard], None]


# --- how faults are planted ------------------------------------------------------------------------------------------


def as_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def imported_file(at: PlantedShard) -> str:
    return at.files(kind="msg")[0]


def kept_rows(*keep: tuple[int, int]) -> Callable[[pa.Table], pa.Table]:
    """Rows ``[begin, end)`` of a table; a negative end counts from its end."""

    def change(rows: pa.Table) -> pa.Table:
        return pa.concat_tables(
            [rows.slice(begin, (end if end > 0 else rows.num_rows + end) - begin) for begin, end in keep]
        )

    return change


def rows_of(
    file: Callable[[PlantedShard], str], change: Callable[[pa.Table], pa.Table], table: str = "commitlog"
) -> Plant:
    return lambda at: at.rewrite(file(at), change, table)


def first_of(table: str) -> Callable[[PlantedShard], str]:
    return lambda at: at.files(table)[0]


def position(app_id: str, value: int) -> Plant:
    return lambda at: at.set_position(app_id, value)


def moved_position(app_id: str, by: int) -> Plant:
    return lambda at: at.set_position(app_id, (at.shard.positions().get(app_id) or 0) + by)


def newer_by_days(queue: MessageQueue, days: int) -> Plant:
    """The position of the queue's end has the right offset, and another time."""

    def plant(at: PlantedShard) -> None:
        positions, app_id = at.shard.positions(), max_id(queue)
        at_ms = positions.updated_ms(app_id) + days * 86_400_000
        at.set_position(app_id, positions.max_offset(queue), at_ms=at_ms)

    return plant


def record(action: str, change: Callable[[Row], Row]) -> Plant:
    return lambda at: at.rewrite_record(action, change)


def without_a_segment(row: Row) -> Row:
    return row | {"produced": row["produced"][1:]}


def a_segment_earlier(row: Row) -> Row:
    first, *rest = row["produced"]
    return row | {"produced": [first | {"base_offset": first["base_offset"] - 1}, *rest]}


def without_parameter(name: str) -> Callable[[Row], Row]:
    def change(row: Row) -> Row:
        parameters = json.loads(row["parameters"])
        del parameters[name]
        return row | {"parameters": canonical_json(parameters)}

    return change


def in_first(column: str, **values: Any) -> Callable[[Row], Row]:
    """Other values in the first item of a list of a record."""

    def change(row: Row) -> Row:
        first, *rest = row[column]
        return row | {column: [first | values, *rest]}

    return change


def in_segments_of(topic: str, **changes: Callable[[Row], int | None]) -> Callable[[Row], Row]:
    """Other values in the segments of a topic of a record, each made of the segment."""

    def change(row: Row) -> Row:
        assert any(segment["topic"] == topic for segment in row["produced"])
        return row | {
            "produced": [
                segment | {name: value(segment) for name, value in changes.items()}
                if segment["topic"] == topic
                else segment
                for segment in row["produced"]
            ]
        }

    return change


def delayed_send(change: Callable[[Row], Row]) -> Plant:
    """Another record of the send of a message that waits in the timer, and derived tables that agree with it."""

    def plant(at: PlantedShard) -> None:
        sends = at.shard.ctls_since(0, action="send")
        (commit_id,) = (ctl.commit_id for ctl in sends if ctl.produced[0].queue.topic == TIMER_TOPIC)
        (file,) = (file for file in at.files(kind="ctl") if commit_id in file)
        at.rewrite_rows(file, change)
        rebuild(at.shard, Host())

    return plant


def later(name: str, by_ms: int) -> Callable[[Row], int]:
    return lambda segment: (segment[name] or 0) + by_ms


def in_both(action: str, change: Callable[[Row], Row]) -> Plant:
    """Another record of the newest commit with an action, in the log and in the table ``commits``. No commit could be made from
    it, so that nothing but SQL reads it."""

    def plant(at: PlantedShard) -> None:
        dispatch(at.shard, Host(), every_commit=True)
        file = at.record(action)
        commit_id = file.rpartition("/")[2][:32]
        at.rewrite_rows(file, change)
        for of_table in at.files("commits"):
            at.rewrite_rows(of_table, lambda row: change(row) if row["commit_id"] == commit_id else row, "commits")

    return plant


def earlier_than_the_one_before(at: PlantedShard) -> None:
    """All times of the newest send: of its record, its segments and the end of its queue."""
    positions, app_id = at.shard.positions(), max_id(SENT)
    at_ms = at.shard.ctls_since(0, action="send")[0].store_timestamp - 1

    def change(row: Row) -> Row:
        times = dict.fromkeys(("min_store_timestamp", "max_store_timestamp"), at_ms)
        return row | {"store_timestamp": at_ms, "produced": [segment | times for segment in row["produced"]]}

    at.rewrite_record("send", change)
    at.set_position(app_id, positions.max_offset(SENT), at_ms=at_ms)


def overlapping(at: PlantedShard) -> None:
    at.rewrite_record("send", a_segment_earlier)
    at.set_position(max_id(SENT), at.shard.positions().max_offset(SENT) - 1)


def to_another_group(at: PlantedShard) -> None:
    """All copies of the delivery, their segments and the ends of the queues."""
    other = {"topic": "%RETRY%other"}
    queues: dict[int, int] = {}

    def change(row: Row) -> Row:
        for segment in row["produced"]:
            queues[segment["queue_id"]] = segment["count"]
        return row | {"produced": [segment | other for segment in row["produced"]]}

    at.rewrite_record("deliver", change)
    produced = at.shard.ctls_since(0, action="deliver")[-1].produced
    at.rewrite_rows(produced[0].file, lambda row: row | other)
    for queue_id, count in queues.items():
        at.set_position(max_id(MessageQueue("%RETRY%shop", RETRY.broker_name, queue_id)), 0)
        at.set_position(max_id(MessageQueue("%RETRY%other", RETRY.broker_name, queue_id)), count)


def another_day(kind: str, newest: bool = False, day: str | None = "2020-01-01") -> Plant:
    """A request is looked for from its day on; a reader of one day leaves the file out."""

    def plant(at: PlantedShard) -> None:
        file = at.files(kind=kind)[-1 if newest else 0]
        at.edit_add(file, partitionValues={**at.add_of(file)["partitionValues"], "store_day": day})

    return plant


def other_days_of_derived_tables(at: PlantedShard) -> None:
    """A reader of one day leaves the files out."""
    dispatch(at.shard, Host(), every_commit=True)
    for kind in KINDS:
        at.edit_add(at.files(kind.name)[0], kind.name, partitionValues={"store_day": "2020-01-01"})


def in_newest_records(changes: dict[str, Callable[[Row], Row]]) -> Plant:
    """Another record of the newest commit with each action, of which the table ``commits`` has no copy yet."""

    def plant(at: PlantedShard) -> None:
        for action, change in changes.items():
            at.rewrite_rows(at.record(action), change)

    return plant


def with_other_fields(at: PlantedShard) -> None:
    """Records that no commit of their action has."""
    made = SmallStore(LakeStore.open(Root.parse(str(at.root))))
    made.bench(at.name).redrive("shop", [(0, 1)], copies=[0])
    changes: dict[str, Callable[[Row], Row]] = {
        "deliver": in_first("consumed", retried_hash=1),
        "reset": lambda row: row | {"window_id": "zz"},
        "import": lambda row: row | {"subscription_version": 7},
        "redrive": lambda row: row | {"epoch": None},
    }
    in_newest_records(changes)(at)


def another_digest_of_joined_records(at: PlantedShard) -> None:
    compacted(at)
    commits = at.shard.ctls_since(0, action="compact")
    (joined,) = (ctl.commit_id for ctl in commits for file in ctl.files if file.path.startswith("kind=ctl/"))
    (record,) = (file for file in at.files(kind="ctl") if f"/{joined}-0-" in file)
    at.rewrite_rows(record, in_first("files", sha256="0" * 64))


def another_topic_in_the_log(at: PlantedShard) -> None:
    stats = at.add_of(imported_file(at))["stats"]
    at.edit_add(imported_file(at), stats=stats.replace(f'"{QUEUE.topic}"', '"Other"'))


def null_in_the_log(at: PlantedShard) -> None:
    stats = json.loads(at.add_of(imported_file(at))["stats"])
    for bounds in ("minValues", "maxValues"):
        del stats[bounds]["topic"]
    stats["nullCount"]["topic"] = stats["numRecords"]
    at.edit_add(imported_file(at), stats=json.dumps(stats))


def nulls_by_the_log(kind: str, column: str, table: str = "commitlog") -> Plant:
    """All values of a column are null by their number, and the least and the greatest value stay."""

    def plant(at: PlantedShard) -> None:
        file = at.files(table, kind)[0]
        stats = json.loads(at.add_of(file, table)["stats"])
        stats["nullCount"][column] = stats["numRecords"]
        at.edit_add(file, table, stats=json.dumps(stats))

    return plant


def without_statistics(kind: str, *parts: str, table: str = "commitlog") -> Plant:
    """The log does not say anything of these statistics of a file."""

    def plant(at: PlantedShard) -> None:
        file = at.files(table, kind)[0]
        stats = json.loads(at.add_of(file, table)["stats"])
        at.edit_add(file, table, stats=json.dumps({name: v for name, v in stats.items() if name not in parts}))

    return plant


def no_nulls_by_the_log(at: PlantedShard) -> None:
    """A column that the file does not have, so that all its values are null."""
    file = at.files(kind="msg")[0]
    stats = json.loads(at.add_of(file)["stats"])
    assert stats["nullCount"]["request_id"] == stats["numRecords"]
    stats["nullCount"]["request_id"] = 0
    at.edit_add(file, stats=json.dumps(stats))


def damaged_checkpoint(at: PlantedShard) -> None:
    (at.folder() / "_delta_log" / f"{3:020}.checkpoint.parquet").write_bytes(b"PAR1 no checkpoint PAR1")
    at.set_hint('{"version": 3}')


def damaged_covered_entry(at: PlantedShard) -> None:
    write_checkpoint(at.shard.commitlog)
    at.entries()[-2].write_bytes(b"")


def reason_altered(at: PlantedShard) -> None:
    at.alter_record("consume", lambda row: row | {"reason": "another one"})


def taken_out(at: PlantedShard) -> None:
    at.take_out(imported_file(at))


def compacted(at: PlantedShard) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Clock()
        clock.ms += 2 * HOUR_MS
        request = CompactRequest("2026-11-21-maintain", TESTS, limits=Limits(least_files=2))
        compact(at.shard, request, set_clock(monkeypatch, clock))


def joined_records_taken_out(at: PlantedShard) -> None:
    """The file in which a compaction has joined the records of commits; and the derived tables, which have the records too, are
    made again without them."""
    compacted(at)
    files = (file.path for ctl in at.shard.ctls_since(0, action="compact") for file in ctl.files)
    at.take_out(min(file for file in files if file.startswith("kind=ctl/")))
    for kind in KINDS:
        shutil.rmtree(at.folder(kind.name))
    rebuild(at.shard, Host())


def put_back(kind: str) -> Plant:
    """A file that a compaction has replaced is in the table again, as after a RESTORE or a repair of the log."""

    def plant(at: PlantedShard) -> None:
        compacted(at)
        replaced = {file for ctl in at.shard.ctls_since(0, action="compact") for file in ctl.parameter("replaced")}
        at.add_entry({"add": at.add_of(min(file for file in replaced if file.startswith(f"kind={kind}/")))})

    return plant


def imported_twice(at: PlantedShard) -> None:
    at.second_copy(imported_file(at))


def archived_by_another_tool(at: PlantedShard) -> None:
    """A message file again, as messages that retention has removed."""
    file, name = imported_file(at), "kind=archive/part-00000-1b2c3d4e.snappy.parquet"
    at.path(name).parent.mkdir()
    shutil.copy(at.path(file), at.path(name))
    add = at.add_of(file)
    at.add_entry({"add": add | {"path": name, "partitionValues": add["partitionValues"] | {"kind": "archive"}}})


def records_doubled(at: PlantedShard) -> None:
    at.second_copy(at.files(kind="ctl")[-1])


def another_record(at: PlantedShard) -> None:
    """The file of a commit is changed after the table ``commits`` was made from it."""
    dispatch(at.shard, Host(), every_commit=True)
    imported = at.shard.ctls_since(0, action="import")[-1].commit_id
    (file,) = (file for file in at.files(kind="ctl") if imported in file)
    at.rewrite_rows(file, lambda row: row | {"actor": "other"})


def record_taken_out(at: PlantedShard) -> None:
    """The log removes the file with the record of a commit, as another tool's clean-up would."""
    dispatch(at.shard, Host(), every_commit=True)
    at.take_out(at.files(kind="ctl")[0])


def nothing_more(at: PlantedShard) -> None:
    """Each fault is planted in a copy of one shard."""


def without_entry(at: PlantedShard) -> None:
    at.entry.unlink()


def empty_entry(at: PlantedShard) -> None:
    at.entry.write_text("{}")


def nested_entry(at: PlantedShard) -> None:
    at.entry.write_text("[" * 9999)


def other_levels(at: PlantedShard) -> None:
    """As store.json of another store, put in the place of this one's, has them."""
    document = json.loads((at.root / "store.json").read_text())
    at.entry.write_text(json.dumps({**document, "name": at.name, "delay_levels": [{"version": 1, "levels": "1s"}]}))


def no_levels(at: PlantedShard) -> None:
    at.entry.write_text(json.dumps({**json.loads(at.entry.read_text()), "delay_levels": []}))


def metadata(table: str = "commitlog", **values: Callable[[str], str]) -> Plant:
    """Another text in the description of a table, in the entry that made it."""

    def change(kind: str, action: Row) -> Row:
        return {**action, **{k: v(action[k]) for k, v in values.items()}} if kind == "metaData" else action

    return lambda at: at.edit_log(change, table)


def described(table: str = "commitlog", **values: Any) -> Plant:
    """Other values in the description of a table; None: it lacks them."""

    def change(kind: str, action: Row) -> Row:
        every = {**action, **values} if kind == "metaData" else action
        return {k: v for k, v in every.items() if k not in values or v is not None}

    return lambda at: at.edit_log(change, table)


_OTHER_OPTIONS: dict[str, Row] = {
    "a list of options": {"options": []},
    "no options": {},
    "null for options": {"options": None},
    "an option that is null": {"options": {"a": None}},
}


def with_property(name: str, value: str) -> Plant:
    def change(kind: str, action: Row) -> Row:
        return action | {"configuration": action["configuration"] | {name: value}} if kind == "metaData" else action

    return lambda at: at.edit_log(change)


def column_type(column: str, type_: str, other: str) -> Callable[[str], str]:
    before, after = (f'"name":"{column}","type":{one}' for one in (type_, other))

    def change(schema: str) -> str:
        assert before in schema
        return schema.replace(before, after)

    return change


def other_actions(at: PlantedShard) -> None:
    """Values in the entries that Delta's protocol does not allow, and that rmq does not need."""
    wrong: dict[str, Row] = {
        "metaData": {"createdTime": "x"},
        "add": {"dataChange": -1, "modificationTime": "x", "tags": 5, "baseRowId": "x"},
    }
    at.edit_log(lambda kind, action: action | wrong.get(kind, {}))
    none: dict[str, Row] = {"add": {"dataChange": True, "modificationTime": None, "tags": None, "baseRowId": None}}
    at.edit_log(lambda kind, action: action | none.get(kind, {}), "offsets")

    def without(kind: str, action: Row) -> Row:
        return {name: value for name, value in action.items() if (kind, name) != ("add", "dataChange")}

    at.edit_log(without, "consumequeue")


def other_protocols(at: PlantedShard) -> None:
    for table, value in {
        "commitlog": {"writerFeatures": -1},
        "consumequeue": {"minWriterVersion": 8},
        "offsets": {"minReaderVersion": True},
        "commits": {"readerFeatures": ["deletionVectors"]},
    }.items():
        at.edit_log(lambda kind, action, v=value: action | v if kind == "protocol" else action, table)  # type: ignore[misc]


def other_schemas(at: PlantedShard) -> None:
    """In one table the type of the whole, in others that of a column's items and the metadata of a column."""

    def whole(schema: Row) -> None:
        schema["type"] = -1

    def of_items(schema: Row) -> None:
        (column,) = (column for column in schema["fields"] if column["name"] == "consumed")
        column["type"]["elementType"]["type"] = "x"

    def of_metadata(schema: Row) -> None:
        schema["fields"][0]["metadata"] = None
        schema["fields"][1]["metadata"] = {"comment": "of a catalogue"}

    for table, change in {"consumequeue": whole, "commitlog": of_items, "offsets": of_metadata}.items():

        def text(before: str, change: Callable[[Row], None] = change) -> str:
            schema = json.loads(before)
            change(schema)
            return json.dumps(schema)

        metadata(table, schemaString=text)(at)


def fields_of_a_column(fields: object) -> Callable[[str], str]:
    """Other fields in the items of a list."""

    def change(text: str) -> str:
        schema = json.loads(text)
        (column,) = (column for column in schema["fields"] if column["name"] == "consumed")
        column["type"]["elementType"]["fields"] = fields
        return json.dumps(schema)

    return change


def other_id(at: PlantedShard) -> None:
    """The entry of the shard has the id of its commit log."""
    at.entry.write_text(json.dumps({"name": at.name, "commitlog": at.shard.commitlog.id}))
    metadata(id=lambda _: "00000000-0000-4000-8000-000000000000")(at)


def other_tools_may_write(at: PlantedShard) -> None:
    at.add_entry({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, table="offsets")


def of_another_kind(at: PlantedShard) -> None:
    at.edit_add(
        imported_file(at), partitionValues={**at.add_of(imported_file(at))["partitionValues"], "kind": "archive"}
    )


def of_another_kind_later(at: PlantedShard) -> None:
    add = at.add_of(imported_file(at))
    values = {"dataChange": False, "partitionValues": add["partitionValues"] | {"kind": "archive"}}
    at.add_entry({"add": add | values})


def rolled_back(at: PlantedShard) -> None:
    for entry in at.entries()[-5:]:
        entry.unlink()


def exchanged(at: PlantedShard) -> None:
    """The two entries before the newest, each in the place of the other: the newest has not to follow from either."""
    first, second, _ = at.entries()[-3:]
    text = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(text)


def decided_in_another_history(at: PlantedShard) -> None:
    """The newest entry, as if the one before it had the place of another commit."""
    newest = at.entries()[-1]
    info, *actions = newest.read_text().splitlines(keepends=True)
    assert json.loads(info)["commitInfo"]["read_commit"]
    other = {"commitInfo": json.loads(info)["commitInfo"] | {"read_commit": "0" * 32}}
    newest.write_text("".join([json.dumps(other) + "\n", *actions]))


def wrong_number(at: PlantedShard) -> None:
    stats = json.loads(at.add_of(imported_file(at))["stats"])
    at.edit_add(imported_file(at), stats=json.dumps(stats | {"numRecords": stats["numRecords"] + 1}))


def of_another_table(at: PlantedShard) -> None:
    """A file of ``offsets`` in the place of a message file."""
    file, other = imported_file(at), at.files("offsets")[0]
    shutil.copy(at.path(other, "offsets"), at.path(file))
    at.edit_add(file, size=at.path(file).stat().st_size)


def outside(at: PlantedShard) -> None:
    """A live file that is named outside the folder of the table."""
    add = at.add_of(imported_file(at))
    at.edit_add(imported_file(at), path=f"../offsets/{at.files('offsets')[0]}", size=add["size"])


def cut(at: PlantedShard) -> None:
    path = at.path(imported_file(at))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_and_hidden(at: PlantedShard) -> None:
    cut(at)
    at.edit_add(imported_file(at), size=at.path(imported_file(at)).stat().st_size)


def deleted(file: Callable[[PlantedShard], str], table: str = "commitlog") -> Plant:
    return lambda at: at.path(file(at), table).unlink()


def other_values(**values: Any) -> Callable[[pa.Table], pa.Table]:
    """The first row with other values."""

    def change(rows: pa.Table) -> pa.Table:
        first, *rest = rows.to_pylist()
        return pa.Table.from_pylist([first | values, *rest], rows.schema)

    return change


def shifted(rows: pa.Table) -> pa.Table:
    base = rows.column("base_offset")[0].as_py()
    return other_values(base_offset=base + 1)(rows)


FAULTS: dict[str, tuple[Plant, Problem]] = {
    "the last rows of a message file dropped": (
        rows_of(imported_file, kept_rows((0, -4))),
        Problem.SEGMENT_ROWS_DIFFER,
    ),
    "rows in the middle dropped": (rows_of(imported_file, kept_rows((0, 3), (5, 0))), Problem.SEGMENT_ROWS_DIFFER),
    "a slice twice": (rows_of(imported_file, kept_rows((0, 5), (3, 0))), Problem.SEGMENT_ROWS_DIFFER),
    "the reason in a record altered": (reason_altered, Problem.FILE_CHANGED),
    "two entries of the log exchanged": (exchanged, Problem.RECORD_NOT_VALID),
    "a wrong number of rows in the log": (wrong_number, Problem.FILE_ROWS_DIFFER),
    "another day of a record in the log": (another_day("ctl"), Problem.STATISTICS_DIFFER),
    "another day of imported messages in the log": (another_day("msg"), Problem.STATISTICS_DIFFER),
    "another day of messages that were born here": (another_day("msg", newest=True), Problem.STATISTICS_DIFFER),
    "messages that are no change of the data by the log": (
        lambda at: at.edit_add(imported_file(at), dataChange=False),
        Problem.STATISTICS_DIFFER,
    ),
    "no day of a record in the log": (another_day("ctl", day=None), Problem.STATISTICS_DIFFER),
    "no day of imported messages in the log": (another_day("msg", day=None), Problem.STATISTICS_DIFFER),
    "no day of messages that were born here": (another_day("msg", newest=True, day=None), Problem.STATISTICS_DIFFER),
    "other days of files of derived tables in the log": (other_days_of_derived_tables, Problem.STATISTICS_DIFFER),
    "other files in the records of commits": (
        in_newest_records(
            {
                "send": in_first("files", size=1),
                "consume": in_first("files", rows=7),
                "deliver": lambda row: row | {"files": []},
            }
        ),
        Problem.RECORDED_FILE_DIFFERS,
    ),
    "another digest of joined records in the record of their commit": (
        another_digest_of_joined_records,
        Problem.RECORDED_FILE_DIFFERS,
    ),
    "records with other fields than those of their actions": (with_other_fields, Problem.RECORD_NOT_VALID),
    "a sent segment with an earlier least time": (
        record("send", in_segments_of("Notes", min_store_timestamp=later("min_store_timestamp", -1))),
        Problem.RECORD_NOT_VALID,
    ),
    "a sent segment with other times": (
        record(
            "send",
            in_segments_of(
                "Notes",
                min_store_timestamp=later("min_store_timestamp", 5),
                max_store_timestamp=later("max_store_timestamp", 5),
            ),
        ),
        Problem.RECORD_NOT_VALID,
    ),
    "an imported segment with a least time after the greatest": (
        record("import", in_segments_of("Orders", min_store_timestamp=later("max_store_timestamp", 1))),
        Problem.RECORD_NOT_VALID,
    ),
    "a send before the one before": (earlier_than_the_one_before, Problem.RECORD_NOT_VALID),
    "a retry that is due earlier": (
        record("consume", in_segments_of(SCHEDULE_TOPIC, deliver_at=later("deliver_at", -1000))),
        Problem.RECORD_NOT_VALID,
    ),
    "a retry that is not due": (
        record("consume", in_segments_of(SCHEDULE_TOPIC, deliver_at=lambda _: None)),
        Problem.RECORD_NOT_VALID,
    ),
    "sent messages that are due": (
        record("send", in_segments_of("Notes", deliver_at=lambda _: 0)),
        Problem.RECORD_NOT_VALID,
    ),
    "a timer's message that is due a second earlier": (
        delayed_send(in_segments_of(TIMER_TOPIC, deliver_at=later("deliver_at", -1000))),
        Problem.RECORD_NOT_VALID,
    ),
    "a timer's message that is due a slot later": (
        delayed_send(in_segments_of(TIMER_TOPIC, deliver_at=later("deliver_at", SLOT_MS))),
        Problem.RECORD_NOT_VALID,
    ),
    "an import without its fingerprint": (record("import", without_parameter("fingerprint")), Problem.RECORD_NOT_VALID),
    "an import without the name of its broker": (
        record("import", without_parameter("broker_name")),
        Problem.RECORD_NOT_VALID,
    ),
    "statistics of another topic in the log": (another_topic_in_the_log, Problem.STATISTICS_DIFFER),
    "a column that is null by the log": (null_in_the_log, Problem.STATISTICS_DIFFER),
    "a record without its least values in the log": (without_statistics("ctl", "minValues"), Problem.STATISTICS_DIFFER),
    "a record without its greatest values in the log": (
        without_statistics("ctl", "maxValues"),
        Problem.STATISTICS_DIFFER,
    ),
    "messages without their number of nulls in the log": (
        without_statistics("msg", "nullCount"),
        Problem.STATISTICS_DIFFER,
    ),
    "a derived table without least and greatest values in the log": (
        without_statistics("", "minValues", "maxValues", table="offsets"),
        Problem.STATISTICS_DIFFER,
    ),
    "nulls in the record of a commit by the log": (nulls_by_the_log("ctl", "commit_id"), Problem.STATISTICS_DIFFER),
    "nulls in messages by the log": (nulls_by_the_log("msg", "topic"), Problem.STATISTICS_DIFFER),
    "no nulls by the log in a column that a file lacks": (no_nulls_by_the_log, Problem.STATISTICS_DIFFER),
    "nulls in a derived table by the log": (
        nulls_by_the_log("", "group_name", "offsets"),
        Problem.STATISTICS_DIFFER,
    ),
    "the record of a commit taken out of the log": (record_taken_out, Problem.COMMIT_NOT_IN_LOG),
    "a shard without its entry": (without_entry, Problem.SHARD_NOT_NAMED),
    "a shard copied under another name": (nothing_more, Problem.SHARD_TWICE),
    "an entry with other delay levels than the store": (other_levels, Problem.DESCRIPTION_DIFFERS),
    "an entry without delay levels": (no_levels, Problem.DESCRIPTION_DIFFERS),
    "an entry that names nothing": (empty_entry, Problem.DESCRIPTION_DIFFERS),
    "an entry that is nested too deeply": (nested_entry, Problem.DESCRIPTION_DIFFERS),
    "a protocol that lets other tools write": (other_tools_may_write, Problem.TABLE_PROPERTIES_DIFFER),
    "a column of another type by the log": (
        metadata(schemaString=column_type("queue_offset", '"long"', '"string"')),
        Problem.TABLE_PROPERTIES_DIFFER,
    ),
    "an item of a list of another type by the log": (
        metadata(schemaString=column_type("begin_offset", '"long"', '"integer"')),
        Problem.TABLE_PROPERTIES_DIFFER,
    ),
    "a column of a derived table of another type by the log": (
        metadata("consumequeue", schemaString=column_type("queue_id", '"integer"', '"long"')),
        Problem.TABLE_PROPERTIES_DIFFER,
    ),
    "a column without nulls by the log": (
        metadata(schemaString=column_type("rel", '"long","nullable":true', '"long","nullable":false')),
        Problem.TABLE_PROPERTIES_DIFFER,
    ),
    "another id of the table": (other_id, Problem.TABLE_PROPERTIES_DIFFER),
    "a derived table without its id": (described("offsets", id=None), Problem.TABLE_PROPERTIES_DIFFER),
    "files of another format by the log": (
        described(format={"provider": "orc", "options": {}}),
        Problem.TABLE_PROPERTIES_DIFFER,
    ),
    "files of no format by the log": (described("consumequeue", format=None), Problem.TABLE_PROPERTIES_DIFFER),
    **{
        f"a format with {name} by the log": (
            described("offsets", format={"provider": "parquet"} | options),
            Problem.LOG_ENTRY_NOT_VALID,
        )
        for name, options in _OTHER_OPTIONS.items()
    },
    "a property that is null": (
        described(configuration={**CONFIGURATION, "a": None}),
        Problem.LOG_ENTRY_NOT_VALID,
    ),
    "a property of Delta that rmq does not set": (
        with_property("delta.enableChangeDataFeed", "true"),
        Problem.TABLE_PROPERTIES_DIFFER,
    ),
    "values in entries of the logs that Delta does not allow": (other_actions, Problem.LOG_ENTRY_NOT_VALID),
    "protocols that Delta does not allow": (other_protocols, Problem.TABLE_PROPERTIES_DIFFER),
    "schemas that are none": (other_schemas, Problem.TABLE_PROPERTIES_DIFFER),
    "a shard under another name": (nothing_more, Problem.SHARD_ELSEWHERE),
    "a message file that is an archive by the log": (of_another_kind, Problem.FILE_OF_ANOTHER_KIND),
    "a later entry that makes a message file an archive": (of_another_kind_later, Problem.FILE_OF_ANOTHER_KIND),
    "a damaged checkpoint": (damaged_checkpoint, Problem.CHECKPOINT_UNREADABLE),
    "a damaged entry that a checkpoint covers": (damaged_covered_entry, Problem.COVERED_ENTRY_DAMAGED),
    "a damaged hint at a checkpoint": (
        lambda at: at.set_hint("{", "offsets"),
        Problem.CHECKPOINT_UNREADABLE,
    ),
    "a hint at a checkpoint that is not there": (
        lambda at: at.set_hint('{"version":999,"size":5}', "consumequeue"),
        Problem.CHECKPOINT_UNREADABLE,
    ),
    "a message file taken out of the table": (taken_out, Problem.SEGMENT_FILE_NOT_LIVE),
    "a joined file of records taken out of the table": (joined_records_taken_out, Problem.RECORDED_FILE_NOT_LIVE),
    "a message file that a compaction has replaced": (put_back("msg"), Problem.REPLACED_FILE_LIVE),
    "a file of records that a compaction has replaced": (put_back("ctl"), Problem.REPLACED_FILE_LIVE),
    "a message file twice, under two names": (imported_twice, Problem.FILE_IN_NO_SEGMENT),
    "an archive that no commit wrote": (archived_by_another_tool, Problem.FILE_NOT_RECORDED),
    "delivered copies in another group's topic": (to_another_group, Problem.COPY_IN_ANOTHER_TOPIC),
    "a delivered copy of no offset in another group's topic": (
        lambda at: at.rewrite_rows(
            at.shard.ctls_since(0, action="deliver")[-1].produced[0].file,
            lambda row: row | {"topic": "%RETRY%other", "origin_queue_offset": None},
        ),
        Problem.COPY_IN_ANOTHER_TOPIC,
    ),
    "a column with a field that has no name by the log": (
        metadata(schemaString=fields_of_a_column([{"type": "long"}])),
        Problem.TABLE_PROPERTIES_DIFFER,
    ),
    "a column whose fields are no list by the log": (
        metadata(schemaString=fields_of_a_column(None)),
        Problem.TABLE_PROPERTIES_DIFFER,
    ),
    "two segments on the same offsets": (overlapping, Problem.SEGMENTS_OVERLAP),
    "a segment removed from an import": (record("import", without_a_segment), Problem.SEGMENT_ROWS_DIFFER),
    "a segment without its first row": (
        in_both("import", in_first("produced", first_row=None)),
        Problem.SEGMENT_ROWS_DIFFER,
    ),
    "a range without its number of acked messages": (
        in_both("consume", in_first("consumed", acked=None, acked_hash=None)),
        Problem.COUNTS_DO_NOT_ADD_UP,
    ),
    "a range without its begin": (
        in_both("consume", in_first("consumed", begin_offset=None)),
        Problem.COUNTS_DO_NOT_ADD_UP,
    ),
    "a range without a hash sum": (
        in_both("consume", in_first("consumed", filtered_hash=None)),
        Problem.HASH_SUMS_DO_NOT_ADD_UP,
    ),
    "a record without its action": (in_both("deliver", lambda row: row | {"action": None}), Problem.NOT_AUDITED),
    "all segments removed from an import": (
        record("import", lambda row: row | {"produced": []}),
        Problem.FILE_IN_NO_SEGMENT,
    ),
    "the first of two sends without its segment": (
        lambda at: at.rewrite_record("send", without_a_segment, oldest=True),
        Problem.MESSAGES_MISSING,
    ),
    "the end of a queue moved on": (moved_position(max_id(QUEUE), 3), Problem.QUEUE_END_DIFFERS),
    "the end of a queue moved back": (moved_position(max_id(QUEUE), -3), Problem.QUEUE_END_DIFFERS),
    "a newest message of next month": (newer_by_days(SENT, 30), Problem.POSITION_NOT_RECORDED),
    "a newest imported message of last month": (newer_by_days(QUEUE, -30), Problem.POSITION_NOT_RECORDED),
    "the first offset of a queue raised": (moved_position(min_id(QUEUE), 3), Problem.FIRST_OFFSET_DIFFERS),
    "the position of an import set back": (position(import_id(SHARD), 0), Problem.POSITION_NOT_RECORDED),
    "the position of an import moved forward": (moved_position(import_id(SHARD), 900), Problem.POSITION_NOT_RECORDED),
    "a broker cut over without a commit": (position(cutover_id(SHARD), 1), Problem.POSITION_NOT_RECORDED),
    "the epoch of a group lowered": (position(grp_id("shop"), 0), Problem.POSITION_NOT_RECORDED),
    "the epoch of a group raised": (position(grp_id("shop"), 9), Problem.POSITION_NOT_RECORDED),
    "the epoch of an unknown group": (position(grp_id("nowhere"), 2), Problem.POSITION_NOT_RECORDED),
    "the pass of a queue raised": (moved_position(pas_id("shop", QUEUE), 1), Problem.POSITION_NOT_RECORDED),
    "a queue blocked without a window": (position(blk_id("shop", QUEUE), 5), Problem.POSITION_NOT_RECORDED),
    "a delete without a commit": (position(del_id("shop"), 1), Problem.POSITION_NOT_RECORDED),
    "a redrive without a commit": (position(red_id("shop"), 1), Problem.POSITION_NOT_RECORDED),
    "a send less": (moved_position(send_id("Notes"), -1), Problem.POSITION_NOT_RECORDED),
    "another subscription": (moved_position(sub_id("shop"), 1), Problem.POSITION_NOT_RECORDED),
    "a claim without a commit": (position(own_id("shop"), Claim(77, 0).packed()), Problem.POSITION_NOT_RECORDED),
    "a lease that lasts for ever": (
        moved_position(own_queue_id("shop", QUEUE), 4_102_444_800),
        Problem.POSITION_NOT_RECORDED,
    ),
    "a position of an unknown kind": (position("zzz/ghost", 3), Problem.POSITION_NOT_RECORDED),
    "a record of a commit twice": (records_doubled, Problem.COMMIT_TWICE),
    "another actor in the record of a commit": (another_record, Problem.COMMIT_RECORD_DIFFERS),
    "a row of consumequeue dropped": (
        rows_of(first_of("consumequeue"), kept_rows((1, 0)), "consumequeue"),
        Problem.DERIVED_TABLE_DIFFERS,
    ),
    "a base in consumequeue shifted": (
        rows_of(first_of("consumequeue"), shifted, "consumequeue"),
        Problem.DERIVED_TABLE_DIFFERS,
    ),
    "a row of consumequeue that names another file": (
        rows_of(first_of("consumequeue"), other_values(file="kind=msg/other.parquet"), "consumequeue"),
        Problem.DERIVED_TABLE_DIFFERS,
    ),
    "a file of consumequeue emptied": (
        lambda at: at.add_entry({"remove": {"path": at.files("consumequeue")[0]}}, table="consumequeue"),
        Problem.DERIVED_TABLE_DIFFERS,
    ),
    "a commit less in the cursor of offsets": (
        lambda at: at.set_position(COMMITS, (commits_at_cursor(at.shard.offsets) or 0) - 1, "offsets"),
        Problem.DERIVED_TABLE_DIFFERS,
    ),
    "a row of offsets dropped": (
        rows_of(first_of("offsets"), kept_rows((1, 0)), "offsets"),
        Problem.DERIVED_TABLE_DIFFERS,
    ),
    "a row of offsets doubled": (
        rows_of(first_of("offsets"), kept_rows((0, 1), (0, 0)), "offsets"),
        Problem.DERIVED_TABLE_DIFFERS,
    ),
}
"""Each fault leaves files that can be read."""

UNREADABLE: dict[str, tuple[Plant, Problem]] = {
    "a message file deleted": (deleted(imported_file), Problem.FILE_MISSING),
    "a message file cut in half": (cut, Problem.FILE_SIZE_DIFFERS),
    "a message file cut in half, the size in the log too": (cut_and_hidden, Problem.FILE_UNREADABLE),
    "a live file of another table": (of_another_table, Problem.FILE_OF_ANOTHER_TABLE),
    "a live file outside the table": (outside, Problem.FILE_MISSING),
    "a file of consumequeue deleted": (deleted(first_of("consumequeue"), "consumequeue"), Problem.FILE_MISSING),
    "the log rolled back by five versions": (rolled_back, Problem.LOG_ROLLED_BACK),
    "an entry that was decided in another history": (decided_in_another_history, Problem.ANOTHER_HISTORY),
    "a FIFO in the place of a file of consumequeue": (
        lambda at: as_fifo(at.path(first_of("consumequeue")(at), "consumequeue")),
        Problem.FILE_SIZE_DIFFERS,
    ),
    "a FIFO in the place of an entry of the log": (lambda at: as_fifo(at.entries()[2]), Problem.NOT_AUDITED),
    "an entry of the log missing": (lambda at: at.entries()[2].unlink(), Problem.NOT_AUDITED),
}


# --- the stores ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one shard, in which a bit of everything has happened."""
    folder = tmp_path_factory.mktemp("sound")
    made = small_store(folder, [SHARD])
    for number, delay_ms in enumerate((None, HOUR_MS, None)):
        open_store(folder).send(
            [Message("Notes", b"note", delay_ms=delay_ms)],
            create_queues=None if number else 1,
            request_id=f"2026-11-20-n{number}",
        )
    made.dispatch()
    assert audit(made.store) == []
    return folder


def planted(
    sound: Path, root: Path, names: list[str], faults: dict[str, tuple[Plant, Problem]]
) -> dict[str, list[Finding]]:
    """The findings by fault, each of which is planted in a shard of its own."""
    shutil.copytree(sound, root, ignore=shutil.ignore_patterns(SHARD, "shards"))
    (root / "shards").mkdir()
    shards = {name: f"fault-{number}" for number, name in enumerate(names)}
    for name, shard in shards.items():
        shutil.copytree(sound / SHARD, root / shard)
        (root / "shards" / f"{shard}.json").write_text(json.dumps({"name": shard}))
        faults[name][0](PlantedShard(root, shard))
    findings = audit(LakeStore.open(Root.parse(str(root))))
    return {name: [one for one in findings if one.shard == shard] for name, shard in shards.items()}


@pytest.fixture(scope="module")
def findings(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Finding]]:
    return planted(sound, tmp_path_factory.mktemp("planted") / "store", list(FAULTS), FAULTS)


# --- the tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS)
def test_the_audit_finds(findings: dict[str, list[Finding]], name: str) -> None:
    assert FAULTS[name][1] in {finding.problem for finding in findings[name]}


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            "other days of files of derived tables in the log",
            {("commits", "of store_day"), ("consumequeue", "of store_day"), ("offsets", "of store_day")},
        ),
        (
            "messages that are no change of the data by the log",
            {("commitlog", "of dataChange, false in an entry that removes no file")},
        ),
        (
            "values in entries of the logs that Delta does not allow",
            {
                ("commitlog", "of metaData.createdTime"),
                ("commitlog", "of add.baseRowId, add.dataChange, add.modificationTime, add.tags"),
                ("consumequeue", "of add.dataChange"),
                ("offsets", "of add.modificationTime"),
            },
        ),
        (
            "protocols that Delta does not allow",
            {
                ("commitlog", "of the writer features of its protocol"),
                ("consumequeue", "of minWriterVersion of its protocol"),
                ("offsets", "of minReaderVersion of its protocol"),
                ("commits", "of readerFeatures of its protocol"),
            },
        ),
        (
            "schemas that are none",
            {
                ("commitlog", "of column consumed"),
                ("consumequeue", "of the fields of its columns"),
                ("offsets", "of column group_name"),
            },
        ),
        (
            "other files in the records of commits",
            {
                ("commitlog", "by the record of commit ID 1 bytes, by the log N"),
                ("commitlog", "by the record of commit ID 7 rows, by the log N"),
                ("commitlog", "the record of commit ID has segments of it, and does not list it"),
            },
        ),
        (
            "records with other fields than those of their actions",
            {
                ("commitlog", "the record of commit ID, action deliver, has consumed.retried_hash without retried"),
                ("commitlog", "the record of commit ID, action reset, has window_id, which it cannot have"),
                ("commitlog", "the record of commit ID, action import, has subscription_version, which it cannot have"),
                ("commitlog", "the record of commit ID, action redrive, has no epoch"),
                # The small store's redrive reads dead letters that nothing has written.
                ("None", "commit ID, action redrive, has a range to 1, behind the end of the queue"),
            },
        ),
    ],
)
def test_each_of_several_faults_is_found(
    findings: dict[str, list[Finding]], name: str, facts: set[tuple[str, str]]
) -> None:
    of_kind = [one for one in findings[name] if one.problem == FAULTS[name][1]]
    said = {
        (
            str(one.file).partition("/")[0],
            re.sub(r"(log) \d+", r"\1 N", re.sub(r"[0-9a-f]{32}", "ID", one.detail or "")),
        )
        for one in of_kind
    }
    assert said == facts


@pytest.mark.parametrize(
    ("name", "parameter"),
    [("an import without its fingerprint", "fingerprint"), ("an import without the name of its broker", "broker_name")],
)
def test_a_parameter_that_is_missing_is_named_with_the_file_and_no_part_fails(
    findings: dict[str, list[Finding]], name: str, parameter: str
) -> None:
    (wrong,) = (one for one in findings[name] if one.problem is Problem.RECORD_NOT_VALID)
    assert str(wrong.file).startswith("commitlog/kind=ctl/")
    assert str(wrong.detail).endswith(f"has no parameter {parameter}")
    assert Problem.NOT_AUDITED not in {one.problem for one in findings[name]}


@pytest.mark.parametrize("by_earlier_version", [True, False])
def test_a_position_of_an_import_has_the_time_of_a_cut_over_by_an_earlier_version_only(
    by_earlier_version: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lists no files."""
    lake, clock = Lake(tmp_path / "store"), Clock()
    lake.load(write_broker(tmp_path / "broker"))
    host = set_clock(monkeypatch, clock)
    clock.ms += 1000
    cutover(lake.store, lake.shard, SHARD, host, request_id="2026-01-02-c", actor=TESTS, reason="a test")
    at = PlantedShard(lake.folder, lake.shard_name)
    if by_earlier_version:
        at.rewrite_record("import", lambda row: row | {"files": []})
    imported = at.shard.positions().get(import_id(SHARD)) or 0
    (commit,) = at.shard.ctls_since(0, action="cutover")

    def details(at_ms: int) -> list[str | None]:
        at.set_position(import_id(SHARD), imported, at_ms=at_ms)
        return [one.detail for one in lake.audit() if one.problem == Problem.POSITION_NOT_RECORDED]

    assert len(details(commit.store_timestamp)) == (not by_earlier_version)
    (detail,) = details(commit.store_timestamp + 1)
    assert "the time of the newest import" in str(detail)


def test_a_property_that_says_nothing_to_an_engine_is_no_fault(sound: Path, tmp_path: Path) -> None:
    plant: dict[str, tuple[Plant, Problem]] = {
        "owner": (with_property("owner", "team-a"), Problem.TABLE_PROPERTIES_DIFFER)
    }
    (findings,) = planted(sound, tmp_path / "store", ["owner"], plant).values()
    assert {finding.problem for finding in findings} == {Problem.SHARD_ELSEWHERE}, "the copy of the shard"


def test_a_file_with_segments_that_left_the_table_is_found_by_them_only(findings: dict[str, list[Finding]]) -> None:
    problems = {finding.problem for finding in findings["a message file taken out of the table"]}
    assert Problem.SEGMENT_FILE_NOT_LIVE in problems
    assert Problem.RECORDED_FILE_NOT_LIVE not in problems


def test_a_file_of_half_messages_that_left_the_table_is_found(tmp_path: Path) -> None:
    """They are in no queue, so no segment names their rows."""
    lake = Lake(tmp_path / "store")
    lake.load(store_of(tmp_path / "broker", {}))
    lake.load(store_of(tmp_path / "more", {}, {"sys_flag": 4}, {"sys_flag": 4}), "2026-01-02-import")
    assert lake.audit() == []
    at = PlantedShard(lake.folder, lake.shard_name)
    file = at.files(kind="msg")[-1]
    at.take_out(file)
    (finding,) = lake.audit()
    assert (finding.problem, finding.file) == (Problem.RECORDED_FILE_NOT_LIVE, f"commitlog/{file}")
    assert re.fullmatch("written by commit [0-9a-f]{32}", finding.detail or "")


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_fault_that_ends_a_query_is_a_finding_and_the_rest_is_audited(sound: Path, tmp_path: Path, name: str) -> None:
    (of_shard,) = planted(sound, tmp_path / "store", [name], UNREADABLE).values()
    assert UNREADABLE[name][1] in {finding.problem for finding in of_shard}


def test_a_file_that_an_entry_adds_twice_is_named_by_the_audit_and_by_a_query(sound: Path, tmp_path: Path) -> None:
    plant: dict[str, tuple[Plant, Problem]] = {
        "twice": (lambda at: at.repeat_add(imported_file(at)), Problem.NOT_AUDITED)
    }
    (findings,) = planted(sound, tmp_path / "store", ["twice"], plant).values()
    said = r"json is damaged: it adds the file kind=msg/\S+ twice\. Restore it from a backup\."
    assert findings
    assert all(finding.problem == Problem.NOT_AUDITED and re.search(said, finding.detail or "") for finding in findings)
    with pytest.raises(LogDamaged, match=said):
        query(LakeStore.open(Root.parse(str(tmp_path / "store"))), "SELECT count(*) FROM messages")


def test_a_record_that_was_changed_does_not_replace_that_in_a_derived_table(sound: Path, tmp_path: Path) -> None:
    plant: dict[str, tuple[Plant, Problem]] = {"altered": (reason_altered, Problem.FILE_CHANGED)}
    planted(sound, tmp_path / "store", ["altered"], plant)
    for shard in LakeStore.open(Root.parse(str(tmp_path / "store"))).shards():
        before = shard.commits.read(shard.commits.files().column("path").to_pylist()).to_pylist()
        with pytest.raises(BadData, match=r"kind=ctl/.* was changed: .* Restore it from a backup"):
            rebuild(shard, Host())
        shard.commits.refresh()
        assert shard.commits.read(shard.commits.files().column("path").to_pylist()).to_pylist() == before


def test_a_record_that_was_taken_out_of_the_log_is_not_taken_out_of_the_derived_tables(
    sound: Path, tmp_path: Path
) -> None:
    plant: dict[str, tuple[Plant, Problem]] = {"taken out": (record_taken_out, Problem.COMMIT_NOT_IN_LOG)}
    planted(sound, tmp_path / "store", ["taken out"], plant)
    (shard,) = LakeStore.open(Root.parse(str(tmp_path / "store"))).shards()
    with pytest.raises(BadData, match=r"has 1 commits that the commit log lacks.*Nothing was rebuilt"):
        rebuild(shard, Host())


def test_every_kind_of_problem_has_advice_and_is_shown_by_a_damage_or_a_fault() -> None:
    shown = {Problem.of(problem) for _, problems in DAMAGES.values() for problem, _, _ in problems}
    shown |= {problem for faults in (FAULTS, UNREADABLE, CONTENT_FAULTS) for _, problem in faults.values()}
    assert list(ADVICE) == list(Problem)
    assert set(Problem) - shown == set()
