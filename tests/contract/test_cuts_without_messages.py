"""A log that lost its end, where retention has removed messages of the store, or a salvage has left them out.

There is nothing to compare with the log then. When the broker has written a record tells whether it is a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.positions import min_id
from rmq_store.errors import BadData
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.broker import common_log, last_records
from rmq_store.lake.broker.broker_levels import delivered_levels
from rmq_store.lake.maintain import compact
from rmq_store.lake.maintain.retention import RetentionRequest, retain
from rmq_store.lake.window.deliver import deliver
from rmq_store.maintain.files_to_join import Limits
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC
from rmq_store.settings.retention_settings import RetentionRule
from tests.contract.test_diverged_log import SIZE, continued, messages
from tests.contract.test_import_store import BROKER, FILE_BYTES, TESTS, Lake, cut_over
from tests.contract.test_lost_ends import NEW, Messages, log_of, with_new_records

HOLE = b"hole"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def of_u(first: int, last: int, *, of: str = "old", ms: int = 1_700_000_000_000) -> list[dict[str, Any]]:
    """Messages [first, last) of the topic U, in one queue."""
    bodies = [f"{of[0]}{n:03}".encode() for n in range(first, last)]
    topic: dict[str, Any] = {"topic": "U", "queue_id": 0, "store_timestamp": ms}
    return [topic | {"queue_offset": n, "stored_body": body} for n, body in enumerate(bodies, first)]


def imported(lake: Lake, store: Path, *parts: Messages) -> Path:
    """A log of these parts, each of which is an import."""
    for number in range(len(parts)):
        lake.load(log_of(store, [message for part in parts[: number + 1] for message in part]))
    return store


def retained(lake: Lake, topic: str, *, archive: bool = False) -> None:
    (shard,) = lake.store.shards()
    rules = [RetentionRule(topic=topic, max_bytes=1, archive=archive)]
    retain(shard, RetentionRequest(request_id="2026-01-01-retain", actor=TESTS, rules=rules), lake.host)


def remove_u(lake: Lake, monkeypatch: pytest.MonkeyPatch, *, archive: bool = False, topic: str = "U") -> None:
    """Retention of the topic, and what compaction does an hour later: at least the last message is gone."""
    retained(lake, topic, archive=archive)
    (shard,) = lake.store.shards()
    monkeypatch.setattr(compact, "SETTLED_MS", -3_600_000)
    request = compact.CompactRequest("2026-01-01-compact", TESTS, "daily", Limits(least_files=2))
    assert compact.compact(shard, request, lake.host).removed_rows


def without_u(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, archive: bool = False) -> Path:
    """A log of 5 messages, 20 of U, which are removed, and 60 more. The clock was set back behind the first of these."""
    rest = messages(5, 65)
    rest[0]["store_timestamp"] = 1_700_000_000_005
    store = imported(lake, tmp_path / "store", messages(0, 5), of_u(0, 20), rest)
    remove_u(lake, monkeypatch, archive=archive)
    return store


@pytest.mark.parametrize("archive", [False, True])
def test_new_records_are_not_passed_over_where_retention_has_removed_the_old_ones(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: bool
) -> None:
    store = without_u(lake, tmp_path, monkeypatch, archive=archive)
    assert lake.load(store).status == "unchanged"
    with_new_records(store, 9, NEW[6:8])
    same = (9 if archive else 5) * SIZE  # the messages that are here
    with pytest.raises(BadData, match=rf"the same up to {same}, where other records follow"):
        lake.load(store)
    if not archive:
        with pytest.raises(BadData, match=f"the same at least up to {same}, but .*retention removed them"):
            continued(lake, store)


def test_damage_where_retention_has_removed_messages_stops_nothing(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = without_u(lake, tmp_path, monkeypatch)
    file = store / "commitlog" / f"{0:020}"
    file.write_bytes(file.read_bytes().replace(b"o009", b"xxxx", 1))
    assert lake.load(store).status == "unchanged"


@pytest.mark.parametrize("archive", [False, True])
def test_old_records_that_retention_has_removed_here_are_not_imported_again(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: bool
) -> None:
    store = without_u(lake, tmp_path, monkeypatch, archive=archive)
    with_new_records(store, 4, NEW[1:3])
    file = store / "commitlog" / f"{0:020}"
    content = file.read_bytes()
    file.write_bytes(content[: 20 * SIZE] + bytes(SIZE) + content[21 * SIZE :])  # where the log ends
    with pytest.raises(BadData, match=f"still has messages that it lost and that are here as those of {BROKER}"):
        continued(lake, store)


@pytest.mark.parametrize("left_out", [b"none", b"o004", HOLE], ids=["one record", "another one of the queue", "a hole"])
def test_a_new_record_in_the_place_of_one_that_a_salvage_left_out_is_the_cut(
    lake: Lake, tmp_path: Path, left_out: bytes
) -> None:
    """A broker that was killed cuts its log at a damaged record, and gives its queue offset out again."""
    store = log_of(tmp_path / "store", messages(0, 60))
    file = store / "commitlog" / f"{0:020}"
    whole = file.read_bytes()
    content = bytearray(whole.replace(b"o007", b"xxxx").replace(left_out, b"xxxx"))
    if left_out == HOLE:
        content[3 * SIZE : 4 * SIZE] = bytes(SIZE)
    file.write_bytes(content)
    assert lake.load(store, salvage=True).messages == (59 if left_out == b"none" else 58)
    with_new_records(store, 7, NEW[4:5])
    for salvage in (False, True):
        with pytest.raises(BadData, match=rf"the same up to {7 * SIZE}, where other records follow"):
            lake.load(store, salvage=salvage)
    with pytest.raises(BadData, match="still has messages that it lost"):
        continued(lake, store)
    with_new_records(store, 7, NEW[4:60])
    assert continued(lake, store).messages == 56
    assert audit(lake.store) == []


def test_old_records_are_not_imported_again_where_the_newest_messages_were_removed_too(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are here are no younger: the broker has written all in the same millisecond."""
    store = imported(lake, tmp_path / "store", [*of_u(0, 3), *messages(0, 5)], of_u(3, 11))
    remove_u(lake, monkeypatch)
    with_new_records(store, 7, NEW[1:2])
    with pytest.raises(BadData, match="still has messages that it lost"):
        continued(lake, store)


def test_a_clock_that_was_set_back_makes_no_cut_of_a_sound_log(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tail cannot be compared, as the broker has removed the file in which that begins."""
    files = [messages(0, 5), [*of_u(0, 9, ms=1_700_000_000_005), *messages(5, 9)]]
    store = tmp_path / "store"
    lake.load(log_of(store, *files))
    remove_u(lake, monkeypatch)
    log_of(store, files[0], [*files[1], *messages(9, 12)])
    (store / "commitlog" / f"{0:020}").unlink()
    assert lake.load(store).messages == 3


def test_a_tail_that_begins_in_a_missing_file_stops_nothing(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (common_log, last_records):
        monkeypatch.setattr(module, "TAIL_BYTES", FILE_BYTES)
    store, files = tmp_path / "store", (messages(0, 5), messages(5, 9))

    def load(*last: Sequence[dict[str, Any]], salvage: bool = False) -> int:
        log_of(store, *files, *last)
        (store / "commitlog" / f"{FILE_BYTES:020}").unlink()
        return lake.load(store, salvage=salvage).messages

    assert (
        load([{"topic": "V", "queue_offset": n, "queue_id": 0, "stored_body": b"body"} for n in range(4)], salvage=True)
        == 9
    )
    assert load([{"topic": "V", "queue_offset": n, "queue_id": 0, "stored_body": b"body"} for n in range(6)]) == 2


@pytest.mark.slow
def test_a_queue_goes_on_where_the_log_says_it_if_the_lost_messages_were_removed_here(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [*messages(0, 5), *of_u(0, 3)]
    store = imported(lake, tmp_path / "store", both, [*messages(5, 6), *of_u(3, 11)])
    remove_u(lake, monkeypatch)
    later = 1_700_000_000_009
    now = [message | {"store_timestamp": later} for message in messages(5, 20, of="new")]
    with pytest.raises(BadData, match=r"in 1 queues, first topic 'U', queue 0, it is not known at which offset"):
        continued(lake, log_of(store, [*both, *now]))
    assert continued(lake, log_of(store, [*both, *now, *of_u(3, 6, of="new", ms=later)])).messages == 18
    assert lake.positions()[min_id(MessageQueue("U", f"{BROKER}-2", 0))] == 3
    assert audit(lake.store) == []


@pytest.mark.parametrize(("archive", "expected"), [(True, (2, 1, 0)), (False, (0, 3, 3))])
def test_a_delayed_message_whose_copy_retention_has_removed_may_have_been_delivered(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: bool, expected: tuple[int, int, int]
) -> None:
    """Of three messages of a delay level two were delivered. The third one is before what was removed."""
    level: dict[str, Any] = {"topic": SCHEDULE_TOPIC, "queue_id": 2}
    keys = [{"REAL_TOPIC": "U", "REAL_QID": "0", "UNIQ_KEY": f"K{number}"} for number in range(3)]
    of_level = [level | {"queue_offset": n, "properties": of | {"DELAY": "3"}} for n, of in enumerate(keys)]
    waiting = [of_u(n, n + 1)[0] | message for n, message in enumerate(of_level)]
    copies = [message | {"properties": of} for message, of in zip(of_u(0, 2), keys, strict=False)]
    imported(lake, tmp_path / "store", waiting, [*copies, *of_u(2, 4)])
    (shard,) = lake.store.shards()

    def progress() -> tuple[int, int, int]:
        (one,) = delivered_levels(lake.store, shard.name, [BROKER], {2: (0, 3)})
        return one.delivered, one.waiting, one.uncertain

    assert progress() == (2, 1, 0)
    remove_u(lake, monkeypatch, archive=archive)
    assert progress() == expected


def test_a_queue_begins_with_its_first_message_where_the_broker_may_have_removed_those_before(
    lake: Lake, tmp_path: Path
) -> None:
    """The log has lost its begin, and no consume queue says what it had. A salvage has left out one message since."""
    v: list[dict[str, Any]] = [{"topic": "V", "queue_id": 0, "queue_offset": 4, "stored_body": b"v004"}]
    for is_last in (False, True):
        store = log_of(tmp_path / "store", messages(0, 5), [*messages(5, 9), *(v if is_last else [])])
        (store / "commitlog" / f"{0:020}").unlink()
        file = store / "commitlog" / f"{FILE_BYTES:020}"
        file.write_bytes(file.read_bytes().replace(b"o006", b"xxxx", 1))
        lake.load(store, salvage=not is_last)
    assert lake.positions()[min_id(MessageQueue("V", BROKER, 0))] == 4
    assert audit(lake.store) == []


TWIN = {"REAL_TOPIC": "U", "REAL_QID": "0", "UNIQ_KEY": "K"}
"""What two delayed messages have that are equal, as when a producer or a consumer did not get the first answer."""


def delayed_twice(first_level: int = 3, *, copied_after_ms: int = 5_000) -> list[dict[str, Any]]:
    """Two equal messages, the second one in level 3 (10 s), and one delivered copy."""
    levels: list[dict[str, Any]] = [
        {"topic": SCHEDULE_TOPIC, "queue_id": level - 1, "queue_offset": n, "properties": TWIN | {"DELAY": str(level)}}
        for level, n in ((first_level, 0), (3, int(first_level == 3)))
    ]
    (copy,) = of_u(0, 1, ms=1_700_000_000_000 + copied_after_ms)
    return [*(of_u(0, 1)[0] | level for level in levels), copy | {"properties": TWIN}]


def progress_of_second(lake: Lake, offset: int) -> tuple[int, int, int]:
    (one,) = delivered_levels(lake.store, "s1", [BROKER], {2: (offset, offset + 1)})
    return one.delivered, one.waiting, one.uncertain


def test_a_copy_may_be_that_of_an_equal_message_that_a_salvage_left_out(lake: Lake, tmp_path: Path) -> None:
    store = log_of(tmp_path / "store", delayed_twice(copied_after_ms=10_000))
    file = store / "commitlog" / f"{0:020}"
    file.write_bytes(file.read_bytes().replace(b"o000", b"xxxx", 1))
    assert len(lake.load(store, salvage=True).salvaged) == 1
    assert progress_of_second(lake, 1) == (0, 1, 1)


@pytest.mark.parametrize("archive", [False, True])
def test_a_copy_may_be_that_of_an_equal_message_that_retention_removed_here(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: bool
) -> None:
    imported(lake, tmp_path / "store", delayed_twice(1), messages(1, 3))
    assert progress_of_second(lake, 0) == (0, 1, 1)
    (shard,) = lake.store.shards()
    cut_over(lake, shard, "switched off")
    due = deliver(lake.store, shard, "2026-01-01-d", TESTS, lake.host, now_ms=1_700_000_001_000)
    assert due.delivered == 1
    remove_u(lake, monkeypatch, archive=archive, topic=SCHEDULE_TOPIC)
    assert progress_of_second(lake, 0) == (0, 1, 1)


@pytest.mark.parametrize("archive", [False, True])
def test_what_retention_has_removed_and_is_still_stored_makes_no_copy_uncertain(
    lake: Lake, tmp_path: Path, archive: bool
) -> None:
    first, *others = delayed_twice(1)
    first["properties"] |= {"UNIQ_KEY": "another"}
    imported(lake, tmp_path / "store", [first, *others], messages(1, 3))
    (shard,) = lake.store.shards()
    cut_over(lake, shard, "switched off")
    due = deliver(lake.store, shard, "2026-01-01-d", TESTS, lake.host, now_ms=1_700_000_001_000)
    assert due.delivered == 1
    retained(lake, SCHEDULE_TOPIC, archive=archive)
    assert progress_of_second(lake, 0) == (1, 0, 0)


@pytest.mark.parametrize(("after_ms", "expected"), [(9_999, (0, 1, 1)), (10_000, (1, 0, 0))])
def test_a_copy_from_before_the_due_time_may_be_that_of_an_equal_message_that_the_broker_removed(
    lake: Lake, tmp_path: Path, after_ms: int, expected: tuple[int, int, int]
) -> None:
    first, second, copy = delayed_twice(copied_after_ms=after_ms)
    store = log_of(tmp_path / "store", [first], [second, copy])
    (store / "commitlog" / f"{0:020}").unlink()
    lake.load(store)
    assert progress_of_second(lake, 1) == expected
