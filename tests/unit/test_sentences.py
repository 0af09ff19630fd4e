"""What runs did, in words."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.admin import sentences

WINDOW: dict[str, Any] = {
    "status": "committed", "complete": True, "messages": 1400, "outcomes": {"acked": 999, "retried": 401},
    "retry_levels": {"3": 401}, "ranges": {f"T a:{n}": [0, 200] for n in range(7)}, "next_retry_ms": 1_772_366_400_000,
    "blocked_queues": 0, "not_consumed": 0, "warnings": [],
}  # fmt: skip
FINISHED: dict[str, Any] = {
    "status": "committed", "rounds": 2, "messages": 30, "outcomes": {"acked": 28, "dead": 2}, "blocked_queues": 0,
    "not_consumed": 0, "warnings": [],
}  # fmt: skip
BLOCKED = {"blocked_queues": 2, "not_consumed": 1041, "warnings": ["w"]}
WAIT = "2 queues wait at a failed message (see the view blocked), 1,041 messages not consumed; 1 warning in the log"
DELIVERED: dict[str, Any] = {"status": "committed", "delivered": 1, "next_due_ms": None, "warnings": []}
REDRIVEN: dict[str, Any] = {"status": "committed", "letters": 12, "failed": 0, "topic": "%RETRY%g", "warnings": []}
RESET: dict[str, Any] = {"status": "committed", "moves": [["a:0", 225, 0], ["a:1", 225, 0]], "warnings": []}
REPLAY: dict[str, Any] = {
    "status": "dry_run", "messages": 900, "bytes": 12_000, "filtered": 0, "dropped": 0, "lost": 0, "last_attempts": 0,
    "queues": [{}], "time": "about 3 s: 900 messages at 300/s, the last window of orders", "notes": [],
}  # fmt: skip
IMPORTED: dict[str, Any] = {
    "status": "committed", "messages": 5000, "queues": 1, "broker_name": "broker-a", "end": 4096, "salvaged": 0,
    "warnings": [],
}  # fmt: skip
KEPT: dict[str, Any] = {
    "messages_removed": 0, "messages_lost": 0, "joined": 0, "checkpoint": False, "log_files_deleted": 0, "files_deleted": 0,
    "before": {}, "warnings": [],
}  # fmt: skip
EXPORTED: dict[str, Any] = {"broker_name": "broker-a", "changed": False, "lowered": 0, "notes": []}
LOWERED = "offsets of broker-a, which consumes again from there"
WOULD_READ = "would read 900 messages (12,000 bytes) of 1 queue"
BEFORE = "the request was committed before, nothing was done now: "
COUNTS = "1,400 messages: 999 acked, 401 retried"
TWO_QUEUES = "offsets of 2 queues, from 5 -> 6 to 0 -> 9"
PLANNED: dict[str, Any] = {
    "status": "committed",
    "messages": 5,
    "groups_with_work": 1,
    "planned_groups": 3,
    "blocked_queues": 0,
    "not_consumed": 0,
    "warnings": [],
}


@pytest.mark.parametrize(
    ("kind", "answer", "sentence"),
    [
        (
            "window",
            WINDOW,
            f"{COUNTS} at level 3; offsets 0 -> 200 in 7 queues; next retry due at 2026-03-01T12:00:00.000Z",
        ),
        (
            "window",
            WINDOW | {"status": "already_committed", "next_retry_ms": None, "retry_levels": {}, "ranges": {"T a:0": [0, 1400]}},
            f"{BEFORE}{COUNTS}; offsets 0 -> 1400 in 1 queue",
        ),
        (
            "window",
            WINDOW | {"retry_levels": {"10": 1, "3": 400}, "ranges": {"a": [0, 9], "b": [5, 6]}, "next_retry_ms": None}
            | {"complete": False, "warnings": ["w"]},
            f"{COUNTS} (400 at level 3, 1 at level 10); {TWO_QUEUES}; more to come; 1 warning in the log",
        ),
        (
            "window",
            WINDOW | {"messages": 0, "outcomes": {}, "retry_levels": {}, "ranges": {}, "next_retry_ms": None},
            "no messages",
        ),
        (
            "window",
            WINDOW | {"messages": 0, "outcomes": {}, "retry_levels": {}, "ranges": {"T a:0": [15, 15]}, "next_retry_ms": None}
            | BLOCKED,
            f"no messages; offsets 15 -> 15 in 1 queue; {WAIT}",
        ),
        ("finish", FINISHED, "2 rounds of retries, 30 messages: 28 acked, 2 dead; none is left"),
        (
            "finish",
            FINISHED | {"status": "already_committed", "rounds": 1},
            f"{BEFORE}1 round of retries, 30 messages: 28 acked, 2 dead; none is left",
        ),
        ("finish", FINISHED | {"rounds": 0}, "no message of the replay is left to retry"),
        ("finish", FINISHED | {"rounds": 0} | BLOCKED, f"no message of the replay is left to retry; {WAIT}"),
        ("finish", FINISHED | BLOCKED, f"2 rounds of retries, 30 messages: 28 acked, 2 dead; none is left; {WAIT}"),
        ("deliver", [DELIVERED], "1 message delivered; nothing else waits"),
        (
            "deliver",
            [DELIVERED, DELIVERED | {"next_due_ms": 1_772_366_400_000}],
            "2 messages delivered; the next message is due at 2026-03-01T12:00:00.000Z",
        ),
        (
            "deliver",
            [DELIVERED | {"status": "already_committed"}, DELIVERED | {"status": "empty", "delivered": 0}],
            f"{BEFORE}1 message delivered; nothing else waits",
        ),
        ("deliver", [DELIVERED, DELIVERED | {"status": "already_committed"}], "2 messages delivered; nothing else waits"),
        ("redrive", [REDRIVEN], "12 dead letters sent to %RETRY%g"),
        (
            "redrive",
            [REDRIVEN | {"status": "dry_run", "failed": 2, "letters": 1}],
            "1 dead letter would be sent to %RETRY%g; 2 cannot be edited",
        ),
        ("moves", [RESET], "moved: offsets 225 -> 0 in 2 queues"),
        ("moves", [RESET | {"status": "dry_run"}], "would move: offsets 225 -> 0 in 2 queues"),
        ("moves", [RESET | {"moves": [["a:0", 3, 3]]}], "no offset changes: 1 queue looked at"),
        ("moves", [RESET | {"moves": [["a:0", None, 3]]}], "moved: offsets none -> 3 in 1 queue"),
        ("moves", [RESET | {"moves": [["a:0", 3, None]]}], "moved: offsets 3 -> none in 1 queue"),
        (
            "moves",
            [RESET | {"status": "dry_run", "again": [450, 1], "skipped": [0, 0]}, RESET | {"status": "dry_run"}],
            "would move: offsets 225 -> 0 in 4 queues; 450 messages (1 byte) would be read again",
        ),
        (
            "replay_preview",
            REPLAY,
            f"{WOULD_READ}; about 3 s: 900 messages at 300/s, the last window of orders",
        ),
        (
            "replay_preview",
            REPLAY | {"filtered": 2, "lost": 1, "last_attempts": 3, "time": "1 s", "notes": ["a note"]},
            f"{WOULD_READ}, 2 of them filtered, 1 lost, 3 become dead letters if they fail; 1 s; a note",
        ),
        (
            "replay_preview",
            REPLAY | {"status": "already_committed"},
            "the request was committed before, there is nothing left to do",
        ),
        (
            "replay_preview",
            REPLAY | {"status": "already_committed", "notes": ["1 queue waits"]},
            "the request was committed before, there is nothing left to do; 1 queue waits",
        ),
        (
            "replay_preview",
            REPLAY | {"status": "already_committed", "to_finish": 2},
            "the request was committed before; 2 retries would be consumed as they become due",
        ),
        (
            "replay_preview",
            REPLAY | {"to_finish": 1, "time": "1 s"},
            f"{WOULD_READ}; 1 retry would be consumed as it becomes due; 1 s",
        ),
        (
            "replay_preview",
            REPLAY | {"queues": [], "to_finish": 1, "notes": ["a note"]},
            "1 retry would be consumed as it becomes due; a note",
        ),
        ("import", IMPORTED, "5,000 messages of 1 queue imported from broker-a; its log is read up to 4,096"),
        ("import", IMPORTED | {"status": "unchanged"}, "broker broker-a has no new messages"),
        ("maintain", [KEPT], "there was nothing to do"),
        (
            "maintain",
            [KEPT | {"checkpoint": True, "log_files_deleted": 2}, KEPT | {"files_deleted": 1}],
            "1 checkpoint written, 2 log files deleted, 1 data file deleted",
        ),
        (
            "maintain",
            [KEPT | {"before": {"messages_removed": 273, "messages_lost": 0}}, KEPT],
            f"{BEFORE}273 messages removed",
        ),
        (
            "maintain",
            [KEPT | {"joined": 2, "before": {"joined": 4, "removed_rows": 9, "archived_rows": 0}, "warnings": ["w"]}],
            "the request was committed before: 4 files joined; now 2 files joined; 1 warning in the log",
        ),
        ("maintain", [KEPT | {"before": {"files_to_delete": 3}}], f"{BEFORE}up to 3 data files deleted"),
        ("dispatch", {"shard-1": 4, "shard-2": 1}, "5 commits dispatched, the sum over the derived tables"),
        ("dispatch", {"shard-1": 0}, "no commit was left to dispatch"),
        ("export", [], "no broker was imported"),
        ("export", [EXPORTED], "offsets of 1 broker exported: no file changed"),
        (
            "export",
            [EXPORTED | {"changed": True, "lowered": 1_200, "notes": ["n"]}, EXPORTED | {"broker_name": "b", "changed": True}],
            f"offsets of 2 brokers exported: the files of broker-a, b changed; lowered: 1,200 {LOWERED}; 1 note in the log",
        ),
        ("planned", PLANNED, "5 messages of 1 of 3 planned groups"),
        ("planned", PLANNED | BLOCKED, f"5 messages of 1 of 3 planned groups; {WAIT}"),
    ],
)  # fmt: skip
def test_an_answer_in_words(kind: str, answer: Any, sentence: str) -> None:
    assert getattr(sentences, f"{kind}_sentence")(answer) == sentence


def test_an_earlier_try_of_a_step_that_records_no_request_is_not_left_out() -> None:
    more = "an earlier try may have done more than was recorded"
    assert sentences.maintain_sentence([KEPT], is_partly_recorded=True) == f"there was nothing left to do; {more}"
    assert sentences.maintain_sentence([KEPT | {"joined": 1}], is_partly_recorded=True) == f"1 file joined; {more}"


def test_a_delivery_that_failed_in_some_shards_does_not_say_what_waits() -> None:
    sentence = sentences.deliver_sentence([DELIVERED], failed={"b": "HeldByAnother", "c": "LogDamaged"})
    assert sentence == "1 message delivered; failed in shard b (HeldByAnother), c (LogDamaged)"


def test_a_run_of_planned_groups_names_those_that_failed() -> None:
    sentence = sentences.planned_sentence(PLANNED | {"groups_with_work": 3}, {"b": "ListenerError", "c": "LogDamaged"})
    assert sentence == "5 messages of 3 of 3 planned groups; failed: b (ListenerError), c (LogDamaged)"
