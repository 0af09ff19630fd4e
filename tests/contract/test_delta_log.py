"""The Delta log as we read it: what is damaged or foreign is named with its file and what to do, and never skipped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from rmq_store.commit.append import VIEW_TRUST_MS, PutAnswer, Verdict
from rmq_store.commit.ctl import StagedFile
from rmq_store.errors import BadData, CommitOutcomeUnknown, LogDamaged, RmqError, StoreUnusable
from rmq_store.lake.table.delta_entry import STATS_COLUMNS, entry_bytes, entry_name, parse_entry, protocol_action
from rmq_store.lake.table.delta_log import Content, DeltaLog, NoTable
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.log_view import LogView
from rmq_store.lake.table.object_store import Put, Root
from rmq_store.lake.table.table_layout import TableLayout
from tests.faults.answers import Clock

SCHEMA = pa.schema([("n", pa.int64()), ("name", pa.string()), ("store_day", pa.date32())])
LAYOUT = TableLayout(SCHEMA, ("store_day",), ("n", "name"))
FOREVER = "interval 36500 days"
Action = Mapping[str, Any]


def metadata(
    columns: Sequence[tuple[str, str]] = (("n", "long"), ("name", "string"), ("store_day", "date")),
    partition_by: Sequence[str] = ("store_day",),
    configuration: Mapping[str, str] | None = None,
) -> Action:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
    return {
        "metaData": {
            "id": "0b8d2a0e-5d1c-4c36-8b0c-5f6a0d1b2c3d",
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": fields}),
            "partitionColumns": list(partition_by),
            "configuration": {"delta.dataSkippingStatsColumns": "n,name", "delta.logRetentionDuration": FOREVER}
            | dict(configuration or {}),
            "createdTime": 1,
        }
    }


def stats(n: int, rows: int = 10) -> dict[str, Any]:
    return {
        "numRecords": rows,
        "minValues": {"n": n, "name": f"a{n}"},
        "maxValues": {"n": n + 1, "name": f"ü\u2028{n}"},
        "nullCount": {"n": 0, "name": rows // 2},
    }


def add(path: str, n: int = 0, **values: Any) -> Action:
    action = {
        "path": path,
        "partitionValues": {"store_day": "2026-11-20"},
        "size": 100 + n,
        "modificationTime": 1,
        "dataChange": True,
        "stats": json.dumps(stats(n), ensure_ascii=n % 2 == 0),
    }
    return {"add": action | values}


def remove(path: str, **values: Any) -> Action:
    return {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True} | values}


def txn(app_id: str, version: int, **values: Any) -> Action:
    return {"txn": {"appId": app_id, "version": version} | values}


def protocol(reader: int, writer: int, **features: Sequence[str]) -> Action:
    return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer} | features}


def info(**values: Any) -> Action:
    return {"commitInfo": {"timestamp": 1, "operation": "WRITE"} | values}


class Log:
    """The files of a log; ``entries`` writes the next ones."""

    def __init__(self, folder: Path) -> None:
        self.root = Root.parse(str(folder))
        self.table = folder / "t"
        self.folder = self.table / "_delta_log"
        self.folder.mkdir(parents=True)
        self.version = -1

    def entries(self, *entries: Sequence[Action]) -> Log:
        for actions in entries:
            self.version += 1
            self.entry(self.version).write_text("".join(json.dumps(action) + "\n" for action in actions))
        return self

    def entry(self, version: int) -> Path:
        return self.folder / entry_name(version)

    def checkpoint(self, version: int) -> Path:
        """Written by delta-rs."""
        DeltaTable(str(self.table), version=version).create_checkpoint()
        return self.folder / f"{version:020d}.checkpoint.parquet"

    def clean(self, before: int) -> None:
        for version in range(before):
            self.entry(version).unlink(missing_ok=True)

    @property
    def hint(self) -> Path:
        return self.folder / "_last_checkpoint"

    def opened(self) -> DeltaLog:
        log = DeltaLog(self.root, "t", LAYOUT)
        log.open()
        return log

    @property
    def view(self) -> LogView:
        return self.opened().view


def state(view: LogView) -> dict[str, Any]:
    """All that is read of a log, in a form that can be compared."""
    return {
        "version": view.version,
        "files": view.files.table.sort_by("path").to_pylist(),
        "paths": {path for path in view.files.table.column("path").to_pylist() if path in view.files},
        "positions": dict(view.positions.items()),
        "protocol": {key: value for key, value in (view.protocol or {}).items() if value},
        "configuration": view.metadata and view.metadata["configuration"],
    }


FIRST = (info(), protocol_action(), metadata())


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Version 0: two files and a position."""
    return Log(tmp_path).entries([*FIRST, add("one.parquet", 1), add("two.parquet", 2), txn("a", 7)])


def names(log: Log) -> list[str]:
    return sorted(log.view.files.table.column("path").to_pylist())


# --- entries that are damaged ----------------------------------------------------------------------------------------


def own_entry() -> bytes:
    texts = json.dumps(stats(1), ensure_ascii=False)
    files = [StagedFile(f"{n}.parquet", "msg", 100, 10, texts, "2026-11-20") for n in range(3)]
    return entry_bytes(operation="SEND", now_ms=5, commit_ids=["id"], files=files, positions={"a": 8, "b": 1})


def test_an_entry_of_ours_that_was_cut_is_damaged_wherever_it_was_cut() -> None:
    content = own_entry()
    assert parse_entry(content.rstrip(), 1, "log/1.json") == parse_entry(content, 1, "log/1.json")
    for end in range(len(content) - 1):
        with pytest.raises(BadData, match=r"log/1\.json is damaged.*backup"):
            parse_entry(content[:end], 1, "log/1.json")


def test_an_entry_of_ours_that_lacks_a_line_or_has_one_twice_is_damaged() -> None:
    first, *lines = own_entry().splitlines(keepends=True)
    for at in range(len(lines)):
        for other in (lines[:at] + lines[at + 1 :], lines[: at + 1] + lines[at:]):
            with pytest.raises(BadData, match=r"log/1\.json is damaged.*all its lines.*backup"):
                parse_entry(b"".join([first, *other]), 1, "log/1.json")


DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "a line end": b"\n",
    "zeros": bytes(512),
    "no JSON": b"PAR1",
    "nested too deeply": b"[" * 9999,
    "no UTF-8": b'{"commitInfo":{"operation":"\xff"}}',
    "a list": b"[]\n",
    "an action that is no object": b'{"add":3}',
    "no action": b"{}",
    "two actions in a line": json.dumps({**add("x"), **txn("a", 1)}).encode(),
    "an add without a path": b'{"add":{"size":1,"stats":"{}"}}',
    "an add without a size": b'{"add":{"path":"x","stats":"{}"}}',
    "an add with cut statistics": json.dumps(add("x", stats='{"numRec')).encode(),
    "a txn without a version": b'{"txn":{"appId":"a"}}',
    "a txn of a text": b'{"txn":{"appId":"a","version":"x"}}',
    "a txn of a number": b'{"txn":{"appId":3,"version":1}}',
    "a txn of null": b'{"txn":{"appId":null,"version":1}}',
    "commit ids of a number": json.dumps(info(commit_ids=3)).encode(),
    "partition columns of an object": json.dumps(
        {"metaData": metadata()["metaData"] | {"partitionColumns": {}}}
    ).encode(),
    "a list for a partition column": json.dumps(
        {"metaData": metadata()["metaData"] | {"partitionColumns": [[]]}}
    ).encode(),
    "a protocol without versions": b'{"protocol":{}}',
    "a file twice": b"\n".join(json.dumps(add("day=1/x")).encode() for _ in range(2)),
    "a file twice, in two spellings": b"\n".join(json.dumps(add(path)).encode() for path in ("day=1/x", "day%3D1/x")),
}


@pytest.mark.parametrize("number", ["99999999999999999999", '"7"', "7.0", "true", "null"])
@pytest.mark.parametrize(
    "action", ['{"txn":{"appId":"a","version":%s}}', '{"add":{"path":"p","partitionValues":{},"size":%s}}']
)
def test_a_number_that_is_not_one_of_64_bits_is_damage(action: str, number: str) -> None:
    with pytest.raises(LogDamaged, match="is not a whole number of 64 bits"):
        parse_entry((action % number).encode(), 1, "log/1.json")


@pytest.mark.parametrize("how", DAMAGED)
@pytest.mark.parametrize("kept", [False, True], ids=["opened", "refreshed"])
def test_a_damaged_entry_is_named_and_stays_so(log: Log, how: str, kept: bool) -> None:
    reader = log.opened()
    log.entry(1).write_bytes(DAMAGED[how])
    for _ in range(2):
        with pytest.raises(BadData, match=rf"{log.entry(1)} is damaged.*backup"):
            (reader.refresh if kept else log.opened)()
    assert reader.view.version == 0
    log.entry(1).write_text(json.dumps(txn("a", 8)))
    reader.refresh()
    assert state(reader.view) == state(log.view)


WRONG_VALUES: dict[str, Action] = {
    "a text for a number": add("x", stats=json.dumps({"minValues": {"n": "many"}})),
    "a number for a text": add("x", stats=json.dumps({"maxValues": {"name": 3}})),
    "a number that is too large": add("x", stats=json.dumps({"minValues": {"n": 2**70}})),
    "a text for a count": add("x", stats=json.dumps({"numRecords": "many"})),
    "no day": add("x", partitionValues={"store_day": "one day"}),
    "a size of a text": add("x", size="much"),
    "statistics that are no object": add("x", stats="3"),
    "bounds that are no object": add("x", stats='{"minValues": 3}'),
    "metadata without a schema": {"metaData": {"partitionColumns": ["store_day"]}},
    "metadata with a damaged schema": {"metaData": metadata()["metaData"] | {"schemaString": "{"}},
}


@pytest.mark.parametrize("how", WRONG_VALUES)
def test_an_entry_with_a_value_of_the_wrong_type_is_named(log: Log, how: str) -> None:
    log.entries([WRONG_VALUES[how]], [add("y", 3)])
    with pytest.raises(BadData, match=rf"{log.entry(1)} is damaged.*backup"):
        names(log)


FIRST_ENTRIES: dict[str, tuple[Sequence[Action], str]] = {
    "no metaData action": ([info(), protocol_action(), add("x")], "no metaData action comes before the first files"),
    "other partition columns": ([info(), protocol_action(), metadata(partition_by=())], "it is of another table"),
    "other columns": ([info(), protocol_action(), metadata([("m", "long")])], "it is of another table"),
}


@pytest.mark.parametrize("how", FIRST_ENTRIES)
def test_a_first_entry_that_does_not_describe_the_table_is_damage(tmp_path: Path, how: str) -> None:
    actions, words = FIRST_ENTRIES[how]
    log = Log(tmp_path).entries(actions, [metadata(), add("y")])
    with pytest.raises(LogDamaged, match=rf"{log.folder}.*{words}"):
        log.opened()


@pytest.mark.parametrize("checkpointed", [False, True])
def test_what_was_listed_before_a_clean_up_is_listed_again(
    log: Log, monkeypatch: pytest.MonkeyPatch, *, checkpointed: bool
) -> None:
    """In a folder, also where the one file that was listed is there again: written late, by a process that slept."""
    first = log.checkpoint(0) if checkpointed else log.entry(0)
    content, names_in, lists = first.read_bytes(), Root.names_in, list[str]()

    def listed(root: Root, folder: str, after: str = "") -> tuple[Sequence[str], int]:
        answer = names_in(root, folder, after)
        lists.append(folder)
        if len(lists) == 1:
            log.entries([txn("a", 8)], [txn("a", 9)])
            log.checkpoint(2)
            log.clean(2)
            first.write_bytes(content)
        return answer

    monkeypatch.setattr(Root, "names_in", listed)
    view = log.view
    assert (view.version, view.positions.get("a")) == (2, 9)


@pytest.mark.parametrize("value", [None, 3, "", "name"])
def test_statistics_are_read_whatever_columns_the_metadata_names(log: Log, value: Any) -> None:
    before = state(log.view)["files"]
    log.entries([metadata(configuration={STATS_COLUMNS: value})])
    assert state(log.view)["files"] == before
    log.entry(0).write_text(
        "".join(
            json.dumps(action) + "\n"
            for action in [
                info(),
                protocol_action(),
                metadata(configuration={STATS_COLUMNS: value}),
                add("one.parquet", 1),
                add("two.parquet", 2),
            ]
        )
    )
    assert state(log.view)["files"] == before


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_entry_with_later_ones_is_named(log: Log, missing: int) -> None:
    log.entries([txn("a", 8)], [txn("a", 9)], [txn("a", 10)])
    log.entry(missing).unlink()
    with pytest.raises(BadData, match=rf"{log.entry(missing)} is missing, and later entries are there.*backup"):
        log.opened()


def test_a_missing_entry_behind_a_checkpoint_is_named(log: Log) -> None:
    log.entries([txn("a", 8)], [txn("a", 9)], [txn("a", 10)])
    log.checkpoint(1)
    log.clean(3)
    with pytest.raises(BadData, match=rf"{log.entry(2)} is missing"):
        log.opened()


@pytest.mark.parametrize("files", [[], ["_last_checkpoint"], [".00000000000000000000.json.x.tmp"]], ids=str)
def test_a_folder_without_entries_is_no_table(tmp_path: Path, files: list[str]) -> None:
    log = Log(tmp_path)
    for name in files:
        (log.folder / name).write_text('{"version": 3}')
    with pytest.raises(NoTable):
        log.opened()


def test_who_creates_a_table_leaves_one_alone_that_cannot_be_read(log: Log) -> None:
    log.entries([protocol(3, 7, readerFeatures=["deletionVectors"], writerFeatures=["deletionVectors"])], [info()])
    log.checkpoint(2)
    log.clean(1)
    before = sorted(log.folder.iterdir())
    with pytest.raises(StoreUnusable, match="reader version 3"):
        LakeTable.create(log.root, "t", LAYOUT)
    assert sorted(log.folder.iterdir()) == before


# --- entries of other tools ------------------------------------------------------------------------------------------

VECTOR = {
    "storageType": "u",
    "pathOrInlineDv": "vBn[lx{q8@P<9BNH/isA",
    "offset": 1,
    "sizeInBytes": 36,
    "cardinality": 2,
}
MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}
FEATURES = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
SPARK = info(engineInfo="Apache-Spark/4.2 Delta-Lake/4.4")

FOREIGN: dict[str, tuple[Sequence[Action], str]] = {
    "a deletion vector": ([SPARK, remove("one.parquet"), add("one.parquet", deletionVector=VECTOR)], "deletion vector"),
    "deletion vectors allowed": ([SPARK, protocol(3, 7, **FEATURES)], "reader version 3"),
    "column mapping allowed": ([SPARK, protocol(2, 5)], "reader version 2"),
    "column mapping": ([SPARK, metadata(configuration=MAPPED)], "column mapping"),
    "an unknown action": ([SPARK, {"checkpointMetadata": {"version": 1}}], "checkpointMetadata"),
    "an unknown action beside others": ([SPARK, add("x"), {"sidecar": {"path": "x"}}], "sidecar"),
    "a dropped column": ([SPARK, metadata((("n", "long"), ("store_day", "date")))], "columns"),
    "a renamed column": (
        [SPARK, metadata((("n", "long"), ("title", "string"), ("store_day", "date")))],
        "columns",
    ),
    "a column of another type": (
        [SPARK, metadata((("n", "string"), ("name", "string"), ("store_day", "date")))],
        "columns",
    ),
    "other partitions": ([SPARK, metadata(partition_by=())], "partitions"),
}


@pytest.mark.parametrize("how", FOREIGN)
@pytest.mark.parametrize("kept", [False, True], ids=["opened", "refreshed"])
def test_what_another_tool_did_that_is_not_read_here_is_named(log: Log, how: str, kept: bool) -> None:
    actions, reason = FOREIGN[how]
    reader = log.opened()
    log.entries(actions, [txn("a", 9)])
    for _ in range(2):
        with pytest.raises(StoreUnusable, match=rf"{log.entry(1)}.*{reason}.*backup"):
            (reader.refresh if kept else log.opened)()
    assert (reader.view.version, reader.view.positions.get("a")) == (0, 7)


@pytest.mark.parametrize("how", ["deletion vectors allowed", "column mapping"])
def test_what_another_tool_did_before_a_checkpoint_is_named(log: Log, how: str) -> None:
    actions, reason = FOREIGN[how]
    log.entries(actions)
    checkpoint = log.checkpoint(1)
    log.clean(1)
    with pytest.raises(StoreUnusable, match=rf"{checkpoint}.*{reason}.*backup"):
        log.opened()


NEW_COLUMN = (("n", "long"), ("name", "string"), ("more", "string"), ("store_day", "date"))

HARMLESS: dict[str, tuple[Sequence[Action], Callable[[LogView], bool]]] = {
    "OPTIMIZE": (
        [
            info(operation="OPTIMIZE", engineInfo="delta-rs:py-1.6.6"),
            remove("one.parquet", dataChange=False),
            remove("two.parquet", dataChange=False),
            add("both.parquet", 1, dataChange=False),
        ],
        lambda view: view.files.table.column("path").to_pylist() == ["both.parquet"],
    ),
    "txn only": ([txn("a", 8)], lambda view: view.positions.get("a") == 8),
    "commitInfo only": ([info(operation="VACUUM START")], lambda view: len(view.files) == 2),
    "a property": (
        [metadata(configuration={"note": "x"})],
        lambda view: view.metadata is not None and view.metadata["configuration"]["note"] == "x",
    ),
    "a further column": ([metadata(NEW_COLUMN)], lambda view: len(view.files) == 2),
    "a protocol of before": ([protocol(1, 2)], lambda view: view.protocol == protocol(1, 2)["protocol"]),
    "change data": ([{"cdc": {"path": "_change_data/x", "size": 1, "dataChange": False}}], lambda view: True),
    "a domain": ([{"domainMetadata": {"domain": "x", "configuration": "", "removed": False}}], lambda view: True),
    "an add without statistics": (
        [{"add": {key: value for key, value in add("x")["add"].items() if key != "stats"}}],
        lambda view: view.files.table.column("num_records").to_pylist() == [10, 10, None],
    ),
    "an add with null statistics": ([add("x", stats=None)], lambda view: "x" in view.files),
    "statistics of other columns": (
        [add("x", stats=json.dumps({"numRecords": 3, "minValues": {"body": {"deep": 1}}}))],
        lambda view: view.files.table.column("num_records").to_pylist() == [10, 10, 3],
    ),
    "fields that came later": (
        [add("x", baseRowId=3, defaultRowCommitVersion=1, tags={"a": "b"}, clusteringProvider="liquid")],
        lambda view: "x" in view.files,
    ),
    "a removal of what is not there": ([remove("three.parquet")], lambda view: len(view.files) == 2),
    "an add of what is there": ([add("one.parquet", 1)], lambda view: view.files.table.num_rows == 2),
    "a file removed and added": (
        [remove("one.parquet"), add("one.parquet", 1)],
        lambda view: view.files.table.num_rows == 2 and "one.parquet" in view.files,
    ),
}


@pytest.mark.parametrize("how", HARMLESS)
def test_what_another_tool_did_that_does_no_harm_is_followed(log: Log, how: str) -> None:
    actions, followed = HARMLESS[how]
    reader = log.opened()
    log.entries(actions, [add("last.parquet", 9), txn("b", 1)], [remove("last.parquet")])
    reader.refresh()
    assert followed(reader.view)
    assert (reader.view.version, reader.view.positions.get("b")) == (3, 1)
    assert state(reader.view) == state(log.view)


def test_an_entry_without_any_line_end_or_with_those_of_windows_is_read(log: Log) -> None:
    log.entry(1).write_text(json.dumps(txn("a", 8)))
    log.entry(2).write_bytes("\r\n".join(json.dumps(action) for action in (txn("a", 9), add("x", 3))).encode())
    view = log.view
    assert (view.positions.get("a"), "x" in view.files) == (9, True)


# --- paths and entries of earlier versions ---------------------------------------------------------------------------


def test_a_path_is_percent_encoded_in_the_log(log: Log) -> None:
    encoded, path = "day=a%20b/%25%C3%BC%2520.parquet", "day=a b/%ü%20.parquet"
    log.entries([add(encoded, 3)])
    assert path in log.view.files
    assert path in names(log)
    log.checkpoint(1)
    log.clean(1)
    assert path in log.view.files
    assert path in names(log)
    log.entries([remove("day=a%20b/%25%c3%bc%2520.parquet")])
    assert names(log) == ["one.parquet", "two.parquet"]


def test_a_path_of_ours_is_encoded_as_other_tools_read_it(tmp_path: Path) -> None:
    path = "kind=msg/a b%20ü+&#?.parquet"
    log = Log(tmp_path).entries(FIRST)
    file = StagedFile(path, "msg", 100, 10, json.dumps(stats(1)), "2026-11-20")
    log.entry(1).write_bytes(entry_bytes(operation="SEND", now_ms=1, files=[file], partition_by=["store_day"]))
    assert names(log) == [path]
    (uri,) = DeltaTable(str(log.table)).file_uris()
    assert uri.endswith(path)


def test_entries_of_delta_rs_are_read(tmp_path: Path) -> None:
    """As the versions of rmq before format 2 wrote them."""
    folder = tmp_path / "t"
    for n in range(3):
        rows = pa.table({"n": [n], "name": [f"ü{n}"], "store_day": [date(2026, 11, 20 + n)]}, schema=SCHEMA)
        write_deltalake(
            str(folder),
            rows,
            partition_by=["store_day"],
            mode="append",
            configuration={"delta.dataSkippingStatsColumns": "n,name"},
            commit_properties=CommitProperties(
                custom_metadata={"commit_id": f"id{n}", "action": "send"},
                app_transactions=[Transaction("a", n, last_updated=n + 1)],
            ),
        )
    log = DeltaLog(Root.parse(str(tmp_path)), "t", LAYOUT)
    log.open()
    assert [log.view.commit_ids[version] for version in range(3)] == [("id0",), ("id1",), ("id2",)]
    assert (log.view.positions.get("a"), log.view.positions.updated_ms("a")) == (2, 3)
    files = log.view.files.table.sort_by("min.n").to_pylist()
    assert [(file["min.n"], file["max.name"], file["num_records"]) for file in files] == [
        (n, f"ü{n}", 1) for n in range(3)
    ]
    assert [file["partition.store_day"] for file in files] == [date(2026, 11, 20 + n) for n in range(3)]
    assert sorted(file["path"] for file in files) == sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*.parquet")
    )


# --- hints and checkpoints -------------------------------------------------------------------------------------------


def long_log(log: Log, count: int = 25) -> Log:
    """Entries that add files, remove some, and set positions."""
    for n in range(1, count):
        actions = [info(), add(f"{n}.parquet", n, partitionValues={"store_day": f"2026-11-{n:02}"}), txn("b", n)]
        if n % 3 == 0:
            actions += [remove(f"{n - 2}.parquet"), txn("c", n, lastUpdated=n)]
        if n % 7 == 0:
            actions += [remove(f"{n - 4}.parquet"), add(f"{n - 4}b.parquet", n, stats=None)]
        log.entries(actions)
    return log


@pytest.fixture
def checkpointed(log: Log) -> Log:
    """25 entries, and checkpoints at 8 and 16."""
    long_log(log)
    log.checkpoint(8)
    log.checkpoint(16)
    return log


def plain(log: Log) -> dict[str, Any]:
    """The state by a replay of every entry, without hints and checkpoints."""
    other = Log(log.table.parent / "plain")
    for entry in sorted(log.folder.glob("*.json")):
        (other.folder / entry.name).write_bytes(entry.read_bytes())
    return state(other.view)


def test_a_log_opened_from_any_checkpoint_is_that_of_its_entries(log: Log) -> None:
    expected = plain(long_log(log))
    kept = log.opened()
    for version in range(0, 25, 4):
        log.checkpoint(version)
        view = log.view
        assert view.checkpoint == version
        assert state(view) == expected
        log.clean(version + 1 if version < 24 else version)
        assert state(log.view) == expected
    kept.refresh()
    assert state(kept.view) == expected


HINTS = {
    "absent": None,
    "empty": b"",
    "garbage": b"garbage{",
    "no UTF-8": b"\xff\xfe",
    "a list": b"[]",
    "null": b'{"version": null}',
    "infinite": b'{"version": Infinity}',
    "deep": b"[" * 100_000,
    "negative": b'{"version": -5}',
    "behind": b'{"version": 8, "size": 3}',
    "behind every checkpoint": b'{"version": 3, "size": 3}',
    "right": b'{"version": 16, "size": 3}',
    "ahead": b'{"version": 20, "size": 3}',
    "ahead of every entry": b'{"version": 77, "size": 3}',
    "huge": b'{"version": 10000000000000000000000000}',
}


@pytest.mark.parametrize("how", HINTS)
@pytest.mark.parametrize("cleaned", [False, True])
def test_a_hint_is_only_a_hint(checkpointed: Log, how: str, cleaned: bool) -> None:
    expected = plain(checkpointed)
    checkpointed.hint.unlink()
    if (hint := HINTS[how]) is not None:
        checkpointed.hint.write_bytes(hint)
    if cleaned:
        checkpointed.clean(16)
    view = checkpointed.view
    assert view.checkpoint == 16
    assert state(view) == expected


def damage_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def damage_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4:300] = bytes(296)
    path.write_bytes(content)


def damage_all(path: Path) -> None:
    path.write_bytes(b"")


def drop_columns(path: Path) -> None:
    pq.write_table(pq.read_table(path).select(["add", "protocol"]), path)


def drop_metadata(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.filter(table.column("metaData").is_null()), path)


def drop_protocol(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.filter(table.column("protocol").is_null()), path)


def cut_statistics(path: Path) -> None:
    rows = pq.read_table(path).to_pylist()
    for row in rows:
        if row["add"]:
            row["add"]["stats"] = '{"numRecords"'
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)


def double_file(path: Path) -> None:
    """In another spelling, as the protocol allows it."""
    rows = pq.read_table(path).to_pylist()
    (first, *_) = [row for row in rows if row["add"]]
    spelled = first["add"]["path"].replace(".parquet", "%2Eparquet")
    rows.append(first | {"add": first["add"] | {"path": spelled}})
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(path)), path)


DAMAGES: list[Callable[[Path], None]] = [
    damage_end,
    damage_pages,
    damage_all,
    drop_columns,
    drop_metadata,
    drop_protocol,
    cut_statistics,
    double_file,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("cleaned", [0, 8, 16])
@pytest.mark.parametrize("hinted", [False, True])
def test_a_damaged_checkpoint_is_replaced_by_an_older_one_or_named(
    checkpointed: Log, damage: Callable[[Path], None], cleaned: int, hinted: bool
) -> None:
    """``cleaned``: the first entry that is there."""
    expected = plain(checkpointed)
    checkpoint = checkpointed.folder / f"{16:020d}.checkpoint.parquet"
    damage(checkpoint)
    checkpointed.clean(cleaned)
    if not hinted:
        checkpointed.hint.unlink()
    if cleaned < 16:
        view = checkpointed.view
        assert view.checkpoint == 8
        assert state(view) == expected
        return
    with pytest.raises(BadData, match=rf"{checkpoint} is damaged.*backup"):
        checkpointed.opened()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("hinted", [False, True])
def test_damaged_checkpoints_are_replaced_by_the_entries(
    checkpointed: Log, damage: Callable[[Path], None], hinted: bool
) -> None:
    expected = plain(checkpointed)
    for checkpoint in checkpointed.folder.glob("*.checkpoint.parquet"):
        damage(checkpoint)
    if not hinted:
        checkpointed.hint.unlink()
    assert state(checkpointed.view) == expected


def test_a_log_may_end_at_its_checkpoint(log: Log) -> None:
    expected, name = state(log.view), log.checkpoint(log.version)
    assert state(log.view) == expected
    log.clean(log.version + 1)
    assert log.view.version == log.version
    name.write_bytes(name.read_bytes()[:100])
    with pytest.raises(
        LogDamaged, match=f"{name.name} is damaged"
    ):  # whoever creates a table creates none in its place
        log.opened()


def test_files_beside_the_entries_are_left_alone(checkpointed: Log) -> None:
    """Checksums, compacted entries, parts of checkpoints and what a write leaves."""
    expected = plain(checkpointed)
    for name in (
        f"{24:020d}.crc",
        f".{24:020d}.json.crc",
        f"{3:020d}.{24:020d}.compacted.json",
        f"{20:020d}.checkpoint.0000000001.0000000002.parquet",
        f"{20:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json",
        f".{25:020d}.json.x.tmp",
        f"{25:020d}.json.tmp",
        "_staged_commits",
    ):
        (checkpointed.folder / name).write_bytes(b"x")
    assert state(checkpointed.view) == expected


UNREAD = [
    f"{2:020d}.checkpoint.0000000002.0000000002.parquet",
    f"{2:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet",
    f"{2:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json",
    f"{0:020d}.{2:020d}.compacted.json",
]


@pytest.mark.parametrize("kept", [3, 4], ids=["an entry is left", "no entry is left"])
@pytest.mark.parametrize("name", UNREAD)
def test_a_file_of_another_tool_that_took_the_place_of_entries_is_named(log: Log, name: str, kept: int) -> None:
    log.entries([txn("a", 8)], [txn("a", 9)], [txn("a", 10)])
    log.clean(kept)
    (log.folder / name).write_bytes(b"x")
    (log.folder / "_last_checkpoint").write_text(json.dumps({"version": 2, "size": 9}))
    with pytest.raises(LogDamaged, match=f"entry {0:020d}.json is gone") as caught:
        log.opened()
    assert f"another tool wrote {name} in its place" in str(caught.value)
    assert f"write {2:020d}.checkpoint.parquet, a checkpoint in one file, or restore the log" in str(caught.value)
    with pytest.raises(LogDamaged):  # it makes no new table in its place
        LakeTable.create(log.root, "t", LAYOUT)


@pytest.mark.parametrize("name", UNREAD)
def test_a_file_of_another_tool_does_not_excuse_a_later_hole(log: Log, name: str) -> None:
    log.entries(*([txn("a", n)] for n in range(8, 13)))
    log.checkpoint(2)
    (log.folder / name).write_bytes(b"x")
    log.entry(4).unlink()
    with pytest.raises(LogDamaged, match=rf"{log.entry(4)} is missing, and later entries are there.*backup"):
        log.opened()


# --- a clean-up between the listing and the reading -------------------------------------------------------------------


def between(monkeypatch: pytest.MonkeyPatch, happen: Callable[[int], object]) -> None:
    """``happen`` is called after each listing, with its number."""
    listings = [0]
    list_names = Root.names_in

    def names_in(root: Root, folder: str, after: str = "") -> Any:
        answer = list_names(root, folder, after)
        listings[0] += 1
        happen(listings[0])
        return answer

    monkeypatch.setattr(Root, "names_in", names_in)


def test_a_clean_up_between_the_listing_and_the_reading_is_seen(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(long_log(log))

    def clean_up(listing: int) -> None:
        if listing == 1:
            log.checkpoint(16)
            log.clean(16)

    between(monkeypatch, clean_up)
    view = log.view
    assert (view.checkpoint, state(view)) == (16, expected)


def test_a_checkpoint_that_is_replaced_after_the_listing_is_seen(
    checkpointed: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain(checkpointed)

    def clean_up(listing: int) -> None:
        if listing == 1:
            checkpointed.checkpoint(24)
            (checkpointed.folder / f"{16:020d}.checkpoint.parquet").unlink()
            checkpointed.clean(24)

    between(monkeypatch, clean_up)
    view = checkpointed.view
    assert (view.checkpoint, state(view)) == (24, expected)


def test_a_log_that_is_cleaned_at_every_listing_is_named(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    long_log(log, 10)

    def clean_up(listing: int) -> None:
        log.checkpoint(3 * listing - 1)
        log.clean(3 * listing)

    between(monkeypatch, clean_up)
    with pytest.raises(RmqError, match=r"disappeared while it was being read.*another tool cleans this log"):
        log.opened()


def test_entries_that_come_after_the_listing_are_read_by_the_next_refresh(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    between(monkeypatch, lambda listing: log.entries([txn("a", 8)]) if listing == 1 else None)
    reader = log.opened()
    assert (reader.view.version, reader.view.positions.get("a")) == (0, 7)
    reader.refresh()
    assert (reader.view.version, reader.view.positions.get("a")) == (1, 8)


def test_a_listing_with_a_hole_is_read_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two entries came in while it ran, it may have the later one only."""
    log.entries([txn("a", 8)], [txn("a", 9)])
    list_names = Root.names_in
    listings: list[int] = []

    def names_in(root: Root, folder: str, after: str = "") -> Any:
        seen, at_ms = list_names(root, folder, after)
        listings.append(len(seen))
        return ([name for name in seen if name != entry_name(1)] if len(listings) == 1 else seen), at_ms

    monkeypatch.setattr(Root, "names_in", names_in)
    assert log.view.version == 2
    assert len(listings) == 3  # the last one behind the reading


def test_a_log_that_takes_an_hour_to_read_is_read_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of the listing may have been cleaned up meanwhile, and filled again by a late PUT."""
    names_in, listings = Root.names_in, list[int]()

    def long_ago(root: Root, folder: str, after: str = "") -> tuple[Sequence[str], int]:
        names, at_ms = names_in(root, folder, after)
        listings.append(at_ms)
        return names, at_ms - (VIEW_TRUST_MS if len(listings) == 1 else 0)

    monkeypatch.setattr(Root, "names_in", long_ago)
    assert log.view.version == log.version
    assert len(listings) == 3  # the last one behind the reading


def test_a_copy_of_an_earlier_entry_is_refused(tmp_path: Path) -> None:
    """Its positions are old: the next commit would give offsets out again."""
    log = Log(tmp_path).entries(FIRST, [info(commit_ids="c1"), add("one.parquet"), txn("a", 1)], [txn("a", 2)])
    log.entry(3).write_bytes(log.entry(1).read_bytes())
    with pytest.raises(BadData, match=r"0003\.json has the files of an earlier entry again"):
        log.opened()


@pytest.mark.parametrize("removed", [False, True], ids=["added", "removed and added"])
def test_a_live_file_that_is_added_again_has_the_values_of_the_later_entry(log: Log, removed: bool) -> None:
    """So says Delta's protocol: Spark's ANALYZE TABLE writes statistics so."""
    reader, values = log.opened(), {"partitionValues": {"store_day": "2026-11-21"}, "dataChange": False}
    log.entries(
        [*([remove("one.parquet")] if removed else []), add("one.parquet", 7, **values)], [add("three.parquet")]
    )
    reader.refresh()
    assert state(reader.view) == state(log.view)
    files = {file["path"]: file for file in reader.view.files.table.to_pylist()}
    assert len(files) == len(reader.view.files) == 3
    assert (files["one.parquet"]["size_bytes"], files["one.parquet"]["partition.store_day"]) == (
        107,
        date(2026, 11, 21),
    )
    assert [file.path for file in reader.view.files.recent] == ["one.parquet", "two.parquet", "three.parquet"]
    if not removed:  # the protocol forbids both in one entry, and delta-rs then has no such file
        log.checkpoint(2)
        assert state(log.view)["files"] == state(reader.view)["files"], "the rows that delta-rs has"


# --- a store that contradicts itself ---------------------------------------------------------------------------------


def test_a_name_that_is_always_taken_and_never_there_ends_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path).entries(FIRST)
    clock = Clock()
    monkeypatch.setattr(Root, "put_once", lambda root, name, content: Put(PutAnswer.TAKEN, clock.ms))
    opened = log.opened()
    with pytest.raises((StoreUnusable, CommitOutcomeUnknown), match="taken, and that it is absent"):
        opened.append(Content(b"{}", ()), clock.host, deadline_ms=clock.ms + 1000)


def test_a_process_that_follows_a_log_for_days_opens_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_store.lake.table.delta_log._MOST_ENTRIES", 3)
    log = Log(tmp_path).entries(FIRST, *([txn("a", n)] for n in range(5)))
    opened = log.opened()
    before = opened.view
    opened.refresh()
    assert opened.view is not before
    assert opened.view.positions.get("a") == 4


# --- what conflicts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ([txn("off/g/T/b/0", 1)], True),
        ([txn("own/g/T/b/1", 1)], True),
        ([txn("off/g/T/b/1", 1)], False),
        ([add("new.parquet")], False),
        ([remove("replaced.parquet", dataChange=False)], True),
        ([remove("other.parquet", dataChange=False)], False),
        ([protocol(1, 7, writerFeatures=["appendOnly"])], True),
        ([metadata()], True),
        ([info(operation="VACUUM")], True),
        ([info(operation="WRITE")], False),
    ],
    ids=[
        "a position that it sets",
        "a new one under a closed prefix",
        "another position",
        "a file",
        "the removal of a file that it removes",
        "the removal of another",
        "another format",
        "another layout",
        "a vacuum",
        "nothing",
    ],
)
def test_an_entry_that_came_first_conflicts_when_it_touches_what_this_one_relies_on(
    first: Sequence[Action], expected: bool
) -> None:
    text = "".join(json.dumps(action) + "\n" for action in first).encode()
    content = Content(b"{}", ("off/g/T/b/0",), closed=("own/g/",), removed=("replaced.parquet",))
    assert content.conflicts(parse_entry(text, 3, "entry")) is expected


def test_a_removed_file_conflicts_only_with_who_removes_it() -> None:
    first = parse_entry(json.dumps(remove("gone.parquet")).encode() + b"\n", 3, "entry")
    assert not Content(b"{}", ()).conflicts(first)


# --- what a writer reports -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "error"),
    [(PutAnswer.REFUSED, StoreUnusable), (PutAnswer.SILENT, CommitOutcomeUnknown)],
)
def test_a_failure_is_reported_only_when_nothing_can_be_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: PutAnswer, error: type[Exception]
) -> None:
    opened, clock, puts = Log(tmp_path).entries(FIRST).opened(), Clock(), list[str]()

    def put_once(root: Root, name: str, content: bytes) -> Put:
        puts.append(name)
        assert len(puts) < 1000, "it does not give up"
        return Put(answer, clock.ms)

    monkeypatch.setattr(Root, "put_once", put_once)
    monkeypatch.setattr(Root, "look_at", lambda root, name: (None, clock.ms))
    opened.view.known_ms = clock.ms
    with pytest.raises(error):
        opened.append(Content(b"{}", ()), clock.host, deadline_ms=clock.ms + 1000)


def test_who_is_refused_for_lack_of_rights_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, clock = Log(tmp_path).entries(FIRST).opened(), Clock()
    denied = PermissionError(13, "Permission denied")
    monkeypatch.setattr(Root, "put_once", lambda root, name, content: Put(PutAnswer.REFUSED, clock.ms, denied))
    before_ms = clock.ms
    with pytest.raises(StoreUnusable, match="Permission denied"):
        opened.append(Content(b"{}", ()), clock.host, deadline_ms=clock.ms + 60_000)
    assert clock.ms == before_ms


DENIED = Put(PutAnswer.REFUSED, error=PermissionError(13, "Permission denied"))
BUSY = Put(PutAnswer.REFUSED, error=OSError("503 SlowDown"))


@pytest.mark.parametrize("answers", [[BUSY], [Put(PutAnswer.SILENT), DENIED]], ids=["busy", "silent, then denied"])
def test_who_may_be_in_the_log_or_only_has_to_wait_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[Put]
) -> None:
    opened, clock, real = Log(tmp_path).entries(FIRST).opened(), Clock(), Root.put_once
    rest = iter(answers)
    monkeypatch.setattr(Root, "put_once", lambda *request: next(rest, None) or real(*request))
    content = Content(entry_bytes(operation="X", now_ms=0, commit_ids=("x",)), ())
    assert opened.append(content, clock.host, deadline_ms=clock.ms + 60_000) is Verdict.COMMITTED


def test_a_log_that_was_replaced_by_an_older_one_leaves_the_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, clock = Log(tmp_path).entries(FIRST, [txn("a", 1)], [txn("a", 2)]), Clock()
    opened = log.opened()
    log.entry(1).unlink()
    log.entry(2).unlink()
    monkeypatch.setattr(Root, "put_once", lambda root, name, content: Put(PutAnswer.TAKEN, clock.ms))
    with pytest.raises(CommitOutcomeUnknown, match="ends before version 2"):
        opened.append(Content(b"{}", ("b",)), clock.host, deadline_ms=clock.ms + 1000)
