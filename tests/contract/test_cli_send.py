"""``rmq send``: what a user types, and what she gets."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.ctl import Actor, Proposal, canonical_json
from rmq_store.errors import StaleAttempt
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window import send_request
from rmq_store.lake.window.send import send as send_in_lake
from rmq_store.producer.producer import Message
from rmq_store.producer.send import SendReport, send_proposal
from rmq_store.utils.host import Host
from tests.contract.rmq import Answer, Rmq

DAY = "2026-11-20"
ANA = Actor("ana", "unverified")

TRY_IT = """
[[group]]
name = "trial"
listener = "cli_listener:fail_without_price"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"

[[group.subscription]]
topic = "Orders"
"""


@pytest.fixture
def empty(rmq: Rmq) -> Rmq:
    """A store that holds nothing."""
    rmq.json("init")
    return rmq


def write_lines(path: Path, lines: list[Any]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def bodies(rmq: Rmq, topic: str = "Orders") -> list[str]:
    rows = rmq.json("sql", f"SELECT decode(body) AS body FROM messages WHERE topic = '{topic}' ORDER BY 1")
    return [row["body"] for row in rows]


def test_what_a_message_holds_does_not_steer_the_terminal(empty: Rmq) -> None:
    line = {"body": "two\nlines", "keys": ["a\x1b]0;title\x07"], "properties": {"p": "\x9b2J\nkeys: of another"}}
    empty.json("send", "--topic", "Orders", "--create", "--file", write_lines(empty.folder / "lines", [line]))
    (row,) = empty.json("print", "--topic", "Orders")["messages"]
    answer = empty("message", row["unique_key"])
    assert answer.exit_code == 0, answer
    assert "keys: a\\x1b]0;title\\x07" in answer.out
    assert "two\nlines" in answer.out
    assert [line for line in answer.out.splitlines() if line.startswith("keys:")] == ["keys: a\\x1b]0;title\\x07"]
    assert not {"\x1b", "\x07", "\x9b"} & set(answer.out)


def test_a_listener_is_tried_without_a_broker(empty: Rmq) -> None:
    (empty.folder / "consumers.toml").write_text(TRY_IT)
    sent = empty.json("send", "--topic", "Orders", "--create", "--tag", "new", "--key", "o-1", "the first")
    assert (sent["status"], sent["messages"], sent["created"]) == ("committed", 1, {"Orders": 4})
    assert sent["commits"][0]["shard"] == "local"
    empty.json("send", "--topic", "Orders", "--property", "price=n/a", "no price")
    outcomes = empty.json("consume", "--group", "trial")["shards"][0]["outcomes"]
    assert outcomes == {"acked": 1, "retried": 1}
    later = empty.json("deliver", "--now", "2100-01-01T00:00:00Z")
    assert later["delivered"] == 1
    assert empty.json("consume", "--group", "trial")["messages"] == 1
    assert empty("audit").exit_code == 0


def test_a_sent_message_is_found_by_sql_with_all_it_carries(empty: Rmq) -> None:
    empty.json(
        "send", "--topic", "Orders", "--create", "--queues", "2", "--tag", "new", "--key", "a", "--key", "b",
        "--property", "formula=x=y", "--queue", "lake-local:1", "text",
    )  # fmt: skip
    query = "SELECT broker_name, queue_id, queue_offset, tags, keys, properties, decode(body) AS body FROM messages"
    (row,) = empty.json("sql", query)
    properties = row.pop("properties")
    assert (properties["formula"], properties["WAIT"], len(properties["UNIQ_KEY"])) == ("x=y", "true", 32)
    assert row == {
        "broker_name": "lake-local",
        "queue_id": 1,
        "queue_offset": 0,
        "tags": "new",
        "keys": "a b",
        "body": "text",
    }


def test_a_file_is_sent_in_parts_that_can_be_resumed(empty: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_request, "PART_MESSAGES", 2)
    path = write_lines(empty.folder / "orders.jsonl", [{"body": f"{n}"} for n in range(5)])
    asked = ("send", "--topic", "Orders", "--create", "--file", path, "--request", f"{DAY}-orders")
    first = empty.json(*asked)
    assert [(c["request_id"], c["messages"]) for c in first["commits"]] == [
        (f"{DAY}-orders", 2),
        (f"{DAY}-orders~2", 2),
        (f"{DAY}-orders~3", 1),
    ]
    write_lines(empty.folder / "orders.jsonl", [{"body": f"{n}"} for n in range(5)] + [{"body": "5"}] * 2)
    again = empty(*asked)
    assert again.exit_code == 2
    assert f"{DAY}-orders was already used for other messages (in the store: 5;" in again.err
    write_lines(empty.folder / "orders.jsonl", [{"body": f"{n}"} for n in range(5)])
    assert {c["status"] for c in empty.json(*asked)["commits"]} == {"already_committed"}
    assert bodies(empty) == ["0", "1", "2", "3", "4"]


def in_parts_of_two(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Answer]:
    """Sends a file with a message per letter, under one id."""
    monkeypatch.setattr(send_request, "PART_MESSAGES", 2)

    def send(letters: str) -> Answer:
        path = write_lines(rmq.folder / "letters.jsonl", [{"body": letter} for letter in letters])
        return rmq("send", "--topic", "Orders", "--create", "--file", path, "--request", f"{DAY}-x")

    return send


@pytest.mark.parametrize(("first", "other"), [("ab", "abc"), ("abc", "ab"), ("abc", "abd")])
def test_a_finished_request_gets_no_more_messages_and_no_fewer(
    empty: Rmq, monkeypatch: pytest.MonkeyPatch, first: str, other: str
) -> None:
    send = in_parts_of_two(empty, monkeypatch)
    assert send(first).exit_code == 0
    refused = send(other)
    assert refused.exit_code == 2
    assert f"{DAY}-x was already used for other messages (in the store: {len(first)};" in refused.err
    assert bodies(empty) == list(first)


@pytest.mark.parametrize("other", ["abd", "ab", "abcd"])
def test_a_request_that_was_cut_is_finished_by_its_own_messages_only(
    empty: Rmq, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    send = in_parts_of_two(empty, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr(send_request, "send", sends_once())
        assert send("abc").exit_code != 0
    refused = send(other)
    assert refused.exit_code == 2
    assert "(in the store: 2 of 3; commit" in refused.err
    assert bodies(empty) == ["a", "b"]
    assert send("abc").exit_code == 0
    assert bodies(empty) == ["a", "b", "c"]


def sends_once() -> Callable[..., SendReport]:
    """``send`` in a process that ends before its second commit."""
    left = iter([1])

    def send(*args: Any, **more: Any) -> SendReport:
        if next(left, None) is None:
            raise StaleAttempt("the process ends")
        return send_in_lake(*args, **more)

    return send


def earlier_version(*args: Any, **more: Any) -> Proposal:
    """``send_proposal`` of a version that recorded nothing of the whole request."""
    proposal = send_proposal(*args, **more)
    parameters = {name: value for name, value in json.loads(proposal.ctl.parameters).items() if name != "whole"}
    return replace(proposal, ctl=replace(proposal.ctl, parameters=canonical_json(parameters)))


@pytest.mark.parametrize("cut", [False, True], ids=["before the request", "between its parts"])
def test_a_commit_that_a_user_gave_the_id_of_a_part_is_no_part(
    empty: Rmq, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    send = in_parts_of_two(empty, monkeypatch)
    if cut:
        with monkeypatch.context() as patched:
            patched.setattr(send_request, "send", sends_once())
            assert send("abc").exit_code != 0
    store = LakeStore.open(Root.parse(str(empty.root)))
    shard = store.create_shard("local")
    with monkeypatch.context() as patched:
        patched.setattr("rmq_store.lake.window.send.send_proposal", earlier_version)
        send_in_lake(store, shard, [Message("Orders", b"c")], f"{DAY}-x~2", ANA, Host(), create_queues=4)
    before = bodies(empty)
    refused = send("abc")
    assert refused.exit_code == 2
    assert f"{DAY}-x~2 was already used for other messages (in the store: 1;" in refused.err
    assert bodies(empty) == before


def test_a_request_of_an_earlier_version_is_compared_part_by_part(empty: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    send = in_parts_of_two(empty, monkeypatch)
    with monkeypatch.context() as patched:
        patched.setattr("rmq_store.lake.window.send.send_proposal", earlier_version)
        patched.setattr(send_request, "send", sends_once())
        assert send("abc").exit_code != 0
    assert "(in the store: 2; commit" in send("axc").err
    assert send("abc").exit_code == 0
    assert send("abd").exit_code == 2
    assert (send("abc").exit_code, send("ab").exit_code) == (0, 0)
    assert bodies(empty) == ["a", "b", "c"]


@pytest.fixture
def two_shards(empty: Rmq) -> Rmq:
    """Both shards have Orders; only s1 has Left, only s2 has Right. One message in each."""
    for shard, topic in (("s1", "Orders"), ("s2", "Orders"), ("s1", "Left"), ("s2", "Right")):
        empty.json("send", "--topic", topic, "--create", "--shard", shard, "first")
    return empty


def test_a_request_is_sent_once_whatever_shard_is_chosen(two_shards: Rmq) -> None:
    asked = ("send", "--topic", "Orders", "--request", f"{DAY}-x", "--shard")
    assert two_shards.json(*asked, "s1", "pay")["status"] == "committed"
    again = two_shards.json(*asked, "s2", "pay")
    assert (again["status"], again["commits"][0]["shard"]) == ("already_committed", "s1")
    for shard in ("s1", "s2"):
        refused = two_shards(*asked, shard, "other")
        assert refused.exit_code == 2
        assert f"{DAY}-x was already used for other messages (in the store: 1;" in refused.err
    assert bodies(two_shards) == ["first", "first", "pay"]


def test_a_request_is_refused_for_a_topic_of_another_shard(two_shards: Rmq) -> None:
    asked = ("send", "--request", f"{DAY}-x", "--topic")
    assert two_shards.json(*asked, "Left", "pay")["status"] == "committed"
    refused = two_shards(*asked, "Right", "pay")
    assert refused.exit_code == 2
    assert f"{DAY}-x was already used for other messages" in refused.err
    assert bodies(two_shards, "Right") == ["first"]


@pytest.mark.parametrize("shard", [(), ("--shard", "s2")], ids=["no shard", "the other shard"])
def test_a_topic_that_came_to_another_shard_since_changes_no_request(two_shards: Rmq, shard: tuple[str, ...]) -> None:
    asked = ("send", "--topic", "Left", "--request", f"{DAY}-x", "pay")
    assert two_shards.json(*asked)["status"] == "committed"
    two_shards.json("send", "--topic", "Left", "--create", "--shard", "s2", "of s2")
    again = two_shards.json(*asked, *shard)
    assert (again["status"], again["commits"][0]["shard"]) == ("already_committed", "s1")
    assert bodies(two_shards, "Left") == ["first", "of s2", "pay"]


@pytest.mark.parametrize("shard", [(), ("--shard", "s1"), ("--shard", "s2")], ids=["no shard", "s1", "s2"])
def test_a_request_that_was_cut_between_two_shards_is_finished_in_the_other(
    two_shards: Rmq, monkeypatch: pytest.MonkeyPatch, shard: tuple[str, ...]
) -> None:
    topics = [{"topic": topic, "body": "pay"} for topic in ("Left", "Right", "Left")]
    path = write_lines(two_shards.folder / "both.jsonl", topics)
    asked = ("send", "--file", path, "--request", f"{DAY}-x")
    with monkeypatch.context() as patched:
        patched.setattr(send_request, "send", sends_once())
        assert two_shards(*asked).exit_code != 0
    two_shards.json("send", "--topic", "Right", "--create", "--shard", "s1", "of s1")
    refused = two_shards("send", "--topic", "Left", "--request", f"{DAY}-x", "pay")
    assert (refused.exit_code, "in the store: 2 of 3;" in refused.err) == (2, True)
    rest = two_shards.json(*asked, *shard)
    assert [(c["status"], c["shard"]) for c in rest["commits"]] == [("already_committed", "s1"), ("committed", "s2")]
    assert {c["status"] for c in two_shards.json(*asked, *shard)["commits"]} == {"already_committed"}
    assert bodies(two_shards, "Left") == ["first", "pay", "pay"]
    assert bodies(two_shards, "Right") == ["first", "of s1", "pay"]


def test_a_request_that_an_earlier_version_has_sent_to_both_shards_is_sent_no_third_time(
    two_shards: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LakeStore.open(Root.parse(str(two_shards.root)))
    monkeypatch.setattr("rmq_store.lake.window.send.send_proposal", earlier_version)
    for shard in store.shards():
        send_in_lake(store, shard, [Message("Orders", b"pay")], f"{DAY}-x", ANA, Host())
    asked = ("send", "--topic", "Orders", "--request", f"{DAY}-x")
    for chosen in ((), ("--shard", "s2")):
        assert two_shards.json(*asked, *chosen, "pay")["status"] == "already_committed"
    assert two_shards(*asked, "other").exit_code == 2


def test_standard_input_is_a_file(empty: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b'{"topic": "Orders", "body": "a"}\n{"topic": "Returns", "body": "b", "delay_level": 1}\n'
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    sent = empty.json("send", "--create", "--file", "-")
    assert (sent["messages"], sent["delayed"], sorted(sent["created"])) == (2, 1, ["Orders", "Returns"])


def test_every_problem_of_a_file_is_told_with_its_line_and_nothing_is_sent(empty: Rmq) -> None:
    path = write_lines(empty.folder / "bad.jsonl", [{"body": "x"}, {"body": ""}, {"body": "x", "tags": " "}])
    answer = empty("send", "--topic", "Orders", "--create", "--file", path)
    assert answer.exit_code == 2
    assert "has 2 problems: line 2: a message needs a body" in answer.err
    assert "line 3: the tag is blank" in answer.err
    assert empty.json("topics")["topics"] == []


def test_a_dry_run_writes_nothing_not_even_a_shard(empty: Rmq) -> None:
    planned = empty.json("send", "--topic", "Orders", "--create", "--dry-run", "text")
    assert (planned["status"], planned["messages"]) == ("dry_run", 1)
    assert not (empty.root / "shards").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--topic", "Orders", "text"), "there is no topic Orders; known: none. --create makes it"),
        (("text",), "the topic is missing"),
        (("--topic", "Orders"), "the body is missing"),
        (("--topic", "a.b", "--create", "text"), "characters other than"),
        (("--topic", "Orders", "--queues", "4", "text"), "add --create"),
        (("--topic", "Orders", "--property", "x", "text"), "'x' is not a property"),
        (("--topic", "Orders", "--property", "KEYS=x", "text"), "is used by system"),
        (("--topic", "Orders", "--create", "--queue", "broker-a:0", "text"), "is not a queue of the lake"),
        (("--topic", "Orders", "--create", "--queue", "lake-local:9", "text"), "no queue 9"),
        (("--topic", "Orders", "--create", "--delay", "soon", "text"), "invalid duration 'soon'"),
        (("--topic", "Orders", "--create", "--delay", "4d", "text"), "the maximum is 3 days"),
        (("--topic", "Orders", "--create", "--deliver-at", "2026-11-20T08:00:00", "text"), "zone"),
        (("--topic", "Orders", "--create", "--delay", "5s", "--delay-level", "2", "text"), "a message has one delay"),
        (("--topic", "Orders", "--file", "orders.jsonl", "--delay", "5s"), "each line has its own delay_ms"),
        (("--topic", "Orders", "--file", "orders.jsonl", "--tag", "x"), "each line has its own tags"),
        (("--topic", "Orders", "--file", "no-such.jsonl"), "no-such.jsonl cannot be read"),
        (("--topic", "Orders", "--file", "/dev/zero"), "it is a device, not a file"),
        (("--topic", "Orders", "--shard", "elsewhere", "text"), "no shard elsewhere"),
    ],
)
def test_wrong_use_says_what_is_wrong(empty: Rmq, arguments: tuple[str, ...], text: str) -> None:
    answer = empty("send", *arguments)
    assert (answer.exit_code, text in answer.err) == (2, True), answer.err


def test_a_topic_of_a_broker_gets_queues_of_the_lake_and_the_broker_s_stay_as_they_are(imported: Rmq) -> None:
    sent = imported.json("send", "--topic", "PaymentFlow", "text")
    assert (sent["created"], sent["commits"][0]["shard"]) == ({}, "broker-a")
    (queue,) = sent["queues"]
    assert (queue["broker_name"], queue["first_offset"]) == ("lake-broker-a", 0)
    near = imported("send", "--topic", "PaymentFlo", "text")
    assert "did you mean 'PaymentFlow'" in near.err


def test_a_number_of_queues_that_a_topic_does_not_get_is_noted(empty: Rmq) -> None:
    create = ("send", "--topic", "Orders", "--create", "--queues")
    first = empty.json(*create, "2", "text", "--request", f"{DAY}-first")
    note = "topic Orders is there, with 2 queues: --queues 6 is only for a new topic"
    for more in ((), ("--dry-run",)):
        answer = empty(*create, "6", "text", "--json", *more)
        assert (answer.exit_code, answer.json()["created"], answer.json()["notes"]) == (0, {}, [note])
        assert f"note: {note}" in answer.err
    again = empty.json(*create, "2", "text", "--request", f"{DAY}-first")
    others = [empty.json(*create, "2", "text"), empty.json(*create[:-1], "text")]
    assert [sent["notes"] for sent in (first, again, *others)] == [[]] * 4


def test_the_table_for_people_says_where_the_messages_went(empty: Rmq) -> None:
    answer = empty("send", "--topic", "Orders", "--create", "--queues", "1", "--delay-level", "3", "text")
    assert answer.exit_code == 0
    assert "new topic: Orders, 1 queues" in answer.out
    assert "delayed: 1" in answer.out
    assert "SCHEDULE_TOPIC_XXXX" in answer.out


def test_any_delay_is_told_by_the_views_and_delivered_when_it_is_over(empty: Rmq) -> None:
    empty.json("send", "--topic", "Orders", "--create", "--delay", "1h30m", "later")
    now_ms = Host().now_ms()
    sent = empty.json("send", "--topic", "Orders", "--deliver-at", str(now_ms + 90_000), "soon")
    assert (sent["delayed"], sent["queues"][0]["topic"]) == (1, "rmq_sys_wheel_timer")
    path = write_lines(empty.folder / "orders.jsonl", [{"body": "level", "delay_level": 18}, {"body": "now"}])
    assert empty.json("send", "--topic", "Orders", "--file", path)["delayed"] == 1
    types = {row["topic"]: row["type"] for row in empty.json("topics")["topics"]}
    assert types == {"Orders": "normal", "SCHEDULE_TOPIC_XXXX": "delay", "rmq_sys_wheel_timer": "timer"}
    waiting = "SELECT broker_name, real_topic, delay_level, deliver_at FROM delayed ORDER BY deliver_at"
    found = empty.json("sql", waiting)
    assert {(row["broker_name"], row["real_topic"]) for row in found} == {("lake-local~", "Orders")}
    assert [row["delay_level"] for row in found] == [None, None, 18]
    assert 0 <= found[0]["deliver_at"] - (now_ms + 90_000) < 1000
    assert empty.json("deliver", "--now", str(found[0]["deliver_at"] - 1))["delivered"] == 0
    assert empty.json("deliver", "--now", str(found[0]["deliver_at"]))["delivered"] == 1
    assert bodies(empty) == ["now", "soon"]
    assert empty.json("deliver", "--now", str(now_ms + 3 * 3_600_000))["delivered"] == 2
    assert (empty.json("sql", waiting), bodies(empty)) == ([], ["later", "level", "now", "soon"])
    assert empty("audit").exit_code == 0


def test_a_topic_without_messages_is_known_after_an_import(imported: Rmq) -> None:
    """EmptyRoom was made at the broker and never sent to."""
    topics = {row["topic"]: row for row in imported.json("topics")["topics"]}
    assert (topics["EmptyRoom"]["queues"], topics["EmptyRoom"]["messages"]) == (4, 0)
    assert topics["EmptyRoom"]["newest_store_timestamp"] is None
    assert not topics.keys() & {"TBW102", "oracle", "oracle_REPLY_TOPIC", "BenchmarkTest"}
