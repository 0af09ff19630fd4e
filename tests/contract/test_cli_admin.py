"""The commands of an operator: what they show of groups and messages, and what they change."""

from __future__ import annotations

from typing import Any

from rmq_store.host import Host, day_of
from tests.contract.rmq import Rmq, imported, imported_once, rmq

__all__ = ["imported", "imported_once", "rmq"]

TODAY = day_of(Host().now_ms())
ORDERS = 4200


# --- moves -----------------------------------------------------------------------------------------------------------


def test_skip_goes_to_the_end_says_first_what_it_would_do_and_does_it_once(imported: Rmq) -> None:
    imported("consume", "-g", "orders", "--max-messages", "200")
    skip = ["skip", "-g", "orders", "-t", "OrderEvents", "--request", f"{TODAY}-skip"]
    dry = imported.json(*skip, "--dry-run")
    assert (dry["status"], dry["messages"]) == ("dry_run", 200 - ORDERS)
    assert "without" not in imported(*skip).out
    assert "a reset needs a reason" in imported(*skip).err
    assert imported.json(*skip, "--reason", "test data")["messages"] == 200 - ORDERS
    assert imported.json("consume", "-g", "orders")["status"] == "empty"
    assert imported.json(*skip, "--reason", "test data")["status"] == "already_committed"
    said = "select distinct action, reason, request_id from offset_history where action <> 'consume'"
    assert imported.json("sql", said) == [{"action": "reset", "reason": "test data", "request_id": f"{TODAY}-skip"}]


def test_clone_lets_a_group_go_on_where_another_one_stands(imported: Rmq) -> None:
    imported("consume", "-g", "orders", "--max-messages", "4100")
    clone = ["clone", "--from", "orders", "--to", "gm_ack", "-t", "OrderEvents", "--reason", "x", "--request"]
    done = imported.json(*clone, f"{TODAY}-c")
    assert (done["status"], done["group"], done["source"], len(done["moves"])) == ("committed", "gm_ack", "orders", 8)
    lag = imported.json("lag", "-g", "gm_ack")["lag"]
    assert sum(row["lag"] for row in lag if row["topic"] == "OrderEvents") == 100
    assert imported.json(*clone, f"{TODAY}-c")["status"] == "already_committed"
    assert imported("audit").exit_code == 0


def test_clone_needs_two_groups_that_are_known(imported: Rmq) -> None:
    for pair in (("gm_akc", "orders"), ("gm_ack", "order")):
        answer = imported("clone", "--from", pair[0], "--to", pair[1], "--reason", "x")
        assert answer.exit_code == 2
        assert "there is no group" in answer.err
    assert "nothing to clone" in imported("clone", "--from", "orders", "--to", "gm_ack", "--reason", "x").err


def test_a_group_that_nobody_knows_is_not_reset(imported: Rmq) -> None:
    for command in ("reset", "skip"):
        to = ("--to-max",) if command == "reset" else ()
        answer = imported(command, "-g", "ordres", "-t", "OrderEvents", *to, "--reason", "x")
        assert answer.exit_code == 2
        assert "did you mean 'orders'" in answer.err


# --- what is shown ---------------------------------------------------------------------------------------------------


def some_message(rmq: Rmq, topic: str = "PaymentFlow") -> dict[str, Any]:
    """One with a key."""
    return next(row for row in rmq.json("print", "-t", topic, "--max", "50")["messages"] if row["keys"])


def test_a_message_is_found_by_its_id_and_by_its_unique_key(imported: Rmq) -> None:
    wanted = some_message(imported)
    (by_id,) = imported.json("message", wanted["offset_msg_id"])["messages"]
    by_key = imported.json("message", wanted["unique_key"], "-t", "PaymentFlow")["messages"]
    assert by_id in by_key
    assert {name: by_id[name] for name in wanted if name in by_id} == wanted
    assert by_id["body"]
    assert "no message has the offset message id or the unique key" in imported("message", "nothing").err


def test_messages_are_found_by_key_and_time_the_newest_of_many(imported: Rmq) -> None:
    wanted = some_message(imported)
    key, at = wanted["keys"].split(" ")[0], wanted["store_timestamp"]
    ids = [m["offset_msg_id"] for m in imported.json("messages", "-t", "PaymentFlow", "-k", key)["messages"]]
    assert wanted["offset_msg_id"] in ids
    within = ["messages", "-t", "PaymentFlow", "-k", key, "--from", str(at), "--until", str(at + 1)]
    assert wanted["offset_msg_id"] in [m["offset_msg_id"] for m in imported.json(*within)["messages"]]
    before = ["messages", "-t", "PaymentFlow", "-k", key, "--until", str(at)]
    assert wanted["offset_msg_id"] not in [m["offset_msg_id"] for m in imported.json(*before)["messages"]]
    assert "there is no topic" in imported("messages", "-t", "PaymentFlo", "-k", key).err


def test_a_topic_is_printed_from_an_offset_or_a_time_in_the_order_of_storing(imported: Rmq) -> None:
    queue = ["print", "-t", "OrderEvents", "-q", "broker-a:3"]
    rows = imported.json(*queue, "--from-offset", "120", "--max", "4")["messages"]
    assert [row["queue_offset"] for row in rows] == [120, 121, 122, 123]
    at = rows[2]["store_timestamp"]
    since = imported.json(*queue, "--from", str(at), "--max", "4")["messages"]
    assert (
        since[0]["store_timestamp"]
        >= at
        > imported.json(*queue, "--from-offset", "0")["messages"][0]["store_timestamp"]
    )
    times = [row["store_timestamp"] for row in imported.json("print", "-t", "OrderEvents", "--max", "100")["messages"]]
    assert len(times) == 100
    assert times == sorted(times)
    assert imported(*queue, "--from-offset", "1", "--from", str(at)).exit_code == 2


def test_a_message_is_tracked_through_windows_and_retries(imported: Rmq) -> None:
    first = imported.json("print", "-t", "OrderEvents", "--max", "1")["messages"][0]
    track = ["track", first["offset_msg_id"]]

    def of_orders() -> dict[str, Any] | None:
        return next((one for one in imported.json(*track)["tracks"] if one["group"] == "orders"), None)

    assert of_orders() is None
    imported("consume", "-g", "orders")
    consumed = of_orders()
    assert consumed
    assert consumed["type"] == "CONSUMED"
    assert [(hop["outcome"], hop["attempt"]) for hop in consumed["hops"]] == [("acked", 0)]
    imported("reset", "-g", "orders", "-t", "OrderEvents", "--to-min", "--reason", "again")
    before = of_orders()
    assert before
    assert before["type"] == "NOT_CONSUME_YET"


def test_progress_and_topic_status_say_what_lag_and_topics_say(imported: Rmq) -> None:
    imported("consume", "-g", "orders", "--max-messages", "200")
    progress = imported.json("progress", "-g", "orders")
    lag = imported.json("lag", "-g", "orders")["lag"]
    assert sum(row["diff"] for row in progress["queues"]) == sum(row["lag"] for row in lag) == ORDERS - 200
    status = imported.json("topic-status", "-t", "OrderEvents")["queues"]
    assert sum(row["max_offset"] - row["min_offset"] for row in status) == ORDERS
    assert "there is no topic" in imported("topic-status", "-t", "OrderEvent").err
