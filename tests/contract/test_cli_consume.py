"""``rmq consume``, ``deliver``, ``replay``, ``diff``: what they do to a store and what they answer, in text and in JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import pytest

from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import Actor
from rmq_store.commit.positions import own_queue_id
from rmq_store.lake.commit.claim import HeldClaim, claimed
from rmq_store.lake.listener import redaction_hook
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host
from rmq_store.utils.times import format_time
from tests.contract.rmq import ALL_DUE, LISTENER, ORDERS, TODAY, Rmq, lines_of


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


def test_a_wrong_group_is_named_and_refused_and_the_others_are_consumed(imported: Rmq) -> None:
    imported.correct_listeners()
    settings = imported.folder / "consumers.toml"
    settings.write_text(settings.read_text() + '[[group]]\nname = "bad"\n')
    answer = imported("consume", "-g", "orders", "--json")
    assert (answer.exit_code, answer.json()["status"]) == (0, "committed")
    assert "note: consumers.toml has 2 problem(s):\n  - group bad: listener is missing\n" in answer.err
    for asked in (
        ("consume", "-g", "bad"),
        ("replay", "-g", "bad", "-t", "OrderEvents", "--from", "0"),
        ("reset", "-g", "bad", "-t", "OrderEvents", "--to-min", "--reason", "r"),
        ("redrive", "-g", "bad", "--all", "--reason", "r"),
    ):
        refused = imported(*asked)
        assert refused.exit_code == 2, asked
        assert refused.err.startswith("error: consumers.toml: group bad has 2 problem(s):\n  - listener is missing"), (
            asked
        )
    (wrong,) = [one for one in imported("doctor", "--json").json()["checks"] if one["status"] == "failed"]
    assert wrong["check"] == "settings"
    assert "- group bad: listener is missing\n- group bad: a [[group.subscription]]" in wrong["found"]


def test_consume_with_nothing_to_do_writes_nothing(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    before = sorted(path for path in imported.root.rglob("*"))
    answer = imported("consume", "-g", "orders")
    assert answer.exit_code == 0
    assert lines_of(answer.out)["status"] == "empty"
    assert sorted(path for path in imported.root.rglob("*")) == before


def test_consume_with_nothing_to_do_says_what_waits_for_a_delivery(imported: Rmq) -> None:
    assert imported.json("consume", "-g", "orders")["windows"][0]["waiting"] is None
    (due,) = imported.json("sql", "select distinct deliver_at from delayed where broker_name like '%~orders'")
    (empty,) = imported.json("consume", "-g", "orders")["windows"]
    assert (empty["status"], empty["waiting"]) == ("empty", {"retries": 100, "next_due_ms": due["deliver_at"]})
    said = imported("consume", "-g", "orders").out
    assert f"100 retries wait for rmq deliver, the first is due at {format_time(due['deliver_at'])}" in said
    imported("deliver", "--now", ALL_DUE)
    assert "wait for rmq deliver" not in imported("consume", "-g", "orders").out


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
    assert "client c9 gets no queue: it is not in the list of consumers c1, c2" in answer.out
    assert imported("consume", "-g", "orders", "--client", "c1").exit_code == 2


def order_queues(numbers: Iterable[int]) -> tuple[str, ...]:
    """What a window of orders claims of them."""
    return tuple(own_queue_id("orders", MessageQueue("OrderEvents", "broker-a", number)) for number in numbers)


def begin(rmq: Rmq) -> None:
    """The first window of orders, which takes nothing: later ones need not have all of their claims."""
    assert rmq.json("consume", "-g", "orders", "--until", "2000-01-01T00:00:00Z")["messages"] == 0


def test_what_others_hold_is_left_to_them_and_told(imported: Rmq) -> None:
    begin(imported)
    (shard,) = LakeStore.open(Root.parse(str(imported.root))).shards()
    wish = Wish(f"{TODAY}-theirs", Actor("ben", "test"), "orders", queues=order_queues(range(6)), client_id="c1")
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


def test_a_first_window_waits_for_all_of_its_queues(imported: Rmq) -> None:
    (shard,) = LakeStore.open(Root.parse(str(imported.root))).shards()
    wish = Wish(f"{TODAY}-theirs", Actor("ben", "test"), "orders", queues=order_queues([5]), client_id="c1")
    with claimed(shard, wish, Host()) as held:
        for dry in ([], ["--dry-run"]):
            answer = imported("consume", "-g", "orders", *dry)
            assert (answer.exit_code, answer.out) == (3, "")
            assert f"broker-a/orders/OrderEvents/broker-a/5 is held by request {TODAY}-theirs of ben" in answer.err
        held.release()
    assert imported.json("sql", "select * from windows") == []
    assert imported.json("consume", "-g", "orders")["messages"] == ORDERS


def test_a_claim_that_cannot_be_renewed_without_a_thread_is_released(
    imported: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(claim: HeldClaim) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without_threads:
        without_threads.setattr(HeldClaim, "start_renewing", refused)
        answer = imported("consume", "-g", "orders")
    assert (answer.exit_code, "the system refused a thread or a process" in answer.err) == (1, True), answer
    assert imported.json("consume", "-g", "orders")["messages"] == ORDERS


def test_an_error_after_some_windows_says_them_too_in_json(imported: Rmq) -> None:
    begin(imported)
    capped = (imported.folder / "consumers.toml").read_text().replace('engine = "auto"', "max_messages = 600")
    (imported.folder / "capped.toml").write_text(capped)
    (shard,) = LakeStore.open(Root.parse(str(imported.root))).shards()
    wish = Wish(f"{TODAY}-theirs", Actor("ben", "test"), "orders", queues=order_queues(range(6)))
    mine = ["consume", "-g", "orders", "--settings", "capped.toml", "--engine", "local"]
    mine += ["--request", f"{TODAY}-mine"]
    with claimed(shard, wish, Host()) as held:
        stopped = imported(*mine, "--json")
        held.release()
    told = stopped.json()
    assert (stopped.exit_code, told["status"], told["error"]) == (3, "error", "HeldByAnother")
    assert (told["exit_code"], told["group"], told["request_id"]) == (3, "orders", f"{TODAY}-mine")
    assert f"held by request {TODAY}-theirs" in told["message"]
    done = imported.json(*mine)
    assert told.keys() - done.keys() == {"error", "message", "exit_code"}
    assert done.keys() <= told.keys()
    assert (told["messages"], [one["messages"] for one in told["shards"]]) == (2 * ORDERS // 8, [2 * ORDERS // 8])
    assert [(one["status"], sum(one["counts"].values())) for one in told["windows"]] == [
        ("committed", 600), ("committed", 2 * ORDERS // 8 - 600),
    ]  # fmt: skip
    assert len(told["windows"][0]["held"]) == 6


def test_a_listener_may_be_in_a_folder_that_is_named(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = imported.folder / "code"
    elsewhere.mkdir()
    (imported.folder / "cli_listener.py").rename(elsewhere / "cli_listener.py")
    assert imported("consume", "-g", "orders").exit_code == 1
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert imported("consume", "-g", "orders", "--listener-path", str(elsewhere)).exit_code == 0


def test_the_environment_names_folders_of_listeners_too(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = imported.folder / "code"
    elsewhere.mkdir()
    (imported.folder / "cli_listener.py").rename(elsewhere / "cli_listener.py")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("RMQ_LISTENER_PATH", f"{elsewhere},{imported.folder}/nowhere")
    refused = imported("consume", "-g", "orders")
    assert (refused.exit_code, "nowhere is not a folder" in refused.err) == (2, True)
    monkeypatch.setenv("RMQ_LISTENER_PATH", str(elsewhere))
    assert imported("consume", "-g", "orders").exit_code == 0


EXITS = """
import os, sys

class Mute(Exception):
    def __str__(self):
        sys.exit(0)

def at_once(msgs, context):
    os._exit(0)

def mute(msgs, context):
    raise Mute

class LeavesInText(Exception):
    def __str__(self):
        os._exit(0)

    __del__ = __str__

class LeavesInLength(list):
    def __len__(self):
        os._exit(0)

def left_in_text(msgs, context):
    raise LeavesInText

def left_in_length(msgs, context):
    return LeavesInLength()

def nonsense(msgs, context):
    context.delay_level_when_next_consume = 10**30
"""


@pytest.mark.parametrize("own_process", ["true", "false"])
def test_listeners_may_be_limited_to_packages(imported: Rmq, monkeypatch: pytest.MonkeyPatch, own_process: str) -> None:
    settings = imported.folder / "consumers.toml"
    settings.write_text(settings.read_text().replace('engine = "auto"', f"listener_process = {own_process}"))
    (imported.folder / "cli_listener.py").write_text("open('imported', 'w').close()")
    consume = ["consume", "-g", "orders", "--engine", "local", "--max-messages", "4", "--json"]
    monkeypatch.setenv("RMQ_LISTENER_PACKAGES", "shop, cli")
    refused = imported(*consume)
    assert (refused.exit_code, refused.json()["error"]) == (1, "ListenerError")
    assert "cli_listener:fail_without_price is not allowed here: RMQ_LISTENER_PACKAGES has shop, cli" in refused.err
    assert not (imported.folder / "imported").exists()
    (imported.folder / "cli_listener.py").write_text(LISTENER)
    monkeypatch.setenv("RMQ_LISTENER_PACKAGES", "shop,cli_listener")
    assert imported(*consume).exit_code == 0


def test_a_file_of_the_current_folder_replaces_no_module(imported: Rmq) -> None:
    for name in ("decimal", "numpy"):
        (imported.folder / f"{name}.py").write_text("raise SystemExit(1)")
    (imported.folder / "cli_listener.py").write_text(
        "import decimal, numpy\n\ndef fail_without_price(msgs, context):\n    assert numpy.int64\n    assert decimal.Decimal\n"
        "    return 'CONSUME_SUCCESS'\n"
    )
    assert imported.json("consume", "-g", "orders", "--max-messages", "4")["windows"][0]["counts"]["acked"] == 4


def with_listener(rmq: Rmq, text: str, name: str) -> list[str]:
    """A call of ``consume`` for a group of this listener."""
    (rmq.folder / f"{name}_module.py").write_text(text)
    settings = (
        (rmq.folder / "consumers.toml").read_text().replace("cli_listener:fail_without_price", f"{name}_module:{name}")
    )
    (rmq.folder / f"{name}.toml").write_text(settings)
    return [
        "consume",
        "-g",
        "orders",
        "--settings",
        f"{name}.toml",
        "--max-messages",
        "8",
        "--engine",
        "local",
        "--json",
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of __del__
def test_a_listener_that_ends_the_process_never_looks_like_success_with_nothing_done(imported: Rmq) -> None:
    for name in ("at_once", "mute", "left_in_text"):
        answer = imported(*with_listener(imported, EXITS, name))
        told = answer.json()
        assert (answer.exit_code, told["status"], told["windows"][0]["counts"]["retried"]) == (0, "committed", 8)


def test_a_listener_that_answers_nonsense_or_ends_the_process_when_it_is_imported_is_an_error_in_words(
    imported: Rmq,
) -> None:
    cases = {
        "nonsense": (EXITS, "batch at offset 0"),
        "left_in_length": (EXITS, "batch at offset 0: its answer cannot be read: SystemExit: os._exit(0)"),
        "gone": ("import sys; sys.exit(0)", "SystemExit: 0"),
    }
    for name, (text, says) in cases.items():
        answer = imported(*with_listener(imported, text, name))
        told = answer.json()
        assert (answer.exit_code, told["status"], told["error"]) == (1, "error", "ListenerError")
        assert f"listener {name}_module:{name}" in told["message"]
        assert says in told["message"]
        assert "defect" not in answer.err + answer.out


TELLS = """
import os

def concurrently(msgs, context):
    raise type("C" * 100_000, (ValueError,), {})(os.environ, "http://me:address-secret@db")

orderly = concurrently
"""


@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
def test_what_a_listener_says_of_its_environment_leaves_no_secret_in_the_store(
    imported: Rmq, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    for name, value in (("AWS_SECRET_ACCESS_KEY", "key-secret/+1"), ("SHOP_PASSWORD", "line one\nline-secret")):
        monkeypatch.setenv(name, value)
    consume = with_listener(imported, TELLS, mode)
    settings = imported.folder / f"{mode}.toml"
    variables = 'listener_environment = ["AWS_SECRET_ACCESS_KEY", "SHOP_PASSWORD"]'
    settings.write_text(settings.read_text().replace('engine = "auto"', f'mode = "{mode}"\n{variables}'))
    answer = imported(*consume)
    assert answer.exit_code == 0, answer
    view = {"concurrently": "message_rows", "orderly": "blocked"}[mode]
    rows = imported.json("sql", f"select error_type, error_text from {view} where error_text is not null")
    assert rows
    assert {row["error_type"] for row in rows} == {"C" * 256}
    told = json.dumps(rows) + answer.out + answer.err
    assert "SHOP_PASSWORD" in told
    assert "***" in told
    assert "-secret" not in told
    assert not any(b"-secret" in path.read_bytes() for path in imported.root.rglob("*") if path.is_file())


def test_blocked_queues_are_a_warning_of_a_window_and_of_a_replay_also_when_it_is_asked_again(imported: Rmq) -> None:
    text = 'def orderly(msgs, context):\n    raise OSError("the database is down")\n'
    options = with_listener(imported, text, "orderly")[3:5]
    settings = imported.folder / "orderly.toml"
    settings.write_text(settings.read_text().replace('engine = "auto"', 'mode = "orderly"'))
    (counted,) = imported.json(
        "sql",
        "select count(*) as messages, count(distinct queue_id) as queues from messages where topic = 'OrderEvents'",
    )
    queues, waits = counted["queues"], f"{counted['queues']} queues wait at a failed message"
    for words in (["-g", "orders"], ["--all", "-g", "orders"]):
        live = imported.json("consume", *words, *options, "--engine", "local")
        assert (live["messages"], live["warnings"]) == (
            0, [f"{waits}: the next window of orders tries again (see the view blocked)"],
        )  # fmt: skip
    replay = ["replay", "-g", "orders", "-t", "OrderEvents", "--from", "0", *options, "--request", f"{TODAY}-again"]
    assert "time: no estimate: the last 2 windows had no messages" in imported(*replay, "--dry-run").out
    for status in ("committed", "already_committed"):
        answer = imported.json(*replay, "--engine", "local")
        (shard,), (warning,) = answer["shards"], answer["warnings"]
        assert (answer["status"], shard["blocked_queues"], shard["not_consumed"]) == (
            status,
            queues,
            counted["messages"],
        )
        assert f"{waits}, so that the replay has not consumed {counted['messages']:,} messages" in warning
        assert f"rmq replay --group {answer['group']} --reprocess REASON" in warning
    printed = imported(*replay, "--engine", "local")
    assert f"{waits} (see the view blocked), {counted['messages']:,} messages not consumed" in printed.out
    assert f"warning: {waits}" in printed.err
    assert imported.json(*replay, "--dry-run")["notes"] == [warning]


HOOKED = """
def fail(msgs, context):
    raise ValueError("card 4111-1111, or worse" if msgs[0].queue_offset else "worse")

def hide(text):
    assert text != "worse"
    return text.replace("4111-1111", "(card)") + "x" * 10_000
"""


@pytest.mark.parametrize("own_process", ["true", "false"])
@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
def test_a_function_of_the_deployment_redacts_the_texts_of_errors(
    imported: Rmq, monkeypatch: pytest.MonkeyPatch, mode: str, own_process: str
) -> None:
    consume = with_listener(imported, HOOKED, "fail")
    settings = imported.folder / "fail.toml"
    text = f'mode = "{mode}"\nlistener_process = {own_process}\nconsume_message_batch_max_size = 1'
    settings.write_text(settings.read_text().replace("consume_message_batch_max_size = 32", text))
    monkeypatch.delitem(sys.modules, "fail_module", raising=False)
    monkeypatch.setenv("RMQ_REDACTION", "fail_module:hide")
    redaction_hook._imported.cache_clear()
    assert imported(*consume).exit_code == 0
    view = {"concurrently": "message_rows", "orderly": "blocked"}[mode]
    rows = imported.json("sql", f"select error_text from {view} where error_text is not null")
    texts = {row["error_text"] for row in rows}
    assert texts <= {redaction_hook.WITHHELD, ("card (card), or worse" + "x" * 10_000)[:4096]}
    assert redaction_hook.WITHHELD in texts
    monkeypatch.setenv("RMQ_REDACTION", "fail_module:nothing")
    refused = imported(*consume)
    assert (refused.exit_code, refused.json()["error"]) == (2, "WrongUse")


def test_deliver_moves_what_is_due_and_the_group_reads_it_again(imported: Rmq) -> None:
    imported("consume", "-g", "orders")
    (due,) = imported.json("sql", "select distinct deliver_at from delayed where broker_name like '%~orders'")
    too_early = ["deliver", "--now", format_time(due["deliver_at"] - 1)]
    assert imported.json(*too_early)["next_due_ms"] == due["deliver_at"]
    assert f"empty, 0 delivered, next due {format_time(due['deliver_at'])}" in imported(*too_early).out
    deliver = ["deliver", "--now", ALL_DUE, "--request", f"{TODAY}-due"]
    assert imported.json(*deliver)["delivered"] == 100
    imported("send", "--topic", "Later", "--create", "--queues", "1", "--delay", "1h", "good morning")
    waiting = imported.json("deliver")
    assert (waiting["status"], waiting["next_due_ms"] is None) == ("empty", False)
    again = imported.json(*deliver)
    assert (again["status"], again["next_due_ms"]) == ("already_committed", waiting["next_due_ms"])
    assert f"already_committed, 100 delivered, next due {format_time(again['next_due_ms'])}" in imported(*deliver).out
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


@pytest.mark.parametrize("more", [[], ["--dry-run"], ["--shard", "broker-a"]])
def test_the_retries_of_a_replay_that_never_was_are_refused(imported: Rmq, more: list[str]) -> None:
    answer = imported("consume", "--group", "orders-replay-ffffffffff", *more)
    assert (answer.exit_code, "orders-replay-ffffffffff has replayed nothing here" in answer.err) == (2, True)


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
    assert "is not a replay group" in imported("replay", "-g", "orders", "--reprocess", "why").err
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
    assert "is not a replay group" in imported("diff", "-g", "orders").err
    query = (
        "select attempt, outcome, sum(end_offset - begin_offset) as n from attempt_outcomes group by all order by all"
    )
    assert imported.json("sql", query) == [
        {"attempt": 1, "outcome": "retried", "n": 100},
        {"attempt": 2, "outcome": "retried", "n": 100},
    ]


# --- columns ---------------------------------------------------------------------------------------------------------


def test_a_column_that_no_message_has_is_refused_before_anything_is_read(imported: Rmq) -> None:
    text = "def wrong(batch):\n    raise AssertionError\n\nwrong.columns = ('body', 'nope')\n"
    answer = imported(*with_listener(imported, text, "wrong"))
    told = answer.json()
    assert (answer.exit_code, told["error"]) == (1, "ListenerError")
    assert "listener wrong_module:wrong: unknown columns nope; known columns are topic, " in told["message"]


def test_a_request_id_is_that_of_a_kind_and_a_group(imported: Rmq) -> None:
    request = ["--request", f"{TODAY}-one"]
    assert imported.json("consume", "-g", "orders", *request)["status"] == "committed"
    refused = imported("consume", "-g", "orders", "--max-messages", "1", *request)
    assert (refused.exit_code, "was already used with different parameters" in refused.err) == (2, True)
    assert imported.json("deliver", "--now", ALL_DUE, *request)["status"] == "committed"
    clone = ["clone", "--from", "orders", "--to", "elsewhere", "--topic", "OrderEvents", "--reason", "r"]
    assert imported.json(*clone, *request)["status"] == "committed"
