"""Records of a broker's log that say a wrong place: no checksum covers their topic, QUEUEID, QUEUEOFFSET and SYSFLAG."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_store.broker_files.commit_log_file import list_commit_log, read_log
from rmq_store.broker_files.consume_queue_file import ConsumeQueueFiles
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.lake.broker import import_slice, import_store
from rmq_store.lake.broker.entry_reader import EntryReader
from rmq_store.lake.broker.import_part import LogRead, read_part
from rmq_store.log.consume_queue import UNIT_BYTES
from rmq_store.log.record import Record
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC
from tests.contract.rmq import Rmq
from tests.contract.test_diverged_log import LISTENER
from tests.contract.test_import_store import FILE_BYTES, Lake
from tests.contract.test_lost_ends import log_of
from tests.contract.test_queue_generations import OVER_GAPS, broker_of, configs_of, with_queues

IN_LOG = "SELECT topic, queue_id, queue_offset, decode(body) AS body FROM messages ORDER BY ALL"
QUEUEID_AT, QUEUEOFFSET_AT, SYSFLAG_AT, STORETIMESTAMP_AT = 12, 20, 36, 56
QUEUE = MessageQueue("T", "broker-a", 0)
MESSAGES = 8
"""Of each queue. Those of queue 1 follow half of those of queue 0."""


def message(topic: str, queue_id: int, offset: int) -> dict[str, Any]:
    body = f"{topic}{queue_id}{offset}".encode()
    return {"topic": topic, "queue_id": queue_id, "queue_offset": offset, "stored_body": body}


def sent(first: int, last: int) -> list[dict[str, Any]]:
    """The messages with these offsets of T:0 and U:0, and half as far those of T:1."""
    messages = []
    for n in range(first, last):
        messages += [message("T", 0, n), message("U", 0, n)]
        messages += [message("T", 1, n - MESSAGES // 2)] if n >= MESSAGES // 2 else []
    return messages


def broker(folder: Path, last: int = MESSAGES, more: Sequence[dict[str, Any]] = ()) -> Path:
    return configs_of(broker_of(folder, [*sent(0, last), *more]), {"T@g": 0, "U@g": 0})


def change(folder: Path, body: str, at: int, data: bytes) -> None:
    """Write over bytes of the record with this body, from ``at`` on."""
    source = LocalFileSource(folder)
    for file, item in list(read_log(source, list_commit_log(source))):
        if isinstance(item, Record) and item.stored_body.decode() == body:
            log = bytearray(Path(folder, file.name).read_bytes())
            begin = item.commit_log_offset - file.start_offset + at
            log[begin : begin + len(data)] = data
            Path(folder, file.name).write_bytes(log)


def other_offset(body: str, offset: int) -> Callable[[Path], None]:
    return lambda folder: change(folder, body, QUEUEOFFSET_AT, struct.pack(">q", offset))


def other_queue(body: str, queue_id: int) -> Callable[[Path], None]:
    return lambda folder: change(folder, body, QUEUEID_AT, struct.pack(">i", queue_id))


def other_topic(body: str, topic: str) -> Callable[[Path], None]:
    topic_at = 88 + len(body) + 1
    return lambda folder: change(folder, body, topic_at, topic.encode())


def prepared(body: str) -> Callable[[Path], None]:
    return lambda folder: change(folder, body, SYSFLAG_AT, struct.pack(">i", 4))


CHANGES = {
    "free offset further on": ("T03", other_offset("T03", 3 ^ 1 << 6)),
    "free offset, the farthest": ("T03", other_offset("T03", 3 ^ 1 << 61)),
    "offset of a later one": ("T03", other_offset("T03", 7)),
    "offset of an earlier one": ("T03", other_offset("T03", 2)),
    "offset 0": ("T04", other_offset("T04", 0)),
    "queue with a free place": ("T06", other_queue("T06", 1)),
    "next queue, which goes on": ("T07", other_queue("T07", 1)),
    "queue without messages": ("T03", other_queue("T03", 1 << 9)),
    "queue of the last one": ("T07", other_queue("T07", 4)),
    "topic without messages": ("T03", other_topic("T03", "V")),
    "topic of other messages": ("T03", other_topic("T03", "U")),
    "topic of the last one": ("T07", other_topic("T07", "V")),
    "transaction": ("T03", prepared("T03")),
    "transaction of the last one": ("T07", prepared("T07")),
}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def rmq_with_listener(rmq: Rmq) -> Rmq:
    (rmq.folder / "consumers.toml").write_text(OVER_GAPS)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    rmq.json("init")
    return rmq


@pytest.mark.parametrize("name", CHANGES)
def test_a_record_to_which_the_entry_of_another_place_points_is_damaged(rmq_with_listener: Rmq, name: str) -> None:
    """It is named, and a salvage leaves it out: no group consumes it at a place where it never was."""
    rmq, (body, damage) = rmq_with_listener, CHANGES[name]
    folder = broker(rmq.folder / "broker")
    damage(folder)
    refused = rmq("import-store", str(folder), "--broker", "broker-a")
    assert refused.exit_code == 1
    assert "damaged record" in refused.err
    reason = f"the broker's entry of T:0 offset {body[-1]} points to it"
    if name.startswith("free"):
        reason = f"its QUEUEOFFSET {3 ^ 1 << 6 if name.endswith('on') else 3 ^ 1 << 61} is not the one"
    assert reason in refused.err
    assert "--salvage" in refused.err
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    (skipped,) = report["salvaged"]
    assert reason in skipped["reason"]
    expected = sorted(
        (m["topic"], m["queue_id"], m["queue_offset"], m["stored_body"].decode()) for m in sent(0, MESSAGES)
    )
    assert in_log(rmq) == [place for place in expected if place[3] != body]
    later = broker(folder, MESSAGES + 2)
    damage(later)
    is_last = body == "T07"
    report = rmq.json("import-store", str(later), "--broker", "broker-a", *(["--salvage"] if is_last else []))
    gaps = [(gap["topic"], gap["queue_id"], gap["begin"], gap["end"]) for gap in report["queue_gaps"]]
    assert gaps == ([("T", 0, 7, 8)] if is_last else [])
    rmq.json("cutover", "--broker", "broker-a", "--reason", "switched off")
    rmq.json("consume", "--group", "g")
    bodies = (rmq.folder / "bodies.txt").read_text().split()
    assert sorted(bodies) == sorted(
        m["stored_body"].decode()
        for m in sent(0, MESSAGES + 2)
        if m["topic"] == "T" and m["stored_body"] != body.encode()
    )
    assert rmq.json("audit", "--full")["audit"] == []


def delayed(offset: int) -> dict[str, Any]:
    """A message of delay level 3 with this offset of the level's queue."""
    properties = {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "0", "TAGS": "a"}
    return message(SCHEDULE_TOPIC, 2, offset) | {"stored_body": f"D{offset}".encode(), "properties": properties}


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("says", ["SCHEDULE_TOPIC_XXXY:2", "SCHEDULE_TOPIC_XXXX:9"])
def test_a_delayed_message_to_which_the_entry_of_its_level_points_is_damaged(
    rmq_with_listener: Rmq, at: int, says: str
) -> None:
    """The first one, one in the middle and the last one of its level: the entry has the delivery time, not the code of TAGS,
    whatever topic the record says."""
    rmq, (topic, queue_id) = rmq_with_listener, says.split(":")
    folder = broker(rmq.folder / "broker", more=[delayed(n) for n in range(3)])
    for damage in (other_topic(f"D{at}", topic), other_queue(f"D{at}", int(queue_id))):
        damage(folder)
    refused = rmq("import-store", str(folder), "--broker", "broker-a")
    reason = f"the broker's entry of {SCHEDULE_TOPIC}:2 offset {at} points to it"
    assert (refused.exit_code, reason in refused.err) == (1, True)
    if not at:  # it may be the first one of a new queue, of which the copy has no entry yet
        assert f"says that it is {says} offset 0, of which there is no entry" in refused.err
        return
    assert "damaged record" in refused.err
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    assert [skip["reason"] for skip in report["salvaged"]] == [reason]
    assert [row[:3] for row in in_log(rmq) if row[0].startswith("SCHEDULE")] == [
        (SCHEDULE_TOPIC, 2, n) for n in range(3) if n != at
    ]


def test_a_record_that_says_by_damage_that_it_is_delayed_is_compared_with_its_own_entry(
    rmq_with_listener: Rmq,
) -> None:
    """Its entry has the code of its TAGS. One with another code is of another message, and makes nothing wrong."""
    rmq = rmq_with_listener
    topic = "SCHEDULE_TOPIC_XXXY"
    folder = broker(rmq.folder / "broker", more=[message(topic, 0, n) | {"stored_body": b"Y%d" % n} for n in range(3)])
    other_topic("Y2", SCHEDULE_TOPIC)(folder)
    refused = rmq("import-store", str(folder), "--broker", "broker-a")
    assert f"the broker's entry of {topic}:0 offset 2 points to it" in refused.err
    entries = bytearray(entries_of(folder, f"{topic}/0").read_bytes())
    struct.pack_into(">q", entries, 2 * UNIT_BYTES + 12, 7)
    entries_of(folder, f"{topic}/0").write_bytes(entries)
    assert rmq.json("import-store", str(folder), "--broker", "broker-a")["messages"] == 23


def test_an_entry_of_a_delayed_message_that_the_broker_lost_makes_no_record_wrong(rmq_with_listener: Rmq) -> None:
    """It points to a message of the same size that is not delayed, whose own entry is not in the copy yet."""
    rmq = rmq_with_listener
    folder = broker(rmq.folder / "broker", more=[delayed(0), delayed(1)])
    left_over = entries_of(folder, f"{SCHEDULE_TOPIC}/2").read_bytes()
    plain = {"topic": "NO_SCHEDULE_TOPIC_X", "properties": delayed(1)["properties"] | {"DELAX": "3"}}
    del plain["properties"]["DELAY"]
    folder = broker(folder, more=[delayed(0), message("", 0, 0) | {"stored_body": b"P0"} | plain])
    shutil.rmtree(folder / "consumequeue/NO_SCHEDULE_TOPIC_X")
    entries_of(folder, f"{SCHEDULE_TOPIC}/2").write_bytes(left_over)
    report = rmq.json("import-store", str(folder), "--broker", "broker-a")
    assert (report["messages"], report["salvaged"]) == (22, [])


def in_log(rmq: Rmq) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in rmq.json("sql", IN_LOG)]


@pytest.mark.parametrize("offset", [3 ^ 1 << 6, 3 ^ 1 << 61, 1, 2, 0, 5])
@pytest.mark.parametrize("without", ["consumequeue", "consumequeue/T"])
def test_without_entries_the_records_around_it_tell(rmq_with_listener: Rmq, without: str, offset: int) -> None:
    rmq = rmq_with_listener
    folder = broker(rmq.folder / "broker")
    other_offset("T03", offset)(folder)
    shutil.rmtree(folder / without)
    refused = rmq("import-store", str(folder), "--broker", "broker-a")
    assert refused.exit_code == 1
    assert (
        f"its QUEUEOFFSET {offset} is not the one that the messages of {QUEUE} before and after it leave" in refused.err
    )
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    assert len(report["salvaged"]) == 1
    later = broker(folder, MESSAGES + 2)
    other_offset("T03", offset)(later)
    shutil.rmtree(folder / without)
    assert rmq.json("import-store", str(later), "--broker", "broker-a")["messages"] == 6
    assert [row[3] for row in in_log(rmq)] == sorted(
        m["stored_body"].decode() for m in sent(0, MESSAGES + 2) if m["stored_body"] != b"T03"
    )
    assert rmq.json("audit")["audit"] == []


@pytest.mark.parametrize("known", [False, True])
def test_without_entries_a_record_farther_on_than_any_broker_is_damaged(rmq_with_listener: Rmq, known: bool) -> None:
    """It would stop each import after it, and a group would count the offsets before it one by one. Also in a new queue."""
    rmq, body = rmq_with_listener, "T07" if known else "V00"
    folder = broker(rmq.folder / "broker", more=[message("V", 0, 0)])
    offset = int(body[-1]) ^ 1 << 40
    other_offset(body, offset)(folder)
    shutil.rmtree(folder / "consumequeue")
    reason = f"its QUEUEOFFSET is {offset}, but {MessageQueue(body[0], 'broker-a', 0)} ends at {body[-1]} before it"
    refused = rmq("import-store", str(folder), "--broker", "broker-a")
    assert (refused.exit_code, reason in refused.err) == (1, True)
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    assert [skip["reason"] for skip in report["salvaged"]] == [reason]
    later = broker(folder, MESSAGES, more=[message("V", 0, 0), message("T", 0, 8), message("V", 0, 1)])
    other_offset(body, offset)(later)
    shutil.rmtree(folder / "consumequeue")
    report = rmq.json("import-store", str(later), "--broker", "broker-a", "--salvage")
    assert [(gap["topic"], gap["begin"], gap["end"]) for gap in report["queue_gaps"]] == [
        (body[0], int(body[-1]), int(body[-1]) + 1)
    ]


def test_entries_that_are_not_written_yet_stop_nothing(rmq_with_listener: Rmq) -> None:
    """Those of the last messages, of a queue, and of a broker that dispatched to another queue first."""
    rmq = rmq_with_listener
    folder = broker(rmq.folder / "broker")
    for file, first in (("consumequeue/T/0", 6), ("consumequeue/T/1", 0)):
        (path,) = (folder / file).iterdir()
        path.write_bytes(path.read_bytes()[: first * UNIT_BYTES].ljust(path.stat().st_size, b"\0"))
    assert rmq.json("import-store", str(folder), "--broker", "broker-a")["messages"] == 20


def entries_of(folder: Path, queue: str = "T/0") -> Path:
    (path,) = (folder / "consumequeue" / queue).iterdir()
    return path


def test_a_record_that_may_be_one_of_a_deleted_topic_is_in_no_queue(rmq_with_listener: Rmq) -> None:
    """The messages of the queue that it says, and their entries, come later in the log."""
    rmq = rmq_with_listener
    folder = broker(rmq.folder / "broker")
    other_queue("T03", 1)(folder)
    refused = rmq("import-store", str(folder), "--broker", "broker-a")
    assert (refused.exit_code, "no message at [3, 4)" in refused.err) == (1, True)
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    assert (report["salvaged"], report["deleted"], len(report["queue_gaps"])) == ([], 1, 1)
    rmq.json("cutover", "--broker", "broker-a", "--reason", "switched off")
    rmq.json("consume", "--group", "g")
    assert "T03" not in (rmq.folder / "bodies.txt").read_text().split()


UNCERTAIN = {
    "a last one, further on": ("T07", other_offset("T07", 7 ^ 1 << 6), "T:0 offset 71"),
    "the first one of its queue, of a new queue": ("T00", other_queue("T00", 2), "T:2 offset 0"),
}


@pytest.mark.parametrize("name", UNCERTAIN)
def test_where_nothing_tells_whether_the_record_or_the_entry_is_wrong_nothing_is_imported(
    rmq_with_listener: Rmq, name: str
) -> None:
    """The entry may be one of a message that the broker has lost, and the record's own one not in the copy yet."""
    rmq, (body, damage, own) = rmq_with_listener, UNCERTAIN[name]
    folder = broker(rmq.folder / "broker")
    damage(folder)
    for options in ((), ("--salvage",)):
        refused = rmq("import-store", str(folder), "--broker", "broker-a", *options)
        assert refused.exit_code == 1
        assert f"says that it is {own}, of which there is no entry" in refused.err
        assert f"entry of T:0 offset {body[-1]} points to it" in refused.err
    shutil.rmtree(folder / "consumequeue/T/0")
    options = () if body == "T00" else ("--salvage",)
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", *options)
    assert (report["messages"], report["salvaged"]) == (20, [])


def test_offsets_that_a_broker_left_out_behind_an_entry_of_a_lost_message(rmq_with_listener: Rmq) -> None:
    """The entry points to the next message of the queue, whose own one is not in the copy yet: a newer copy has it."""
    rmq = rmq_with_listener
    folder = broker(rmq.folder / "broker", more=[message("T", 0, 8)])
    left_over = entries_of(folder).read_bytes()[: 9 * UNIT_BYTES]
    folder = broker(folder, more=[message("T", 0, 9)])
    own = entries_of(folder).read_bytes()[9 * UNIT_BYTES :]
    entries_of(folder).write_bytes(left_over.ljust(len(left_over) + len(own), b"\0"))
    for options in ((), ("--salvage",)):
        refused = rmq("import-store", str(folder), "--broker", "broker-a", *options)
        assert (refused.exit_code, "import a newer copy" in refused.err) == (1, True)
    entries_of(folder).write_bytes(left_over + own)
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    assert (report["messages"], report["salvaged"], len(report["queue_gaps"])) == (21, [], 1)


@pytest.mark.parametrize(
    "second", [other_offset("T03", 7), other_offset("T03", 67), lambda folder: change(folder, "T03", 4, b"damaged")]
)
def test_two_damaged_records_side_by_side(rmq_with_listener: Rmq, second: Callable[[Path], None]) -> None:
    rmq = rmq_with_listener
    folder = broker(rmq.folder / "broker")
    for damage in (other_offset("T02", 3), second):
        damage(folder)
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    assert len(report["salvaged"]) == 2
    assert {"T02", "T03"}.isdisjoint(row[3] for row in in_log(rmq))
    later = broker(folder, MESSAGES + 1)
    for damage in (other_offset("T02", 3), second):
        damage(later)
    assert rmq.json("import-store", str(later), "--broker", "broker-a")["messages"] == 3


BESIDE = {
    "the last two": {"T06": other_queue("T06", 9), "T07": other_queue("T07", 9)},
    "two in the middle": {"T02": other_queue("T02", 9), "T03": other_queue("T03", 9)},
    "three": {body: other_queue(body, 9) for body in ("T02", "T03", "T04")},
    "of a topic": {"T02": other_topic("T02", "V"), "T03": other_topic("T03", "V")},
    "of two queues": {"T06": other_queue("T06", 9), "U07": other_topic("U07", "V"), "T07": other_topic("T07", "V")},
    "of a delay level": {body: other_topic(body, "SCHEDULE_TOPIC_XXXY") for body in ("D1", "D2")},
}
"""Damaged records that say places beside each other, in a queue that has no other message."""


@pytest.mark.parametrize("name", BESIDE)
def test_damaged_records_beside_each_other_prove_no_queue(rmq_with_listener: Rmq, name: str) -> None:
    rmq, damages = rmq_with_listener, BESIDE[name]
    levels = [delayed(n) for n in range(3)]
    folder = broker(rmq.folder / "broker", more=levels)
    for damage in damages.values():
        damage(folder)
    assert "damaged record" in rmq("import-store", str(folder), "--broker", "broker-a").err
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    own = {"T": "T:0", "U": "U:0", "D": f"{SCHEDULE_TOPIC}:2"}
    assert sorted(skip["reason"] for skip in report["salvaged"]) == [
        f"the broker's entry of {own[body[0]]} offset {body[-1]} points to it" for body in sorted(damages)
    ]
    expected = [
        (m["topic"], m["queue_id"], m["queue_offset"], m["stored_body"].decode()) for m in sent(0, MESSAGES) + levels
    ]
    assert in_log(rmq) == sorted(place for place in expected if place[3] not in damages)
    assert rmq.json("audit", "--full")["audit"] == []


HIDDEN = {
    "an offset behind the end of a queue that goes on": {"T05": other_queue("T05", 1), "T06": other_offset("T06", 5)},
    "an offset in front of the first message of a queue": {"T02": other_queue("T02", 1), "T03": other_offset("T03", 2)},
    "a queue without messages": {"T03": other_queue("T03", 9), "T04": other_offset("T04", 3)},
    "a topic without messages": {"T03": other_topic("T03", "V"), "T04": other_offset("T04", 3)},
    "the next queue": {"T05": other_queue("T05", 1), "U06": lambda folder: named(folder, "U06", "T", 5)},
    "neighbours": {"T04": other_offset("T04", 5), "T05": other_offset("T05", 4)},
    "one between them": {"T02": other_offset("T02", 5), "T05": other_offset("T05", 2)},
    "the first two": {"T00": other_offset("T00", 1), "T01": other_offset("T01", 0)},
    "a ring of three": {
        "T04": other_offset("T04", 5),
        "T05": other_offset("T05", 6),
        "T06": other_offset("T06", 4),
    },
    "queues": {"T02": other_queue("T02", 1), "T12": other_queue("T12", 0)},
    "topics": {"T03": other_topic("T03", "U"), "U03": other_topic("U03", "T")},
}
"""Damaged records that hide each other: one has the place of another one, which is itself not where its entry is."""


def named(folder: Path, body: str, topic: str, offset: int) -> None:
    other_topic(body, topic)(folder)
    other_offset(body, offset)(folder)


@pytest.mark.parametrize("name", HIDDEN)
def test_damaged_records_that_hide_each_other_are_left_out(rmq_with_listener: Rmq, name: str) -> None:
    """The entries around theirs have their records, in the order of the log, so theirs are true, too."""
    rmq, damages = rmq_with_listener, HIDDEN[name]

    def damaged(last: int) -> Path:
        folder = broker(rmq.folder / "broker", last)
        for damage in damages.values():
            damage(folder)
        return folder

    folder = damaged(MESSAGES)
    assert "damaged record" in rmq("import-store", str(folder), "--broker", "broker-a").err
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    assert len(report["salvaged"]) + report["deleted"] == len(damages)
    assert rmq.json("import-store", str(damaged(MESSAGES + 2)), "--broker", "broker-a")["messages"] == 6
    expected = [
        (m["topic"], m["queue_id"], m["queue_offset"], m["stored_body"].decode()) for m in sent(0, MESSAGES + 2)
    ]
    assert in_queues(rmq) == sorted(place for place in expected if place[3] not in damages)
    assert rmq.json("audit", "--full")["audit"] == []


def in_queues(rmq: Rmq) -> list[tuple[Any, ...]]:
    """Without what belongs to a deleted topic."""
    return [place for place in in_log(rmq) if place[2] is not None]


def test_two_records_that_say_the_place_of_the_other_one_are_left_out_without_entries(rmq_with_listener: Rmq) -> None:
    rmq = rmq_with_listener
    folder = broker(rmq.folder / "broker")
    other_offset("T02", 5)(folder)
    other_offset("T05", 2)(folder)
    shutil.rmtree(folder / "consumequeue/T/0")
    assert "damaged record" in rmq("import-store", str(folder), "--broker", "broker-a").err
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    assert len(report["salvaged"]) == 2
    assert {"T02", "T05"}.isdisjoint(row[3] for row in in_log(rmq))


@pytest.mark.parametrize("lengths", [(40, 40), (8, 8), (8, 3), (1, 8), (2, 2)])
@pytest.mark.parametrize("other", ["U/0", "T/1"])
def test_the_entries_of_two_queues_that_were_exchanged_make_no_record_wrong(
    rmq_with_listener: Rmq, other: str, lengths: tuple[int, int]
) -> None:
    """Also of short queues. Nothing is left out, and without these entries all messages come."""
    rmq = rmq_with_listener
    (topic, queue_id), (first, second) = other.split("/"), lengths
    messages = [message("T", 0, n) for n in range(first)]
    for n in range(second):
        messages.insert(2 * n + 1, message(topic, int(queue_id), n))
    messages += [message("W", 0, n) for n in range(9)]
    folder = configs_of(broker_of(rmq.folder / "broker", messages), {"T@g": 0})
    exchange(folder, "T/0", other)
    for options in ((), ("--salvage",)):
        refused = rmq("import-store", str(folder), "--broker", "broker-a", *options)
        assert (refused.exit_code, "import a copy of the store without consumequeue/T/" in refused.err) == (1, True)
    for queue in ("T/0", other):
        shutil.rmtree(folder / "consumequeue" / queue)
    report = rmq.json("import-store", str(folder), "--broker", "broker-a")
    assert (report["messages"], report["salvaged"]) == (len(messages), [])


def exchange(folder: Path, queue: str, other: str) -> None:
    queues = folder / "consumequeue"
    (queues / queue).rename(queues / "moved")
    (queues / other).rename(queues / queue)
    (queues / "moved").rename(queues / other)


@pytest.mark.parametrize("written_on", [1, 2, 8])
def test_exchanged_entries_behind_which_a_broker_wrote_on_make_no_record_wrong(
    rmq_with_listener: Rmq, written_on: int
) -> None:
    """The newest entries have their records, but none before the exchanged ones."""
    rmq = rmq_with_listener
    messages = [message(topic, 0, n) for n in range(2) for topic in "TU"]
    folder = configs_of(broker_of(rmq.folder / "broker", messages), {"T@g": 0})
    exchange(folder, "T/0", "U/0")
    begins = {queue: entries_of(folder, queue).read_bytes()[: 2 * UNIT_BYTES] for queue in ("T/0", "U/0")}
    messages += [message(topic, 0, 2 + n) for n in range(written_on) for topic in "TU"]
    folder = configs_of(broker_of(rmq.folder / "broker", messages), {"T@g": 0})
    for queue, begin in begins.items():
        file = entries_of(folder, queue)
        file.write_bytes(begin + file.read_bytes()[2 * UNIT_BYTES :])
    for options in ((), ("--salvage",)):
        refused = rmq("import-store", str(folder), "--broker", "broker-a", *options)
        assert (refused.exit_code, "import a copy of the store without consumequeue/T/0" in refused.err) == (1, True)


REFUSED = {
    "the last two": {"T06": other_offset("T06", 7), "T07": other_offset("T07", 6)},
    "the first ones of two queues": {"T00": other_topic("T00", "U"), "U00": other_topic("U00", "T")},
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_no_entries_on_both_sides_have_their_records_the_error_says_what_its_advice_costs(
    rmq_with_listener: Rmq, name: str
) -> None:
    rmq = rmq_with_listener
    folder = broker(rmq.folder / "broker")
    for damage in REFUSED[name].values():
        damage(folder)
    for options in ((), ("--salvage",)):
        refused = rmq("import-store", str(folder), "--broker", "broker-a", *options)
        assert refused.exit_code == 1
        assert "to take the record at its word" in refused.err
        assert "is stored at the wrong place" in refused.err
        assert "import a copy of the store without consumequeue/T/0" in refused.err


@pytest.mark.parametrize("goes_on", [False, True])
def test_entries_of_messages_that_the_broker_lost_make_no_record_wrong(rmq_with_listener: Rmq, goes_on: bool) -> None:
    """They stay behind the end of a queue, or in its middle, where the broker goes on behind them (docs/limits.md). The records
    that are where the lost ones were have no entry yet."""
    rmq = rmq_with_listener
    lost = [message("T", 0, 8), message("T", 0, 9)]
    folder = broker(rmq.folder / "broker", more=lost)
    left_over = entries_of(folder).read_bytes()[: 10 * UNIT_BYTES]
    folder = broker(folder, more=[message("U", 0, 8), message("U", 0, 9), *[message("T", 0, 10)] * goes_on])
    entries_of(folder).write_bytes(left_over + entries_of(folder).read_bytes()[10 * UNIT_BYTES :])
    entries = entries_of(folder, "U/0").read_bytes()
    entries_of(folder, "U/0").write_bytes(entries[: 8 * UNIT_BYTES].ljust(len(entries), b"\0"))
    options = ["--salvage"] if goes_on else []
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", *options)
    assert (report["messages"], report["salvaged"]) == (22 + goes_on, [])
    assert [row[2] for row in in_log(rmq) if row[:2] == ("U", 0)] == list(range(10))


def test_entries_of_lost_messages_make_no_record_wrong_behind_another_one_of_a_new_queue(
    rmq_with_listener: Rmq,
) -> None:
    """They point to the last two of three messages of a new queue without entries. The first one shows the queue."""
    rmq = rmq_with_listener
    lost = [message("U", 0, 8), message("T", 0, 8), message("T", 0, 9)]
    left_over = entries_of(broker(rmq.folder / "broker", more=lost)).read_bytes()[: 10 * UNIT_BYTES]
    folder = broker(rmq.folder / "broker", more=[message("V", 0, n) for n in range(3)])
    entries_of(folder).write_bytes(left_over.ljust(entries_of(folder).stat().st_size, b"\0"))
    shutil.rmtree(folder / "consumequeue/V")
    report = rmq.json("import-store", str(folder), "--broker", "broker-a")
    assert (report["messages"], report["salvaged"]) == (23, [])


@pytest.mark.parametrize("count", [1, 3])
def test_offsets_that_a_broker_left_out_make_no_record_wrong(rmq_with_listener: Rmq, count: int) -> None:
    """A salvage records the gap (docs/limits.md), also where the messages behind it have no entry, and come one by one."""
    rmq = rmq_with_listener
    more = [message("T", 0, MESSAGES + 40 + n) for n in range(count)]
    for number in range(count):
        folder = broker(rmq.folder / "broker", more=more[: number + 1])
        entries = entries_of(folder).read_bytes()
        entries_of(folder).write_bytes(entries[: MESSAGES * UNIT_BYTES].ljust(len(entries), b"\0"))
        report = rmq.json("import-store", str(folder), "--broker", "broker-a", *(() if number else ("--salvage",)))
        assert report["salvaged"] == []
    assert [row[2] for row in in_log(rmq) if row[:2] == ("T", 0)][MESSAGES:] == [
        MESSAGES + 40 + n for n in range(count)
    ]


DISPATCHED = {"properties": {"INNER_MULTI_DISPATCH": "U,%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "8,0"}}


def dispatched(folder: Path) -> Path:
    """A broker that has put a message of T:0 into U:0 too, at offset 8."""
    broker(folder, more=[message("T", 0, 8) | DISPATCHED, message("T", 0, 9)])
    entry = entries_of(folder).read_bytes()[8 * UNIT_BYTES : 9 * UNIT_BYTES]
    entries = entries_of(folder, "U/0").read_bytes()
    entries_of(folder, "U/0").write_bytes(entries[: 8 * UNIT_BYTES] + entry + entries[9 * UNIT_BYTES :])
    shutil.rmtree(folder / "consumequeue/T/1")  # some messages have no entry
    return folder


def test_the_entry_of_a_message_in_several_queues_makes_no_record_wrong(rmq_with_listener: Rmq) -> None:
    folder = dispatched(rmq_with_listener.folder / "broker")
    report = rmq_with_listener.json("import-store", str(folder), "--broker", "broker-a")
    assert report["messages"] == 22


@pytest.mark.parametrize("damage", [other_queue("T08", 1), other_topic("T08", "V"), prepared("T08")])
def test_a_message_of_several_queues_may_be_damaged_too(rmq_with_listener: Rmq, damage: Callable[[Path], None]) -> None:
    folder = dispatched(rmq_with_listener.folder / "broker")
    damage(folder)
    refused = rmq_with_listener("import-store", str(folder), "--broker", "broker-a")
    assert "the broker's entry of T:0 offset 8 points to it" in refused.err


@pytest.mark.parametrize("damage", [other_queue("T08", 9), other_offset("T08", 3)])
def test_an_import_of_which_nothing_is_left(rmq_with_listener: Rmq, damage: Callable[[Path], None]) -> None:
    rmq = rmq_with_listener
    rmq.json("import-store", str(broker(rmq.folder / "broker")), "--broker", "broker-a")
    folder = broker(rmq.folder / "broker", more=[message("T", 0, 8)])
    damage(folder)
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    assert (report["messages"], len(report["salvaged"])) == (0, 1)
    assert len(in_log(rmq)) == 20


def test_a_day_of_which_nothing_is_left_takes_no_file_number(rmq_with_listener: Rmq, monkeypatch: Any) -> None:
    """The next table of the task would have the same number, and write over the file."""
    rmq = rmq_with_listener
    monkeypatch.setattr(import_slice, "CHUNK_BYTES", 1000)
    folder = broker(rmq.folder / "broker")
    change(folder, "T02", STORETIMESTAMP_AT, struct.pack(">q", 1_000_000_000_000))
    other_offset("T02", 6)(folder)
    report = rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    assert (report["messages"], len(report["salvaged"])) == (19, 1)
    assert len(in_log(rmq)) == 19


def test_what_the_brokers_retention_removed_costs_no_search(lake: Lake, tmp_path: Path, monkeypatch: Any) -> None:
    files = [[message("T", 0, 4 * number + n) for n in range(4)] for number in range(3)]
    folder = with_queues(log_of(tmp_path / "broker", *files), 0)
    entries = entries_of(folder).read_bytes()
    entries_of(folder).write_bytes(entries[: 11 * UNIT_BYTES].ljust(len(entries), b"\0"))
    (folder / "commitlog" / f"{0:020}").unlink()
    monkeypatch.setattr(ConsumeQueueFiles, "offsets_in", lambda *_: pytest.fail("the queue is searched"))
    assert lake.load(folder).messages == 8


def test_the_entries_of_a_log_file_that_is_missing_are_not_looked_up(
    lake: Lake, tmp_path: Path, monkeypatch: Any
) -> None:
    files = [[message("T", 0, 4 * number + n) for n in range(4)] for number in range(3)]
    folder = log_of(tmp_path / "broker", *files)
    with_queues(folder, 0)
    entries = entries_of(folder).read_bytes()
    entries_of(folder).write_bytes(entries[: 11 * UNIT_BYTES].ljust(len(entries), b"\0"))
    (folder / "commitlog" / f"{FILE_BYTES:020}").unlink()
    records = []
    monkeypatch.setattr(EntryReader, "record", lambda _, entry: records.append(entry))
    report = lake.load(folder, salvage=True)
    assert (report.messages, records) == (8, [])


def test_an_entry_that_was_damaged_makes_no_record_wrong(rmq_with_listener: Rmq) -> None:
    """It points to a record that has its own entry, too."""
    rmq = rmq_with_listener
    folder = broker(rmq.folder / "broker")
    (path,) = (folder / "consumequeue/T/0").iterdir()
    entries = path.read_bytes()
    path.write_bytes(entries[: 4 * UNIT_BYTES] + entries[2 * UNIT_BYTES : 3 * UNIT_BYTES] + entries[5 * UNIT_BYTES :])
    for options in ((), ("--salvage",)):
        refused = rmq("import-store", str(folder), "--broker", "broker-a", *options)
        assert (refused.exit_code, "import a copy of the store without consumequeue/T/0" in refused.err) == (1, True)
    shutil.rmtree(folder / "consumequeue/T/0")
    assert rmq.json("import-store", str(folder), "--broker", "broker-a")["messages"] == 20


def test_an_entry_behind_the_end_that_points_back_makes_no_record_wrong(rmq_with_listener: Rmq) -> None:
    rmq = rmq_with_listener
    folder = broker(rmq.folder / "broker")
    (path,) = (folder / "consumequeue/T/0").iterdir()
    entries = bytearray(path.read_bytes())
    entries[8 * UNIT_BYTES : 9 * UNIT_BYTES] = entries[3 * UNIT_BYTES : 4 * UNIT_BYTES]
    path.write_bytes(entries)
    shutil.rmtree(folder / "consumequeue/T/1")
    assert rmq.json("import-store", str(folder), "--broker", "broker-a")["messages"] == 20


def test_a_part_is_read_again_only_for_records_at_a_wrong_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lake: Lake
) -> None:
    reads = []

    def counted(*arguments: Any) -> LogRead:
        reads.append(arguments)
        return read_part(*arguments)

    monkeypatch.setattr(import_store, "read_part", counted)
    folder = broker(tmp_path / "broker")
    (path,) = (folder / "consumequeue/T/1").iterdir()
    path.write_bytes(bytes(path.stat().st_size))
    assert lake.load(folder).messages == 20
    assert len(reads) == 1
