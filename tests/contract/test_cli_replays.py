"""Another attempt of a replay of two shards, of which retention has removed a part of one."""

from __future__ import annotations

import pytest

from rmq_store.admin.interval_replay import IntervalReplay
from rmq_store.admin.replay import group_settings
from rmq_store.commit.ctl import Action, Actor
from rmq_store.errors import OffsetOutOfRange
from rmq_store.lake.admin.interval_replay import check_interval
from rmq_store.lake.admin.replay import begin_attempt
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.settings.settings import GroupSettings, read_settings
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest
from tests.contract.rmq import TODAY, Rmq
from tests.contract.test_cli_admin import in_two_shards

__all__ = ["in_two_shards"]

RETENTION = '[[retention]]\ntopic = "Orders"\nmax_bytes = 1\n'
ATTEMPT = f"{TODAY}-attempt"


def replayed(rmq: Rmq) -> str:
    """The replay group of all messages."""
    return str(rmq.json("replay", "-g", "two", "-t", "Orders", "--from", "0", "--request", f"{TODAY}-replay")["group"])


def remove_in(rmq: Rmq, shard: str) -> None:
    settings = rmq.folder / "consumers.toml"
    settings.write_text(settings.read_text() + RETENTION)
    removed = rmq.json("maintain", "--shard", shard)["tables"]
    assert sum(table["messages_removed"] for table in removed) > 0


def shards_of(rmq: Rmq) -> list[Shard]:
    return LakeStore.open(Root.parse(str(rmq.root))).shards()


def attempts(rmq: Rmq) -> list[str]:
    return [shard.name for shard in shards_of(rmq) if shard.ctls_since(0, action=Action.REPLAY)]


def settings_of(rmq: Rmq, name: str) -> GroupSettings:
    return group_settings(read_settings(rmq.folder / "consumers.toml"), name)[0]


def test_an_attempt_is_begun_in_no_shard_when_one_cannot_read_its_range(in_two_shards: Rmq) -> None:
    rmq, name = in_two_shards, replayed(in_two_shards)
    remove_in(rmq, "b")
    attempt = ["replay", "-g", name, "--reprocess", "mended", "--request", ATTEMPT]
    for option in (["--dry-run"], []):
        refused = rmq(*attempt, *option)
        assert (refused.exit_code, "is 0, but retention removed [0, 1)" in refused.err) == (1, True)
        assert f"{name} is a replay of two: set on_offset_out_of_range" in refused.err
        assert "rmq replay --group two --topic Orders --from TIME" in refused.err
    assert attempts(rmq) == []
    assert rmq.json("replay", "-g", "two", "-t", "Orders", "--from", "0")["messages"] == 3
    alone = rmq.json("replay", "-g", name, "--reprocess", "mended", "--shard", "a")
    assert (alone["messages"], attempts(rmq)) == (3, ["a"])


@pytest.mark.slow
def test_an_attempt_whose_range_was_removed_after_it_was_begun_can_be_finished(in_two_shards: Rmq) -> None:
    rmq, name = in_two_shards, replayed(in_two_shards)
    for shard in shards_of(rmq):
        begin_attempt(shard, settings_of(rmq, name), ConsumeRequest(ATTEMPT, Actor("ana", "os"), "mended"), Host())
    remove_in(rmq, "b")
    attempt = ["replay", "-g", name, "--reprocess", "mended", "--request"]
    assert "and run the same request again, which records it as lost" in rmq(*attempt, ATTEMPT).err
    assert "attempt 2 of" in rmq(*attempt, f"{TODAY}-another").err
    settings = rmq.folder / "consumers.toml"
    settings.write_text(settings.read_text().replace("[[group]]", '[[group]]\non_offset_out_of_range = "skip"'))
    done = rmq.json(*attempt, ATTEMPT)
    assert {shard["shard"]: shard["outcomes"] for shard in done["shards"]}["b"] == {"lost": 1}
    assert rmq.json(*attempt, f"{TODAY}-another")["status"] == "committed"
    assert rmq("audit").exit_code == 0


def test_an_interval_is_replayed_again_in_no_shard_when_one_cannot_read_it(in_two_shards: Rmq) -> None:
    rmq = in_two_shards
    interval = IntervalReplay(run_id=f"{TODAY}-i", actor=Actor("ana", "os"), from_ms=0, until_ms=4_000_000_000_000)
    name = interval.name(settings_of(rmq, "two"))
    rmq.json("replay", "-g", "two", "-t", "Orders", "--from", "0", "--request", f"{TODAY}-i")
    remove_in(rmq, "b")
    again = IntervalReplay(
        run_id=interval.run_id, actor=interval.actor, from_ms=0, until_ms=interval.until_ms, reprocess="mended"
    )
    with pytest.raises(OffsetOutOfRange, match=f"the offset of group {name}"):
        check_interval(shards_of(rmq), settings_of(rmq, "two"), again, Host())
    check_interval(shards_of(rmq), settings_of(rmq, "two"), interval, Host())


def test_a_replay_warns_of_what_its_range_has_lost_and_one_that_is_asked_again_does_not(in_two_shards: Rmq) -> None:
    rmq = in_two_shards
    remove_in(rmq, "b")
    replay = ["replay", "-g", "two", "-t", "Orders", "--from", "0", "--request", f"{TODAY}-late"]
    (note,) = rmq.json(*replay, "--dry-run")["notes"]
    assert note.startswith("messages from 1970-01-01T00:00:00.000Z on may be missing: ")
    assert note.endswith((" messages of 1 queue are no longer kept", "; 1 message of 1 queue is no longer kept"))
    answer = rmq.json(*replay)
    assert answer["warnings"] == [note]
    assert [shard["warnings"] for shard in answer["shards"]] == [[], [note]]
    assert rmq.json(*replay)["warnings"] == []
    assert rmq.json(*replay, "--dry-run")["notes"] == [], "what went since, the replay had read"
    assert "may be missing" not in rmq(*replay).err
