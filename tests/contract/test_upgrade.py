"""A store that an earlier version wrote: refused in words, and brought over by one command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from demo.archives import unpack
from rmq_store.commit.positions import Claim, own_id, sub_id
from rmq_store.errors import OtherFormat
from rmq_store.lake.table import tables
from rmq_store.lake.table.delta_table import CONFIGURATION
from rmq_store.lake.table.object_store import Root
from tests.contract.rmq import Rmq
from tests.faults.answers import NoAnswer, Put, answer_puts
from tests.faults.stores import Lake
from tests.foreign_tools import protocol_ignored

ARCHIVE = Path(__file__).parents[1] / "data" / "store-format-1.tar.gz"
FIRST_ARCHIVE = ARCHIVE.with_name("store-format-1-first.tar.gz")
TABLES = ["s1/commitlog", "s1/commits", "s1/consumequeue", "s1/offsets"]


@pytest.fixture
def old(rmq: Rmq) -> Lake:
    """An import of 30 messages, a window of group billing with failures, and a delivery, by version 0.1.0."""
    unpack(ARCHIVE, rmq.folder)
    return Lake(rmq.root)


def test_a_store_of_the_earlier_format_is_refused_in_words(old: Lake, rmq: Rmq) -> None:
    for command in (["lag", "--group", "billing"], ["deliver"], ["audit"], ["doctor"]):
        answer = rmq(*command, "--json")
        assert answer.exit_code == 1, command
        assert "upgrade' brings it to format 2" in answer.out


def test_an_upgrade_keeps_every_row_and_position_and_work_goes_on(old: Lake, rmq: Rmq) -> None:
    before = json.loads((old.folder / "store.json").read_text())
    dry = rmq.json("upgrade", "--dry-run")
    assert (dry["status"], sorted(dry["tables"])) == ("dry_run", TABLES)
    assert json.loads((old.folder / "store.json").read_text()) == before
    report = rmq.json("upgrade")
    assert (report["status"], report["from_format"], report["to_format"]) == ("upgraded", 1, 2)
    assert sorted(report["tables"]) == TABLES
    assert rmq.json("upgrade")["status"] == "already_there"
    assert json.loads((old.folder / "store.json").read_text()) == before | {"format_version": 2}
    assert old.offsets() == {0: 10, 1: 10, 2: 10}
    assert old.audit() == []
    assert _columns(old) == tables.COMMITLOG.names
    assert old.consume().status == "already_committed"
    assert old.consume("2026-01-02-next").status == "committed"
    assert old.audit() == []
    assert rmq.json("dispatch", "--check")["status"] == "ok"


def test_an_upgrade_gives_tables_of_this_format_its_properties(
    old: Lake, rmq: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version between the releases wrote another one, of which the audit has a finding."""
    with monkeypatch.context() as patch:
        patch.setitem(CONFIGURATION, "delta.deletedFileRetentionDuration", "interval 36500 days")
        rmq.json("upgrade")
    assert [finding["problem"] for finding in rmq("audit", "--json").json()["audit"]] == ["table properties differ"] * 4
    assert sorted(rmq.json("upgrade", "--dry-run")["tables"]) == TABLES
    report = rmq.json("upgrade")
    assert (report["status"], report["from_format"], sorted(report["tables"])) == ("upgraded", 2, TABLES)
    assert rmq.json("upgrade")["status"] == "already_there"
    assert old.audit() == []
    assert old.consume("2026-01-02-next").status == "committed"


def test_other_readers_open_tables_after_an_upgrade_from_a_checkpoint(
    old: Lake, rmq: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The description of a table is then that of a checkpoint: in format 1, and in this one with another property."""
    for name in TABLES:
        DeltaTable(old.folder / name).create_checkpoint()
    with monkeypatch.context() as patch:
        patch.setitem(CONFIGURATION, "delta.deletedFileRetentionDuration", "interval 36500 days")
        rmq.json("upgrade")
    assert _unreadable(old) == []
    rmq.json("maintain", "--step", "checkpoint")
    assert sorted(rmq.json("upgrade")["tables"]) == TABLES
    assert _unreadable(old) == []
    assert rmq.json("audit", "--full")["audit"] == []
    assert old.consume("2026-01-02-next").status == "committed"


def test_a_store_of_the_first_version_audits_cleanly_after_an_upgrade(rmq: Rmq) -> None:
    """Windows of two groups, a reset, deliveries and a redrive. Its commits record a claim by its scope, and no position has
    the subscription of a group."""
    unpack(FIRST_ARCHIVE, rmq.folder)
    old = Lake(rmq.root)
    assert rmq.json("upgrade")["status"] == "upgraded"
    assert old.audit() == []
    assert old.consume("2026-01-02-next").status == "committed"
    assert old.audit() == []
    claims = {own_id("A"): Claim(3, 0).packed(), sub_id("A"): 7, sub_id("billing"): 7}
    old.shard.commitlog.put([], claims, host=old.host)
    details = sorted(str(finding.detail).partition(":")[0] for finding in old.audit())
    assert details == ["a claim", "sub/A", "sub/billing"]


@pytest.fixture
def damaged(old: Lake, rmq: Rmq) -> Lake:
    """Upgraded from checkpoints by a version between the releases, which wrote an empty map as a list."""
    for name in TABLES:
        DeltaTable(old.folder / name).create_checkpoint()
    rmq.json("upgrade")
    for name in TABLES:
        entry = max((old.folder / name / "_delta_log").glob("*.json"))
        text = entry.read_text()
        assert text.count('"options":{}') == 1
        entry.write_text(text.replace('"options":{}', '"options":[]'))
    assert _unreadable(old) == TABLES
    return old


def _unreadable(lake: Lake) -> list[str]:
    """The tables that the Delta library cannot open."""

    def can_be_opened(name: str) -> bool:
        try:
            DeltaTable(lake.folder / name).get_add_actions()
        except DeltaError:
            return False
        return True

    return [name for name in TABLES if not can_be_opened(name)]


@pytest.mark.parametrize("commits", [0, 1])
def test_an_upgrade_repairs_descriptions_that_only_rmq_reads(damaged: Lake, rmq: Rmq, commits: int) -> None:
    if commits:  # the entry is not the last one
        damaged.consume("2026-01-02-next")
        rmq.json("dispatch")
    answer = rmq("audit", "--json").json()
    facts = {(finding["problem"], finding["file"].partition("/")[0], finding["detail"]) for finding in answer["audit"]}
    assert facts == {("log entry not valid", name.partition("/")[2], "of metaData.format") for name in TABLES}
    assert "'rmq upgrade'" in json.dumps(answer["advice"])
    assert sorted(rmq.json("upgrade", "--dry-run")["tables"]) == TABLES
    assert _unreadable(damaged) == TABLES
    report = rmq.json("upgrade")
    assert (report["status"], sorted(report["tables"])) == ("upgraded", TABLES)
    assert _unreadable(damaged) == []
    assert rmq.json("upgrade")["status"] == "already_there"
    assert rmq.json("audit", "--full")["audit"] == []
    rmq.json("maintain", "--step", "checkpoint")
    assert damaged.reset("2026-01-03-back", 3).status == "committed"
    assert _unreadable(damaged) == []


def test_a_repair_that_was_interrupted_before_its_checkpoint_is_run_again(
    damaged: Lake, rmq: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr("rmq_store.lake.admin.upgrade.write_checkpoint", refuse)
        answer = rmq("upgrade")
        assert answer.exit_code == 1
        assert "Run 'rmq upgrade' again" in answer.err
    with pytest.raises(DeltaError):
        DeltaTable(damaged.folder / TABLES[0]).create_checkpoint()
    assert sorted(rmq.json("upgrade", "--dry-run")["tables"]) == TABLES
    rmq.json("upgrade")
    for name in TABLES:
        DeltaTable(damaged.folder / name).create_checkpoint()
    assert rmq.json("upgrade")["status"] == "already_there"


def test_a_checkpoint_of_a_maintenance_repairs_a_description_too(damaged: Lake, rmq: Rmq) -> None:
    rmq.json("maintain", "--step", "checkpoint")
    assert _unreadable(damaged) == []
    assert rmq.json("upgrade")["status"] == "already_there"


def _columns(old: Lake) -> list[str]:
    """Of the commit log, as other readers see them."""
    return [field.name for field in DeltaTable(str(old.folder / "s1" / "commitlog")).schema().fields]


def test_after_an_upgrade_another_writer_is_refused(old: Lake, rmq: Rmq) -> None:
    table = DeltaTable(str(old.folder / "s1" / "commitlog"))
    rows = table.to_pyarrow_dataset().head(1)
    rmq.json("upgrade")
    with pytest.raises(DeltaError):  # its handle is from before, as that of a window of the earlier version
        write_deltalake(table, rows, mode="append")
    assert old.audit() == []


def test_an_upgrade_that_was_interrupted_is_run_again(old: Lake, rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(put: Put) -> None:
        if "offsets" in put.name:
            raise KeyboardInterrupt
        put.send()

    with monkeypatch.context() as patch:
        answer_puts(patch, answer)
        rmq("upgrade")
    assert rmq("lag", "--group", "billing").exit_code == 1
    assert rmq.json("upgrade")["tables"]
    assert old.audit() == []


def test_what_commits_beside_an_upgrade_is_kept(old: Lake, rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of an earlier version lands under the name that the upgrade wants."""
    log = old.folder / "s1" / "commitlog" / "_delta_log"
    puts: list[Put] = []

    def answer(put: Put) -> None:
        if not puts:
            puts.append(put)
            txn = {"txn": {"appId": "off/other/T/b/0", "version": 5, "lastUpdated": 1}}
            Path(old.folder, put.name).write_text(json.dumps(txn))
        put.send()

    answer_puts(monkeypatch, answer)
    rmq.json("upgrade")
    assert Path(puts[0].name).parent == log.relative_to(old.folder)
    assert old.shard.positions().get("off/other/T/b/0") == 5


def test_a_silent_store_is_not_said_to_be_upgraded(old: Lake, rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(put: Put) -> None:
        raise NoAnswer("silence")

    monkeypatch.setattr("rmq_store.lake.admin.upgrade._PATIENCE_MS", 0)
    answer_puts(monkeypatch, answer)
    assert rmq("upgrade").exit_code == 1
    monkeypatch.undo()
    document = json.loads(Root.parse(str(old.folder)).read("store.json"))
    assert document["format_version"] == 1


def test_a_table_whose_format_another_tool_changed_ends_a_commit_at_once(old: Lake, rmq: Rmq) -> None:
    """Waiting does not help, and every try would leave a file."""
    rmq.json("upgrade")
    files = sorted(old.folder.rglob("kind=ctl/*.parquet"))
    message = "has not the format of this version"
    with protocol_ignored(old.folder / "s1" / "commitlog"), pytest.raises(OtherFormat, match=message):
        old.reset("2026-01-02-back", 3)
    assert sorted(old.folder.rglob("kind=ctl/*.parquet")) == files
    assert old.reset("2026-01-02-back", 3).status == "committed"


def test_an_upgrade_makes_no_commit_log(old: Lake, rmq: Rmq) -> None:
    """An empty one in the place of one that is gone would be taken for the store's."""
    rmq.json("upgrade")
    shutil.rmtree(old.folder / "s1" / "commitlog")
    for command in (["upgrade", "--dry-run"], ["upgrade"]):
        answer = rmq(*command)
        assert answer.exit_code == 1
        assert "Restore it from a backup" in answer.err
    assert not (old.folder / "s1" / "commitlog").exists()


def test_a_dry_run_makes_no_derived_table(old: Lake, rmq: Rmq) -> None:
    shutil.rmtree(old.folder / "s1" / "offsets")
    assert sorted(rmq.json("upgrade", "--dry-run")["tables"]) == [name for name in TABLES if name != "s1/offsets"]
    assert not (old.folder / "s1" / "offsets").exists()
    rmq.json("upgrade")
    assert rmq.json("dispatch", "--rebuild")["status"] == "done"
    assert rmq.json("dispatch", "--check")["status"] == "ok"
