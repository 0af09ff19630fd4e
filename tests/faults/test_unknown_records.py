"""A record of a commit that cannot be understood, whatever the digest in its name, is a finding, and the rest is audited."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rmq_store.commit.ctl import canonical_json
from rmq_store.commit.positions import import_id
from rmq_store.errors import BadData
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import Finding, Problem, without_repeats
from rmq_store.lake.audit.full import full
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.utils.host import Host
from tests.faults.stores import BROKER, Lake, copied, write_broker
from tests.lake_fixtures import small_store
from tests.planted_shard import PlantedShard, Row

SHARD = "broker-a"

ENDS_FIRST = {"topic": "Orders", "broker_name": SHARD, "queue_id": 0, "begin_offset": 9, "end_offset": 3}

NO_FIRST_ROW = {"topic": "Orders", "broker_name": SHARD, "queue_id": 0, "base_offset": 0, "count": 24, "part": 0}

RECORDS: dict[str, tuple[str, Row, str]] = {
    "an unknown action": ("consume", {"action": "consumx"}, "'consumx' is not a valid Action"),
    "no action": ("consume", {"action": None}, "None is not a valid Action"),
    "a segment without its first row": ("import", {"produced": [NO_FIRST_ROW]}, "'NoneType' and 'int'"),
    "a subscription that is no JSON": ("consume", {"subscription": "TAG:*"}, "a subscription that is no JSON object"),
    "a subscription that is a list": ("consume", {"subscription": "[1]"}, "a subscription that is no JSON object"),
    "an import with parameters that are no JSON": ("import", {"parameters": "{"}, "parameters that are no JSON object"),
    "a range of consumed offsets that is none": ("consume", {"consumed": [ENDS_FIRST]}, "not a range of offsets"),
    "a window with parameters that are no JSON": ("consume", {"parameters": "nonsense"}, "parameters that are no JSON"),
    "a window without its parameters": ("consume", {"parameters": None}, "parameters that are no JSON object"),
    "an import without its parameters": ("import", {"parameters": None}, "parameters that are no JSON object"),
    "an import with a range that is an object": (
        "import",
        {"parameters": '{"broker_name":"broker-a","range":{"x":1}}'},
        """a parameter that an import cannot have: "range":{"x":1}""",
    ),
}
"""The action of the newest record that is changed, its other values, and what the audit says."""


OF_IMPORTS: dict[str, Row] = {
    "a fingerprint that is an object": {"fingerprint": {"x": 1}},
    "a fingerprint that is too short": {"fingerprint": [0]},
    "no fingerprint": {"fingerprint": None},
    "last records without a hash": {"last_records": [0, 100]},
    "a range of texts": {"range": ["0", "100"]},
    "a broker name that is a number": {"broker_name": 5},
    "skipped bytes that are an object": {"skipped": {"x": 1}},
    "a gap that is too short": {"queue_gaps": [["Orders", 0, 1]]},
    "generations that are a number": {"generations": 7},
    "generations of a commit that is not there": {"generations_of": "0" * 32},
    "a log without a name that another one continues": {"continues": {"end": 1, "cuts": []}},
}
"""Parameters of the newest import that are changed; None: that are missing."""


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    made = small_store(folder, [SHARD])
    assert audit(made.store) == []
    return folder


def planted(sound: Path, root: Path, action: str, values: Row) -> LakeStore:
    """The store with another record, a body that was changed, and a position that no commit set."""
    shutil.copytree(sound, root)
    at = PlantedShard(root, SHARD)
    body = at.files(kind="msg")[0]
    at.rewrite_rows(body, lambda row: row | {"body": b"other"})
    (file,) = [at.record(action)]
    at.rewrite_rows(file, lambda row: row | values)
    at.set_position("zzz/ghost", 3)
    return LakeStore.open(Root.parse(str(root)))


def of_records(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.problem == Problem.NOT_AUDITED]


@pytest.mark.parametrize("name", RECORDS)
def test_it_is_one_finding_and_the_rest_is_audited(sound: Path, tmp_path: Path, name: str) -> None:
    action, values, said = RECORDS[name]
    store = planted(sound, tmp_path / "store", action, values)
    findings = audit(store)
    contents = full(store, LocalEngine(Host())).findings
    (one,) = of_records(without_repeats([*findings, *contents]))
    assert said in str(one.detail)
    assert "zzz/ghost" in " ".join(str(one.detail) for one in findings)
    assert Problem.BODY_DIFFERS in {one.problem for one in contents}


def test_other_commands_name_the_file(sound: Path, tmp_path: Path) -> None:
    store = planted(sound, tmp_path / "store", "consume", {"action": "consumx"})
    with pytest.raises(BadData, match=r"/kind=ctl/\S+ has a record that this version of rmq does not know \(commit "):
        query(store, "SELECT count(*) FROM windows")


def test_a_record_that_the_table_commits_has_too_is_named(sound: Path, tmp_path: Path) -> None:
    store = planted(sound, tmp_path / "store", "consume", {})
    (shard,) = store.shards()
    dispatch(shard, Host(), every_commit=True)
    at = PlantedShard(tmp_path / "store", SHARD)
    at.rewrite_rows(at.record("consume"), lambda row: row | {"action": "consumx"})
    problems = {one.problem for one in audit(LakeStore.open(store.root))}
    assert problems >= {Problem.NOT_AUDITED, Problem.POSITION_NOT_RECORDED}


def test_a_parameter_that_is_none_is_found_in_the_table_commits_too(sound: Path, tmp_path: Path) -> None:
    """The record, its digest and the derived table agree: nothing but its own shape is wrong."""
    shutil.copytree(sound, tmp_path / "store")
    at = PlantedShard(tmp_path / "store", SHARD)
    dispatch(at.shard, Host(), every_commit=True)

    def change(row: Row) -> Row:
        changed = {"parameters": '{"broker_name":"broker-a","queue_gaps":{"x":1}}'}
        return row | changed if row["action"] == "import" else row

    at.rewrite_rows(at.record("import"), change)
    for file in at.files("commits"):
        at.rewrite_rows(file, change, "commits")
    findings = of_records(audit(LakeStore.open(Root.parse(str(at.root)))))
    assert len(findings) == 1
    assert str(findings[0].detail).endswith("""has a parameter that an import cannot have: "queue_gaps":{"x":1}""")


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's files that were imported, and that have more messages since."""
    folder = tmp_path_factory.mktemp("imported")
    Lake(folder / "store").load(write_broker(folder / "broker"))
    write_broker(folder / "broker", 60)
    return folder


@pytest.mark.parametrize("name", OF_IMPORTS)
def test_an_import_after_one_that_is_not_understood_is_refused_in_words(
    imported: Path, tmp_path: Path, name: str
) -> None:
    lake = copied(Lake(imported / "store"), tmp_path / "store")

    def change(row: Row) -> Row:
        parameters = json.loads(row["parameters"]) | OF_IMPORTS[name]
        return row | {"parameters": canonical_json({k: v for k, v in parameters.items() if v is not None})}

    at = PlantedShard(lake.folder, lake.shard_name)
    at.rewrite_rows(at.record("import"), change)
    before = lake.shard.positions().get(import_id(BROKER))
    with pytest.raises(BadData, match=r"\b[0-9a-f]{32}\b.* from a backup"):
        lake.load(imported / "broker", "2026-01-02-import")
    assert (lake.shard.positions().get(import_id(BROKER)), len(at.files(kind="msg"))) == (before, 1)
