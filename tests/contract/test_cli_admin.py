"""The commands of an operator: what they show of groups and messages, and what they change."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rmq_store.broker_files.local_offsets import local_offsets_text
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from tests.contract.rmq import ORDERS, TODAY, Rmq, lines_of

EXPECTED = Path(__file__).parents[1] / "data" / "rocketmq" / "expected"


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


def test_there_is_nothing_to_clone_in_an_empty_store(rmq: Rmq) -> None:
    rmq("init")
    rmq.folder.joinpath("consumers.toml").write_text(TWO_GROUPS)
    answer = rmq("clone", "--from", "orders", "--to", "audit", "--dry-run")
    assert (answer.exit_code, "is empty: import a broker's files" in answer.err) == (2, True), answer.err


TWO_GROUPS = "".join(
    f'[[group]]\nname = "{name}"\nlistener = "cli_listener:succeed"\n[[group.subscription]]\ntopic = "OrderEvents"\n'
    for name in ("orders", "audit")
)
TWO_SHARDS = """
[[group]]
name = "two"
listener = "cli_listener:fail_without_price"
engine = "local"
max_reconsume_times = 0

[[group.subscription]]
topic = "Orders"
"""


@pytest.fixture
def in_two_shards(rmq: Rmq) -> Rmq:
    """Topic Orders: 3 messages in a queue of shard a, 1 in shard b, all of them dead letters of group two."""

    def make() -> None:
        (rmq.folder / "consumers.toml").write_text(TWO_SHARDS)
        rmq("init")
        to_orders = ("send", "-t", "Orders", "--create", "--queues", "1", "--file", "orders.jsonl")
        for shard, count in (("a", 3), ("b", 1)):
            lines = [json.dumps({"body": f"{shard}{n}", "properties": {"price": "n/a"}}) for n in range(count)]
            (rmq.folder / "orders.jsonl").write_text("\n".join(lines))
            assert rmq.json(*to_orders, "--shard", shard)["status"] == "committed"
        assert rmq.json("consume", "-g", "two")["messages"] == 4

    rmq.once("in two shards", make)
    return rmq


def test_a_move_counts_from_where_the_groups_broker_was_seen(imported: Rmq) -> None:
    """What lag and progress show: a group of a living broker that is to be skipped here has messages before it."""
    skip = ["skip", "-g", "gm_idle", "-t", "OrderEvents"]
    lag = sum(row["diff"] for row in imported.json("progress", "-g", "gm_idle")["queues"])
    dry = imported.json(*skip, "--dry-run")
    assert (dry["messages"], lag) == (-2772, 2772)
    first = dry["moves"][0]
    assert (first["from_offset"], first["observed_offset"], first["messages"]) == (None, 175, 175 - 525)
    assert "350 fewer to read (from 175, its broker's offset)" in imported(*skip, "--dry-run").out
    done = imported.json(*skip, "--reason", "x")
    counted = {"bytes": None, "direction": None}
    assert (done["messages"], done["moves"]) == (-2772, [move | counted for move in dry["moves"]])
    again = imported.json("reset", "-g", "gm_idle", "-t", "OrderEvents", "--to-min", "--reason", "x")
    assert (again["messages"], again["moves"][0]["observed_offset"]) == (4200, None)


def test_a_move_counts_from_the_first_message_where_a_group_would_begin_there(in_two_shards: Rmq) -> None:
    """In its own retry queue, and in what was born in the lake: who skips there skips what is readable."""
    rmq = in_two_shards
    settings = rmq.folder / "consumers.toml"
    settings.write_text(TWO_SHARDS.replace('"two"', '"new"').replace("max_reconsume_times = 0", ""))
    skip = ["skip", "-g", "new", "--dry-run", "-t"]
    assert rmq.json(*skip, "Orders")["messages"] == -4
    assert "3 fewer to read (had no offset, it would start at the first message)" in rmq(*skip, "Orders").out
    rmq("consume", "-g", "new")
    rmq("deliver", "--now", "2200-01-01T00:00:00Z")
    assert rmq.json("progress", "-g", "new")["diff_total"] == 4
    assert rmq.json(*skip, "%RETRY%new")["messages"] == -4
    assert "no change" in rmq("reset", "-g", "new", "--dry-run", "-t", "%RETRY%new", "--to-min").out


def test_a_window_beyond_the_end_is_refused_with_one_command_that_moves_all_of_its_queues(imported: Rmq) -> None:
    (imported.folder / "consumers.toml").write_text(
        TWO_SHARDS.replace("two", "gm_beyond").replace("Orders", "OrderEvents")
    )
    answer = imported("consume", "-g", "gm_beyond")
    assert (answer.exit_code, "and likewise in 7 more queues. Move it: rmq reset" in answer.err) == (1, True)
    command = answer.err.split("Move it: rmq ")[1].replace("...", "x").split()
    moved = imported.json(*command)
    assert (moved["messages"], {row["observed_offset"] for row in moved["moves"]}) == (0, {625})
    assert imported.json("consume", "-g", "gm_beyond")["status"] == "empty"


def offsets_of_two(rmq: Rmq, group: str = "two") -> list[Any]:
    asked = (
        f"select shard, next_offset from stored_offsets where group_name = '{group}' and topic = 'Orders' order by 1"
    )
    store = LakeStore.open(Root.parse(str(rmq.root)))
    return [list(row.values()) for row in query(store, asked).to_pylist()]


def test_queues_that_a_strategy_gives_to_nobody_are_named(in_two_shards: Rmq) -> None:
    settings = in_two_shards.folder / "consumers.toml"
    config = 'allocate_strategy = { name = "CONFIG", queues = { c1 = ["lake-a:0"] } }'
    settings.write_text(settings.read_text().replace('engine = "local"', f'engine = "local"\n{config}'))
    for client, idle in (("c1", ""), ("c2", "client c2 gets no queue here: CONFIG gives it none")):
        answer = in_two_shards("consume", "-g", "two", "--client", client, "--clients", "c1,c2")
        assert (answer.exit_code, idle in answer.out) == (0, True)
        assert answer.err == "note: CONFIG allocates to none of c1,c2, so that no consumer reads: Orders lake-b:0\n"
    assert in_two_shards("consume", "-g", "two").err == ""


def test_what_a_listener_prints_is_no_part_of_the_json(in_two_shards: Rmq) -> None:
    (in_two_shards.folder / "talking.py").write_text("def listener(msgs, context):\n    print('hello')\n")
    settings = in_two_shards.folder / "consumers.toml"
    settings.write_text(settings.read_text().replace("cli_listener:fail_without_price", "talking:listener"))
    settings.write_text(settings.read_text().replace("[[group]]", "[[group]]\nlistener_process = false"))
    in_two_shards("send", "-t", "Orders", "--shard", "a", "x")
    answer = in_two_shards("consume", "-g", "two", "--json")
    assert (answer.json()["messages"], answer.err) == (1, "hello\n")


def test_a_folder_of_listeners_that_is_not_there_is_refused(in_two_shards: Rmq) -> None:
    answer = in_two_shards("consume", "-g", "two", "--listener-path", "nowhere")
    assert (answer.exit_code, answer.out) == (2, "")
    assert "--listener-path nowhere is not a folder" in answer.err


def test_a_move_in_a_topic_that_the_group_does_not_read_is_done_with_a_note_and_in_a_delay_topic_not(
    imported: Rmq,
) -> None:
    moving = ["reset", "-g", "orders", "--to-max", "--reason", "x", "-t"]
    assert imported(*moving, "OrderEvents").err == ""
    answer = imported(*moving, "PaymentFlow")
    assert (answer.exit_code, "note: group orders does not subscribe to PaymentFlow in the settings" in answer.err) == (
        0,
        True,
    )
    for topic in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
        refused = imported(*moving, topic)
        assert refused.exit_code == 2
        assert f"{topic} holds delayed messages: no group reads it" in refused.err


def test_a_move_that_one_shard_cannot_do_moves_nothing_in_the_others(in_two_shards: Rmq) -> None:
    rmq = in_two_shards
    reset = ["reset", "-g", "two", "-t", "Orders", "--to-offset", "2", "--reason", "x", "--request", f"{TODAY}-r"]
    answer = rmq(*reset)
    assert (answer.exit_code, offsets_of_two(rmq)) == (2, [["a", 3], ["b", 1]])
    assert "target offset 2 not in consume queue range [0-1]" in answer.err
    assert rmq.json(*reset, "--shard", "a")["messages"] == 1
    assert offsets_of_two(rmq) == [["a", 2], ["b", 1]]


def test_a_topic_that_is_in_another_shard_only_is_named_with_it(in_two_shards: Rmq) -> None:
    rmq = in_two_shards
    rmq("send", "-t", "OnlyInA", "--create", "--shard", "a", "x")
    for command in (["skip"], ["reset", "--to-min"]):
        moving = [*command, "-g", "two", "--reason", "x", "--shard", "b", "-t"]
        answer = rmq(*moving, "OnlyInA")
        assert (answer.exit_code, "shard b has no topic OnlyInA: it is in shard a" in answer.err) == (2, True)
        assert "there is no topic OnlyInC; known: Orders" in rmq(*moving, "OnlyInC").err


def test_a_redrive_that_one_shard_cannot_do_sends_nothing_in_the_others(in_two_shards: Rmq) -> None:
    rmq = in_two_shards
    rmq("send", "-t", "OnlyInA", "--create", "--shard", "a", "x")
    redrive = ["redrive", "-g", "two", "--reason", "x"]
    for wrong, said in (
        (["--all", "--to-topic", "OnlyInA"], "shard b has no topic OnlyInA"),
        (["--letter", "lake-a:0:0", "--letter", "lake-b:0:9"], "shard b has no dead letter at lake-b:0:9"),
    ):
        answer = rmq(*redrive, *wrong)
        assert (answer.exit_code, said in answer.err) == (2, True)
    assert rmq.json("sql", "select count(redriven_at) as n from dead_letters") == [{"n": 0}]


def test_an_id_that_another_request_had_is_refused(in_two_shards: Rmq) -> None:
    reset = ["reset", "-g", "two", "-t", "Orders", "--reason", "x", "--request", f"{TODAY}-r"]
    assert in_two_shards.json(*reset, "--to-min")["messages"] == 4
    answer = in_two_shards(*reset, "--to-max")
    assert answer.exit_code == 2
    assert "different parameters (to min; now to max). Nothing was changed" in answer.err
    assert in_two_shards.json(*reset, "--to-min")["status"] == "already_committed"


OF_A_CLIENT = """
[[group]]
name = "audit"
listener = "cli_listener:succeed"
message_model = "BROADCASTING"
engine = "local"

[[group.subscription]]
topic = "OrderEvents"
"""


def test_a_broadcasting_client_goes_on_at_the_offsets_of_its_own_file(imported: Rmq) -> None:
    settings = imported.folder / "consumers.toml"
    settings.write_text(settings.read_text() + OF_A_CLIENT)
    queues = {MessageQueue("OrderEvents", "broker-a", queue_id): ORDERS // 8 - queue_id for queue_id in range(8)}
    file = imported.folder / "offsets.json"
    file.write_text(local_offsets_text(queues))
    moving = ["offsets", "import", "offsets.json", "-g", "audit@host-1"]
    dry = imported.json(*moving, "--dry-run")
    assert (dry["status"], dry["file"], len(dry["moves"])) == ("dry_run", "offsets.json", 8)
    assert "needs a reason" in imported(*moving).err
    moved = [*moving, "--reason", "it moves here", "--request", f"{TODAY}-move"]
    assert imported.json(*moved)["status"] == "committed"
    assert imported.json("consume", "-g", "audit@host-1")["messages"] == sum(range(8))
    assert imported.json(*moved)["status"] == "already_committed"
    said = "select action, reason, count(*) as queues from offset_history where from_offset is null group by all"
    assert {"action": "reset", "reason": "it moves here", "queues": 8} in imported.json("sql", said)


def test_a_groups_offsets_come_from_a_brokers_file_as_they_were_exported(imported: Rmq) -> None:
    imported("consume", "-g", "orders", "--max-messages", "4100")
    imported("offsets", "export", "--broker", "broker-a", "consumerOffset.json")
    imported("consume", "-g", "orders")
    bak = imported.folder / "consumerOffset.json.bak"
    (imported.folder / "consumerOffset.json").rename(bak)
    moving = ["offsets", "import", "consumerOffset.json", "-g", "orders", "-b", "broker-a", "--reason", "back"]
    answer = imported(*moving)
    assert "in all: 100 more to read" in answer.out
    assert "consumerOffset.json.bak is used" in answer.err


@pytest.mark.parametrize(
    ("table", "more", "says"),
    [
        ({"OrderEvents@orders": {0: 10**9}}, [], "offset 1000000000 not in consume queue range [0-"),
        (
            {"OrderEvents@orders": {9: 1}, "NoSuchTopic@orders": {0: 0}},
            [],
            "not in this store: OrderEvents broker-a:9. Import",
        ),
        ({"OrderEvents@orders": {0: 1}}, ["-t", "Elsewhere"], "no offset of orders in topic Elsewhere"),
        ({"OrderEvents@gm_ack": {0: 1}}, [], "consumerOffset.json has no offset of orders"),
        ({"OrderEvents@orders": {0: 1}}, ["-g", "ordres"], "did you mean 'orders'"),
    ],
)
def test_offsets_of_a_file_that_do_not_fit_are_refused(
    imported: Rmq, table: dict[str, dict[int, int]], more: list[str], says: str
) -> None:
    (imported.folder / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    refused = imported("offsets", "import", "consumerOffset.json", "-g", "orders", "-b", "broker-a", "--dry-run", *more)
    assert refused.exit_code == 2
    assert says in refused.err


def test_a_group_that_nobody_knows_is_not_reset(imported: Rmq) -> None:
    for command in ("reset", "skip"):
        to = ("--to-max",) if command == "reset" else ()
        answer = imported(command, "-g", "ordres", "-t", "OrderEvents", *to, "--reason", "x")
        assert answer.exit_code == 2
        assert "did you mean 'orders'" in answer.err


def test_a_dry_run_says_what_a_reset_would_move_and_moves_nothing(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    reset = ["reset", "-g", "orders", "-t", "OrderEvents", "-q", "broker-a:2", "-q", "broker-a:5", "--to-offset", "500"]
    dry = imported.json(*reset, "--dry-run")
    assert (dry["status"], dry["messages"]) == ("dry_run", 50)
    assert [(m["queue_id"], m["from_offset"], m["to_offset"], m["messages"]) for m in dry["moves"]] == [
        (2, 525, 500, 25),
        (5, 525, 500, 25),
    ]
    between = "topic = 'OrderEvents' AND queue_id IN (2, 5) AND queue_offset >= 500"
    sizes = imported.json(
        "sql", f"SELECT queue_id, sum(stored_body_size) AS b FROM messages WHERE {between} GROUP BY 1 ORDER BY 1"
    )
    assert [(m["queue_id"], m["bytes"]) for m in dry["moves"]] == [(row["queue_id"], row["b"]) for row in sizes]
    assert {m["direction"] for m in dry["moves"]} == {"again"}
    assert (dry["bytes"], dry["notes"]) == (sum(row["b"] for row in sizes), [])
    shown = imported(*reset, "--dry-run").out
    assert lines_of(shown)["bytes of bodies"] == f"{dry['bytes']:,}"
    assert "25 more to read" in shown
    assert lines_of(shown)["in all"] == "50 more to read"
    assert imported.json("consume", "-g", "orders")["status"] == "empty"


def test_a_reset_to_the_future_goes_to_the_end_and_says_so(imported: Rmq) -> None:
    imported("consume", "-g", "orders", "--max-messages", "200")
    reset = ["reset", "-g", "orders", "-t", "OrderEvents", "--to-time", "2200-01-01T00:00:00Z", "--reason", "x"]
    dry, real = imported.json(*reset, "--dry-run"), imported(*reset)
    assert (dry["messages"], {move["direction"] for move in dry["moves"]}) == (200 - ORDERS, {"skipped"})
    said = "shard broker-a: 2200-01-01T00:00:00.000Z is in the future: the group moves to the end of each queue"
    assert dry["notes"][0].startswith(said)
    assert said in real.err
    again = imported.json(*reset, "--dry-run")
    assert again["notes"][1] == "shard broker-a: the group is already there: no offset changes"
    assert (again["messages"], again["bytes"]) == (0, 0)


def test_a_reset_moves_and_the_same_request_again_does_not(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    reset = ["reset", "-g", "orders", "-t", "OrderEvents", "--to-min", "--reason", "bad deploy", "--request"]
    assert imported.json(*reset, f"{TODAY}-back")["messages"] == ORDERS
    assert imported.json("consume", "-g", "orders")["messages"] == ORDERS
    assert lines_of(imported(*reset, f"{TODAY}-back").out)["status"] == "already_committed"
    assert imported.json("consume", "-g", "orders")["status"] == "empty"
    query = "select distinct action, reason, actor_source from offset_history where action = 'reset'"
    assert imported.json("sql", query) == [{"action": "reset", "reason": "bad deploy", "actor_source": "os"}]


def test_a_group_that_only_the_broker_knew_can_be_reset(imported: Rmq) -> None:
    reset = ["reset", "-g", "gm_ack", "-t", "PaymentFlow", "--to-time", "2200-01-01T00:00:00Z", "--dry-run"]
    assert {move["to_offset"] for move in imported.json(*reset)["moves"]} == {225}


@pytest.mark.parametrize("boundary", ["lower", "upper"])
def test_search_offset_answers_as_the_broker_does(imported: Rmq, boundary: str) -> None:
    with gzip.open(EXPECTED / "market-clean.timesearch.jsonl.gz", "rt") as lines:
        rows = [row for row in map(json.loads, lines) if (row["topic"], row["queueId"]) == ("StockTicks", 3)]
    rows = [rows[0], *rows[1:-1:9], rows[-1]]
    assert len(rows) > 3
    for row in rows:
        asked = ["search-offset", "-t", "StockTicks", "-q", "broker-a:3", "--time", str(row["timestamp"])]
        assert imported(*asked, "--boundary", boundary).out == f"{row[boundary]}\n"
    assert imported.json(*asked, "--boundary", boundary)["offset"] == row[boundary]


def test_offsets_are_exported_with_what_still_waits_here(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    answer = imported("offsets", "export", "--broker", "broker-a")
    assert "OrderEvents@orders" in answer.out
    assert "group orders: 100 retries still wait in this store" in answer.err
    target = imported.folder / "consumerOffset.json"
    done = imported.json("offsets", "export", "--broker", "broker-a", str(target))
    assert done["waiting_retries"] == {"orders": 100}
    assert target.read_text().strip() == answer.out.strip()
    assert [path.name for path in imported.folder.iterdir() if path.name.startswith(".")] == []
    refused = imported("offsets", "export", "--broker", "broker-a", str(imported.folder / "none" / "file"))
    assert (refused.exit_code, "cannot be written" in refused.err) == (2, True)


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


def test_a_broadcasting_group_is_replayed_and_deleted_by_the_names_of_its_clients(imported: Rmq) -> None:
    settings = imported.folder / "consumers.toml"
    settings.write_text(settings.read_text() + OF_A_CLIENT)
    replay = ["replay", "-t", "OrderEvents", "--from", "0", "-g"]
    assert "name the client whose messages are to be replayed, audit@CLIENT" in imported(*replay, "audit").err
    imported("consume", "-g", "audit@host-1")
    assert imported.json(*replay, "audit@host-1")["messages"] == ORDERS
    assert imported("delete-group", "-g", "audit", "--dry-run").err.endswith("Delete the clients: audit@host-1\n")


def test_what_a_message_does_not_have_is_left_empty(in_two_shards: Rmq) -> None:
    (found,) = in_two_shards.json("sql", "select unique_key from messages where topic = 'Orders' and shard = 'b'")
    shown = in_two_shards("message", found["unique_key"]).out
    assert "tags:\n" in shown
    assert "None" not in shown


def test_what_a_group_consumed_on_its_broker_stays_consumed_after_the_cut_over(imported: Rmq) -> None:
    asked = (
        "select offset_msg_id from messages where topic = 'OrderEvents' and queue_id = 0 and queue_offset in (100, 300)"
    )
    ids = [row["offset_msg_id"] for row in imported.json("sql", f"{asked} order by queue_offset")]

    def of_idle() -> list[str]:
        tracks = [imported.json("track", id_)["tracks"] for id_ in ids]
        return [one["type"] for of_one in tracks for one in of_one if one["group"] == "gm_idle"]

    assert of_idle() == ["CONSUMED", "NOT_CONSUME_YET"]
    imported("cutover", "-b", "broker-a", "--reason", "x")
    assert of_idle() == ["CONSUMED", "NOT_CONSUME_YET"]
    imported("skip", "-g", "gm_idle", "-t", "OrderEvents", "--reason", "x")
    assert of_idle() == ["CONSUMED", "SKIPPED"]


@pytest.mark.parametrize("delay", [("--delay", "1s"), ("--delay-level", "1")])
def test_a_delayed_message_is_tracked_where_it_came_out(in_two_shards: Rmq, delay: tuple[str, str]) -> None:
    rmq = in_two_shards
    rmq("send", "-t", "Orders", "--shard", "a", "--key", "late", *delay, "good evening")
    (waiting,) = rmq.json("sql", "select unique_key from delayed")
    assert "it is delayed: rmq deliver writes it to Orders when it is due" in rmq("track", waiting["unique_key"]).out
    assert rmq.json("deliver", "--now", "2200-01-01T00:00:00Z")["delivered"] == 1
    assert rmq.json("consume", "-g", "two")["messages"] == 1
    tracked = rmq.json("track", waiting["unique_key"])
    assert (tracked["message"]["topic"], tracked["tracks"][0]["type"]) == ("Orders", "CONSUMED")
    assert "rmq messages --topic TOPIC --key KEY" in rmq("track", "late").err


def test_progress_and_topic_status_say_what_lag_and_topics_say(imported: Rmq) -> None:
    imported("consume", "-g", "orders", "--max-messages", "200")
    progress = imported.json("progress", "-g", "orders")
    lag = imported.json("lag", "-g", "orders")["lag"]
    assert sum(row["diff"] for row in progress["queues"]) == sum(row["lag"] for row in lag) == ORDERS - 200
    status = imported.json("topic-status", "-t", "OrderEvents")["queues"]
    assert sum(row["max_offset"] - row["min_offset"] for row in status) == ORDERS
    assert "there is no topic" in imported("topic-status", "-t", "OrderEvent").err


def test_the_doctor_names_a_group_that_absorbs_duplicates_in_several_shards(in_two_shards: Rmq) -> None:
    settings = in_two_shards.folder / "consumers.toml"
    absorbing = 'absorb_duplicates = { by = "UNIQ_KEY", horizon = "7d" }\nmax_reconsume_times'
    settings.write_text(TWO_SHARDS.replace("max_reconsume_times", absorbing))
    checks = {check["check"]: check for check in in_two_shards.json("doctor")["checks"]}
    assert "group two absorbs duplicates in each of 2 shards on its own (a, b)" in checks["subscriptions"]["found"]
    settings.write_text(TWO_SHARDS.replace("max_reconsume_times", f'shards = ["a"]\n{absorbing}'))
    checks = {check["check"]: check for check in in_two_shards.json("doctor")["checks"]}
    assert (checks["subscriptions"]["status"], "absorbs" in checks["subscriptions"]["found"]) == ("ok", False)
