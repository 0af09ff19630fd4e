"""A log that was imported up to the end of a file, behind an end-of-file marker: whether the next copy is still that log.

The zeros behind the marker are the same in every log, so the records before it have to tell.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_store.errors import BadData, DamagedBehindCut
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.broker import import_commit, import_part, import_slice
from rmq_store.lake.broker.hand_back import hand_back
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.imports import LAST_RECORDS, last_import
from rmq_store.log.record import BLANK_MAGIC
from rmq_store.log.record_encoder import encode, new_record
from tests.contract.test_diverged_log import SIZE, continued, messages
from tests.contract.test_import_store import BROKER, FILE_BYTES, TESTS, Lake, cut_over

Messages = Sequence[dict[str, Any]]
BOTH = messages(0, 12)
"""What is in both logs. 12 to 17 are lost, or the broker's new ones."""
TORN = struct.pack(">i", 20_000)
"""The begin of a record that was not written to its end."""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def log_of(folder: Path, *files: Messages | bytes) -> Path:
    """A store whose log has these files: messages, or bytes. Each file but the last ends with its marker."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "commitlog").mkdir(parents=True)
    for number, content in enumerate(files):
        start = number * FILE_BYTES
        log = bytearray(content) if isinstance(content, bytes) else records(content, start)
        if number + 1 < len(files):
            log += struct.pack(">ii", FILE_BYTES - len(log), BLANK_MAGIC)
        (folder / "commitlog" / f"{start:020}").write_bytes(log.ljust(FILE_BYTES, b"\0"))
    return folder


def records(content: Messages, start: int) -> bytearray:
    log = bytearray()
    for message in content:
        place: dict[str, Any] = {"topic": "T", "commit_log_offset": start + len(log), "properties": {}}
        times: dict[str, Any] = {"born_timestamp": 1, "store_timestamp": 1_700_000_000_000}
        log += encode(new_record(**(place | times | message)))
    return log


def without_last(folder: Path) -> Path:
    """The log before the broker made its last file."""
    max((folder / "commitlog").iterdir()).unlink()
    return folder


def bodies(lake: Lake) -> list[str]:
    rows = query(lake.store, "SELECT body FROM messages ORDER BY broker_name, commit_log_offset").to_pylist()
    return [row["body"].decode() for row in rows]


def recorded(lake: Lake) -> Any:
    ctl = last_import(lake.store.shards()[0], BROKER)
    assert ctl is not None
    return json.loads(ctl.parameters).get(LAST_RECORDS)


@pytest.mark.parametrize("has_next_file", [False, True])
@pytest.mark.parametrize("size", [4, 9000])
def test_a_lost_end_before_a_marker_is_refused_and_can_be_continued(
    lake: Lake, tmp_path: Path, size: int, has_next_file: bool
) -> None:
    """Each queue has as many new messages as it lost, and the log goes on at the same place. Where the messages are large, the
    last bytes of both are the same."""
    lost, new = (
        [message | {"stored_body": message["stored_body"].ljust(size, b"x")} for message in messages(12, 18, of=of)]
        for of in ("lost", "new")
    )
    first = log_of(tmp_path / "first", [*BOTH, *lost], TORN)
    assert lake.load(first if has_next_file else without_last(first)).end == FILE_BYTES
    before = lake.positions()
    now = log_of(tmp_path / "now", [*BOTH, *new], messages(18, 20))
    for salvage in (False, True):
        with pytest.raises(
            BadData, match=f"the same up to {12 * SIZE}, where other records follow, 6 imported messages"
        ):
            lake.load(now, salvage=salvage)
    assert lake.positions() == before
    assert continued(lake, now).messages == 8
    assert sorted(body[:4] for body in bodies(lake)) == sorted(
        [f"o{n:03}" for n in range(12)] + [f"l{n:03}" for n in range(12, 18)] + [f"n{n:03}" for n in range(12, 18)]
        + ["o018", "o019"]
    )  # fmt: skip


def test_a_marker_that_was_written_over_is_missed(lake: Lake, tmp_path: Path) -> None:
    """The broker lost nothing but the marker, and wrote messages of another queue there: they were never imported."""
    lake.load(log_of(tmp_path / "first", BOTH, b""))
    other = [{"queue_id": 7, "queue_offset": 0, "stored_body": b"more"}]
    now = log_of(tmp_path / "now", [*BOTH, *other], messages(12, 14))
    with pytest.raises(
        BadData, match="every imported record is in it, but the last bytes that were imported are others"
    ):
        lake.load(now)
    assert len(bodies(lake)) == 12
    assert continued(lake, now).messages == 3
    assert bodies(lake)[12:] == ["more", "o012", "o013"]


@pytest.mark.parametrize(("before", "now"), [(b"", b"rest"), (b"rest", b""), (b"rest", b"more")])
def test_what_is_behind_a_marker_does_not_count(lake: Lake, tmp_path: Path, before: bytes, now: bytes) -> None:
    """As of a longer record that a broker had begun to write there."""

    def store(rest: bytes, *more: Messages | bytes) -> Path:
        folder = log_of(tmp_path / "store", BOTH, *more)
        with (folder / "commitlog" / f"{0:020}").open("r+b") as file:
            file.seek(FILE_BYTES - 100)
            file.write(rest)
        return folder

    assert lake.load(store(before, b"")).end == FILE_BYTES
    assert lake.load(store(now, messages(12, 15))).messages == 3


def test_a_shorter_record_where_a_marker_was_is_the_cut(lake: Lake, tmp_path: Path) -> None:
    """The log was cut before the marker. No record was there, so the place is certain, but where one may have been removed."""
    lake.load(log_of(tmp_path / "first", BOTH, messages(12, 15)))
    now = log_of(tmp_path / "now", [*BOTH, *messages(12, 14, of="new")], messages(14, 16, of="new"))
    report = continued(lake, now)
    assert report.continued is not None
    assert (report.continued.end, report.continued.lost_messages, report.messages) == (12 * SIZE, 3, 4)


def with_new_records(folder: Path, first: int, new: Messages) -> Path:
    """The store, whose broker lost its log from the record with this number on, and wrote new ones over the old ones there."""
    file = folder / "commitlog" / f"{0:020}"
    content = bytearray(file.read_bytes())
    log = records(new, first * SIZE)
    content[first * SIZE : first * SIZE + len(log)] = log
    file.write_bytes(content)
    return folder


NEW = [message | {"store_timestamp": 1_700_000_000_009} for message in messages(3, 63, of="new")]


@pytest.mark.parametrize("salvage", [False, True])
@pytest.mark.parametrize(("first", "count"), [(3, 1), (3, 5), (15, 2)])
def test_new_records_before_old_ones_are_not_passed_over(
    lake: Lake, tmp_path: Path, first: int, count: int, salvage: bool
) -> None:
    """The broker does not clear what is behind them, so the log still ends as the imported one."""
    store = log_of(tmp_path / "store", messages(0, 120))
    lake.load(store)
    with_new_records(store, first, NEW[:count])
    with pytest.raises(BadData, match=rf"the same up to {first * SIZE}, where other records follow"):
        lake.load(store, salvage=salvage)


def test_old_records_behind_new_ones_are_not_imported_again(lake: Lake, tmp_path: Path) -> None:
    """Until the broker has written over them, nothing is imported: it may also take them in again, if it is killed."""
    store = log_of(tmp_path / "store", messages(0, 20))
    lake.load(store)
    for count in (1, 4, 15):
        with_new_records(store, 3, NEW[:count])
        with pytest.raises(BadData, match=f"still has messages that it lost and that are here as those of {BROKER}"):
            continued(lake, store)
    with_new_records(store, 3, NEW[:5])
    file = store / "commitlog" / f"{0:020}"
    content = file.read_bytes()
    file.write_bytes(content[: 8 * SIZE] + bytes(SIZE) + content[9 * SIZE :])  # where the log ends
    report = continued(lake, store)
    assert (report.messages, any("other bytes follow" in note for note in report.notes)) == (5, True)
    with_new_records(store, 3, NEW[:30])
    new = [message["stored_body"].decode() for message in NEW]
    assert lake.load(store, broker=f"{BROKER}-2").messages == 25
    assert bodies(lake) == [f"o{n:03}" for n in range(20)] + new[:30]
    with_new_records(store, 3, NEW)
    assert lake.load(store, broker=f"{BROKER}-2").messages == 30
    with_new_records(store, 40, messages(40, 43, of="more"))
    with pytest.raises(BadData, match=rf"the same up to {40 * SIZE}, where other records follow"):
        lake.load(store, broker=f"{BROKER}-2")


@pytest.mark.parametrize("salvage", [False, True])
def test_old_bytes_behind_new_records_are_not_called_damage_that_a_salvage_mends(
    lake: Lake, tmp_path: Path, salvage: bool
) -> None:
    """They do not begin with a whole record. Also the second import of the new name comes to some."""
    store = log_of(tmp_path / "store", messages(0, 30))
    lake.load(store)
    longer = {"stored_body": b"longer"}
    with_new_records(store, 3, [NEW[0], NEW[1] | longer])
    told = "It is where the broker lost the end of its log: .* Import a copy once the broker has written on"
    with pytest.raises(DamagedBehindCut, match=told):
        continued(lake, store)
    with_new_records(store, 3, NEW[:4])
    file = store / "commitlog" / f"{0:020}"
    content = file.read_bytes()
    file.write_bytes(content[: 7 * SIZE] + bytes(SIZE) + content[8 * SIZE :])  # where the log ends
    assert continued(lake, store).messages == 4
    with_new_records(store, 7, [NEW[4] | longer])
    with pytest.raises(BadData, match="still has messages that it lost" if salvage else told):
        lake.load(store, broker=f"{BROKER}-2", salvage=salvage)
    with_new_records(store, 7, NEW[4:40])
    assert lake.load(store, broker=f"{BROKER}-2", salvage=salvage).messages == 36


def test_old_records_between_new_ones_are_not_imported_again(lake: Lake, tmp_path: Path) -> None:
    """The broker was killed before it had written over them, took some in again, and wrote on behind them."""
    store = log_of(tmp_path / "store", messages(0, 20))
    lake.load(store)
    with_new_records(store, 3, NEW[:1])
    with_new_records(store, 9, NEW[6:40])
    with pytest.raises(BadData, match=f"still has messages that it lost and that are here as those of {BROKER}"):
        continued(lake, store)


def test_a_delayed_message_that_is_delivered_again_is_a_new_record(lake: Lake, tmp_path: Path) -> None:
    """At its place, with another store time: the broker had lost that it was delivered."""
    first = messages(0, 20)
    store = log_of(tmp_path / "store", first)
    lake.load(store)
    again = [message | {"store_timestamp": 1_700_000_000_009} for message in first[4:20]]
    with_new_records(store, 3, [NEW[0], *again, *NEW[17:20]])
    assert continued(lake, store).messages == 20


def test_a_tail_is_compared_where_the_broker_has_removed_its_first_file(lake: Lake, tmp_path: Path) -> None:
    lake.load(log_of(tmp_path / "store", messages(0, 5), messages(5, 125)))
    now = log_of(tmp_path / "now", messages(0, 5), [*messages(5, 7), *NEW[4:6], *messages(9, 125)])
    (now / "commitlog" / f"{0:020}").unlink()
    with pytest.raises(BadData, match=rf"the same up to {FILE_BYTES + 2 * SIZE}, where other records follow"):
        lake.load(now)


def test_a_second_cut_before_the_first_one_is_seen_behind_which_the_log_is_the_same(lake: Lake, tmp_path: Path) -> None:
    store = log_of(tmp_path / "store", messages(0, 20))
    lake.load(store)
    with_new_records(store, 10, NEW[7:60])
    assert continued(lake, store).messages == 53
    with_new_records(store, 3, [message | {"store_timestamp": 1_700_000_000_010} for message in NEW[:2]])
    with pytest.raises(BadData, match=f"the same as the imported log of broker {BROKER} up to {3 * SIZE}"):
        lake.load(store, broker=f"{BROKER}-2")


def test_a_marker_in_the_place_of_lost_messages_is_the_cut(lake: Lake, tmp_path: Path) -> None:
    store = log_of(tmp_path / "store", messages(0, 120), b"")
    lake.load(store)
    file = store / "commitlog" / f"{0:020}"
    content = bytearray(file.read_bytes())
    content[50 * SIZE : 50 * SIZE + 8] = struct.pack(">ii", FILE_BYTES - 50 * SIZE, BLANK_MAGIC)
    file.write_bytes(content)
    second = file.with_name(f"{FILE_BYTES:020}")
    second.write_bytes(records(messages(50, 60, of="new"), FILE_BYTES).ljust(FILE_BYTES, b"\0"))
    with pytest.raises(BadData, match=f"the same up to {50 * SIZE}, where other records follow, 70 imported messages"):
        lake.load(store)
    assert continued(lake, store).messages == 10


def test_damage_in_the_tail_that_was_imported_stops_nothing(lake: Lake, tmp_path: Path) -> None:
    """Also where it was imported with a salvage, and is whole now."""
    store = log_of(tmp_path / "store", messages(0, 60))
    file = store / "commitlog" / f"{0:020}"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"o003", b"xxxx"))
    assert lake.load(store, salvage=True).messages == 59
    file.write_bytes(whole)
    assert lake.load(store).status == "unchanged"
    file.write_bytes(
        log_of(store, messages(0, 62)).joinpath("commitlog", file.name).read_bytes().replace(b"o007", b"xxxx")
    )
    assert lake.load(store).messages == 2


def test_an_import_of_an_earlier_version_is_compared_message_by_message(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = log_of(tmp_path / "store", messages(0, 120))
    with monkeypatch.context() as earlier:
        earlier.setattr(import_commit, "tail", lambda *_: None)
        lake.load(store)
    assert lake.load(store).status == "unchanged"
    with_new_records(store, 50, NEW[47:49])
    with pytest.raises(BadData, match=f"the same up to {50 * SIZE}, where other records follow, 70 imported messages"):
        lake.load(store)


def test_the_retry_of_another_group_is_another_record(lake: Lake, tmp_path: Path) -> None:
    """Two groups send one message back: all but the store time and the properties is the same."""
    retry = {"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 2, "queue_offset": 0, "stored_body": b"once"}
    first, second = (retry | {"properties": {"RETRY_TOPIC": topic}} for topic in ("%RETRY%a", "%RETRY%b"))
    lake.load(log_of(tmp_path / "first", [*BOTH, first]))
    now = log_of(tmp_path / "now", [*BOTH, second | {"store_timestamp": 1_700_000_000_001}])
    with pytest.raises(BadData, match=rf"the same up to {12 * SIZE}, where other records follow, 1 imported messages"):
        lake.load(now)
    assert continued(lake, now).messages == 1


def test_a_file_that_is_missing_behind_the_cut_is_not_passed_over(lake: Lake, tmp_path: Path) -> None:
    """No other message tells of those in it: they are the last ones of their queue."""
    kept = [message | {"queue_id": 5, "queue_offset": 0} for message in messages(4, 5)]
    lake.load(log_of(tmp_path / "first", messages(0, 4), messages(4, 8), messages(8, 12)))
    newer = log_of(tmp_path / "newer", [*messages(0, 3), *messages(3, 5, of="new")], kept, messages(5, 9, of="new"))
    (newer / "commitlog" / f"{FILE_BYTES:020}").unlink()
    with pytest.raises(BadData, match=r"files are missing in the middle of commitlog"):
        continued(lake, newer)


def test_damage_in_the_first_record_of_a_file_is_not_taken_for_the_cut(lake: Lake, tmp_path: Path) -> None:
    """The file before it ends with a marker."""
    first = [messages(0, 4), messages(4, 8), messages(8, 12)]
    lake.load(log_of(tmp_path / "first", *first))
    newer = log_of(tmp_path / "newer", *first[:2], [*messages(8, 10), *messages(10, 13, of="new")])
    file = newer / "commitlog" / f"{FILE_BYTES:020}"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"004", b"xxx", 1))
    report = continued(lake, newer)
    assert report.continued is not None
    assert (report.continued.lost_messages, report.messages) == (2, 3)
    assert audit(lake.store) == []


@pytest.mark.parametrize("parts", [False, True])
def test_a_log_that_goes_on_behind_a_marker_is_imported(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: bool
) -> None:
    if parts:
        monkeypatch.setattr(import_part, "part_bytes", lambda queues, log_bytes: FILE_BYTES)
    store = tmp_path / "store"
    assert lake.load(log_of(store, BOTH, TORN)).end == FILE_BYTES
    begin, end, _ = recorded(lake)
    assert (begin, end) == (0, 12 * SIZE + 8)
    assert lake.load(log_of(store, BOTH, TORN)).status == "unchanged"
    second = lake.load(log_of(store, BOTH, messages(12, 15), messages(15, 16), messages(16, 18)))
    assert (second.messages, second.parts) == (6, 3 if parts else 1)
    assert recorded(lake) is None  # the fingerprint has the last records
    assert lake.load(log_of(store, BOTH, messages(12, 15), messages(15, 16), messages(16, 19))).messages == 1


def test_files_with_nothing_but_a_marker_do_not_hide_the_records_before(lake: Lake, tmp_path: Path) -> None:
    """Also where imports read nothing else: they record what the one before has recorded."""
    lost, new = messages(12, 18, of="lost"), messages(12, 18, of="new")
    store = tmp_path / "store"
    lake.load(log_of(store, [*BOTH, *lost], b"", b""))
    before = recorded(lake)
    assert before[:2] == [0, 18 * SIZE + 8]
    assert lake.load(log_of(store, [*BOTH, *lost], b"", b"", b"")).end == 3 * FILE_BYTES
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text(
        '{"topicConfigTable": {"T": {"topicName": "T", "writeQueueNums": 2}}}'
    )
    assert lake.load(store).status == "committed"
    assert recorded(lake) == before
    now = log_of(tmp_path / "now", [*BOTH, *new], b"", b"", messages(18, 20))
    with pytest.raises(BadData, match=f"the same up to {12 * SIZE}"):
        lake.load(now)
    assert lake.load(log_of(store, [*BOTH, *lost], b"", b"", messages(18, 20))).messages == 2
    assert recorded(lake) is None


def test_a_hand_back_keeps_what_shows_the_log(lake: Lake, tmp_path: Path) -> None:
    lake.load(log_of(tmp_path / "first", [*BOTH, *messages(12, 18, of="lost")], TORN))
    before = recorded(lake)
    (shard,) = lake.store.shards()
    cut_over(lake, shard, "moved")
    hand_back(shard, BROKER, lake.host, request_id="2026-01-01-back", actor=TESTS, reason="back")
    assert (recorded(lake), before[:2]) == (before, [0, 18 * SIZE + 8])
    now = log_of(tmp_path / "now", [*BOTH, *messages(12, 18, of="new")], messages(18, 20))
    with pytest.raises(BadData, match=f"the same up to {12 * SIZE}"):
        lake.load(now)


def test_an_import_of_an_earlier_version_is_compared_by_its_fingerprint(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    with monkeypatch.context() as earlier:
        earlier.setattr(import_commit, "last_records", lambda *_: None)
        lake.load(log_of(store, BOTH, TORN))
    assert recorded(lake) is None
    assert lake.load(log_of(store, BOTH, messages(12, 15), TORN)).messages == 3
    assert recorded(lake)[:2] == [FILE_BYTES, FILE_BYTES + 3 * SIZE + 8]


def test_the_records_before_damage_show_the_log_after_a_salvage(lake: Lake, tmp_path: Path) -> None:
    """A restored copy of what was skipped is no other log, as before."""
    whole = log_of(tmp_path / "whole", messages(0, 300), TORN)
    damaged = Path(shutil.copytree(whole, tmp_path / "damaged"))
    file = damaged / "commitlog" / f"{0:020}"
    content = bytearray(file.read_bytes())
    content[200 * SIZE : 300 * SIZE] = b"\xff" * (100 * SIZE)  # and the marker behind it
    content[300 * SIZE : 300 * SIZE + 8] = b"\xff" * 8
    content[-8:] = b"\xff" * 8
    file.write_bytes(content)
    report = lake.load(damaged, salvage=True)
    assert [(skip.begin, skip.end) for skip in report.salvaged] == [(200 * SIZE, FILE_BYTES)]
    assert recorded(lake)[:2] == [200 * SIZE - 4096, 200 * SIZE]
    other = log_of(tmp_path / "other", messages(0, 300, of="new"), TORN)
    for path in (damaged, other):
        with (path / "commitlog" / f"{0:020}").open("r+b") as changed:
            changed.seek(FILE_BYTES - 4096)
            changed.write(content[-4096:])
    assert lake.load(damaged).status == "unchanged"
    with pytest.raises(BadData, match="is not the one that was imported"):
        lake.load(other)


def test_a_hole_before_the_position_does_not_hide_the_records_before(lake: Lake, tmp_path: Path) -> None:
    """A salvage goes on behind a hole at the end of a file."""
    store = log_of(tmp_path / "store", BOTH, TORN)
    punch_marker(store)
    assert lake.load(store, salvage=True).end == FILE_BYTES
    assert recorded(lake)[:2] == [0, 12 * SIZE]
    other = log_of(tmp_path / "other", messages(0, 12, of="new"), TORN)
    punch_marker(other)
    with pytest.raises(BadData, match="is not the one that was imported"):
        lake.load(other, salvage=True)
    assert lake.load(log_of(store, BOTH, messages(12, 15))).messages == 3


MANY = FILE_BYTES // SIZE
FULL = [{"queue_id": 0, "queue_offset": n, "stored_body": b"body"} for n in range(MANY)]
FULL[-1] |= {"stored_body": b"body".ljust(4 + FILE_BYTES - MANY * SIZE)}
"""They fill a file to its last byte, without a marker."""


@pytest.mark.parametrize(
    ("first", "later", "salvage"),
    [
        (messages(0, 60), [TORN], True),
        (FULL, [struct.pack(">ii", FILE_BYTES, BLANK_MAGIC), b""], False),
    ],
    ids=["a hole that a salvage passes over", "a file with nothing but a marker"],
)
def test_an_import_that_reads_no_record_keeps_the_fingerprint_before(
    lake: Lake, tmp_path: Path, first: Messages, later: list[bytes], salvage: bool
) -> None:
    """Its own is one of zeros."""
    store = log_of(tmp_path / "store", first)
    end = lake.load(store).end
    ctl = last_import(lake.store.shards()[0], BROKER)
    assert (recorded(lake), ctl is not None) == (None, True)
    begin, digest = json.loads(ctl.parameters)["fingerprint"] if ctl else (0, "")
    assert lake.load(write_on(store, later), salvage=salvage).end == len(later) * FILE_BYTES
    assert recorded(lake) == [begin, end, digest]
    assert lake.load(store).status == "unchanged"
    other = log_of(tmp_path / "other", [message | {"queue_id": 8} for message in first])
    with pytest.raises(BadData, match="is not the one that was imported"):
        lake.load(write_on(other, later), salvage=salvage)


def write_on(folder: Path, later: list[bytes]) -> Path:
    """With these files behind the first one."""
    for number, content in enumerate(later, 1):
        (folder / "commitlog" / f"{number * FILE_BYTES:020}").write_bytes(content.ljust(FILE_BYTES, b"\0"))
    return folder


def punch_marker(folder: Path) -> None:
    with (folder / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(12 * SIZE)
        file.write(bytes(8))


def test_a_large_last_record_is_compared_from_its_begin(lake: Lake, tmp_path: Path) -> None:
    """Two records may end with the same 4,096 bytes."""
    large = {"queue_id": 9, "queue_offset": 0, "stored_body": bytes(9000)}
    store = tmp_path / "store"
    lake.load(log_of(store, [*BOTH, large]))
    assert recorded(lake)[0] == 12 * SIZE
    other = large | {"queue_id": 8, "store_timestamp": 1_700_000_000_001}
    with pytest.raises(BadData, match=f"the same up to {12 * SIZE}"):
        lake.load(log_of(tmp_path / "now", [*BOTH, other], messages(12, 15)))
    assert lake.load(log_of(store, [*BOTH, large], messages(12, 15))).messages == 3


def test_an_import_that_begins_at_a_marker_has_the_records_before_it(lake: Lake, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert lake.load(log_of(store, messages(0, 99))).end == 99 * SIZE
    assert lake.load(log_of(store, messages(0, 99), b"")).end == FILE_BYTES
    assert recorded(lake)[:2] == [99 * SIZE + 8 - 4096, 99 * SIZE + 8]
    assert lake.load(log_of(store, messages(0, 99), messages(99, 100))).messages == 1


def test_an_import_in_chunks_has_the_last_record_of_the_last_chunk(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_slice, "CHUNK_BYTES", 3 * SIZE)
    store = tmp_path / "store"
    lake.load(log_of(store, messages(0, 60), TORN))
    assert recorded(lake)[:2] == [60 * SIZE + 8 - 4096, 60 * SIZE + 8]
    assert lake.load(log_of(store, messages(0, 60), messages(60, 61))).messages == 1


def test_files_that_the_broker_removed_are_not_compared(lake: Lake, tmp_path: Path) -> None:
    store = tmp_path / "store"
    lake.load(log_of(store, BOTH, b"", TORN))
    log_of(store, BOTH, b"", messages(12, 15))
    (store / "commitlog" / f"{0:020}").unlink()
    assert lake.load(store).messages == 3
