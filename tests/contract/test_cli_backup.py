"""``rmq backup``: to a folder and to S3, and back."""

from __future__ import annotations

import pytest

from rmq_store.utils.host import Host
from tests.contract.rmq import ORDERS, Rmq
from tests.faults.stores import Lake, write_broker
from tests.s3 import S3Root

TABLES = ["commitlog", "consumequeue", "offsets", "commits"]
CONSUME = ("consume", "--group", "orders", "--engine", "local", "--max-messages", "50")


def test_a_backup_says_what_it_copied_and_is_used_and_restored_like_any_store(rmq_with_window: Rmq) -> None:
    rmq = rmq_with_window
    target = rmq.folder / "copy"
    planned = rmq.json("backup", str(target), "--dry-run")
    assert (planned["status"], target.exists()) == ("dry_run", False)
    made = rmq.json("backup", str(target))
    assert (made["status"], made["target"], made["tables"]) == ("done", str(target), planned["tables"])
    assert [table["table"] for table in made["tables"]] == TABLES
    assert all(table["files"] == table["copied_files"] for table in made["tables"])
    again = rmq.json("backup", str(target))
    assert again["status"] == "already_there"
    assert {table["copied_bytes"] for table in again["tables"]} == {0}

    lag = rmq.json("lag", "--group", "orders")
    rmq.json(*CONSUME)
    assert rmq.json("lag", "--group", "orders", "--root", str(target)) == lag
    restored = rmq.folder / "restored"
    assert rmq("backup", str(restored), "--root", str(target)).out.splitlines()[-2:] == [
        "status: done",
        f"store {made['store_id']} at {restored}",
    ]
    assert (
        rmq.json("consume", "--group", "orders", "--engine", "local", "--root", str(restored))["messages"]
        == ORDERS - 50
    )
    assert rmq.json("audit", "--root", str(restored))["audit"] == []
    assert rmq.json("dispatch", "--check", "--root", str(restored))["status"] == "ok"
    rmq.correct_listeners()
    assert rmq.json("doctor", "--root", str(restored))["status"] == "ok"


def test_a_backup_has_what_describes_the_store_too(imported: Rmq) -> None:
    target = imported.folder / "copy"
    names = ["shards/broker-a.json", "store.json"]
    assert imported.json("backup", str(target), "--dry-run")["descriptions"] == names
    assert imported.json("backup", str(target))["descriptions"] == names
    (target / names[0]).unlink()
    assert f"{names[0]}: would be copied" in imported("backup", str(target), "--dry-run").out
    again = imported.json("backup", str(target))
    assert (again["status"], again["descriptions"]) == ("done", names[:1])


def test_a_shard_that_nothing_names_is_said_and_not_left_out_of_a_backup(imported: Rmq) -> None:
    (imported.root / "shards" / "broker-a.json").unlink()
    refused = imported("backup", str(imported.folder / "copy"))
    assert (refused.exit_code, "broker-a in " in refused.err) == (1, True)
    assert not (imported.folder / "copy").exists()
    checks = {check["check"]: check for check in imported("doctor", "--json").json()["checks"]}
    assert (checks["store"]["status"], "broker-a: these folders in " in checks["store"]["found"]) == ("failed", True)


@pytest.mark.parametrize("content", ["", "[]", '{"name": "b'])
def test_a_damaged_entry_of_a_shard_is_said_and_does_not_replace_the_one_of_the_backup(
    imported: Rmq, content: str
) -> None:
    """Commands do without it, so only an audit would say that the backup cannot mend it any more."""
    target, entry = imported.folder / "copy", imported.root / "shards" / "broker-a.json"
    imported.json("backup", str(target))
    sound = entry.read_bytes()
    entry.write_text(content)
    refused = imported("backup", str(target))
    assert (refused.exit_code, "shards/broker-a.json is no entry of a shard (" in refused.err) == (1, True)
    assert (target / "shards" / "broker-a.json").read_bytes() == sound
    checks = {check["check"]: check for check in imported("doctor", "--json").json()["checks"]}
    assert (checks["store"]["status"], checks["store"]["mend"]) == (
        "failed",
        "restore shards/broker-a.json from a backup",
    )
    assert imported("topics").exit_code == 0


def test_a_wrong_target_is_wrong_use(imported: Rmq) -> None:
    refused = imported("backup", str(imported.root / "copy"))
    assert (refused.exit_code, "choose a target outside of the store" in refused.err) == (2, True)


def test_a_target_that_links_lead_to_the_store_is_wrong_use(imported: Rmq) -> None:
    root, links = imported.root, imported.folder / "links"
    links.mkdir()
    places = {"store": root, "shard": root / "broker-a", "new": root / "not-there-yet", "above": root.parent}
    for name, place in places.items():
        (links / name).symlink_to(place)
    targets = [*(links / name for name in places), links / "shard" / "in" / "copy", links / "above" / root.name]
    before = sorted(root.rglob("*"))
    for source, target in [*((root, target) for target in targets), (links / "store", root)]:
        for options in ((), ("--dry-run",)):
            refused = imported("backup", str(target), "--root", str(source), *options)
            assert (refused.exit_code, "choose a target outside of the store" in refused.err) == (2, True), target
    assert sorted(root.rglob("*")) == before
    assert imported.json("backup", str(links / "above" / "copy"))["status"] == "done"


@pytest.mark.slow
def test_to_s3_and_back(rmq: Rmq, s3_root: S3Root, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_root.env.items():
        monkeypatch.setenv(name, value)
    lake = Lake(rmq.root, Host(), "s1")
    lake.load(write_broker(rmq.folder / "broker"))
    made = rmq.json("backup", s3_root.uri)
    assert (made["status"], made["requests"]["PUT"] > 10) == ("done", True)
    lake.consume()
    assert rmq.json("backup", s3_root.uri)["status"] == "done"
    restored = rmq.folder / "restored"
    assert rmq.json("backup", str(restored), "--root", s3_root.uri)["status"] == "done"
    assert Lake(restored, Host(), "s1").projections() == lake.projections()
    assert rmq.json("audit", "--root", s3_root.uri)["audit"] == []


@pytest.fixture
def rmq_with_window(imported: Rmq) -> Rmq:
    imported.json(*CONSUME)
    return imported
