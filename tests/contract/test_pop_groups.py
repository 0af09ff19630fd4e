"""A broker with a group that pops is cut over: no message that it has popped and not acked is left behind in silence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rmq_store.lake.broker import popped_messages
from tests.contract.rmq import Rmq
from tests.contract.test_import_store import store_of

BROKER = ("--broker", "broker-a")
CUT_OVER = ("cutover", *BROKER, "--reason", "switched off")
REVIVE = "rmq_sys_REVIVE_LOG_c"
RETRIES = "%RETRY%g_T"


def message(topic: str, queue_offset: int, body: bytes = b"body", **properties: str) -> dict[str, Any]:
    place = {"topic": topic, "queue_id": 0, "queue_offset": queue_offset}
    return place | {"stored_body": body, "properties": properties}


def record(topic: str, queue_offset: int, tag: str, start: int, **properties: str) -> dict[str, Any]:
    """A check point of two messages from ``start`` on, or the ack of the first of them, in the revive log or the timer."""
    fields = {"c": "g", "t": "T", "q": 0, "so": start, "pt": 17, "bn": "broker-a"}
    body = json.dumps(fields | ({"n": 2, "bm": 0} if tag == "ck" else {"ao": start})).encode()
    return message(topic, queue_offset, body, TAGS=tag, UNIQ_KEY=f"{tag}{start}", **properties)


def in_timer(queue_offset: int, tag: str, start: int) -> dict[str, Any]:
    return record("rmq_sys_wheel_timer", queue_offset, tag, start, REAL_TOPIC=REVIVE, REAL_QID="0", TIMER_OUT_MS="1000")


READ = [
    *(message("T", number) for number in range(8)),
    message(RETRIES, 0),
    in_timer(0, "ck", 0),
    record(REVIVE, 0, "ck", 0, REAL_TOPIC=REVIVE, REAL_QID="0", TIMER_OUT_MS="1000"),
]
"""The group has popped and acked, or read as a retry, all of them."""
LOGGED = [record(REVIVE, 1, "ck", 2), record(REVIVE, 2, "ack", 2)]
"""One message of two is acked."""
TIMED = [in_timer(1, "ck", 4)]
RETRIED = [message(RETRIES, 1)]
OF_REVIVE = {f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP": 0}
OFFSETS = {"T@g": 8, f"{RETRIES}@g": 1} | OF_REVIVE


def imported(
    rmq: Rmq,
    messages: list[dict[str, Any]],
    *,
    kv_store: bool = False,
    mode: bool = True,
    offsets: Mapping[str, int] = OFFSETS,
    topics: Iterable[str] = (),
) -> Path:
    """A broker's store, imported. ``offsets``: by ``topic@group``; ``topics``: of ``topics.json``; none: no such file."""
    shutil.rmtree(rmq.folder / "broker", ignore_errors=True)
    folder = store_of(rmq.folder / "broker", *messages)
    (folder / "config").mkdir()
    table = {key: {"0": offset} for key, offset in offsets.items()}
    (folder / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    if topics:
        of_topics = {name: {"topicName": name} for name in topics}
        (folder / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": of_topics}))
    if mode:
        modes = {"messageRequestModeMap": {"T": {"g": {"mode": "POP"}}}}
        (folder / "config" / "messageRequestMode.json").write_text(json.dumps(modes))
    if kv_store:
        (folder / "kvStore").mkdir()
        (folder / "kvStore" / "CURRENT").write_text("MANIFEST-000005")
    if not (rmq.folder / "var" / "store").exists():
        rmq.json("init")
    rmq.json("import-store", str(folder), *BROKER)
    return folder


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize(
    ("more", "retries", "not_acked"),
    [(LOGGED, 0, 1), (TIMED, 0, 2), (RETRIED, 1, 0), ([*LOGGED, *TIMED, *RETRIED], 1, 3)],
)
def test_a_cut_over_is_refused_while_messages_wait_for_pop(
    rmq: Rmq, mode: bool, more: list[dict[str, Any]], retries: int, not_acked: int
) -> None:
    imported(rmq, [*READ, *more], mode=mode)
    words = f"group g: {retries} in its pop retry topics, {not_acked} popped and not acked"
    dry = rmq.json(*CUT_OVER, "--dry-run")
    assert dry["popped"]["groups"] == [{"group": "g", "retries": retries, "not_acked": not_acked}]
    assert any(words in note for note in dry["notes"])
    assert any("refused without --leave-popped" in note for note in dry["notes"])
    assert not any(REVIVE in note for note in dry["notes"])
    refused = rmq(*CUT_OVER)
    assert (refused.exit_code, words in refused.err, "--leave-popped" in refused.err) == (2, True, True)
    done = rmq.json(*CUT_OVER, "--leave-popped")
    assert (done["status"], any("stay unread here" in note for note in done["notes"])) == ("committed", True)
    (row,) = rmq.json("sql", "SELECT parameters FROM ctl WHERE action = 'cutover'")
    assert json.loads(row["parameters"])["popped"] == done["popped"]
    assert rmq.json("audit")["audit"] == []


def test_a_repeated_cut_over_answers_with_what_it_left_unread(rmq: Rmq) -> None:
    imported(rmq, [*READ, *RETRIED])
    request = (*CUT_OVER, "--leave-popped", "--request", "2026-01-01-cut")
    first, again = rmq.json(*request), rmq.json(*request)
    assert (again["status"], again["popped"]) == ("already_committed", first["popped"])
    assert again["popped"]["groups"] == [{"group": "g", "retries": 1, "not_acked": 0}]


def test_a_cut_over_goes_on_where_the_group_has_read_and_acked_everything(rmq: Rmq) -> None:
    imported(rmq, [*READ, *RETRIED])
    assert rmq(*CUT_OVER).exit_code == 2
    folder = imported(rmq, [*READ, *RETRIED])
    offsets = folder / "config" / "consumerOffset.json"
    offsets.write_text(offsets.read_text().replace(f'"{RETRIES}@g": {{"0": 1}}', f'"{RETRIES}@g": {{"0": 2}}'))
    rmq.json("import-store", str(folder), *BROKER)
    done = rmq.json(*CUT_OVER)
    assert (done["status"], done["popped"]["groups"], done["notes"]) == ("committed", [], [])


@pytest.mark.parametrize(
    ("topics", "offsets", "waiting"),
    [
        ([REVIVE], OF_REVIVE, []),
        ([REVIVE, "T"], {"T@g": 8} | OF_REVIVE, [{"group": "g", "retries": 0, "not_acked": 1}]),
        ([REVIVE, "T", RETRIES], OFFSETS, [{"group": "g", "retries": 1, "not_acked": 3}]),
        ([], OF_REVIVE, [{"group": "g", "retries": 2, "not_acked": 3}]),
    ],
    ids=["topic deleted", "its retry topic deleted", "none deleted", "a copy without topics.json"],
)
def test_what_was_deleted_with_its_topic_at_the_broker_does_not_wait(
    rmq: Rmq, topics: list[str], offsets: dict[str, int], waiting: list[dict[str, Any]]
) -> None:
    """Deleting a topic removes its offsets, so that nothing of it looks read, and no consumer gets it there."""
    of_retry = json.dumps({"c": "g", "t": RETRIES, "q": 0, "so": 0, "pt": 17, "bn": "broker-a", "n": 2, "bm": 0})
    popped_again = message(REVIVE, 3, of_retry.encode(), TAGS="ck", UNIQ_KEY="ck-retry")
    imported(rmq, [*READ, *LOGGED, popped_again, *RETRIED], offsets=offsets, topics=topics)
    assert rmq.json(*CUT_OVER, "--dry-run")["popped"]["groups"] == waiting
    assert rmq(*CUT_OVER).exit_code == (2 if waiting else 0)


def test_a_database_of_popped_messages_may_have_others(rmq: Rmq) -> None:
    imported(rmq, READ, kv_store=True, mode=False)
    refused = rmq(*CUT_OVER)
    assert (refused.exit_code, "kvStore" in refused.err) == (2, True)
    assert rmq.json(*CUT_OVER, "--leave-popped")["popped"] == {"groups": [], "has_kv_store": True, "unread_records": 0}


def test_a_cut_over_is_refused_where_there_are_too_many_records_to_be_counted(
    rmq: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of them could have acks without their check points, or leave out the queue in which a message waits."""
    imported(rmq, [*READ, *LOGGED, *TIMED])
    monkeypatch.setattr(popped_messages, "_MOST_RECORDS", 2)
    refused = rmq(*CUT_OVER)
    assert (refused.exit_code, "too many to count" in refused.err) == (2, True)
    popped = rmq.json(*CUT_OVER, "--leave-popped")["popped"]
    assert (popped["groups"], popped["unread_records"] > 2) == ([], True)


def test_a_hand_back_takes_no_pop_retry_topic_for_that_of_a_group(rmq: Rmq) -> None:
    imported(rmq, [*READ, *RETRIED])
    rmq.json(*CUT_OVER, "--leave-popped")
    rmq.json("hand-back", *BROKER, "--reason", "it runs again")
    rows = rmq.json("sql", "SELECT DISTINCT group_name FROM offset_history WHERE group_name LIKE 'g%'")
    assert [row["group_name"] for row in rows] == ["g"]
    assert rmq(*CUT_OVER).exit_code == 2
