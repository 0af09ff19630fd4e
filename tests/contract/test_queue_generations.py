"""A topic that is deleted and made again at the broker between two imports: its queues begin again there, and go on here."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_store.broker_files.commit_log_file import list_commit_log, read_log
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.broker_files.offsets_to_broker import How
from rmq_store.lake.broker import import_part
from rmq_store.lake.broker.export import export_offsets
from rmq_store.lake.broker.import_commit import LEFT_OUT, NO_MESSAGE
from rmq_store.lake.commit import commit as committing
from rmq_store.lake.maintain import compact
from rmq_store.lake.maintain.retention import RetentionRequest, retain
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.log.consume_queue import FILLER, UNIT_BYTES, entry_of
from rmq_store.log.record import BLANK_MAGIC, Record
from rmq_store.log.record_encoder import encode, new_record
from rmq_store.maintain.files_to_join import Limits
from rmq_store.settings.retention_settings import RetentionRule
from rmq_store.utils.host import Host
from tests.contract.rmq import ALL_DUE, TODAY, Rmq
from tests.contract.test_diverged_log import LISTENER, SETTINGS, SIZE, table_of
from tests.contract.test_import_store import FILE_BYTES, TESTS, store_of

ENTRIES_PER_FILE = 100
BODIES = "SELECT decode(body) AS body FROM messages WHERE topic = 'T' ORDER BY queue_offset"


OVER_GAPS = SETTINGS.replace("[[group]]", '[[group]]\non_offset_out_of_range = "skip"')


def sent(name: str, first: int, last: int, topic: str = "T") -> list[dict[str, Any]]:
    """Messages of queue 0 with the broker's offsets [first, last)."""
    place = {"topic": topic, "queue_id": 0}
    return [place | {"queue_offset": n, "stored_body": f"{name}{n:03}".encode()} for n in range(first, last)]


def bodies_of(name: str, first: int, last: int) -> list[str]:
    return [f"{name}{n:03}" for n in range(first, last)]


def broker_of(folder: Path, messages: Sequence[dict[str, Any]], *, deleted: int = 0) -> Path:
    """The broker's store after these messages, with its consume queues: those of the first ``deleted`` messages were deleted
    with their topic."""
    shutil.rmtree(folder, ignore_errors=True)
    return with_queues(store_of(folder, *messages), deleted)


def with_queues(folder: Path, deleted: int) -> Path:
    source = LocalFileSource(folder)
    records = [item for _, item in read_log(source, list_commit_log(source)) if isinstance(item, Record)]
    for record in records[deleted:]:
        file = folder / "consumequeue" / record.topic / str(record.queue_id) / f"{0:020}"
        file.parent.mkdir(parents=True, exist_ok=True)
        entries = file.read_bytes() if file.exists() else bytes(ENTRIES_PER_FILE * UNIT_BYTES)
        entry, at = entry_of(record, {1: 1000, 2: 5000, 3: 1000}), record.queue_offset * UNIT_BYTES
        assert entry is not None
        file.write_bytes(entries[:at] + entry.encode() + entries[at + UNIT_BYTES :])
    return folder


def configs_of(folder: Path, offsets: dict[str, int], topics: Sequence[str] = ("T", "U")) -> Path:
    """Its groups' offsets in queue 0 of topics, by ``topic@group``."""
    (folder / "config").mkdir()
    table = {key: {"0": offset} for key, offset in offsets.items()}
    (folder / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    configs = {topic: {"topicName": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for topic in topics}
    (folder / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": configs}))
    return folder


class Broker:
    """A broker whose files are imported again and again."""

    def __init__(self, rmq: Rmq) -> None:
        self.rmq = rmq
        self.folder = rmq.folder / "broker"
        self.messages: list[dict[str, Any]] = []
        self.deleted = 0
        (rmq.folder / "consumers.toml").write_text(SETTINGS)
        (rmq.folder / "cli_listener.py").write_text(LISTENER)
        rmq.json("init")

    def sends(self, *messages: dict[str, Any]) -> None:
        self.messages += messages

    def deletes_topic(self) -> None:
        self.deleted = len(self.messages)

    def files(self, offsets: dict[str, int] | None = None, topics: Sequence[str] = ("T", "U")) -> str:
        folder = broker_of(self.folder, self.messages, deleted=self.deleted)
        return str(folder if offsets is None else configs_of(folder, offsets, topics))

    def imported(
        self, *options: str, offsets: dict[str, int] | None = None, topics: Sequence[str] = ("T", "U")
    ) -> dict[str, Any]:
        answer: dict[str, Any] = self.rmq.json(
            "import-store", self.files(offsets, topics), "--broker", "broker-a", *options
        )
        return answer

    def consumed(self) -> list[str]:
        """All that the group has consumed, in order."""
        file = self.rmq.folder / "bodies.txt"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def broker(rmq: Rmq) -> Broker:
    return Broker(rmq)


@pytest.mark.parametrize("consumed", [3, 5])
def test_a_group_finishes_the_old_generation_and_then_reads_the_new_one(broker: Broker, consumed: int) -> None:
    broker.sends(*sent("a", 0, 5), *sent("u", 0, 2, "U"))
    broker.imported()
    if consumed:
        broker.rmq.json("consume", "--group", "g", "--max-messages", str(consumed))
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 3), *sent("u", 2, 4, "U"))
    answer = broker.imported()
    assert answer["begun_again"] == [{"topic": "T", "queue_id": 0, "base": 5}]
    assert (answer["messages"], answer["deleted"]) == (5, 0)
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == bodies_of("a", 0, 5) + bodies_of("b", 0, 3)
    assert [row["body"] for row in broker.rmq.json("sql", BODIES)] == broker.consumed()
    assert table_of(broker.rmq, "broker-a") == {"T@g": {0: 3}}
    broker.sends(*sent("b", 3, 9))
    assert (broker.imported()["begun_again"], broker.imported()["status"]) == ([], "unchanged")
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == bodies_of("a", 0, 5) + bodies_of("b", 0, 9)
    assert table_of(broker.rmq, "broker-a") == {"T@g": {0: 9}}
    assert broker.rmq.json("audit")["audit"] == []


def test_an_import_says_that_a_queue_began_again(broker: Broker) -> None:
    broker.sends(*sent("a", 0, 5))
    broker.imported()
    broker.sends(*sent("a", 5, 7))
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 3))
    lines = broker.rmq("import-store", broker.files(), "--broker", "broker-a")
    assert (
        "topic 'T', queue 0 was deleted and made again at the broker: its offset 0 there is offset 5 here" in lines.out
    )
    assert "2 of the messages are of topics that were deleted and made again before this import" in lines.out


@pytest.mark.parametrize("salvage", [(), ("--salvage",)])
def test_a_topic_may_be_deleted_several_times(broker: Broker, salvage: tuple[str, ...]) -> None:
    """Also while nothing is imported: what no import has seen before its topic was deleted has no queue offset, as at the
    broker."""
    each = []
    for name, count, is_imported in (("a", 6, True), ("b", 4, True), ("c", 5, False), ("d", 2, True), ("e", 8, True)):
        broker.deletes_topic()
        broker.sends(*sent(name, 0, count))
        if is_imported:
            answer = broker.imported(*salvage)
            assert answer["deleted"] == (5 if name == "d" else 0)
            each += bodies_of(name, 0, count)
    assert (answer["begun_again"], answer["queue_gaps"]) == ([{"topic": "T", "queue_id": 0, "base": 12}], [])
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == each
    assert table_of(broker.rmq, "broker-a") == {"T@g": {0: 8}}
    assert broker.rmq.json("audit")["audit"] == []


def test_what_came_after_the_last_import_and_before_the_delete_has_no_queue_offset(broker: Broker) -> None:
    """In whichever order its offsets and those of the new generation lie."""
    broker.sends(*sent("a", 0, 5))
    broker.imported()
    for name, count in (("b", 4), ("c", 30)):
        broker.sends(*sent(name, 5, 8) if name == "b" else sent("b", 4, 9))
        broker.deletes_topic()
        broker.sends(*sent(name, 0, count))
        assert broker.imported()["begun_again"]
    assert [row["body"] for row in broker.rmq.json("sql", BODIES)] == [
        *bodies_of("a", 0, 5),
        *bodies_of("b", 0, 4),
        *bodies_of("c", 0, 30),
    ]


def zeroed(folder: str, first: int, last: int) -> None:
    """The entries [first, last) of queue 0 are lost, as after a power failure."""
    (file,) = Path(folder, "consumequeue/T/0").iterdir()
    entries = bytearray(file.read_bytes())
    entries[first * UNIT_BYTES : last * UNIT_BYTES] = bytes((last - first) * UNIT_BYTES)
    file.write_bytes(entries)


@pytest.mark.parametrize(("first", "last"), [(0, 1), (0, 60), (20, 21), (30, 80), (89, 90)])
def test_messages_whose_entries_are_lost_are_those_of_the_log(broker: Broker, first: int, last: int) -> None:
    """In front of the queue, in its middle and at its end. Their topic was never deleted."""
    broker.sends(*sent("a", 0, 90))
    files = broker.files()
    zeroed(files, first, last)
    answer = broker.rmq.json("import-store", files, "--broker", "broker-a")
    assert (answer["messages"], answer["deleted"]) == (90, 0)
    assert [row["body"] for row in broker.rmq.json("sql", BODIES)] == bodies_of("a", 0, 90)
    assert broker.rmq.json("audit")["audit"] == []


def test_messages_whose_file_of_entries_is_lost_are_those_of_the_log(broker: Broker) -> None:
    broker.sends(*sent("a", 0, 90))
    (file,) = Path(broker.files(), "consumequeue/T/0").iterdir()
    begin = 30 * UNIT_BYTES
    file.with_name(f"{begin:020}").write_bytes(file.read_bytes()[begin:])
    file.unlink()
    answer = broker.rmq.json("import-store", str(broker.folder), "--broker", "broker-a")
    assert (answer["messages"], answer["deleted"]) == (90, 0)
    assert [row["body"] for row in broker.rmq.json("sql", BODIES)] == bodies_of("a", 0, 90)


def test_lost_entries_of_a_topic_that_was_deleted_leave_nothing_out_in_silence(broker: Broker) -> None:
    """Nothing tells whose offsets these are: those of the topic that was deleted, or of the new one."""
    broker.sends(*sent("a", 0, 8))
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 30))
    files = broker.files()
    zeroed(files, 5, 8)
    refused = broker.rmq("import-store", files, "--broker", "broker-a")
    assert refused.exit_code == 1
    assert "offset 5 comes again" in refused.err
    assert "entries of its consume queue are lost" in refused.err
    assert "Import a copy of the store without consumequeue/T/0: the order of the log then tells which" in refused.err
    assert broker.rmq.json("sql", BODIES) == []
    shutil.rmtree(f"{files}/consumequeue/T/0")
    assert broker.rmq.json("import-store", files, "--broker", "broker-a")["deleted"] == 8
    assert [row["body"] for row in broker.rmq.json("sql", BODIES)] == bodies_of("b", 0, 30)


def damaged(folder: str, *bodies: str) -> None:
    """The records with these bodies are damaged, each in its magic code."""
    source = LocalFileSource(Path(folder))
    for file, item in list(read_log(source, list_commit_log(source))):
        if isinstance(item, Record) and item.stored_body.decode() in bodies:
            log = bytearray(Path(folder, file.name).read_bytes())
            log[item.commit_log_offset - file.start_offset + 4] ^= 0xFF
            Path(folder, file.name).write_bytes(log)


@pytest.mark.parametrize(
    ("imported", "lost", "gaps"),
    [
        (3, ["b003"], [(6, 7)]),  # the one at the offset of a message that was deleted
        (3, ["b005"], []),  # the last one
        (3, ["b000"], [(3, 4)]),
        (3, ["b000", "b001", "b002"], [(3, 6)]),  # the first one that is left has the offset that would follow
        (3, ["b000", "b001", "b002", "b003"], [(3, 7)]),
        (0, ["b000"], [(0, 1)]),
        (0, ["b000", "b001", "b005"], [(0, 2)]),
    ],
)
def test_a_damaged_record_makes_no_message_of_a_deleted_topic_alive(
    broker: Broker, imported: int, lost: list[str], gaps: list[tuple[int, int]]
) -> None:
    """Other entries of the queue, and their order, prove it. ``imported``: how many messages before the delete."""
    broker.sends(*sent("a", 0, imported))
    if imported:
        broker.imported()
    broker.sends(*sent("a", imported, 8))
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 6), *sent("u", 0, 1, "U"))
    files = broker.files()
    damaged(files, *lost)
    answer = broker.rmq.json("import-store", files, "--broker", "broker-a", "--salvage")
    assert (answer["deleted"], [(gap["begin"], gap["end"]) for gap in answer["queue_gaps"]]) == (8 - imported, gaps)
    assert [begun["base"] for begun in answer["begun_again"]] == [3] * bool(imported)
    kept = [body for body in bodies_of("b", 0, 6) if body not in lost]
    assert [row["body"] for row in broker.rmq.json("sql", BODIES)] == bodies_of("a", 0, imported) + kept
    assert broker.rmq.json("audit")["audit"] == []


@pytest.mark.parametrize("at", [SIZE + 1, SIZE + 88, 2 * SIZE + 88])
def test_an_entry_left_over_from_a_lost_end_makes_no_message_one_of_a_deleted_topic(broker: Broker, at: int) -> None:
    """It points into a sound record, that of the message or the next one. The broker lost the queue's first message with the
    end of its log, left its offset out ("A broker that leaves out queue offsets when it starts"), and has not written the
    entry of the next message yet."""

    def files(written: int) -> str:
        folder = broker.files()
        file = Path(folder, "consumequeue", "T", "0", f"{0:020}")
        entries = struct.pack(">qiq", at, SIZE, 0) + file.read_bytes()[UNIT_BYTES : written * UNIT_BYTES]
        file.write_bytes(entries.ljust(ENTRIES_PER_FILE * UNIT_BYTES, b"\0"))
        return folder

    broker.sends(*sent("u", 0, 1, "U"), *sent("b", 1, 2), *sent("u", 1, 2, "U"))
    answer = broker.rmq.json("import-store", files(1), "--broker", "broker-a")
    assert (answer["messages"], answer["deleted"]) == (3, 0)
    broker.sends(*sent("b", 2, 4))
    assert broker.rmq.json("import-store", files(3), "--broker", "broker-a")["messages"] == 2
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == bodies_of("b", 1, 4)
    assert broker.rmq.json("audit")["audit"] == []


def test_no_generation_begins_in_the_middle_of_the_newest_one(broker: Broker) -> None:
    """Not with --salvage either: behind a damaged end that an import has left out is a gap."""
    broker.sends(*sent("a", 0, 8))
    broker.imported()
    broker.sends(*sent("a", 8, 9))
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 5), *sent("u", 0, 1, "U"))
    for count, gaps in ((1, []), (4, [(12, 13)])):
        files = broker.files()
        damaged(files, "b004")
        answer = broker.rmq.json("import-store", files, "--broker", "broker-a", "--salvage")
        assert [(gap["begin"], gap["end"]) for gap in answer["queue_gaps"]] == gaps
        assert len(answer["begun_again"]) == (count == 1)
        broker.sends(*sent("b", 5, 8))


@pytest.mark.parametrize("count", [1, 5])
def test_a_generation_begins_with_the_import_that_leaves_its_first_messages_out(broker: Broker, count: int) -> None:
    """Not with that which finds the first message that is left: until then its groups' offsets would be gone. ``count``: how
    many of the new messages are lost, of a queue of 5."""
    (broker.rmq.folder / "consumers.toml").write_text(OVER_GAPS)
    broker.sends(*sent("a", 0, 5))
    broker.imported(offsets={"T@g": 3})
    broker.deletes_topic()
    broker.sends(*sent("b", 0, count), *sent("u", 0, 1, "U"))
    lost = bodies_of("b", 0, count)
    for salvage, begun, gaps in ((("--salvage",), [5], []), ((), None, []), (("--salvage",), [], [(5, 5 + count)])):
        files = broker.files({})
        damaged(files, *lost)
        command = ("import-store", files, "--broker", "broker-a", *salvage)
        if begun is None:
            assert f"no message at [5, {5 + count})" in broker.rmq(*command).err
        else:
            answer = broker.rmq.json(*command)
            assert [again["base"] for again in answer["begun_again"]] == begun
            assert [(gap["begin"], gap["end"]) for gap in answer["queue_gaps"]] == gaps
        if begun:
            broker.sends(*sent("b", count, count + 3))
    broker.rmq.json("cutover", "--broker", "broker-a", "--reason", "switched off")
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == ["a003", "a004", *bodies_of("b", count, count + 3)]
    assert table_of(broker.rmq, "broker-a") == {"T@g": {0: count + 3}}
    assert broker.rmq.json("audit")["audit"] == []


@pytest.mark.parametrize("made_again", [False, True])
def test_a_queue_that_goes_on_behind_damage_is_not_a_new_generation(broker: Broker, made_again: bool) -> None:
    """``made_again``: its consume queue, from the first message that the broker's log still had."""
    broker.sends(*sent("a", 0, 3))
    broker.imported()
    broker.sends(*sent("a", 3, 8))
    files = broker.files()
    damaged(files, "a003", "a004")
    if made_again:
        (file,) = Path(files, "consumequeue/T/0").iterdir()
        file.write_bytes(FILLER.encode() * 3 + file.read_bytes()[3 * UNIT_BYTES :])
    answer = broker.rmq.json("import-store", files, "--broker", "broker-a", "--salvage")
    assert (answer["begun_again"], answer["deleted"]) == ([], 0)
    assert [(gap["begin"], gap["end"]) for gap in answer["queue_gaps"]] == [(3, 5)]


@pytest.mark.parametrize("copied", [0, 1, 3])
def test_entries_that_are_newer_than_the_copy_of_the_log(broker: Broker, copied: int) -> None:
    """A copy of a running broker has the first ``copied`` messages of the newest topic, and the entries of all five."""
    broker.sends(*sent("a", 0, 5))
    broker.imported()
    broker.sends(*sent("a", 5, 8))
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 5))
    files = broker.files()
    ends = Path(files, "commitlog", f"{0:020}")
    source = LocalFileSource(Path(files))
    begins = [
        item.commit_log_offset for _, item in read_log(source, list_commit_log(source)) if isinstance(item, Record)
    ]
    ends.write_bytes(ends.read_bytes()[: begins[8 + copied]].ljust(FILE_BYTES, b"\0"))
    answer = broker.rmq.json("import-store", files, "--broker", "broker-a")
    assert (answer["messages"], answer["deleted"]) == (3 + copied, 3 if copied else 0)
    answer = broker.imported()
    assert (answer["messages"], answer["begun_again"] == []) == (5 - copied, copied > 0)
    old = bodies_of("a", 0, 5 if copied else 8)
    assert [row["body"] for row in broker.rmq.json("sql", BODIES)] == old + bodies_of("b", 0, 5)


ROWS = "SELECT queue_id, decode(body) AS body FROM messages WHERE topic = 'T' ORDER BY queue_id, queue_offset"


def without_entries(folder: str, way: str) -> None:
    """The broker, or the copy of its store, has no entry of queue 0 of T."""
    if way == "no folder":
        shutil.rmtree(f"{folder}/consumequeue")
    elif way == "no queue":
        shutil.rmtree(f"{folder}/consumequeue/T", ignore_errors=True)
    else:
        file = Path(folder, "consumequeue/T/0", f"{0:020}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(ENTRIES_PER_FILE * UNIT_BYTES))


@pytest.mark.parametrize("salvage", [(), ("--salvage",)])
@pytest.mark.parametrize("way", ["no folder", "no queue", "no entry"])
def test_without_entries_of_a_queue_the_order_of_the_log_tells_its_generations(
    broker: Broker, way: str, salvage: tuple[str, ...]
) -> None:
    """Of those that one import finds, the newest one stays: its entries may not be written yet."""
    broker.sends(*sent("a", 0, 5))
    broker.imported()
    broker.sends(*sent("a", 5, 7), *sent("b", 0, 9), *sent("c", 0, 3), *sent("u", 0, 1, "U"))
    files = broker.files()
    without_entries(files, way)
    answer = broker.rmq.json("import-store", files, "--broker", "broker-a", *salvage)
    assert (answer["begun_again"], answer["deleted"]) == ([{"topic": "T", "queue_id": 0, "base": 5}], 11)
    broker.deleted = 16  # its entries are written now
    broker.sends(*sent("c", 3, 6))
    answer = broker.imported()
    assert (answer["begun_again"], answer["deleted"]) == ([], 0)
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == bodies_of("a", 0, 5) + bodies_of("c", 0, 6)
    assert table_of(broker.rmq, "broker-a") == {"T@g": {0: 6}}
    assert broker.rmq.json("audit")["audit"] == []


@pytest.mark.parametrize("way", ["no queue", "no entry"])
def test_a_queue_without_entries_is_not_taken_for_one_of_a_deleted_topic(broker: Broker, way: str) -> None:
    """Also where the broker has entries of later messages: it was killed, or the copy was made while it was running."""
    broker.sends(*sent("a", 0, 5), *sent("u", 0, 3, "U"))
    files = broker.files()
    without_entries(files, way)
    answer = broker.rmq.json("import-store", files, "--broker", "broker-a")
    assert (answer["messages"], answer["deleted"]) == (8, 0)
    assert [row["body"] for row in broker.rmq.json("sql", BODIES)] == bodies_of("a", 0, 5)


def test_a_topic_that_was_made_again_and_deleted_again_stops_no_import(broker: Broker) -> None:
    broker.sends(*sent("a", 0, 1))
    broker.imported()
    broker.sends(*sent("b", 0, 1))
    broker.deletes_topic()
    for number in range(2):
        broker.sends(*sent("u", number, number + 1, "U"))
        assert broker.imported()["messages"] == 2 - number
    broker.rmq.json("init", "--root", str(broker.rmq.folder / "other"))
    first = broker.rmq.json(
        "import-store", str(broker.folder), "--broker", "broker-a", "--root", str(broker.rmq.folder / "other")
    )
    assert (first["messages"], first["deleted"], first["begun_again"]) == (4, 1, [])
    broker.deleted = 4
    broker.sends(*sent("c", 0, 1), *sent("u", 2, 3, "U"))
    assert broker.imported()["begun_again"] == [{"topic": "T", "queue_id": 0, "base": 2}]
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == ["a000", "b000", "c000"]
    assert broker.rmq.json("audit")["audit"] == []


def test_a_topic_that_was_made_again_with_fewer_queues(broker: Broker) -> None:
    """Its queue 1 is deleted; queue 0 has entries of the last generation only."""

    def in_both(name: str) -> list[dict[str, Any]]:
        return [message | {"queue_id": queue_id} for message in sent(name, 0, 1) for queue_id in (0, 1)]

    broker.sends(*in_both("a"))
    broker.imported()
    broker.sends(*in_both("b"))
    broker.deletes_topic()
    broker.sends(*sent("c", 0, 1))
    answer = broker.imported()
    assert answer["begun_again"] == [{"topic": "T", "queue_id": number, "base": 1} for number in (0, 1)]
    rows = [(row["queue_id"], row["body"]) for row in broker.rmq.json("sql", ROWS)]
    assert rows == [(0, "a000"), (0, "c000"), (1, "a000"), (1, "b000")]


@pytest.mark.parametrize("files", [1, 3])
def test_a_first_import_keeps_the_newest_generation_wherever_it_begins(broker: Broker, files: int) -> None:
    generations = (sent("a", 0, 7), [*sent("b", 0, 5), *sent("u", 0, 1, "U")], sent("c", 0, 2))
    in_files = generations if files > 1 else [[message for messages in generations for message in messages]]
    folder = with_queues(log_of(broker.folder, *in_files), 14)
    without_entries(str(folder), "no queue")
    answer = broker.rmq.json("import-store", str(folder), "--broker", "broker-a")
    assert (answer["messages"], answer["deleted"], answer["begun_again"]) == (15, 12, [])
    assert [row["body"] for row in broker.rmq.json("sql", BODIES)] == bodies_of("c", 0, 2)
    assert broker.rmq.json("audit")["audit"] == []


@pytest.mark.parametrize("options", [(), ("--salvage",)])
def test_an_offset_in_the_middle_that_comes_again_without_entries_is_refused(
    broker: Broker, options: tuple[str, ...]
) -> None:
    """No generation begins there, so nothing tells which messages to keep. What the error advises works."""
    folder = str(log_of(broker.folder, sent("a", 0, 7), sent("b", 4, 9)))
    refused = broker.rmq("import-store", folder, "--broker", "broker-a", *options)
    assert refused.exit_code == 1
    assert "offset 4 comes again, but the queue was imported up to 7" in refused.err
    assert "under another broker name (--broker), from a copy without the files of its log" in refused.err
    (broker.folder / "commitlog" / f"{0:020}").unlink()
    assert broker.rmq.json("import-store", folder, "--broker", "broker-b", *options)["messages"] == 5
    assert [row["body"] for row in broker.rmq.json("sql", BODIES)] == bodies_of("b", 4, 9)


def test_a_batch_topic_that_was_made_again_is_imported_without_its_queues(broker: Broker) -> None:
    """Also a topic of another type before, in a first import. What the error advises works."""
    folder = log_of(broker.folder, [*sent("a", 0, 7), *sent("b", 0, 9)])
    file = folder / "batchconsumequeue/T/0" / f"{0:020}"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(ENTRIES_PER_FILE * 46))
    command = ("import-store", str(folder), "--broker", "broker-a")
    refused = broker.rmq(*command)
    assert refused.exit_code == 1
    assert "offset 0 comes again" in refused.err
    assert "Import a copy of the store without batchconsumequeue/T/0: the order of the log then tells" in refused.err
    shutil.rmtree(file.parent)
    assert broker.rmq.json(*command)["deleted"] == 7
    assert [row["body"] for row in broker.rmq.json("sql", BODIES)] == bodies_of("b", 0, 9)


def test_an_offset_in_the_middle_that_comes_again_is_refused(broker: Broker) -> None:
    broker.sends(*sent("a", 0, 5))
    broker.imported()
    broker.sends(*sent("b", 4, 7))
    (refused,) = [broker.rmq("import-store", broker.files(), "--broker", "broker-a")]
    assert (refused.exit_code, "offset 4 comes again" in refused.err) == (1, True)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", ["4.ctl-written", "5.put"])
def test_a_kill_at_any_step_and_a_rerun_end_the_same(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def dies(reached: str) -> None:
        if reached == step:
            raise Killed

    broker.sends(*sent("a", 0, 5))
    broker.imported()
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 3))
    with monkeypatch.context() as patch:
        patch.setattr(committing, "on_step", dies)
        files = broker.files()
        assert "Killed" in broker.rmq("import-store", files, "--broker", "broker-a", "--request", "2026-01-01-b").err
    assert broker.imported("--request", "2026-01-01-b")["begun_again"] == [{"topic": "T", "queue_id": 0, "base": 5}]
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == bodies_of("a", 0, 5) + bodies_of("b", 0, 3)


def log_of(folder: Path, *files: Sequence[dict[str, Any]]) -> Path:
    """A store whose log has a file of these messages each."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "commitlog").mkdir(parents=True)
    for number, messages in enumerate(files):
        log, start = bytearray(), number * FILE_BYTES
        for message in messages:
            place = {"commit_log_offset": start + len(log), "born_timestamp": 1, "store_timestamp": 1_700_000_000_000}
            log += encode(new_record(**(place | {"properties": {}} | message)))
        if number + 1 < len(files):
            log += struct.pack(">ii", FILE_BYTES - len(log), BLANK_MAGIC)
        (folder / "commitlog" / f"{start:020}").write_bytes(log.ljust(FILE_BYTES, b"\0"))
    return folder


@pytest.mark.parametrize("lost", [0, 3])
def test_a_queue_may_begin_again_in_any_part_of_an_import(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """``lost``: so many messages are damaged, those of a part before the first one that is left."""
    (broker.rmq.folder / "consumers.toml").write_text(OVER_GAPS)
    monkeypatch.setattr(import_part, "part_bytes", lambda queues, log_bytes: FILE_BYTES)
    old, new = (sent("a", 0, 5), sent("u", 0, 3, "U")), ([*sent("b", 0, 3), *sent("u", 4, 5, "U")], sent("b", 3, 5))
    broker.rmq.json("import-store", str(with_queues(log_of(broker.folder, *old), 0)), "--broker", "broker-a")
    files = with_queues(log_of(broker.folder, *old, sent("u", 3, 4, "U"), *new), 5)
    damaged(str(files), *bodies_of("b", 0, lost))
    salvage = ("--salvage",) if lost else ()
    answer = broker.rmq.json("import-store", str(files), "--broker", "broker-a", *salvage)
    assert (answer["parts"] > 2, answer["begun_again"]) == (True, [{"topic": "T", "queue_id": 0, "base": 5}])
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == bodies_of("a", 0, 5) + bodies_of("b", lost, 5)
    assert table_of(broker.rmq, "broker-a") == {"T@g": {0: 5}}
    assert broker.rmq.json("import-store", str(files), "--broker", "broker-a")["status"] == "unchanged"


# --- the broker's own groups, and the way back --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "begin"),
    [
        (3, None, 3),  # it has not begun the new generation: it finishes the old one, and reads the new one
        (3, 2, 7),  # what it had not consumed was deleted at the broker
        (5, None, 5),
    ],
)
def test_a_group_of_the_broker_begins_where_the_broker_has_it(
    broker: Broker, before: int | None, now: int | None, begin: int
) -> None:
    broker.sends(*sent("a", 0, 5))
    broker.imported(offsets={} if before is None else {"T@g": before})
    broker.deletes_topic()
    broker.imported(offsets={}, topics=("U",))
    broker.sends(*sent("b", 0, 4))
    offsets = {} if now is None else {"T@g": now}
    broker.imported(offsets=offsets)
    expected = offsets or ({"T@g": 0} if before == 5 else {})
    assert table_of(broker.rmq, "broker-a") == {key: {0: offset} for key, offset in expected.items()}
    assert broker.rmq.json("cutover", "--broker", "broker-a", "--reason", "switched off")["groups"] == 1
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == (bodies_of("a", 0, 5) + bodies_of("b", 0, 4))[begin:]
    assert table_of(broker.rmq, "broker-a") == {"T@g": {0: 4}}
    assert broker.rmq.json("audit")["audit"] == []


@pytest.mark.parametrize("before", [{"T@g": 3}, {}])
def test_an_offset_that_a_broker_of_version_4_left_in_its_file_is_one_of_the_deleted_topic(
    broker: Broker, before: dict[str, int]
) -> None:
    """Also where no import has seen the group before."""
    broker.sends(*sent("a", 0, 5))
    broker.imported(offsets=before)
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 2))
    broker.imported(offsets={"T@g": 3})
    assert broker.rmq.json("cutover", "--broker", "broker-a", "--reason", "switched off")["left_out"] == []
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == ["a003", "a004", "b000", "b001"]


@pytest.mark.parametrize(("offsets", "topics"), [({}, ("T", "U")), ({"T@g": 0}, ("T", "U")), ({}, ("U",))])
def test_a_queue_that_has_no_message_yet_keeps_its_groups_offset(
    broker: Broker, offsets: dict[str, int], topics: tuple[str, ...]
) -> None:
    """Also where the group has read from the new queue that it is empty, and has committed its offset 0. An offset of the old
    queue is not exported: the broker would pass over as many messages of the new one."""
    broker.sends(*sent("a", 0, 5), *sent("u", 0, 1, "U"))
    broker.imported(offsets={"T@g": 3})
    broker.deletes_topic()
    broker.sends(*sent("u", 1, 2, "U"))
    files = Path(broker.files(offsets, topics))
    broker.rmq.json("import-store", str(files), "--broker", "broker-a")
    export = ("offsets", "export", "--broker", "broker-a")
    assert (table_of(broker.rmq, "broker-a"), broker.rmq.json(*export)["left_out"]) == ({}, {"T@g": [0]})
    broker.rmq.json("cutover", "--broker", "broker-a", "--reason", "switched off")
    broker.rmq.json("consume", "--group", "g", "--max-messages", "1")
    is_deleted = "T" not in topics  # then it is certain that the broker has no message
    exported = broker.rmq.json(*export)
    assert (exported["left_out"], exported["waiting_deleted"]) == ({} if is_deleted else {"T@g": [0]}, {"T@g": 1})
    assert table_of(broker.rmq, "broker-a") == ({"T@g": {0: 0}} if is_deleted else {})
    assert ("T@g: the offsets of queues 0 are left out" in broker.rmq(*export).err) is not is_deleted
    file = str(files / "config" / "consumerOffset.json")
    assert len(broker.rmq.json(*export, "--merge", file)["changes"]) == is_deleted
    broker.rmq.json("hand-back", "--broker", "broker-a", "--reason", "it runs again")
    assert table_of(broker.rmq, "broker-a") == {}
    notes = broker.rmq.json("import-store", str(files), "--broker", "broker-a")["notes"]
    assert [note for note in notes if "handed back" in note] == []  # the export is installed
    broker.rmq.json("cutover", "--broker", "broker-a", "--reason", "switched off")
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == ["a003", "a004"]


def test_a_file_that_follows_the_broker_loses_an_offset_of_a_deleted_generation(broker: Broker) -> None:
    """The topic was made again between two imports, so none of them has seen its queue without a message."""
    broker.sends(*sent("a", 0, 5))
    broker.imported(offsets={"T@g": 3})
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 2))
    broker.imported(offsets={})
    (shard,) = LakeStore.open(Root.parse(str(broker.rmq.root))).shards()
    exported = export_offsets(shard, "broker-a")
    assert (exported.offsets.table, exported.left_out) == ({}, {})
    assert exported.offsets.merged_into({"T@g": {0: 3}, "U@g": {0: 1}}, How.UPDATE) == {"T@g": {}, "U@g": {0: 1}}


CUT_OVER = ("cutover", "--broker", "broker-a", "--reason", "switched off")


def handed_back(broker: Broker, files: Path, name: str = "broker-a") -> dict[str, Any]:
    """The broker owns its groups again, and has the exported offsets. Returns what the export said."""
    file = files / "config" / "consumerOffset.json"
    answer: dict[str, Any] = broker.rmq.json("offsets", "export", "--broker", name, "--merge", str(file))
    broker.rmq.json("hand-back", "--broker", name, "--reason", "it runs again")
    return answer


def test_a_hand_back_leaves_no_message_of_the_old_generation_out(broker: Broker) -> None:
    """The export has offset 0 of the new generation. That the broker's file then has it, is no news of the old one."""
    broker.sends(*sent("a", 0, 5))
    broker.imported(offsets={"T@g": 2})
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 3))
    files = Path(broker.files({}))
    broker.rmq.json("import-store", str(files), "--broker", "broker-a")
    broker.rmq.json(*CUT_OVER)
    assert handed_back(broker, files)["waiting_deleted"] == {"T@g": 3}
    broker.rmq.json("import-store", str(files), "--broker", "broker-a")
    broker.rmq.json(*CUT_OVER)
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == ["a002", "a003", "a004", *bodies_of("b", 0, 3)]


@pytest.mark.parametrize("name", ["broker-a", "broker-a-2"])
def test_an_offset_of_a_queue_that_the_brokers_retention_removed_is_not_one_of_the_next_generation(
    broker: Broker, name: str
) -> None:
    """The broker removes a queue all of whose messages it has removed, and not the offsets of its groups. ``broker-a-2``
    continues the log after these messages."""
    of_name = ("--broker", name)
    first, second, lost = sent("a", 0, 5), sent("u", 0, 2, "U"), sent("l", 2, 3, "U") * (name != "broker-a")
    files = configs_of(with_queues(log_of(broker.folder, first, (*second, *lost)), 0), {"T@g": 5})
    broker.rmq.json("import-store", str(files), "--broker", "broker-a")
    if lost:
        second += sent("n", 2, 3, "U")
        files = configs_of(with_queues(log_of(broker.folder, first, second), 0), {"T@g": 5})
        broker.rmq.json("import-store", str(files), "--broker", "broker-a", *CONTINUE)

    def trimmed(*messages: dict[str, Any]) -> Path:
        log_of(broker.folder, first, (*second, *messages))
        (broker.folder / "commitlog" / f"{0:020}").unlink()
        return with_queues(broker.folder, 0)

    def cut_over() -> None:
        broker.rmq.json("import-store", str(files), *of_name, "--shard", "broker-a")
        broker.rmq.json("cutover", *of_name, "--reason", "switched off")

    configs_of(trimmed(), {"T@g": 5})
    cut_over()
    answer = handed_back(broker, files, name)
    assert (answer["left_out"], answer["lowered"]) == ({}, 1)
    offsets = (files / "config" / "consumerOffset.json").read_text()
    trimmed(*sent("b", 0, 7))
    configs_of(files, {})
    (files / "config" / "consumerOffset.json").write_text(offsets)
    cut_over()
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == bodies_of("b", 0, 7)


@pytest.mark.parametrize("offsets", [{"T@g": 2}, {}])
def test_the_entries_of_messages_that_the_brokers_retention_removed_are_not_ahead_of_the_log(
    broker: Broker, offsets: dict[str, int]
) -> None:
    """The queue goes on at the broker, so the group was reset there, or its offsets were deleted."""
    files = configs_of(with_queues(log_of(broker.folder, sent("a", 0, 5), sent("u", 0, 2, "U")), 0), {"T@g": 5})
    broker.rmq.json("import-store", str(files), "--broker", "broker-a")
    (files / "commitlog" / f"{0:020}").unlink()
    shutil.rmtree(files / "config")
    broker.rmq.json("import-store", str(configs_of(files, offsets)), "--broker", "broker-a")
    answer = broker.rmq.json("offsets", "export", "--broker", "broker-a")
    assert (answer["left_out"], table_of(broker.rmq, "broker-a")) == ({}, {key: {0: at} for key, at in offsets.items()})


def test_a_copy_without_consume_queues_makes_no_queue_alive_that_had_no_entry(broker: Broker) -> None:
    """Its offset would be one of the next generation there."""
    broker.sends(*sent("a", 0, 5), *sent("u", 0, 1, "U"))
    broker.imported(offsets={"T@g": 5})
    broker.deletes_topic()
    broker.sends(*sent("u", 1, 2, "U"))
    broker.imported(offsets={})
    broker.sends(*sent("u", 2, 3, "U"))
    files = Path(broker.files({}))
    shutil.rmtree(files / "consumequeue")
    broker.rmq.json("import-store", str(files), "--broker", "broker-a")
    broker.rmq.json(*CUT_OVER)
    assert (table_of(broker.rmq, "broker-a"), handed_back(broker, files)["left_out"]) == ({}, {"T@g": [0]})


def test_where_a_copy_has_no_consume_queues_an_offset_that_is_gone_is_not_exported(broker: Broker) -> None:
    """Its topic may have been deleted. The group keeps it here."""
    broker.sends(*sent("a", 0, 5), *sent("u", 0, 1, "U"))
    broker.imported(offsets={"T@g": 3, "U@g": 1})
    broker.deletes_topic()
    broker.sends(*sent("u", 1, 2, "U"))
    files = Path(broker.files({"U@g": 1}))
    shutil.rmtree(files / "consumequeue")
    broker.rmq.json("import-store", str(files), "--broker", "broker-a")
    broker.rmq.json(*CUT_OVER)
    assert (handed_back(broker, files)["left_out"], table_of(broker.rmq, "broker-a")) == ({"T@g": [0]}, {"U@g": {0: 1}})
    broker.rmq.json("import-store", str(files), "--broker", "broker-a")
    broker.rmq.json(*CUT_OVER)
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == ["a003", "a004"]


@pytest.mark.parametrize(
    ("count", "offsets", "older"),
    [(1, {"T@g": 0}, 0), (5, {"T@g": 0}, 0), (5, {"T@g": 0}, 2), (5, {}, 0), (5, {}, 2)],
)
def test_a_queue_whose_only_entries_are_ahead_of_the_log_has_none(
    broker: Broker, count: int, offsets: dict[str, int], older: int
) -> None:
    """As in a copy of a running broker, or after a power failure: the messages are still to come. Also where they are as many
    as the queue had before the delete. ``older``: the messages of a generation before."""
    if older:
        broker.sends(*sent("o", 0, older))
        broker.imported()
        broker.deletes_topic()
    broker.sends(*sent("a", 0, 5), *sent("u", 0, 1, "U"))
    broker.imported(offsets={"T@g": 3})
    broker.deletes_topic()
    messages = sent("b", 0, count)
    broker.sends(*sent("u", 1, 2, "U"), *messages)
    broker.files()
    entries = broker.folder / "consumequeue"
    kept = broker.rmq.folder / "kept"
    entries.rename(kept)
    del broker.messages[-count:]
    files = Path(broker.files(offsets))
    shutil.rmtree(entries)
    kept.rename(entries)
    broker.rmq.json("import-store", str(files), "--broker", "broker-a")
    assert broker.rmq.json("offsets", "export", "--broker", "broker-a")["left_out"] == {"T@g": [0]}
    broker.sends(*messages)
    broker.imported(offsets=offsets)
    broker.rmq.json(*CUT_OVER)
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == ["a003", "a004", *bodies_of("b", 0, count)]


def test_a_merge_raises_no_offset_of_a_broker_that_owns_its_groups(broker: Broker) -> None:
    """Since the hand-back its topic may have been made again, or its group reset."""
    broker.sends(*sent("a", 0, 9))
    files = Path(broker.files({"T@g": 2}))
    broker.rmq.json("import-store", str(files), "--broker", "broker-a")
    broker.rmq.json(*CUT_OVER)
    broker.rmq.json("consume", "--group", "g")
    handed_back(broker, files)
    file = files / "config" / "consumerOffset.json"
    file.write_text(json.dumps({"offsetTable": {"T@g": {"0": 6}}}))
    merge = ("offsets", "export", "--broker", "broker-a", "--merge", str(file))
    assert broker.rmq.json(*merge)["changes"] == []
    assert (
        "1 offsets are lower than at the last import or the hand-back: T@g queue 0 at 6 (9 here)"
        in broker.rmq(*merge).err
    )
    file.write_text(json.dumps({"offsetTable": {"T@h": {"0": 6}}}))
    (change,) = broker.rmq.json(*merge)["changes"]
    assert (change["key"], change["to_offset"]) == ("T@g", 9)
    file.write_text(json.dumps({"offsetTable": {"T@h": {"0": 6}}}))
    assert "1 offsets of the last import or the hand-back are added" in broker.rmq(*merge).err


def test_an_offset_that_the_broker_deleted_in_a_queue_with_messages_is_gone(broker: Broker) -> None:
    broker.sends(*sent("a", 0, 5))
    broker.imported(offsets={"T@g": 3})
    broker.imported(offsets={})
    assert broker.rmq.json("cutover", "--broker", "broker-a", "--reason", "switched off")["groups"] == 0


def test_an_export_counts_what_only_the_store_has(broker: Broker) -> None:
    broker.sends(*sent("a", 0, 5))
    broker.imported()
    broker.rmq.json("consume", "--group", "g", "--max-messages", "2")
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 4))
    broker.imported()
    answer = broker.rmq.json("offsets", "export", "--broker", "broker-a")
    assert (answer["waiting_deleted"], table_of(broker.rmq, "broker-a")) == ({"T@g": 3}, {"T@g": {0: 0}})
    notes = broker.rmq("offsets", "export", "--broker", "broker-a").err
    assert "T@g: 3 messages of a topic that was deleted at the broker are not consumed in this store" in notes


def test_an_offset_file_of_the_broker_has_offsets_of_the_new_generation(broker: Broker) -> None:
    broker.sends(*sent("a", 0, 5))
    broker.imported()
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 4))
    files = Path(broker.files({"T@g": 3}))
    broker.rmq.json("import-store", str(files), "--broker", "broker-a")
    file = str(files / "config" / "consumerOffset.json")
    options = ("--broker", "broker-a", "--group", "g", "--reason", "it moved here")
    broker.rmq.json("offsets", "import", file, *options)
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == ["b003"]


def test_an_offset_file_says_nothing_of_a_queue_without_messages_at_the_broker(broker: Broker) -> None:
    """Its offset 0 is not the one of the messages that were deleted."""
    broker.sends(*sent("a", 0, 5), *sent("u", 0, 1, "U"))
    broker.imported()
    broker.rmq.json("consume", "--group", "g")
    broker.deletes_topic()
    broker.sends(*sent("u", 1, 2, "U"))
    files = Path(broker.files({"T@g": 0, "U@g": 1}))
    broker.rmq.json("import-store", str(files), "--broker", "broker-a")
    file = str(files / "config" / "consumerOffset.json")
    options = ("--broker", "broker-a", "--group", "g", "--reason", "it moved here")
    refused = broker.rmq("offsets", "import", file, *options, "--topic", "T")
    assert (refused.exit_code, "has no other offset of g. Nothing was changed" in refused.err) == (2, True)
    moved = broker.rmq("offsets", "import", file, *options)
    assert (moved.exit_code, "had no entry of T broker-a:0" in moved.err) == (0, True)
    assert table_of(broker.rmq, "broker-a") == {"U@g": {0: 1}}


def test_retries_of_a_group_that_was_deleted_with_its_retry_topic_and_made_again(broker: Broker) -> None:
    broker.sends(*sent("r", 0, 2, "%RETRY%g"), *sent("a", 0, 1))
    broker.imported(offsets={"%RETRY%g@g": 2, "T@g": 1}, topics=("T", "%RETRY%g"))
    broker.deleted = 2  # T keeps its queue
    broker.sends(*sent("s", 0, 3, "%RETRY%g"))
    broker.imported(offsets={"%RETRY%g@g": 1}, topics=("T", "%RETRY%g"))
    broker.rmq.json("cutover", "--broker", "broker-a", "--reason", "switched off")
    broker.rmq.json("deliver", "--now", ALL_DUE)
    broker.rmq.json("consume", "--group", "g")
    assert sorted(broker.consumed()) == ["a000", "s001", "s002"]


# --- a log that lost its end --------------------------------------------------------------------------------------------

CONTINUE = ("--continue-as", "broker-a-2", "--reason", "the disk was replaced")


@pytest.mark.parametrize(("kept", "again"), [(5, 5), (7, 2)])
def test_a_log_that_lost_its_end_goes_on_in_the_generation_that_the_broker_has(
    broker: Broker, kept: int, again: int
) -> None:
    """Of 5 messages of the first generation and 3 of the second ``kept`` are still there."""
    broker.sends(*sent("a", 0, 5))
    broker.imported()
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 3))
    broker.imported()
    broker.rmq.json("consume", "--group", "g")
    broker.messages = broker.messages[:kept]
    broker.deleted = 5 if kept > 5 else 0
    broker.sends(*sent("n", again, again + 6))
    answer = broker.imported(*CONTINUE)
    assert (answer["continued"]["lost_messages"], answer["begun_again"]) == (8 - kept, [])
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed() == bodies_of("a", 0, 5) + bodies_of("b", 0, 3) + bodies_of("n", again, again + 6)
    assert table_of(broker.rmq) == {"T@g": {0: again + 6}}
    broker.deletes_topic()
    broker.sends(*sent("o", 0, 2))
    files = broker.files()
    answer = broker.rmq.json("import-store", files, "--broker", "broker-a-2", "--shard", "broker-a")
    assert answer["begun_again"] == [{"topic": "T", "queue_id": 0, "base": kept + 6}]
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed()[-2:] == ["o000", "o001"]
    assert table_of(broker.rmq) == {"T@g": {0: 2}}
    assert broker.rmq.json("audit")["audit"] == []


def test_a_queue_that_had_no_entry_before_the_log_lost_its_end_is_not_one_now(broker: Broker) -> None:
    """The broker that deleted the topic was restored from a backup. It has as many other messages, and the copy no entries."""
    broker.sends(*sent("a", 0, 5))
    broker.imported(offsets={"T@g": 5})
    broker.deletes_topic()
    broker.imported(offsets={}, topics=("U",))
    broker.messages, broker.deleted = [*sent("a", 0, 3), *sent("n", 3, 5)], 0
    files = Path(broker.files({"T@g": 4}))
    shutil.rmtree(files / "consumequeue")
    broker.rmq.json("import-store", str(files), "--broker", "broker-a", *CONTINUE)
    assert broker.rmq.json("offsets", "export", "--broker", "broker-a-2")["left_out"] == {}
    assert table_of(broker.rmq) == {"T@g": {0: 4}}


@pytest.mark.parametrize("more", [0, 1])
def test_a_log_that_lost_a_delete_with_its_end_is_not_continued_without_the_messages(broker: Broker, more: int) -> None:
    """They are alive at the broker again, and have no queue offset here. Elsewhere a delete before the cut stays one."""
    broker.sends(*sent("a", 0, 2))
    broker.imported()
    broker.sends(*sent("a", 2, 6))
    kept = list(broker.messages)
    broker.deletes_topic()
    broker.sends(*sent("b", 0, 2))
    assert broker.imported()["deleted"] == 4
    lost, broker.messages, broker.deleted = broker.messages[6:7], list(kept), 0
    broker.sends(*sent("n", 6, 6 + more), *sent("u", 0, 2, "U"))
    positions = broker.rmq.json("sql", "SELECT * FROM positions WHERE kind <> 'own'")
    refused = broker.rmq("import-store", broker.files(), "--broker", "broker-a", *CONTINUE)
    assert (refused.exit_code, "topic 'T', queue 0, the last 4 messages before" in refused.err) == (1, True)
    assert broker.rmq.json("sql", "SELECT * FROM positions WHERE kind <> 'own'") == positions
    broker.messages, broker.deleted = [*kept, *lost, *sent("n", 1, 3)], 6
    assert broker.imported(*CONTINUE)["continued"]["lost_messages"] == 1
    broker.rmq.json("consume", "--group", "g")
    assert sorted(broker.consumed()) == [*bodies_of("a", 0, 2), *bodies_of("b", 0, 2), *bodies_of("n", 1, 3)]


def remove_t(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention of the topic T, and what compaction does an hour later, and did before: of a day there is one file."""
    (shard,) = LakeStore.open(Root.parse(str(rmq.root))).shards()
    monkeypatch.setattr(compact, "SETTLED_MS", -3_600_000)
    host, request = Host(), compact.CompactRequest(f"{TODAY}-compact", TESTS, "daily", Limits(least_files=2))
    compact.compact(shard, request, host)
    rules = [RetentionRule(topic="T", max_bytes=1)]
    retain(shard, RetentionRequest(request_id=f"{TODAY}-retain", actor=TESTS, rules=rules), host)
    assert compact.compact(shard, request, host).removed_rows


def test_a_lost_delete_is_not_passed_over_where_retention_has_removed_what_shows_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages without queue offset are in a file of which no message is left: those of U are of another day."""
    later = [message | {"store_timestamp": 1_700_100_000_000} for message in sent("u", 0, 2, "U")]
    broker.sends(*sent("a", 0, 2))
    broker.imported()
    broker.sends(*sent("a", 2, 4), later[0])
    kept = list(broker.messages)
    broker.deletes_topic()
    broker.sends(later[1], *sent("b", 0, 5))
    assert broker.imported()["deleted"] == 2
    broker.rmq.json("consume", "--group", "g")
    remove_t(broker.rmq, monkeypatch)
    broker.messages, broker.deleted = [*kept, later[1] | {"stored_body": b"n001"}, *sent("n", 4, 8)], 0
    refused = broker.rmq("import-store", broker.files(), "--broker", "broker-a", *CONTINUE)
    assert (refused.exit_code, "the last message before that is not in this store any more" in refused.err) == (1, True)


@pytest.mark.parametrize("removed", [False, True])
def test_a_delete_that_the_broker_still_has_stops_no_log_that_lost_its_end(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """It was imported before what was lost came. Messages of U are of another day, so that retention may remove all of T's."""
    u = [message | {"store_timestamp": 1_700_100_000_000} for message in sent("u", 0, 4, "U")]
    broker.sends(*sent("a", 0, 2))
    broker.imported()
    broker.sends(*sent("a", 2, 4))
    broker.deletes_topic()
    broker.sends(u[0], *sent("b", 0, 3))
    assert broker.imported()["deleted"] == 2
    broker.rmq.json("consume", "--group", "g")
    broker.sends(u[1])
    broker.imported()
    if removed:
        remove_t(broker.rmq, monkeypatch)
    kept = list(broker.messages)
    broker.sends(*u[2:])
    broker.imported()
    broker.messages = [*kept, *sent("n", 2, 4, "U"), *sent("c", 3, 5)]
    assert broker.imported(*CONTINUE)["continued"]["lost_messages"] == 2
    broker.rmq.json("consume", "--group", "g")
    assert broker.consumed()[-2:] == bodies_of("c", 3, 5)
    assert broker.rmq.json("audit")["audit"] == []


def test_damage_is_named_before_what_contradicts_the_entries_behind_it(rmq: Rmq) -> None:
    """Behind damage there may be old records, as of a log that was cut: to have entries made from them would help nothing."""
    rmq.json("init")
    folder = log_of(rmq.folder / "broker", sent("a", 0, 3), sent("a", 3, 5))
    with_queues(folder, 0)
    entries = folder / "consumequeue" / "T" / "0" / f"{0:020}"
    content = bytearray(entries.read_bytes())
    content[3 * UNIT_BYTES + 7] ^= 1  # the place of the first message in the second file
    entries.write_bytes(content)
    words = ("import-store", str(folder), "--broker", "broker-a")
    assert "the broker's entry has" in rmq(*words).err
    damaged(str(folder), "a001")
    refused = rmq(*words)
    assert (refused.exit_code, "the broker's entry has" in refused.err, "magic code" in refused.err) == (1, False, True)


@pytest.mark.parametrize("removed", [False, True])
def test_a_lost_delete_is_not_passed_over_where_the_broker_has_removed_the_messages(
    rmq: Rmq, monkeypatch: pytest.MonkeyPatch, removed: bool
) -> None:
    """The queue goes on there behind them, and here its new messages were the first ones. ``removed``: here too."""
    rmq.json("init")
    folder = rmq.folder / "broker"
    u = [message | {"store_timestamp": 1_700_100_000_000} for message in sent("u", 0, 3, "U")]
    deleted = sent("a", 0, 3)
    with_queues(log_of(folder, deleted, [*u, *sent("b", 0, 5)]), 3)
    assert rmq.json("import-store", str(folder), "--broker", "broker-a")["deleted"] == 3
    if removed:
        remove_t(rmq, monkeypatch)
    log_of(folder, deleted, [*u[:2], u[2] | {"stored_body": b"n002"}, *sent("n", 3, 5)])
    (folder / "commitlog" / f"{0:020}").unlink()
    refused = rmq("import-store", str(folder), "--broker", "broker-a", *CONTINUE)
    said = (
        "neither this store nor the log has all messages" if removed else "the broker has lost that it deleted topics"
    )
    assert (refused.exit_code, said in refused.err) == (1, True), refused


def test_a_hole_is_named_before_what_contradicts_the_entries_behind_it(rmq: Rmq) -> None:
    rmq.json("init")
    folder = log_of(rmq.folder / "broker", sent("a", 0, 3), sent("a", 3, 5), sent("a", 5, 7))
    with_queues(folder, 0)
    entries = folder / "consumequeue" / "T" / "0" / f"{0:020}"
    content = bytearray(entries.read_bytes())
    content[5 * UNIT_BYTES + 7] ^= 1
    entries.write_bytes(content)
    file = folder / "commitlog" / f"{0:020}"
    log = file.read_bytes()
    file.write_bytes(log[: int.from_bytes(log[:4])].ljust(len(log), b"\0"))  # only its first record
    refused = rmq("import-store", str(folder), "--broker", "broker-a")
    assert (refused.exit_code, "but a later file has records" in refused.err) == (1, True), refused


def test_a_delayed_message_was_delivered_also_to_a_topic_that_was_deleted_since(broker: Broker) -> None:
    """Its copy is here, without an offset. The broker was killed before it saved how far it had delivered."""
    keys = [{"REAL_TOPIC": topic, "REAL_QID": "0", "UNIQ_KEY": f"k{topic}"} for topic in ("T", "U")]
    level: dict[str, Any] = {"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 2}
    copies = [sent("d", 0, 1, topic)[0] | {"properties": key} for topic, key in zip("TU", keys, strict=True)]
    broker.sends(*(copy | level | {"queue_offset": n} for n, copy in enumerate(copies)), *copies, *sent("b", 0, 1))
    assert broker.imported(offsets={"T@g": 1})["deleted"] == 1
    report = broker.rmq.json("cutover", "--broker", "broker-a", "--reason", "switched off")
    assert (report["waiting"], [(one["delivered"], one["uncertain"]) for one in report["levels"]]) == (0, [(2, 0)])


def test_a_salvage_that_leaves_out_the_first_message_of_an_empty_queue_records_the_gap(broker: Broker) -> None:
    broker.sends(*sent("u", 0, 2, "U"))
    broker.imported(offsets={"T@g": 0})
    broker.sends(*sent("a", 0, 3))
    log = Path(broker.files(), "commitlog", f"{0:020}")
    log.write_bytes(log.read_bytes().replace(b"a000", b"axxx"))
    answer = broker.rmq.json("import-store", str(broker.folder), "--broker", "broker-a", "--salvage")
    assert [(gap["topic"], gap["begin"], gap["end"]) for gap in answer["queue_gaps"]] == [("T", 0, 1)]
    stopped = broker.rmq("consume", "--group", "g")
    assert "lost in a salvage, or removed on the broker" in stopped.err
    assert broker.rmq.json("audit")["audit"] == []


def test_the_gap_of_a_salvage_is_recorded_also_where_the_queue_goes_on_in_a_later_import(broker: Broker) -> None:
    broker.sends(*sent("u", 0, 2, "U"))
    broker.imported(offsets={"T@g": 0})
    broker.sends(*sent("a", 0, 2), *sent("u", 2, 3, "U"))

    def imports(*options: str) -> Any:
        log = Path(broker.files(), "commitlog", f"{0:020}")
        log.write_bytes(log.read_bytes().replace(b"a000", b"axxx").replace(b"a001", b"axxx"))
        return broker.rmq("import-store", str(broker.folder), "--broker", "broker-a", *options)

    assert imports("--salvage").exit_code == 0
    broker.sends(*sent("a", 2, 3))
    refused = imports()
    assert (refused.exit_code, "no message at [0, 2), the log continues at 2" in refused.err) == (1, True)
    gaps = json.loads(imports("--salvage", "--json").out)["queue_gaps"]
    assert [(gap["topic"], gap["begin"], gap["end"]) for gap in gaps] == [("T", 0, 2)]
    assert broker.rmq.json("audit")["audit"] == []


def damaged_files(broker: Broker, *bodies: bytes, topics: Sequence[str] = ("T", "U")) -> str:
    """The broker's files, in which the messages with these bodies are damaged."""
    folder = broker.files({}, topics)
    log = Path(folder, "commitlog", f"{0:020}")
    for body in bodies:
        log.write_bytes(log.read_bytes().replace(body, b"xxxx"))
    return folder


@pytest.mark.parametrize("topic", ["T", "%RETRY%g", "SCHEDULE_TOPIC_XXXX"])
@pytest.mark.parametrize("goes_on", ["at once", "later", "later, without entries"])
def test_a_salvage_that_leaves_out_the_first_message_of_a_new_queue_records_the_gap(
    broker: Broker, topic: str, goes_on: str
) -> None:
    """The topic was made since the import before."""

    def imports(*options: str) -> Any:
        folder = damaged_files(broker, b"a000", topics=[topic, "U"])
        if goes_on == "later, without entries":
            shutil.rmtree(Path(folder, "consumequeue"))
        return broker.rmq("import-store", folder, "--broker", "broker-a", *options)

    broker.sends(*sent("u", 0, 2, "U"))
    broker.imported(topics=["U"])
    broker.sends(*sent("a", 0, 3 if goes_on == "at once" else 1, topic), *sent("u", 2, 3, "U"))
    gaps = json.loads(imports("--salvage", "--json").out)["queue_gaps"]
    broker.sends(*sent("a", 3 if goes_on == "at once" else 1, 4, topic))
    if goes_on == "later, without entries":  # nothing shows yet that the queue has a message
        assert gaps == []
        refused = imports()
        assert (refused.exit_code, "no message at [0, 1), the log continues at 1" in refused.err) == (1, True)
        gaps = json.loads(imports("--salvage", "--json").out)["queue_gaps"]
    else:
        assert imports().exit_code == 0
    assert [(gap["topic"], gap["begin"], gap["end"]) for gap in gaps] == [(topic, 0, 1)]
    queues = f"SELECT min_offset, max_offset FROM queues WHERE topic = '{topic}'"
    assert broker.rmq.json("sql", queues) == [{"min_offset": 0, "max_offset": 4}]
    assert broker.rmq.json("audit")["audit"] == []


def test_salvages_that_leave_out_all_messages_of_a_new_queue_one_after_the_other_record_its_gaps(
    broker: Broker,
) -> None:
    broker.sends(*sent("u", 0, 2, "U"))
    broker.imported(topics=["U"])
    lost = [b"a000", b"a001"]
    for n in range(3):
        broker.sends(*sent("a", n, n + 1), *sent("u", n + 2, n + 3, "U"))
        folder = damaged_files(broker, *lost)
        answer = broker.rmq.json("import-store", folder, "--broker", "broker-a", "--salvage")
        expected = {0: [(0, 1)], 1: [], 2: [(1, 2)]}[n]  # a queue that goes on shows the second one
        assert [(gap["begin"], gap["end"]) for gap in answer["queue_gaps"]] == expected
        assert broker.rmq.json("audit", "--full")["audit"] == []


@pytest.mark.parametrize("known", ["later", "only gaps"])
def test_a_salvage_does_not_count_that_cannot_have_left_out_what_a_queue_lacks(broker: Broker, known: str) -> None:
    """The topic's messages before are not in the log: the broker has removed them."""
    is_later = known == "later"
    topics, broken = (["U"], [b"u002"]) if is_later else (["T", "U"], [])
    broker.sends(*sent("u", 0, 2, "U"))
    broker.imported(offsets={}, topics=topics)
    broker.sends(*sent("u", 2 if is_later else 3, 4, "U"))
    folder = damaged_files(broker, *broken, topics=topics)
    salvaged = broker.rmq.json("import-store", folder, "--broker", "broker-a", "--salvage")
    assert (len(salvaged["salvaged"]), len(salvaged["queue_gaps"])) == (len(broken), 1)
    broker.rmq.json("import-store", damaged_files(broker, *broken), "--broker", "broker-a")
    broker.sends(*sent("a", 5, 7))
    folder = damaged_files(broker, *broken)
    assert broker.rmq.json("import-store", folder, "--broker", "broker-a")["queue_gaps"] == []
    queues = "SELECT min_offset, max_offset FROM queues WHERE topic = 'T'"
    assert broker.rmq.json("sql", queues) == [{"min_offset": 5, "max_offset": 7}]
    assert broker.rmq.json("audit")["audit"] == []


@pytest.mark.parametrize("queue", ["%LMQ%x", "Other"])
def test_a_queue_of_messages_that_are_in_the_queue_of_their_own_topic_has_no_gap(broker: Broker, queue: str) -> None:
    """As with INNER_MULTI_DISPATCH. A salvage leaves out a message before them."""
    broker.sends(*sent("u", 0, 5, "U"))
    folder = Path(damaged_files(broker, b"u001", *([b"u003"] if queue == "%LMQ%x" else []), topics=["U"]))
    entries = Path(folder, "consumequeue/U/0", f"{0:020}").read_bytes()
    file = Path(folder, "consumequeue", queue, "0", f"{0:020}")
    file.parent.mkdir(parents=True)
    file.write_bytes(entries[2 * UNIT_BYTES :])
    answer = broker.rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    assert {gap["topic"] for gap in answer["queue_gaps"]} == {"U"}
    queues = f"SELECT min_offset, max_offset FROM queues WHERE topic = '{queue}'"
    assert broker.rmq.json("sql", queues) == [{"min_offset": 3, "max_offset": 3}]
    assert broker.rmq.json("audit", "--full")["audit"] == []


@pytest.mark.parametrize("before", ["nothing", "an import", "another salvage"])
@pytest.mark.parametrize("last", [[b"u005"], []])
def test_a_queue_whose_messages_an_earlier_part_left_out_has_the_gap(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, before: str, last: list[bytes]
) -> None:
    """``last``: what is damaged in the last part. ``another salvage``: of a copy without consume queues."""
    monkeypatch.setattr(import_part, "part_bytes", lambda queues, log_bytes: FILE_BYTES)
    parts = [sent("u", 0, 2, "U"), [*sent("a", 0, 3), *sent("u", 2, 4, "U")], sent("u", 4, 7, "U")]

    def files(count: int) -> str:
        folder = with_queues(log_of(broker.folder, *parts[:count]), 0)
        for file in (folder / "commitlog").iterdir():
            for body in (b"a000", b"a001", b"a002", *last):
                file.write_bytes(file.read_bytes().replace(body, b"xxxx"))
        if count == 2:
            shutil.rmtree(folder / "consumequeue")
        return str(folder)

    def imports(count: int, *options: str) -> dict[str, Any]:
        answer: dict[str, Any] = broker.rmq.json("import-store", files(count), "--broker", "broker-a", *options)
        return answer

    if before == "an import":
        imports(1)
    elif before == "another salvage":
        assert imports(2, "--salvage")["queue_gaps"] == []
        if not last:
            refused = broker.rmq("import-store", files(3), "--broker", "broker-a")
            assert (refused.exit_code, "[0, 3)" in refused.err, "--salvage" in refused.err) == (1, True, True)
    gaps = imports(3, "--salvage")["queue_gaps"]
    assert [(gap["begin"], gap["end"], gap["reason"]) for gap in gaps if gap["topic"] == "T"] == [(0, 3, LEFT_OUT)]
    assert [gap["reason"] for gap in gaps if gap["topic"] == "U"] == [NO_MESSAGE] * len(last)
    queues = "SELECT min_offset, max_offset FROM queues WHERE topic = 'T'"
    assert broker.rmq.json("sql", queues) == [{"min_offset": 0, "max_offset": 3}]
    assert broker.rmq.json("audit", "--full")["audit"] == []
    assert imports(3)["status"] == "unchanged"


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize(
    ("removed", "lost", "bounds", "gaps"),
    [
        (1, [b"a001"], (1, 3), [(1, 2)]),
        (1, [b"a001", b"a002"], (1, 3), [(1, 3)]),
        (2, [b"u002"], (2, 3), []),
        (0, [b"a000", b"a001"], (0, 3), [(0, 2)]),
    ],
)
def test_a_queue_of_a_log_that_lost_its_begin_has_the_gap_that_its_entries_show(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    in_parts: bool,
    removed: int,
    lost: list[bytes],
    bounds: tuple[int, int],
    gaps: list[tuple[int, int]],
) -> None:
    """Of the messages of T the broker has ``removed`` so many with the first file of its log, before the first import."""
    if in_parts:
        monkeypatch.setattr(import_part, "part_bytes", lambda queues, log_bytes: FILE_BYTES)
    first = [*sent("u", 0, 2, "U"), *sent("a", 0, removed)]
    rest = [*sent("a", removed, 2), *sent("u", 2, 4, "U")], [*sent("a", 2, 3), *sent("u", 4, 5, "U")]
    folder = with_queues(log_of(broker.folder, first, *rest), 0)
    (folder / "commitlog" / f"{0:020}").unlink()
    for file in (folder / "commitlog").iterdir():
        for body in lost:
            file.write_bytes(file.read_bytes().replace(body, b"xxxx"))
    answer = broker.rmq.json("import-store", str(folder), "--broker", "broker-a", "--salvage")
    assert [(gap["begin"], gap["end"]) for gap in answer["queue_gaps"] if gap["topic"] == "T"] == gaps
    queues = "SELECT min_offset, max_offset FROM queues WHERE topic = 'T'"
    assert broker.rmq.json("sql", queues) == [dict(zip(("min_offset", "max_offset"), bounds, strict=True))]
    assert broker.rmq.json("audit", "--full")["audit"] == []
    assert broker.rmq.json("import-store", str(folder), "--broker", "broker-a")["status"] == "unchanged"
