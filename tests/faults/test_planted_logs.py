"""Logs that the Delta library cannot read, or that have other files by it than by ``rmq``: both audits say so, and no
checkpoint takes the place of their entries.

Each row of ``FAULTS`` is a change of a commit log, and what ``rmq audit`` says of the entry; None: only ``rmq audit --full``
finds it. Each is planted in a shard of one store.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store import Message, open_store
from rmq_store.errors import LogDamaged
from rmq_store.lake.audit.audit import with_named_shards
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.audit.second_reader import second_reader
from rmq_store.lake.audit.shards import shards
from rmq_store.lake.maintain.maintain import maintain
from rmq_store.lake.table.checkpoint import check_log, write_checkpoint
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.maintain.request import MaintainRequest, Step
from rmq_store.settings.retention_settings import RetentionRule
from rmq_store.utils.host import Host
from tests.faults.stores import OPERATOR
from tests.planted_shard import PlantedShard, Row

SHARD = "s1"

Plant = Callable[[PlantedShard], None]
Actions = list[Row]


# --- how faults are planted ------------------------------------------------------------------------------------------


def text(before: str, after: str, entry: int = -1) -> Plant:
    """Another text in an entry, the first time that it is there."""

    def plant(at: PlantedShard) -> None:
        path = at.entries()[entry]
        content = path.read_text()
        assert before in content
        path.write_text(content.replace(before, after, 1))

    return plant


def actions(change: Callable[[Actions], Actions], entry: int = -1) -> Plant:
    """Other actions in an entry."""

    def plant(at: PlantedShard) -> None:
        path = at.entries()[entry]
        info, *others = map(json.loads, path.read_text().splitlines())
        others = change(others)
        info["commitInfo"]["actions"] = len(others)
        path.write_text("".join(f"{json.dumps(action)}\n" for action in (info, *others)))

    return plant


def of_message_file(change: Callable[[Row], Actions]) -> Plant:
    """Other actions in the place of the ``add`` of the newest message file."""

    def changed(before: Actions) -> Actions:
        (at,) = (n for n, one in enumerate(before) if one.get("add", {}).get("path", "").startswith("kind=msg/"))
        return [*before[:at], *change(before[at]["add"]), *before[at + 1 :]]

    return actions(changed)


def added(**values: Any) -> Plant:
    return of_message_file(lambda add: [{"add": add | values}])


def removed(at: PlantedShard, path: str, **values: Any) -> None:
    """An entry that removes a file, so named."""
    at.add_entry({"remove": {"path": path, "deletionTimestamp": 0, "dataChange": True} | values})


def removed_as(kind: str) -> Plant:
    """The path of a message file in another encoding."""
    return lambda at: removed(at, at.files(kind="msg")[-1].replace("kind=", kind))


def removed_with(**values: Any) -> Plant:
    return lambda at: removed(at, at.files(kind="msg")[-1], **values)


def first_another(kind: str, **values: Any) -> Plant:
    """Two actions of one kind in the entry that made the table; the later one is the right one."""

    def changed(before: Actions) -> Actions:
        return [{kind: one[kind] | values} for one in before if kind in one] + before

    return actions(changed, 0)


def column(change: Callable[[Row], Row]) -> Plant:
    """The schema has a further column, made of its first one."""

    def changed(action: Row) -> Row:
        if "metaData" not in action:
            return action
        schema = json.loads(action["metaData"]["schemaString"])
        schema["fields"].append(change(schema["fields"][0]))
        return {"metaData": action["metaData"] | {"schemaString": json.dumps(schema)}}

    return actions(lambda before: [*map(changed, before)], 0)


VECTOR = {
    "storageType": "u",
    "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^",
    "offset": 4,
    "sizeInBytes": 40,
    "cardinality": 6,
}
WITHOUT_SCHEMA = json.dumps({"type": "struct", "fields": []})

FAULTS: dict[str, tuple[Plant, str | None]] = {
    "a file that its entry removes before it adds it": (
        of_message_file(lambda add: [{"remove": {"path": add["path"], "dataChange": True}}, {"add": add}]),
        "of add.path, which it also removes",
    ),
    "a file removed with a letter in another encoding": (removed_as("%6Bind="), "of remove.path"),
    "a file removed with a sign in another encoding": (removed_as("kind%3D"), "of remove.path"),
    "a file removed with a deletion vector": (removed_with(deletionVector=VECTOR), "of remove.deletionVector"),
    "a file removed with an empty deletion vector": (removed_with(deletionVector={}), "of remove.deletionVector"),
    "a file added in another encoding": (
        of_message_file(lambda add: [{"add": add | {"path": add["path"].replace("=", "%3D")}}]),
        "of add.path",
    ),
    **{
        f"a deletion vector that is {one}": (added(deletionVector=json.loads(one)), "of add.deletionVector")
        for one in ("{}", "0", '""', "[]", "false")
    },
    "a value of another partition": (
        of_message_file(lambda add: [{"add": add | {"partitionValues": add["partitionValues"] | {"zz": "1"}}}]),
        "of add.partitionValues",
    ),
    "a value that is no number": (text('"timestamp":', '"x":NaN,"timestamp":'), "NaN is no value of JSON"),
    "a value without end": (text('"timestamp":', '"x":-Infinity,"timestamp":'), "-Infinity is no value of JSON"),
    "half of a surrogate pair": (text('"operation":"', '"operation":"\\ud800'), "surrogates not allowed"),
    **{
        f"a line of U+{ord(blank):04X}": (text("\n", f"\n{blank}\n"), "of a line that other readers refuse")
        for blank in ("\xa0", "\u2028", "\v")
    },
    "a protocol before the right one": (
        first_another("protocol", minReaderVersion=3, readerFeatures=["zz"]),
        "of protocol, more than once",
    ),
    "a description before the right one": (
        first_another("metaData", schemaString=WITHOUT_SCHEMA),
        "of metaData, more than once",
    ),
    "a description of no partitions before the right one": (
        first_another("metaData", partitionColumns=[]),
        "of metaData, more than once",
    ),
    "a column twice": (column(lambda one: one), "of the fields of its columns"),
    "a column in other letters": (
        column(lambda one: one | {"name": one["name"].upper()}),
        "of the fields of its columns",
    ),
    "a column of an unknown type": (column(lambda one: one | {"name": "zz", "type": "nonsense"}), None),
    "a column without metadata": (column(lambda one: {"name": "zz", "type": "long", "nullable": True}), None),
}


# --- the stores ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    LakeStore.init(Root.parse(str(folder)))
    for number in range(2):
        request = f"2026-11-20-n{number}"
        open_store(folder).send([Message("Notes", b"note")], create_queues=1, shard=SHARD, request_id=request)
    assert list(second_reader(with_named_shards(LakeStore.open(Root.parse(str(folder)))))) == []
    return folder


def planted(sound: Path, root: Path, shard: str, plant: Plant) -> PlantedShard:
    shutil.copytree(sound / SHARD, root / shard)
    (root / "shards" / f"{shard}.json").write_text(json.dumps({"name": shard}))
    at = PlantedShard(root, shard)
    plant(at)
    return at


@pytest.fixture(scope="module")
def store(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> LakeStore:
    """Each fault in a shard with its name."""
    root = tmp_path_factory.mktemp("planted") / "store"
    shutil.copytree(sound, root, ignore=shutil.ignore_patterns(SHARD, "shards"))
    (root / "shards").mkdir()
    for number, (plant, _) in enumerate(FAULTS.values()):
        planted(sound, root, f"fault-{number}", plant)
    return LakeStore.open(Root.parse(str(root)))


@pytest.fixture(scope="module")
def findings(store: LakeStore) -> list[Finding]:
    opened = with_named_shards(store)
    return [*shards(opened), *second_reader(opened)]


def shard_of(name: str) -> str:
    return f"fault-{list(FAULTS).index(name)}"


# --- the tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS)
def test_both_audits_find(findings: list[Finding], name: str) -> None:
    of_shard = [one for one in findings if one.shard == shard_of(name)]
    assert [one.file for one in of_shard if one.problem == Problem.LOG_READ_DIFFERENTLY] == ["commitlog"]
    kinds = (Problem.LOG_ENTRY_NOT_VALID, Problem.TABLE_PROPERTIES_DIFFER)
    details = [str(one.detail) for one in of_shard if one.problem in kinds]
    said = FAULTS[name][1]
    assert (details == []) if said is None else any(said in detail for detail in details)


@pytest.mark.parametrize("name", FAULTS)
def test_no_checkpoint_takes_the_place_of(store: LakeStore, name: str) -> None:
    (shard,) = store.shards(shard_of(name))
    log = Path(store.root.location, shard.commitlog.path, "_delta_log")
    before = sorted(log.iterdir())
    with pytest.raises(LogDamaged, match=r"/commitlog .*No checkpoint is made of it\. Run 'rmq audit --full'"):
        write_checkpoint(shard.commitlog)
    assert sorted(log.iterdir()) == before


@pytest.mark.parametrize("dry_run", [False, True], ids=["", "dry run"])
@pytest.mark.parametrize("step", [Step.RETENTION, Step.MESSAGES, Step.VACUUM])
def test_no_maintenance_takes_files_out_of(store: LakeStore, step: Step, *, dry_run: bool) -> None:
    name = "a file removed with a letter in another encoding"
    (shard,) = store.shards(shard_of(name))
    files = sorted(Path(store.root.location, shard.commitlog.path).rglob("*"))
    request = MaintainRequest(
        request_id="2026-01-05-maintain",
        actor=OPERATOR,
        steps=frozenset({step}),
        rules=(RetentionRule(topic="*", max_age_ms=1),),
        dry_run=dry_run,
    )
    with pytest.raises(LogDamaged, match="the Delta library has other files than rmq"):
        maintain(shard, request, Host())
    assert sorted(Path(store.root.location, shard.commitlog.path).rglob("*")) == files


def test_an_error_names_the_files_and_the_entries(store: LakeStore) -> None:
    at = PlantedShard(Path(store.root.location), shard_of("a file removed with a letter in another encoding"))
    *_, adding, removing = at.entries()
    file = json.loads(removing.read_text().splitlines()[-1])["remove"]["path"].replace("%6B", "k")
    with pytest.raises(LogDamaged, match=f"of them: {file}, in {adding.name}, {removing.name}. No"):
        check_log(at.shard.commitlog)


def test_a_path_that_has_to_be_encoded_is_no_fault(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "store")
    at = PlantedShard(tmp_path / "store", SHARD)
    add = at.add_of(at.files(kind="msg")[0])
    at.add_entry({"add": add | {"path": "kind=msg/a%20b.parquet"}})
    assert "kind=msg/a b.parquet" in at.files()
    check_log(at.shard.commitlog)


def test_two_values_of_a_partition_in_a_checkpoint_are_found(sound: Path, tmp_path: Path) -> None:
    """``rmq`` takes the first of them, the Delta library the last."""

    def twice(rows: list[Row]) -> list[Row]:
        for row in rows:
            if row["add"] and row["add"]["path"].startswith("kind=msg/"):
                row["add"]["partitionValues"].append(("kind", "archive"))
        return rows

    shutil.copytree(sound, tmp_path / "store")
    at = PlantedShard(tmp_path / "store", SHARD)
    at.leave_checkpoint()
    check_log(at.shard.commitlog)
    at.edit_checkpoint(twice)
    facts = "has other files than rmq, or other values of them: kind=msg/.*checkpoint.parquet"
    with pytest.raises(LogDamaged, match=facts):
        check_log(at.shard.commitlog)
    at.set_position("x", 1)
    with pytest.raises(LogDamaged, match=facts):
        write_checkpoint(at.shard.commitlog)
