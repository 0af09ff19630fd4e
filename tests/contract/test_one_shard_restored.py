"""A shard that is restored alone, while the others go on (``docs/backup.md``, "Restore one shard")."""

from __future__ import annotations

import shutil

from tests.contract.rmq import TODAY, Rmq
from tests.contract.test_cli_admin import TWO_SHARDS, in_two_shards, offsets_of_two

__all__ = ["in_two_shards"]


def test_the_offsets_of_before_are_set_again_so_that_nothing_is_consumed_again(in_two_shards: Rmq) -> None:
    """The group has consumed both shards after the copy of one. No audit can say that the copy is older."""
    rmq, copy = in_two_shards, in_two_shards.folder / "copy"
    (rmq.folder / "consumers.toml").write_text(TWO_SHARDS.replace('"two"', '"late"'))
    shutil.copytree(rmq.root / "b", copy)
    assert rmq.json("consume", "-g", "late")["messages"] == 4
    newest = "SELECT shard, max(committed_at) AS newest FROM windows GROUP BY shard ORDER BY shard"
    before = rmq.json("sql", newest)
    kept = "SELECT broker_name, queue_id, next_offset FROM stored_offsets WHERE shard = 'b' AND group_name = 'late'"
    (queue,) = rmq.json("sql", kept)
    shutil.rmtree(rmq.root / "b")
    shutil.copytree(copy, rmq.root / "b")
    assert rmq("audit").exit_code == 0
    after = rmq.json("sql", newest)
    assert (before[0] == after[0], after[1]["newest"] < before[1]["newest"]) == (True, True)
    assert offsets_of_two(rmq, "late") == [["a", 3]]
    place = f"{queue['broker_name']}:{queue['queue_id']}"
    reset = [
        "reset",
        "-g",
        "late",
        "-t",
        "Orders",
        "--shard",
        "b",
        "--queue",
        place,
        "--reason",
        "shard b was restored",
    ]
    assert (
        rmq.json(*reset, "--to-offset", str(queue["next_offset"]), "--request", f"{TODAY}-r")["status"] == "committed"
    )
    assert rmq.json("consume", "-g", "late")["status"] == "empty"
    assert (offsets_of_two(rmq, "late"), rmq("audit").exit_code) == ([["a", 3], ["b", 1]], 0)
