"""What each command does to a store, and what it answers, in text and in JSON."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store.consumer.claim import Wish
from rmq_store.errors import StoreUnusable
from rmq_store.host import Host, day_of
from rmq_store.lake import doctor
from rmq_store.lake.claim import claimed
from rmq_store.lake.engine import LocalEngine
from rmq_store.lake.object_store import Root
from rmq_store.lake.store import LakeStore
from rmq_store.message import MessageQueue
from rmq_store.offsets import own_queue_id
from rmq_store.store import Actor
from rmq_store.times import format_time
from spark_jobs import engine
from tests.contract.rmq import Rmq, imported, imported_once, rmq
from tests.s3 import S3Root

__all__ = ["imported", "imported_once", "rmq"]

EXPECTED = Path(__file__).parents[1] / "data" / "rocketmq" / "expected"
TODAY = day_of(Host().now_ms())
ORDERS = 4200
ALL_DUE = "2200-01-01T00:00:00Z"


def lines_of(text: str) -> dict[str, str]:
    """``key: value`` lines of an answer."""
    return {key: value for key, colon, value in (line.partition(": ") for line in text.splitlines()) if colon}


# --- the store -------------------------------------------------------------------------------------------------------


def test_init_makes_a_store_once(rmq: Rmq) -> None:
    made = rmq.json("init")
    assert (made["status"], made["root"]) == ("created", str(rmq.root))
    assert rmq.json("init") == made | {"status": "already_there"}
    assert lines_of(rmq("init").out)["status"] == "already_there"


def test_an_import_says_what_came_and_a_second_one_changes_nothing(
    rmq: Rmq, broker_store: Callable[[str], Path]
) -> None:
    rmq("init")
    again = ["import-store", str(broker_store("market-clean")), "--broker", "broker-a"]
    first = rmq(*again, "--request", f"{TODAY}-one")
    assert lines_of(first.out)["status"] == "committed"
    assert "messages in 55 queues of broker-a" in first.out
    repeated = rmq.json(*again, "--request", f"{TODAY}-one")
    assert (repeated["status"], repeated["request_id"]) == ("already_committed", f"{TODAY}-one")
    other = rmq.json(*again)
    assert (other["status"], other["messages"], other["shard"]) == ("unchanged", 0, "broker-a")
    assert other["request_id"].startswith(f"{TODAY}-import-")


def test_an_id_under_which_another_broker_was_imported_is_refused(
    imported: Rmq, broker_store: Callable[[str], Path]
) -> None:
    (row,) = imported.json("sql", "select request_id from ctl where action = 'import'")
    again = ["import-store", str(broker_store("market-clean")), "--shard", "broker-a", "--request", row["request_id"]]
    assert imported.json(*again, "--broker", "broker-a")["status"] == "already_committed"
    answer = imported(*again, "--broker", "broker-b")
    assert answer.exit_code == 2
    assert "was another one: broker_name broker-a; this one asks for broker_name broker-b" in answer.err


def test_a_store_may_be_on_s3(
    rmq: Rmq, s3_root: S3Root, broker_store: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_root.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RMQ_ROOT", s3_root.uri)
    made = rmq.json("init")
    assert (made["status"], made["root"]) == ("created", s3_root.uri)
    imported = rmq.json("import-store", str(broker_store("market-clean")), "--broker", "broker-a")
    assert (imported["status"], imported["queues"]) == ("committed", 55)
    assert rmq.json("consume", "-g", "orders")["messages"] == ORDERS
    assert statuses(rmq.json("doctor"))["exclusive create"] == "ok"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    refused = rmq("topics")
    assert refused.exit_code == 1
    assert "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in refused.err


def test_a_folder_that_is_no_brokers_store_is_refused_and_makes_nothing(rmq: Rmq) -> None:
    rmq("init")
    (rmq.folder / "empty").mkdir()
    for source, code, says in (("empty", 1, "empty is no broker's store"), ("missing", 2, "missing is no folder")):
        answer = rmq("import-store", source, "--broker", "broker-a", "--engine", "local")
        assert answer.exit_code == code
        assert f"error: {rmq.folder / says}" in answer.err
    assert rmq.json("topics")["topics"] == []


def test_cutover_adopts_and_says_what_waits(imported: Rmq) -> None:
    cutover = ["cutover", "--broker", "broker-a", "--reason", "switched off"]
    dry = imported.json("cutover", "--broker", "broker-a", "--dry-run")
    assert "needs a reason" in imported("cutover", "--broker", "broker-a").err
    done = imported.json(*cutover)
    assert (done["status"], done["shard"]) == ("committed", "broker-a")
    told = ("groups", "waiting", "notes", "left_out")
    assert (dry["status"], [dry[name] for name in told]) == ("dry_run", [done[name] for name in told])
    assert done["waiting"] > 0
    (note,) = done["notes"]
    assert note.startswith("3 messages for LaterBox wait in the broker's own timer")
    (beyond,) = done["left_out"]
    assert beyond.startswith(
        "group gm_beyond stands beyond the end of 8 queues of OrderEvents and is not adopted there"
    )
    assert {row["held_by"] for row in imported.json("groups")["groups"] if row["group_name"] == "gm_beyond"} == {
        "broker"
    }
    assert lines_of(imported(*cutover, "--request", done["request_id"]).out)["status"] == "already_committed"
    another = imported(*cutover)
    assert another.exit_code == 2
    assert f"was cut over by request {done['request_id']}" in another.err
    assert imported.json("deliver", "--now", ALL_DUE)["delivered"] == done["waiting"]
    unknown = imported("cutover", "--broker", "broker-b", "--reason", "switched off")
    assert unknown.exit_code == 2
    assert "did you mean 'broker-a'" in unknown.err


def test_dispatch_has_nothing_left_to_do_after_a_commit(imported: Rmq) -> None:
    assert imported.json("dispatch") == {"status": "done", "shards": {"broker-a": 0}}
    assert "shard broker-a: 0 commits" in imported("dispatch").out


# --- messages --------------------------------------------------------------------------------------------------------


def test_consume_does_a_whole_request_and_the_same_request_again_says_the_same(imported: Rmq) -> None:
    consume = ["consume", "--group", "orders", "--request", f"{TODAY}-all", "--actor", "ana"]
    first = imported.json(*consume)
    assert (first["status"], first["group"], first["request_id"]) == ("committed", "orders", f"{TODAY}-all")
    assert first["messages"] == ORDERS
    counts = {key: n for key, n in first["windows"][0]["counts"].items() if n}
    assert counts == {"acked": ORDERS - 100, "retried": 100}
    assert {(r["queue_id"], r["begin_offset"], r["end_offset"]) for r in first["windows"][0]["ranges"]} == {
        (queue, 0, ORDERS // 8) for queue in range(8)
    }
    (shard,) = first["shards"]
    assert (shard["shard"], shard["windows"], shard["outcomes"]) == ("broker-a", 1, counts)
    assert shard["offsets"] == {f"OrderEvents broker-a:{queue}": ORDERS // 8 for queue in range(8)}
    second = imported.json(*consume)
    assert (second["status"], second["messages"]) == ("already_committed", ORDERS)
    assert second["windows"][0]["counts"] == first["windows"][0]["counts"]
    answer = imported(*consume)
    assert answer.exit_code == 0
    assert lines_of(answer.out)["status"] == "already_committed"
    (actor,) = imported.json("sql", "select distinct actor, actor_source from windows where group_name = 'orders'")
    assert actor == {"actor": "ana", "actor_source": "unverified"}


def test_consume_does_all_parts_of_a_capped_group_and_says_a_line_for_each(imported: Rmq) -> None:
    capped = (imported.folder / "consumers.toml").read_text().replace('engine = "auto"', "max_messages = 2000")
    (imported.folder / "capped.toml").write_text(capped)
    answer = imported("consume", "-g", "orders", "--settings", "capped.toml", "--engine", "local")
    windows = [line for line in answer.out.splitlines() if line.startswith("shard broker-a: committed")]
    assert [line.partition("committed, ")[2].partition(" messages")[0] for line in windows] == ["2,000", "2,000", "200"]
    assert [line.endswith("more to come") for line in windows] == [True, True, False]


def test_consume_with_nothing_to_do_writes_nothing(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    before = sorted(path for path in imported.root.rglob("*"))
    answer = imported("consume", "-g", "orders")
    assert answer.exit_code == 0
    assert lines_of(answer.out)["status"] == "empty"
    assert sorted(path for path in imported.root.rglob("*")) == before


def test_consume_ends_at_a_time_or_after_so_many_messages(imported: Rmq) -> None:
    query = "select store_timestamp from messages where topic = 'OrderEvents' order by store_timestamp"
    times = [row["store_timestamp"] for row in imported.json("sql", query)]
    some = imported.json("consume", "-g", "orders", "--max-messages", "100")
    assert some["messages"] == 100
    until = imported.json("consume", "-g", "orders", "--until", str(times[2000]))
    assert until["messages"] == sum(time < times[2000] for time in times) - 100


def test_consumers_share_the_queues_of_a_group(imported: Rmq) -> None:
    done = [imported.json("consume", "-g", "orders", "--client", one, "--clients", "c1,c2,c3") for one in ("c1", "c3")]
    assert [[r["queue_id"] for r in d["windows"][0]["ranges"]] for d in done] == [[0, 1, 2], [6, 7]]
    (row,) = imported.json("sql", 'select parameters from windows where parameters like \'%"client_id":"c3"%\'')
    assert json.loads(row["parameters"])["client_ids"] == ["c1", "c2", "c3"]
    owners = imported.json("sql", "select distinct client_id, ended_by from queue_owners where topic is not null")
    assert sorted(owners, key=lambda row: str(row["client_id"])) == [
        {"client_id": one, "ended_by": "committed"} for one in ("c1", "c3")
    ]
    answer = imported("consume", "-g", "orders", "--client", "c9", "--clients", "c1,c2")
    assert (answer.exit_code, lines_of(answer.out)["status"]) == (0, "empty")
    assert "client c9 is none of the consumers c1, c2, so it gets no queue" in answer.out
    assert imported("consume", "-g", "orders", "--client", "c1").exit_code == 2


def test_what_others_hold_is_left_to_them_and_told(imported: Rmq) -> None:
    (shard,) = LakeStore.open(Root.parse(str(imported.root))).shards()
    queues = tuple(own_queue_id("orders", MessageQueue("OrderEvents", "broker-a", n)) for n in range(6))
    wish = Wish(f"{TODAY}-theirs", Actor("ben", "test"), "orders", queues=queues, client_id="c1")
    mine = ["consume", "-g", "orders", "--request", f"{TODAY}-mine"]
    with claimed(shard, wish, Host()) as held:
        answer = imported(*mine)
        assert answer.exit_code == 3
        assert f"{2 * ORDERS // 8:,} messages" in answer.out
        assert f"queueId=0] is held by request {TODAY}-theirs of ben, client c1 for 1" in answer.out
        assert f"and 5 more are held by request {TODAY}-theirs of ben, client c1" in answer.err
        held.release()
    done = imported.json(*mine)
    assert (done["status"], done["messages"]) == ("committed", 6 * ORDERS // 8)
    assert imported.json(*mine)["messages"] == ORDERS


def test_a_listener_may_be_in_a_folder_that_is_named(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = imported.folder / "code"
    elsewhere.mkdir()
    (imported.folder / "cli_listener.py").rename(elsewhere / "cli_listener.py")
    assert imported("consume", "-g", "orders").exit_code == 1
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert imported("consume", "-g", "orders", "--listener-path", str(elsewhere)).exit_code == 0


def test_deliver_moves_what_is_due_and_the_group_reads_it_again(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    (due,) = imported.json("sql", "select distinct deliver_at from delayed where broker_name like '%~orders'")
    too_early = ["deliver", "--now", format_time(due["deliver_at"] - 1)]
    assert imported.json(*too_early)["next_due_ms"] == due["deliver_at"]
    assert f"empty, 0 delivered, next due {format_time(due['deliver_at'])}" in imported(*too_early).out
    deliver = ["deliver", "--now", ALL_DUE, "--request", f"{TODAY}-due"]
    assert imported.json(*deliver)["delivered"] == 100
    assert imported.json(*deliver)["status"] == "already_committed"
    retried = imported.json("consume", "-g", "orders")
    assert {r["topic"] for r in retried["windows"][0]["ranges"]} == {"%RETRY%orders"}
    assert retried["windows"][0]["counts"]["retried"] == 100


def test_replay_leaves_the_groups_offsets_alone_and_names_its_own_group(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    offsets = "select * from consumer_offsets where group_name = 'orders' order by all"
    before = imported.json("sql", offsets)
    replay = ["replay", "-g", "orders", "-t", "OrderEvents", "--from", "0", "--request", f"{TODAY}-again"]
    first = imported(*replay)
    assert lines_of(first.out)["status"] == "committed"
    name = lines_of(first.out)["group"]
    assert f"rmq consume --group {name}" in first.out
    assert imported.json(*replay)["messages"] == ORDERS
    assert imported.json("sql", offsets) == before
    assert imported.json("deliver", "--now", ALL_DUE)["delivered"] == 200
    followed = imported.json("consume", "-g", name)
    assert (followed["group"], followed["messages"]) == (name, 100)


def test_a_replay_is_done_once_more_when_somebody_says_why(imported: Rmq) -> None:
    name = imported.json("replay", "-g", "orders", "-t", "OrderEvents", "--from", "0")["group"]
    again = ["replay", "-g", name, "--reprocess", "the listener is mended", "--request", f"{TODAY}-again"]
    second = imported.json(*again)
    assert (second["status"], second["group"], second["messages"]) == ("committed", name, ORDERS)
    assert lines_of(imported(*again).out)["status"] == "already_committed"
    query = "select replay_of, attempt, attempts, reason from windows order by attempt"
    assert imported.json("sql", query) == [
        {"replay_of": "orders", "attempt": 1, "attempts": 2, "reason": ""},
        {"replay_of": "orders", "attempt": 2, "attempts": 2, "reason": "the listener is mended"},
    ]
    assert imported.json("audit")["audit"] == []
    for wrong in (["-t", "OrderEvents"], ["--from", "0"], ["--until", "5"]):
        assert "reads what the first one read" in imported(*again, *wrong).err
    assert "has replayed nothing here" in imported("replay", "-g", "orders", "--reprocess", "why").err
    assert "a replay needs --topic and --from" in imported("replay", "-g", "orders").err


def test_diff_says_which_messages_another_listener_ended_differently(imported: Rmq) -> None:
    name = imported.json("replay", "-g", "orders", "-t", "OrderEvents", "--from", "0")["group"]
    alone = imported("diff", "-g", name)
    assert (alone.exit_code, "has one attempt" in alone.err) == (2, True)
    imported("replay", "-g", name, "--reprocess", "once more")
    same = imported("diff", "-g", name)
    assert (same.exit_code, lines_of(same.out)["status"]) == (0, "same")
    mended = imported.folder / "mended.toml"
    text = (imported.folder / "consumers.toml").read_text()
    mended.write_text(text.replace("fail_without_price", "succeed"))
    done = imported("replay", "-g", name, "--reprocess", "it works without a price", "--settings", str(mended))
    assert f"rmq diff --group {name}" in done.out
    different = imported("diff", "-g", name, "--limit", "7", "--json")
    answer = different.json()
    assert (different.exit_code, answer["status"], answer["messages"]) == (1, "different", ORDERS)
    assert [(one["attempt"], one["reason"]) for one in answer["attempts"]] == [
        (2, "once more"),
        (3, "it works without a price"),
    ]
    assert answer["table"] == [
        {"first": "acked", "second": "acked", "messages": ORDERS - 100, "differing": 0},
        {"first": "retried", "second": "acked", "messages": 100, "differing": 100},
    ]
    assert len(answer["listed"]) == 7
    one = answer["listed"][0]
    (found,) = imported.json("message", one["offset_msg_id"])["messages"]
    assert [found[name] for name in ("shard", "queue_id", "queue_offset", "unique_key", "keys")] == [
        one[name] for name in ("shard", "queue_id", "queue_offset", "unique_key", "keys")
    ]
    assert (one["first"]["outcome"], one["second"]["outcome"], found["properties"]["price"]) == (
        "retried",
        "acked",
        "n/a",
    )
    told = imported("diff", "-g", name, "--limit", "7").out
    assert lines_of(told)["messages"] == "100 of 4,200 ended differently; 7 are shown, --limit N shows more"
    assert imported("diff", "-g", name, "--attempts", "1", "2").exit_code == 0
    assert "has the attempts 1 to 3" in imported("diff", "-g", name, "--attempts", "1", "4").err
    assert "has replayed nothing here" in imported("diff", "-g", "orders").err
    query = (
        "select attempt, outcome, sum(end_offset - begin_offset) as n from attempt_outcomes group by all order by all"
    )
    assert imported.json("sql", query) == [
        {"attempt": 1, "outcome": "retried", "n": 100},
        {"attempt": 2, "outcome": "retried", "n": 100},
    ]


# --- dead letters -----------------------------------------------------------------------------------------------------

LETTERS = (
    "select count(*) as n, count(redriven_at) as sent, max(redriven_to) as topic from dead_letters where group_name = "
)


def a_group_with_letters(rmq: Rmq) -> str:
    """The one with the most."""
    found = rmq.json("sql", "select group_name, count(*) as n from dead_letters group by 1 order by n desc, 1 limit 1")
    return str(found[0]["group_name"])


def test_letters_are_sent_again_once_and_a_dry_run_shows_them_before(imported: Rmq) -> None:
    group = a_group_with_letters(imported)
    (before,) = imported.json("sql", f"{LETTERS}'{group}'")
    assert (before["sent"], before["n"] > 10) == (0, True)
    dry = imported.json("redrive", "-g", group, "--all", "--dry-run")
    assert (dry["status"], dry["letters"], len(dry["listed"])) == ("dry_run", before["n"], before["n"])
    some = imported.json("redrive", "-g", group, "--all", "--limit", "5", "--reason", "fixed")
    assert (some["status"], some["letters"], some["readers"]) == ("committed", 5, [group])
    again = ["redrive", "-g", group, "--all", "--reason", "fixed", "--request", f"{TODAY}-again"]
    rest = lines_of(imported(*again).out)
    assert (rest["status"], rest["letters"]) == ("committed", str(before["n"] - 5))
    assert rest["topic"] == f"%RETRY%{group}, read by {group}"
    assert imported.json(*again)["status"] == "already_committed"
    nothing = imported("redrive", "-g", group, "--all", "--reason", "more").out
    assert lines_of(nothing)["status"] == "empty"
    assert "nothing to send: no such letter waits" in nothing
    (after,) = imported.json("sql", f"{LETTERS}'{group}'")
    assert after == {"n": before["n"], "sent": before["n"], "topic": f"%RETRY%{group}"}
    assert imported.json("audit")["audit"] == []


def test_a_letter_that_was_sent_again_is_tracked_into_its_second_life(imported: Rmq) -> None:
    settings = (imported.folder / "consumers.toml").read_text()
    mended = imported.folder / "mended.toml"
    (imported.folder / "consumers.toml").write_text(settings.replace('engine = "auto"', "max_reconsume_times = 0"))
    mended.write_text(settings.replace("fail_without_price", "succeed"))
    imported("consume", "-g", "orders")
    letter = "select unique_key as id from dead_letters where group_name = 'orders' and queue_offset = "
    ids = [imported.json("sql", f"{letter}{offset}")[0]["id"] for offset in (0, 1)]

    def of_orders(number: int) -> tuple[str, list[str]]:
        found = imported.json("track", ids[number], "-t", "OrderEvents")["tracks"]
        (track,) = (one for one in found if one["group"] == "orders")
        return track["type"], [hop["outcome"] for hop in track["hops"]]

    assert of_orders(0) == ("DEAD", ["dead"])
    sent = imported("redrive", "-g", "orders", "--letter", "lake-broker-a:0:0", "--reason", "mended")
    assert "to consume them: rmq consume --group orders" in sent.out
    assert of_orders(0) == ("RETRYING", ["dead", "redriven", "unread"])
    assert imported.json("consume", "-g", "orders", "--settings", str(mended))["messages"] == 1
    assert of_orders(0) == ("CONSUMED", ["dead", "redriven", "acked"])
    elsewhere = ["--letter", "lake-broker-a:0:1", "--to-topic", "OrderEvents", "--reason", "for everybody"]
    assert imported.json("redrive", "-g", "orders", *elsewhere)["letters"] == 1
    assert of_orders(1) == ("DEAD", ["dead", "redriven"])


def test_a_letter_is_named_by_its_place_and_may_go_to_a_topic_for_everybody(imported: Rmq) -> None:
    group = a_group_with_letters(imported)
    place = "select broker_name || ':' || queue_id || ':' || queue_offset as place, unique_key as k from dead_letters"
    one, two = imported.json("sql", f"{place} where group_name = '{group}' order by queue_offset limit 2")
    broker_and_queue = one["place"].rpartition(":")[0]
    named = ["redrive", "-g", group, "--letter", one["place"], "--to-topic", "OrderEvents"]
    dry = imported.json(*named, "--dry-run")
    assert ([letter["unique_key"] for letter in dry["listed"]], "orders" in dry["readers"]) == ([one["k"]], True)
    assert imported.json(*named, "--reason", "all shall see it")["letters"] == 1
    by_key = ["redrive", "-g", group, "--key", one["k"], "--key", two["k"], "--reason", "x"]
    assert imported.json(*by_key)["letters"] == len({one["k"], two["k"]}) - 1
    even = [f"--letter={broker_and_queue}:{offset}" for offset in range(4, 10, 2)]
    assert imported.json("redrive", "-g", group, *even, "--reason", "x")["letters"] == 3
    assert imported.json("audit")["audit"] == []


def test_a_redrive_says_which_letters_of_whom_and_why(imported: Rmq) -> None:
    group = a_group_with_letters(imported)

    def refused(says: str, *options: str) -> None:
        answer = imported("redrive", *options)
        assert (answer.exit_code, says in answer.err) == (2, True), answer

    refused("say which dead letters", "-g", group, "--reason", "x")
    refused("say which dead letters", "-g", group, "--reason", "x", "--all", "--key", "k")
    refused("needs a reason (--reason)", "-g", group, "--all")
    refused(f"did you mean {group!r}", "-g", f"{group}x", "--all", "--reason", "x")
    refused("names no letter: write BROKER:QUEUE:OFFSET", "-g", group, "--letter", "broker-a:0")
    refused("has no queue broker-x:0", "-g", group, "--letter", "broker-x:0:1", "--reason", "x")
    refused("has no topic Nowhere", "-g", group, "--all", "--to-topic", "Nowhere", "--reason", "x")
    refused("is no ordinary topic", "-g", group, "--all", "--to-topic", "SCHEDULE_TOPIC_XXXX", "--reason", "x")


# --- the engine ------------------------------------------------------------------------------------------------------


class Spark:
    """Stands for Spark behind ``spark_jobs``: runs tasks here, and notes what was asked of it."""

    def __init__(self) -> None:
        self.opened: list[dict[str, Any]] = []
        self.stopped = 0

    def open_session(
        self, app_name: str, *, remote: str | None, python_path: Sequence[Path], conf: Mapping[str, str] | None
    ) -> Spark:
        self.opened.append({"app_name": app_name, "remote": remote, "python_path": [str(p) for p in python_path]})
        return self

    def engine_of(self, session: Spark) -> LocalEngine:
        return LocalEngine(Host(), "spark", 2)

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    found = Spark()
    monkeypatch.setattr(engine, "open_session", found.open_session)
    monkeypatch.setattr(engine.SparkEngine, "of", found.engine_of)
    return found


def test_spark_is_opened_once_for_all_windows_of_a_request_and_closed(imported: Rmq, spark: Spark) -> None:
    capped = (imported.folder / "consumers.toml").read_text().replace('engine = "auto"', "max_messages = 2000")
    (imported.folder / "consumers.toml").write_text(capped)
    done = imported.json("consume", "-g", "orders")
    assert [window["engine"] for window in done["windows"]] == ["spark"] * 3
    assert spark.opened == [{"app_name": "rmq consume", "remote": None, "python_path": [str(imported.folder)]}]
    assert spark.stopped == 1


def test_spark_remote_names_the_server_which_must_answer(
    imported: Rmq, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        remote = f"sc://127.0.0.1:{server.getsockname()[1]}/;token=secret"
        monkeypatch.setenv("SPARK_REMOTE", remote)
        imported.json("consume", "-g", "orders", "--engine", "spark")
    assert spark.opened[0]["remote"] == remote
    answer = imported("replay", "-g", "orders", "-t", "OrderEvents", "--from", "0", "--engine", "spark")
    assert (answer.exit_code, len(spark.opened)) == (1, 1)
    assert "no Spark Connect server answers at sc://127.0.0.1" in answer.err
    assert "secret" not in answer.err


def test_a_session_that_cannot_be_had_is_no_defect(
    imported: Rmq, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(session: Any) -> Any:
        raise RuntimeError("the token is wrong\nand a stack trace")

    monkeypatch.setattr(engine.SparkEngine, "of", refuse)
    answer = imported("consume", "-g", "orders", "--engine", "spark")
    assert answer.exit_code == 1
    assert answer.err.startswith("error: no Spark session (RuntimeError: the token is wrong): see 'rmq doctor --spark'")
    assert spark.stopped == 1


@pytest.mark.parametrize("missing", ["spark_jobs.engine", "pyspark.sql"])
def test_without_spark_there_is_still_work_in_this_process(
    imported: Rmq, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    answer = imported("consume", "-g", "orders", "--engine", "spark")
    assert answer.exit_code == 1
    assert "or work with --engine local" in answer.err
    assert imported.json("consume", "-g", "orders", "--engine", "local")["status"] == "committed"


def test_auto_stays_in_this_process_for_little_work(
    imported: Rmq, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = imported.json("consume", "-g", "orders", "--max-messages", "100", "--engine", "auto")
    assert (done["windows"][0]["engine"], spark.opened) == ("local", [])
    monkeypatch.setattr("rmq_store.lake.engine.AUTO_LOCAL_MESSAGES", 1000)
    assert imported.json("consume", "-g", "orders")["windows"][0]["engine"] == "spark"


def test_no_spark_is_opened_for_an_empty_window(imported: Rmq, spark: Spark) -> None:
    first = imported.json("consume", "-g", "orders", "--engine", "spark", "--until", "0")
    assert [(window["status"], window["engine"]) for window in first["windows"]] == [("committed", "local")]
    imported("consume", "-g", "orders", "--engine", "local")
    assert imported.json("consume", "-g", "orders", "--engine", "spark")["status"] == "empty"
    assert spark.opened == []


def test_an_import_opens_spark_only_when_there_is_something_to_read(
    rmq: Rmq, spark: Spark, broker_store: Callable[[str], Path]
) -> None:
    rmq("init")
    importing = ["import-store", str(broker_store("market-clean")), "--broker", "broker-a"]
    assert rmq.json(*importing, "--engine", "spark", "--request", f"{TODAY}-1")["status"] == "committed"
    assert rmq.json(*importing, "--engine", "spark", "--request", f"{TODAY}-1")["status"] == "already_committed"
    assert (len(spark.opened), spark.stopped) == (1, 1)


# --- offsets ---------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_a_reset_would_move_and_moves_nothing(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    reset = ["reset", "-g", "orders", "-t", "OrderEvents", "-q", "broker-a:2", "-q", "broker-a:5", "--to-offset", "500"]
    dry = imported.json(*reset, "--dry-run")
    assert (dry["status"], dry["messages"]) == ("dry_run", 50)
    assert [(m["queue_id"], m["from_offset"], m["to_offset"], m["messages"]) for m in dry["moves"]] == [
        (2, 525, 500, 25),
        (5, 525, 500, 25),
    ]
    shown = imported(*reset, "--dry-run").out
    assert "25 more to read" in shown
    assert lines_of(shown)["in all"] == "50 more to read"
    assert imported.json("consume", "-g", "orders")["status"] == "empty"


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
    assert "group orders: 100 retries still wait here" in answer.err
    target = imported.folder / "consumerOffset.json"
    done = imported.json("offsets", "export", "--broker", "broker-a", str(target))
    assert done["waiting_retries"] == {"orders": 100}
    assert target.read_text().strip() == answer.out.strip()
    assert [path.name for path in imported.folder.iterdir() if path.name.startswith(".")] == []
    refused = imported("offsets", "export", "--broker", "broker-a", str(imported.folder / "none" / "file"))
    assert (refused.exit_code, "cannot be written" in refused.err) == (2, True)


# --- questions -------------------------------------------------------------------------------------------------------


def test_topics_groups_and_lag_show_the_views(imported: Rmq) -> None:
    imported("consume", "-g", "orders", "--max-messages", "200")
    assert {"topic": "OrderEvents", "queues": 8, "messages": ORDERS}.items() <= next(
        row.items() for row in imported.json("topics")["topics"] if row["topic"] == "OrderEvents"
    )
    assert {"orders", "gm_ack"} <= {row["group_name"] for row in imported.json("groups")["groups"]}
    lag = imported.json("lag", "--group", "orders")["lag"]
    assert {row["group_name"] for row in lag} == {"orders"}
    assert sum(row["readable_lag"] for row in lag) == ORDERS - 200
    shown = imported("lag").out
    assert shown.splitlines()[0].split()[:3] == ["shard", "group_name", "topic"]
    assert imported("lag", "--group", "elsewhere").out == "no offsets of elsewhere\n"


@pytest.mark.parametrize("command", ["lag", "audit", "progress"])
def test_a_group_that_nobody_knows_has_no_answer(imported: Rmq, command: str) -> None:
    answer = imported(command, "--group", "o'rders")
    assert (answer.exit_code, answer.out) == (2, "")
    assert """there is no group "o'rders", did you mean 'orders'?""" in answer.err


def test_audit_finds_nothing_in_a_sound_store(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    answer = imported("audit")
    assert answer.exit_code == 0
    assert answer.out == "nothing found: every offset has exactly one outcome\n"


def test_audit_is_exit_code_1_when_something_is_found(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    found = pa.table({"shard": ["broker-a"], "problem": ["gap"], "begin_offset": [7]})
    monkeypatch.setattr("rmq_store.lake.sql.query", lambda store, text: found)
    answer = imported("audit")
    assert (answer.exit_code, answer.err) == (1, "")
    assert answer.out.splitlines()[-1].split() == ["broker-a", "gap", "7"]
    in_json = imported("audit", "--json")
    assert (in_json.exit_code, in_json.json()["audit"]) == (1, found.to_pylist())


def test_sql_answers_in_three_forms(rmq: Rmq) -> None:
    rmq("init")
    query = (
        "select 1 as n, 'a,\"b' as t, null as nothing, true as yes, 2.5 as x, sum(7::bigint) as s, "
        "map {'k': 'v'} as m, [1, 2] as l, '\\xC3\\xBC\\xFF'::blob as b, 'second' as n"
    )
    (row,) = rmq.json("sql", query)
    assert list(row) == ["n", "t", "nothing", "yes", "x", "s", "m", "l", "b", "n_2"]
    blob = base64.b64encode("ü".encode() + b"\xff").decode()
    assert list(row.values()) == [1, 'a,"b', None, True, 2.5, 7, {"k": "v"}, [1, 2], blob, "second"]
    assert rmq("sql", query, "--format", "json").json() == [row]
    names, values = csv.reader(io.StringIO(rmq("sql", query, "--format", "csv").out))
    assert names == list(row)
    assert values == ["1", 'a,"b', "", "true", "2.5", "7", '{"k": "v"}', "[1, 2]", "ü\\xff", "second"]
    head, _, cells = rmq("sql", query).out.splitlines()
    assert head.split() == list(row)
    assert cells.split() == ["1", 'a,"b', "true", "2.5", "7", '{"k":', '"v"}', "[1,", "2]", "ü\\xff", "second"]


def test_sql_takes_the_query_from_input_or_a_file(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    rmq("init")
    monkeypatch.setattr("sys.stdin", io.StringIO("select 40 + 2 as n"))
    assert rmq.json("sql", "-") == [{"n": 42}]
    (rmq.folder / "q.sql").write_text("select 41 as n\n")
    assert rmq.json("sql", "--file", "q.sql") == [{"n": 41}]
    missing = rmq("sql", "--file", "none.sql")
    assert (missing.exit_code, "none.sql cannot be read" in missing.err) == (2, True)


@pytest.mark.parametrize("query", ["selec 1", "select * from nothing", "select 1; select 2", "drop table x", ""])
def test_wrong_sql_is_wrong_use(imported: Rmq, query: str) -> None:
    answer = imported("sql", query)
    assert (answer.exit_code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")


def test_no_rows_are_an_empty_table_and_an_empty_array(rmq: Rmq) -> None:
    rmq("init")
    assert rmq.json("sql", "select 1 as n where false") == []
    assert rmq("sql", "select 1 as n where false").out.split()[0] == "n"
    assert rmq("sql", "select 1 as n where false", "--format", "csv").out == "n\n"


def test_a_message_cannot_steer_the_terminal_that_shows_it(rmq: Rmq) -> None:
    rmq("init")
    shown = rmq("sql", "select chr(27) || '[2J' || chr(10) || 'x' as t").out
    assert shown.splitlines()[-1].strip() == "\\x1b[2J\\nx"


def test_a_long_table_says_what_it_leaves_out(rmq: Rmq) -> None:
    rmq("init")
    shown = rmq("sql", "select * from range(1500)").out.splitlines()
    assert len(shown) == 2 + 1000 + 1
    assert shown[-1].startswith("(500 more rows are not shown")
    assert len(rmq("sql", "select * from range(1500)", "--format", "csv").out.splitlines()) == 1501


# --- doctor ----------------------------------------------------------------------------------------------------------


def statuses(answer: Any) -> dict[str, str]:
    return {check["check"]: check["status"] for check in answer["checks"]}


def test_doctor_finds_a_sound_machine_and_store(imported: Rmq) -> None:
    answer = imported.json("doctor")
    assert answer["status"] == "ok"
    sound = ["Python", "packages", "Java", "jars", "store", "exclusive create", "clock", "settings", "subscriptions"]
    assert statuses(answer) == {**dict.fromkeys(sound, "ok"), "Spark": "skipped"}
    assert "mend" not in imported("doctor").out


def test_doctor_says_of_what_is_broken_how_to_mend_it(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    (rmq.folder / "consumers.toml").write_text("[[groups]]")
    monkeypatch.setenv("RMQ_JARS", str(rmq.folder / "jars"))
    answer = rmq("doctor", "--json")
    assert answer.exit_code == 1
    found = statuses(answer.json())
    assert {name for name, status in found.items() if status == "failed"} == {"jars", "store", "settings"}
    assert (found["exclusive create"], found["subscriptions"]) == ("skipped", "skipped")
    assert all(check["mend"] for check in answer.json()["checks"] if check["status"] == "failed")
    shown = rmq("doctor").out
    assert "failed  jars:" in shown
    assert "mend: run 'make jars'" in shown
    assert "mend: make one with 'rmq init'" in shown
    assert not rmq.root.exists()


def test_doctor_looks_for_settings_that_somebody_named(rmq: Rmq) -> None:
    (rmq.folder / "consumers.toml").unlink()
    assert statuses(rmq("doctor", "--json").json())["settings"] == "skipped"
    assert statuses(rmq("doctor", "--json", "--settings", "mine.toml").json())["settings"] == "failed"


def test_doctor_names_every_subscription_that_a_window_would_refuse(imported: Rmq) -> None:
    settings = imported.folder / "consumers.toml"
    newer = settings.read_text().replace('topic = "OrderEvents"', 'topic = "OrderEvents"\nexpression = "TagA"')
    assert imported("consume", "--group", "orders").exit_code == 0
    settings.write_text(newer)
    answer = imported("doctor", "--json")
    assert (answer.exit_code, answer.json()["status"]) == (1, "failed")
    (failed,) = [check for check in answer.json()["checks"] if check["status"] == "failed"]
    assert failed["check"] == "subscriptions"
    assert "group orders: version 1 of its subscription is (OrderEvents: TAG 'TagA')" in failed["found"]
    refused = imported("consume", "--group", "orders")
    assert (refused.exit_code, failed["found"] in refused.err) == (2, True)
    settings.write_text(newer.replace('name = "orders"\n', 'name = "orders"\nsubscription_version = 2\n'))
    assert statuses(imported.json("doctor"))["subscriptions"] == "ok"


def test_doctor_names_a_package_that_is_not_the_pinned_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        doctor, "requires", lambda name: ["rich==1.0.0", "no-such-thing[extra]==2.0", "x==1; extra == 'dev'"]
    )
    with pytest.raises(StoreUnusable, match=r"no-such-thing is not installed, not 2.0; rich is \S+, not 1.0.0"):
        doctor.packages_found()


def test_doctor_finds_a_store_in_which_two_creates_win(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    rmq("init")
    from rmq_store.lake.object_store import Root

    monkeypatch.setattr(Root, "check_exclusive_create", lambda root: None)
    monkeypatch.setattr(Root, "create_exclusively", lambda root, name, content: _overwrite(root, name, content))
    with pytest.raises(StoreUnusable, match="8 creates of one name at once had 8 winners"):
        doctor.one_winner(Root.parse(str(rmq.root)))


def _overwrite(root: Any, name: str, content: bytes) -> bool:
    path = Path(root.location, name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return True


def test_doctor_refuses_a_clock_that_commits_would_refuse(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    from rmq_store.lake.object_store import Root

    root = Root("s3://bucket")
    monkeypatch.setattr(Root, "server_time_ms", lambda root: 1_800_000_000_000)
    assert "+30.0 s" in doctor.clock_found(root, Host(now_ms=lambda: 1_799_999_970_000))
    with pytest.raises(StoreUnusable, match=r"-61.0 s from this one's"):
        doctor.clock_found(root, Host(now_ms=lambda: 1_800_000_061_000))
