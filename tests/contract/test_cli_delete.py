"""``rmq delete-group``: what it says first, what it does, and what it refuses."""

from __future__ import annotations

import pytest

from tests.contract.rmq import TODAY, Rmq
from tests.contract.test_cli_admin import TWO_GROUPS, TWO_SHARDS, in_two_shards, offsets_of_two

__all__ = ["in_two_shards"]

DELETE = ("delete-group", "-g", "orders", "--request", f"{TODAY}-x")


def test_a_delete_says_first_what_it_would_do_and_does_it_once(imported: Rmq) -> None:
    consumed = imported.json("consume", "-g", "orders")
    waiting = consumed["windows"][0]["counts"]["retried"]
    assert waiting > 0
    dry = imported.json(*DELETE, "--dry-run")
    assert (dry["status"], dry["delayed"], dry["retries"], dry["dead_letters"]) == ("dry_run", waiting, 0, 0)
    assert {(row["becomes"], row["to_offset"]) for row in dry["offsets"]} == {("void", None)}
    told = imported(*DELETE, "--dry-run").out
    assert f"retries that would be dropped: 0 in retry queues, {waiting} still delayed" in told
    assert "a delete needs a reason" in imported(*DELETE).err
    done = imported.json(*DELETE, "--reason", "not used any more")
    assert dict(done, status="dry_run") == dry
    assert imported.json(*DELETE, "--reason", "not used any more")["status"] == "already_committed"
    assert imported.json("lag", "-g", "orders")["lag"] == imported.json("progress", "-g", "orders")["queues"] == []
    said = "select distinct to_offset, reason, request_id from offset_history where action = 'delete'"
    assert imported.json("sql", said) == [
        {"to_offset": None, "reason": "not used any more", "request_id": f"{TODAY}-x"}
    ]
    again = imported("delete-group", "-g", "orders", "--reason", "again")
    assert (again.exit_code, "has not been created again" in again.err) == (2, True)
    assert imported.json("consume", "-g", "orders")["outcomes" if "outcomes" in consumed else "messages"]
    assert imported("audit").exit_code == 0


@pytest.mark.slow
def test_the_group_of_a_broker_can_be_deleted_and_is_not_seen_any_more(imported: Rmq) -> None:
    def held() -> set[str]:
        return {row["group_name"] for row in imported.json("sql", "select group_name from stored_offsets")}

    before = held()
    assert imported.json("progress", "-g", "gm_ack")["queues"]
    done = imported.json("delete-group", "-g", "gm_ack", "--reason", "it stays with the broker")
    assert (done["status"], done["retries"]) == ("committed", 0)
    assert {(row["topic"], row["becomes"]) for row in done["offsets"]} == {("%RETRY%gm_ack", "end")}
    assert imported.json("progress", "-g", "gm_ack")["queues"] == []
    imported.json("cutover", "--broker", "broker-a", "--reason", "the broker is gone")
    assert before - held() == {"gm_ack"}
    assert imported("audit").exit_code == 0


def test_a_group_that_nobody_knows_is_not_deleted(imported: Rmq) -> None:
    answer = imported("delete-group", "-g", "ordres", "--reason", "x")
    assert (answer.exit_code, "did you mean 'orders'" in answer.err) == (2, True)
    nothing = imported("delete-group", "-g", "orders", "--reason", "x")
    assert (nothing.exit_code, "has nothing to delete in shard" in nothing.err) == (2, True)


def test_there_is_nothing_to_delete_in_an_empty_store(rmq: Rmq) -> None:
    rmq("init")
    rmq.folder.joinpath("consumers.toml").write_text(TWO_GROUPS)
    for options in (("--dry-run",), ("--reason", "not used any more")):
        answer = rmq(*DELETE, *options)
        assert (answer.exit_code, "is empty: import a broker's files" in answer.err) == (2, True), answer.err


def test_a_delete_of_all_shards_passes_over_one_that_came_after_the_first_window(rmq: Rmq) -> None:
    """That window says nothing of it any more as soon as the group is deleted in the shards that it knew."""
    (rmq.folder / "consumers.toml").write_text(TWO_SHARDS)
    rmq("init")
    for shard in ("a", "b", "c"):
        rmq("send", "-t", "Orders", "--create", "--queues", "1", "--shard", shard, "x")
        if shard == "b":
            assert rmq.json("consume", "-g", "two", "--shard", "a")["messages"] == 1
    refused = rmq("delete-group", "-g", "two", "--shard", "c", "--reason", "old")
    assert (refused.exit_code, "nothing to delete in shard c" in refused.err) == (2, True)
    done = rmq.json("delete-group", "-g", "two", "--reason", "old")
    assert (done["status"], done["shards"]) == ("committed", ["a", "b"])
    assert "nothing to delete" in rmq("delete-group", "-g", "two", "--reason", "again").err
    assert rmq("audit").exit_code == 0


def test_the_rest_of_a_delete_says_where_the_group_lives_again(in_two_shards: Rmq) -> None:
    rmq, delete = in_two_shards, ("delete-group", "-g", "two", "--reason", "old", "--actor", "ana", "--request")
    assert rmq.json(*delete, f"{TODAY}-d1", "--shard", "a")["notes"] == []
    rmq("consume", "-g", "two")
    made_again = (
        "shard a: the group was made again here after this delete, and was left alone. Delete it with a new request id"
    )
    dry = rmq.json(*delete, f"{TODAY}-d1", "--dry-run")
    assert (dry["status"], dry["notes"]) == ("dry_run", [made_again])
    done = rmq.json(*delete, f"{TODAY}-d1")
    assert (done["status"], done["notes"], done["shards"]) == ("committed", [made_again], ["a", "b"])
    assert offsets_of_two(rmq) == [["a", 3]]
    for option in ((), ("--dry-run",)):
        again = rmq.json(*delete, f"{TODAY}-d1", *option)
        assert (again["status"], again["notes"]) == ("already_committed", [made_again])
    assert f"note: {made_again}" in rmq(*delete, f"{TODAY}-d1").err
    rmq(*delete, f"{TODAY}-d2")
    (note,) = rmq.json(*delete, f"{TODAY}-d1")["notes"]
    assert note.startswith(f"shard a: these are the moves of that time: delete {TODAY}-d2 of ana at {TODAY}T")
