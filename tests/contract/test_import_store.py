"""Importing a broker's files: only what is new, all or nothing, and what bad files get."""

from __future__ import annotations

import json
import re
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest

from rmq_store.admin.reset import ResetRequest, ResetTo
from rmq_store.broker_files.config_files import parse_delay_offsets, read_topics
from rmq_store.broker_files.delivered_levels import LevelProgress
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Actor, Ctl, Observed
from rmq_store.commit.positions import QueueRange
from rmq_store.commit.request import Status
from rmq_store.consumer.delay import queue_id_to_delay_level
from rmq_store.errors import BadData, DamagedRecord, OverLimit, RmqError, StoreUnusable, UnsupportedRecord, WrongUse
from rmq_store.lake.admin.offset_moves import move_in_all
from rmq_store.lake.audit.full import full
from rmq_store.lake.broker import import_commit, import_slice
from rmq_store.lake.broker import import_store as import_of_stores
from rmq_store.lake.broker.broker_levels import delivered_levels, passed_over
from rmq_store.lake.broker.broker_timer import WaitingTimers, waiting_timers
from rmq_store.lake.broker.cutover import CutoverReport, adopted_moves, cutover, cutover_proposal
from rmq_store.lake.broker.hand_back import hand_back
from rmq_store.lake.broker.import_commit import GONE, MISSING_FILES, NO_MESSAGE, QueueGap
from rmq_store.lake.broker.import_request import ImportReport, ImportRequest
from rmq_store.lake.broker.import_store import import_store
from rmq_store.lake.broker.salvage import Skipped
from rmq_store.lake.commit import commit as commit_steps
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.maintain.retention import RetentionRequest, retain
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.deliver import deliver
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.log.commit_log import item_at
from rmq_store.log.record_encoder import encode, new_record
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC
from rmq_store.message.properties import tags_code
from rmq_store.settings.retention_settings import RetentionRule
from rmq_store.utils.host import Host, day_of
from rmq_store.utils.times import format_time
from rmq_store.window.consume_request import ConsumeRequest
from rmq_store.window.plan import Planner
from tests.contract.world import group
from tests.unit.vectors import expected

BROKER = "broker-a"
FILE_BYTES = 1_048_576
TESTS = Actor("tests", "tests")
ALL_DUE_MS = 7_258_118_400_000


class Lake:
    """A store to import into; every import is a request of its own unless it is named."""

    def __init__(self, root: Path) -> None:
        self.host = Host()
        self.store, _ = LakeStore.init(Root.parse(str(root)))
        self._requests = 0

    def load(
        self,
        source: Path,
        *,
        request: str = "",
        salvage: bool = False,
        broker: str = BROKER,
        **limits: Any,
    ) -> ImportReport:
        self._requests += 1
        request = request or f"2026-01-01-{self._requests}"
        import_request = ImportRequest(
            broker_name=broker,
            shard_name="s1",
            request_id=request,
            actor=TESTS,
            salvage=salvage,
            **limits,
        )
        root = Root.parse(str(source))
        return import_store(self.store, root, import_request, self.host, LocalEngine(self.host))

    def positions(self) -> dict[str, int]:
        """What imports move, without claims."""
        shards = self.store.shards()
        items = shards[0].positions().items() if shards else ()
        return {app_id: value for app_id, (value, _) in items if not app_id.startswith("own/")}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def broker(tmp_path: Path, broker_store: Callable[[str], Path]) -> Path:
    """A copy of the killed broker's store, to be changed."""
    return Path(shutil.copytree(broker_store("market-killed"), tmp_path / "broker"))


def commit_log(broker: Path, start: int) -> Path:
    return broker / "commitlog" / f"{start:020}"


def remove_from(broker: Path, start: int) -> None:
    """Remove the commit log files from a start offset on, also those that were made ahead and hold nothing yet."""
    for file in (broker / "commitlog").iterdir():
        if int(file.name) >= start:
            file.unlink()


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def record_starts() -> list[tuple[int, int]]:
    lines = expected("market-killed.commitlog")
    return [(line["offset"], line["size"]) for line in lines if line["kind"] == "message"]


# --- only what is new -------------------------------------------------------------------------------------------------


def test_the_same_files_again_change_nothing(lake: Lake, broker: Path) -> None:
    first = lake.load(broker)
    before = lake.positions()
    again = lake.load(broker)
    assert (first.status, again.status, again.messages) == ("committed", "unchanged", 0)
    assert lake.positions() == before


def test_the_same_request_reports_already_committed_with_the_same_counts(lake: Lake, broker: Path) -> None:
    first = lake.load(broker, request="2026-01-01-nightly")
    again = lake.load(broker, request="2026-01-01-nightly")
    assert again.status == "already_committed"
    assert (again.messages, again.queues, again.end) == (first.messages, first.queues, first.end)


def test_an_import_that_is_dated_tomorrow_is_found_again(lake: Lake, broker: Path) -> None:
    """As a DAG's run is dated by its ``run_after``, on a worker whose clock is behind the scheduler's."""
    request = f"{day_of(lake.host.now_ms() + 86_400_000)}/rmq_import_store/scheduled"
    first, again = lake.load(broker, request=request), lake.load(broker, request=request)
    assert (first.status, again) == ("committed", replace(first, status=Status.ALREADY_COMMITTED))


def test_a_grown_store_adds_only_what_is_new_and_ends_as_if_imported_at_once(
    lake: Lake, broker: Path, tmp_path: Path
) -> None:
    """The log is cut behind a record in the middle of its second file, imported, put back, and imported again."""
    cut = next(start for start, _ in record_starts() if start > FILE_BYTES * 3 // 2)
    earlier = Path(shutil.copytree(broker, tmp_path / "earlier"))
    remove_from(earlier, 2 * FILE_BYTES)
    overwrite(commit_log(earlier, FILE_BYTES), cut - FILE_BYTES, bytes(2 * FILE_BYTES - cut))
    first = lake.load(earlier)
    second = lake.load(broker)
    assert (first.end, second.begin) == (cut, cut)
    assert first.messages + second.messages == len(record_starts())

    at_once = Lake(tmp_path / "at-once")
    at_once.load(broker)
    assert lake.positions() == at_once.positions()


def test_an_import_that_another_overtakes_between_look_and_claim_reads_the_broker_after_it(
    lake: Lake, broker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has begun a file of its log meanwhile, which the list of the slower import did not have."""
    growing = Path(shutil.copytree(broker, tmp_path / "growing"))
    remove_from(growing, 2 * FILE_BYTES)
    shutil.rmtree(growing / "config")

    def overtakes(step: str) -> None:
        if step == "1.planned":
            monkeypatch.undo()
            shutil.copytree(broker, growing, dirs_exist_ok=True)
            lake.load(growing, request="2026-01-01-quick")

    monkeypatch.setattr(commit_steps, "on_step", overtakes)
    assert lake.load(growing, request="2026-01-01-slow").status == "unchanged"

    at_once = Lake(tmp_path / "at-once")
    at_once.load(broker)
    assert lake.positions() == at_once.positions()


@pytest.mark.parametrize("name", ["lake-s1", "lake-other", "lake-s1~group"])
def test_a_broker_has_no_name_of_the_lakes_own_queues(lake: Lake, broker: Path, name: str) -> None:
    with pytest.raises(WrongUse, match="names that begin with lake-"):
        lake.load(broker, broker=name)
    assert lake.store.shards() == []


def test_another_brokers_files_under_the_same_name_are_refused(
    lake: Lake, broker: Path, broker_store: Callable[[str], Path]
) -> None:
    lake.load(broker)
    before = lake.positions()
    with pytest.raises(BadData, match="store of another broker"):
        lake.load(broker_store("market-clean"))
    assert lake.positions() == before


def test_an_older_copy_is_refused(lake: Lake, broker: Path, tmp_path: Path) -> None:
    older = Path(shutil.copytree(broker, tmp_path / "older"))
    remove_from(older, 2 * FILE_BYTES)
    lake.load(broker)
    with pytest.raises(BadData, match="older copy"):
        lake.load(older)


def test_a_log_that_lost_files_since_the_last_import_is_refused(
    lake: Lake, broker_store: Callable[[str], Path], tmp_path: Path
) -> None:
    clean = Path(shutil.copytree(broker_store("market-clean"), tmp_path / "clean"))
    remove_from(clean, FILE_BYTES)
    lake.load(clean)
    with pytest.raises(BadData, match=r"removed \[1048576, 2097152\)"):
        lake.load(broker_store("market-trimmed"))


def test_a_log_whose_files_before_the_position_were_all_removed_goes_on(
    lake: Lake, broker_store: Callable[[str], Path], tmp_path: Path
) -> None:
    """A broker removes whole files, and the position may be the end of the last of them."""
    earlier, trimmed = (Path(shutil.copytree(broker_store("market-clean"), tmp_path / name)) for name in "ab")
    remove_from(earlier, FILE_BYTES)
    first = lake.load(earlier)
    commit_log(trimmed, 0).unlink()
    second = lake.load(trimmed)
    assert (first.end, second.status, second.begin) == (FILE_BYTES, "committed", FILE_BYTES)
    assert second.messages


@pytest.mark.slow
def test_an_import_reads_nothing_of_the_imports_before_the_last_one(
    lake: Lake, broker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do the offsets of the broker's groups that a first window of a group looks up, before and after the cut-over. A
    dispatch reads what came since its last one."""
    monkeypatch.setattr(import_of_stores, "follow_up", lambda *_: ())
    starts = [start for start, _ in record_starts() if start < FILE_BYTES]
    whole = commit_log(broker, 0).read_bytes()
    remove_from(broker, FILE_BYTES)
    shutil.rmtree(broker / "consumequeue")
    opened = opened_ctl_files(monkeypatch)
    counts = []
    for number in range(1, 11):
        cut = starts[number * 10]
        commit_log(broker, 0).write_bytes(whole[:cut] + bytes(FILE_BYTES - cut))
        opened.clear()
        assert lake.load(broker).messages == 10
        counts.append(len(opened))
    assert counts == [0, 1, *[2] * 8]  # the last import, and the one that recorded the broker's configuration
    for _ in range(2):
        (shard,) = lake.store.shards()
        opened.clear()
        assert {seen.group for seen in ShardLookup(shard).observed()} >= {"gm_crash"}
        assert len(opened) == 2
        dispatch(shard, lake.host)
        cut_over(lake, shard, "moved", request_id="2026-01-01-over")


def opened_ctl_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ctl files that are read from now on."""
    real, opened = LakeTable.read_each, list[str]()

    def read_each(table: LakeTable, paths: Sequence[str], *arguments: Any) -> Any:
        opened.extend(path for path in paths if "kind=ctl" in path)
        return real(table, paths, *arguments)

    monkeypatch.setattr(LakeTable, "read_each", read_each)
    return opened


def cut_over(
    lake: Lake,
    shard: Shard,
    reason: str,
    *,
    request_id: str = "2026-01-01-cutover",
    host: Host | None = None,
    dry_run: bool = False,
) -> CutoverReport:
    return cutover(
        lake.store, shard, BROKER, host or lake.host, request_id=request_id, actor=TESTS, reason=reason, dry_run=dry_run
    )


def test_after_the_cut_over_nothing_is_imported_any_more(lake: Lake, broker: Path) -> None:
    lake.load(broker)
    (shard,) = lake.store.shards()
    report = cut_over(lake, shard, "moved to the lake")
    assert (report.status, report.groups) == ("committed", 1)
    assert dict(shard.positions().prefixed("off/gm_crash/"))
    with pytest.raises(WrongUse, match="cannot be imported any more"):
        lake.load(broker)


def test_a_cut_over_again_says_what_it_did_and_another_one_is_told_by_whom_and_when(lake: Lake, broker: Path) -> None:
    lake.load(broker)
    (shard,) = lake.store.shards()
    first = cut_over(lake, shard, "moved to the lake")
    before = shard.positions()
    assert cut_over(lake, shard, "once more") == replace(first, status=Status.ALREADY_COMMITTED)
    with pytest.raises(WrongUse) as refused:
        cut_over(lake, shard, "me too", request_id="2026-01-02-cutover")
    (done,) = shard.ctls_since(0, action="cutover")
    by_whom = (
        f"by request 2026-01-01-cutover of tests (tests) at {format_time(done.store_timestamp)}: moved to the lake"
    )
    assert f"broker {BROKER} was cut over {by_whom}" in str(refused.value)
    assert shard.positions() == before


def test_a_cut_over_that_was_made_between_look_and_claim_is_not_made_again(lake: Lake, broker: Path) -> None:
    lake.load(broker)
    (shard,) = lake.store.shards()
    entropy = lake.host.entropy
    quick: list[Any] = []

    def overtaken(size: int) -> bytes:
        if not quick:  # the first id is that of the claim
            quick.append(None)
            quick.append(cut_over(lake, lake.store.shards()[0], "quick"))
        return entropy(size)

    slow = cut_over(lake, shard, "slow", host=replace(lake.host, entropy=overtaken))
    assert slow == replace(quick[1], status=Status.ALREADY_COMMITTED)
    assert len(shard.ctls_since(0, action="cutover")) == 1


# --- bad files: a clear error, and nothing changed --------------------------------------------------------------------


def nothing_there(broker: Path) -> None:
    shutil.rmtree(broker)


def empty_folder(broker: Path) -> None:
    shutil.rmtree(broker)
    broker.mkdir()


def no_broker_store(broker: Path) -> None:
    shutil.rmtree(broker / "commitlog")


def wrong_magic(broker: Path) -> None:
    overwrite(commit_log(broker, 0), record_starts()[3][0] + 4, b"\x00\x01\x02\x03")


def bad_crc(broker: Path) -> None:
    start, _ = record_starts()[5]
    overwrite(commit_log(broker, 0), start + 88, b"\xff\xff")


def late_store_time(broker: Path) -> None:
    overwrite(commit_log(broker, 0), record_starts()[5][0] + 56, struct.pack(">q", 2**63 - 1))


def negative_store_time(broker: Path) -> None:
    overwrite(commit_log(broker, 0), record_starts()[5][0] + 56, struct.pack(">q", -1))


def missing_middle_file(broker: Path) -> None:
    commit_log(broker, FILE_BYTES).unlink()


def shortened_file(broker: Path) -> None:
    with commit_log(broker, FILE_BYTES).open("r+b") as file:
        file.truncate(FILE_BYTES // 2)


def zeroed_middle(broker: Path) -> None:
    start = next(start for start, _ in record_starts() if start > FILE_BYTES // 2)
    overwrite(commit_log(broker, 0), start, bytes(FILE_BYTES - start))


def broken_offset_files(broker: Path) -> None:
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (broker / "config" / name).write_text('{"offsetTable":{')


def wrong_entry(broker: Path) -> None:
    path = next((broker / "consumequeue" / "PaymentFlow" / "0").iterdir())
    overwrite(path, 20 * 2, struct.pack(">q", 12345))


def entry_of_another_queue_further_on(broker: Path) -> None:
    path = next((broker / "consumequeue" / "PaymentFlow" / "0").iterdir())
    later = next(
        line for line in reversed(expected("market-killed.messages")) if line["topic"] == "SCHEDULE_TOPIC_XXXX"
    )
    overwrite(path, 20 * 2, struct.pack(">qi", later["commitLogOffset"], later["storeSize"]))


def far_away_file(broker: Path) -> None:
    commit_log(broker, FILE_BYTES).rename(commit_log(broker, FILE_BYTES * 10**12))


def endless_queues(broker: Path) -> None:
    path = broker / "config" / "topics.json"
    path.write_text(re.sub('"readQueueNums":[0-9]+', '"readQueueNums":2147483647', path.read_text()))


def endless_retry_queues(broker: Path) -> None:
    path = broker / "config" / "subscriptionGroup.json"
    path.write_text(re.sub('"retryQueueNums":[0-9]+', '"retryQueueNums":65537', path.read_text()))


def many_queues_in_all(broker: Path) -> None:
    topics = {f"X{n}": {"readQueueNums": 65_536, "writeQueueNums": 1, "perm": 6} for n in range(50)}
    edit_topics(broker, lambda table: table.update(topics))


ROCKSDB_FILES = ("CURRENT", "MANIFEST-000005", "OPTIONS-000007", "000004.log", "000009.sst", "IDENTITY", "LOCK", "LOG")


def rocksdb_in(folder: Path, *, files: Sequence[str] = ROCKSDB_FILES) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in files:
        (folder / name).write_bytes(b"MANIFEST-000005\n")


def rocksdb_queues(broker: Path) -> None:
    shutil.rmtree(broker / "consumequeue")
    rocksdb_in(broker / "consumequeue")


def rocksdb_queues_beside(broker: Path) -> None:
    rocksdb_in(broker / "consumequeue", files=["000004.log"])


def rocksdb_queues_elsewhere(broker: Path) -> None:
    (broker / "consumequeue").rename(broker / "consumequeue_r")


def rocksdb_of(name: str) -> Callable[[Path], None]:
    """The configuration in RocksDB, with the JSON files of before still there for the others."""

    def damage(broker: Path) -> None:
        rocksdb_in(broker / "config" / name)

    return damage


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (rocksdb_queues, r"consume queues in RocksDB \(consumequeue/CURRENT\).*Leave the files as they are"),
        (rocksdb_queues_beside, r"consume queues in RocksDB \(consumequeue/000004\.log\)"),
        (rocksdb_queues_elsewhere, r"consume queues in RocksDB \(consumequeue_r\)"),
        (rocksdb_of("consumerOffsets"), r"RocksDB \(config/consumerOffsets/\).*-t consumerOffsets -e FILE"),
        (rocksdb_of("topics"), r"RocksDB \(config/topics/\)"),
        (rocksdb_of("subscriptionGroups"), r"RocksDB \(config/subscriptionGroups/\)"),
        (rocksdb_of("metadata"), r"RocksDB \(config/metadata/\).*keeps them as JSON"),
        (rocksdb_of("rdb"), r"RocksDB \(config/rdb/\)"),
    ],
)
def test_a_store_in_rocksdb_is_refused_by_name_and_nobody_is_told_to_delete_it(
    lake: Lake, broker: Path, damage: Callable[[Path], None], says: str
) -> None:
    damage(broker)
    for salvage in (False, True):
        with pytest.raises(BadData, match=says) as raised:
            lake.load(broker, salvage=salvage)
        assert "emove" not in str(raised.value)
        assert lake.positions() == {}


def test_consume_queues_that_are_written_both_ways_are_imported_from_their_files(lake: Lake, broker: Path) -> None:
    rocksdb_in(broker / "consumequeue_r")
    assert lake.load(broker).status == "committed"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (nothing_there, "is not a folder"),
        (empty_folder, "not a broker's store"),
        (no_broker_store, "not a broker's store"),
        (wrong_magic, "commitlog/00000000000000000000 at byte"),
        (bad_crc, "CRC"),
        (late_store_time, r"commitlog/00000000000000000000 at byte \d+ .*STORETIMESTAMP 9223372036854775807"),
        (negative_store_time, "STORETIMESTAMP -1"),
        (missing_middle_file, "00000000000001048576"),
        (far_away_file, "files are missing"),
        (endless_queues, "has readQueueNums 2147483647; an import takes up to 65536"),
        (endless_retry_queues, "has retryQueueNums 65537; an import takes up to 65536"),
        (
            many_queues_in_all,
            r"have 32768\d\d queues to read; .* up to 262144\. The largest: 'X0' \(65536\), 'X1'",
        ),
        (shortened_file, "differ in size"),
        (zeroed_middle, "a later file has records"),
        (broken_offset_files, "consumerOffset.json"),
        (wrong_entry, "PaymentFlow"),
        (entry_of_another_queue_further_on, "PaymentFlow.*offset 2: the broker's entry has"),
    ],
)
def test_bad_files_are_named_and_change_nothing(
    lake: Lake, broker: Path, damage: Callable[[Path], None], says: str
) -> None:
    damage(broker)
    with pytest.raises(RmqError, match=says) as raised:
        lake.load(broker)
    assert raised.value.exit_code != 0
    assert lake.positions() == {}


def test_a_broken_offset_file_gives_way_to_its_bak_and_that_is_said(lake: Lake, broker: Path) -> None:
    (broker / "config" / "consumerOffset.json").write_text("{broken")
    report = lake.load(broker)
    assert report.status == "committed"
    assert any("consumerOffset.json.bak is used" in note for note in report.notes)


def test_wrong_credentials_or_a_missing_bucket_are_unusable_sources(lake: Lake) -> None:
    source = Root.parse(
        "s3://no-such-bucket/broker",
        {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
    )
    request = ImportRequest(broker_name=BROKER, shard_name="s1", request_id="2026-01-01-x", actor=TESTS)
    with pytest.raises(StoreUnusable):
        import_store(lake.store, source, request, lake.host, LocalEngine(lake.host))


# --- records that are not imported as they are ------------------------------------------------------------------------


def store_of(folder: Path, *values: dict[str, Any]) -> Path:
    """A store with nothing but a commit log of these messages, all of queue 3 of topic T unless they say otherwise."""
    log = b"".join(encoded(*values))
    (folder / "commitlog").mkdir(parents=True)
    (folder / "commitlog" / f"{0:020}").write_bytes(log.ljust(FILE_BYTES, b"\0"))
    return folder


def encoded(*values: dict[str, Any]) -> Iterator[bytes]:
    """The records of ``store_of``."""
    begin = 0
    for queue_offset, changes in enumerate(values):
        record: dict[str, Any] = {"stored_body": b"body", "properties": {}, "queue_offset": queue_offset} | changes
        times: dict[str, Any] = {"born_timestamp": 1, "store_timestamp": 1_700_000_000_000}
        place: dict[str, Any] = {"topic": "T", "queue_id": 3, "commit_log_offset": begin}
        yield (one := encode(new_record(**(place | times | record))))
        begin += len(one)


def bodies(lake: Lake) -> list[bytes]:
    return [row["body"] for row in query(lake.store, "SELECT body FROM messages ORDER BY queue_offset").to_pylist()]


@pytest.mark.parametrize("salvage", [False, True])
def test_a_body_that_would_become_too_large_stops_the_import_and_says_what_to_raise(
    lake: Lake, tmp_path: Path, salvage: bool
) -> None:
    packed = {"stored_body": zlib.compress(bytes(5000)), "sys_flag": 1}
    folder = store_of(tmp_path / "made", {}, packed, {})
    with pytest.raises(UnsupportedRecord) as raised:
        lake.load(folder, salvage=salvage, max_body_bytes=4999)
    assert (raised.value.file, raised.value.position) == ("commitlog/00000000000000000000", 96)
    for said in ("topic T, queue 3, offset 1", "larger than 4,999 bytes when it is decompressed", "--max-body-bytes"):
        assert said in str(raised.value)
    assert lake.positions() == {}
    assert lake.load(folder, salvage=salvage, max_body_bytes=5000).messages == 3
    assert bodies(lake) == [b"body", bytes(5000), b"body"]


MARKS = [
    {"sys_flag": 0xC0, "properties": {"INNER_NUM": "10", "INNER_BASE": "1"}},
    {"sys_flag": 0xC0},
    {"sys_flag": 0x80},
    {"sys_flag": 0x40},
    {"properties": {"INNER_NUM": "10"}},
]
"""Of a record that no client takes apart: the body is no batch, or the record lacks a flag or INNER_NUM."""


@pytest.mark.parametrize("marks", MARKS)
def test_a_batch_that_no_client_takes_apart_stops_the_import_and_is_never_taken_for_one_message(
    lake: Lake, tmp_path: Path, marks: dict[str, Any]
) -> None:
    folder = store_of(tmp_path / "made", {}, marks, marks | {"queue_offset": 11}, {"topic": "Other", "queue_offset": 0})
    with pytest.raises(UnsupportedRecord, match="topic T, queue 3, offset 1: several messages in one record") as raised:
        lake.load(folder)
    assert (raised.value.file, raised.value.position) == ("commitlog/00000000000000000000", 96)
    assert "No checksum covers its flags and properties; --salvage leaves it out" in str(raised.value)
    assert lake.positions() == {}


@pytest.mark.parametrize("marks", MARKS)
def test_a_salvage_leaves_out_a_batch_that_no_client_takes_apart(
    lake: Lake, tmp_path: Path, marks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it leaves out damage: a flipped bit of the sysFlag or of a property stopped it for ever. What stands before, between
    and behind such records is imported, also where one is all of what is read at once, or the last record."""
    monkeypatch.setattr("rmq_store.lake.broker.records.BATCH_BYTES", 100)
    other = {"topic": "Other", "queue_offset": 0}
    values = [{}, marks, other, marks, marks, {"queue_offset": 5}, marks | {"queue_offset": 6}]
    folder = store_of(tmp_path / "made", *values)
    ends = [0, *accumulate(map(len, encoded(*values)))]
    report = lake.load(folder, salvage=True)
    assert [(one.begin, one.end) for one in report.salvaged] == [
        place for value, place in zip(values, pairwise(ends), strict=True) if {"sys_flag", "properties"} & value.keys()
    ]
    assert all("several messages in one record" in one.reason for one in report.salvaged)
    assert (report.status, report.messages) == ("committed", 3)
    (shard,) = lake.store.shards()
    (ctl,) = shard.ctls_since(0, action="salvage")
    assert ctl.parameter("skipped") == [[one.begin, one.end, one.reason] for one in report.salvaged]
    assert shard.positions().max_offset(MessageQueue("T", BROKER, 3)) == 6
    assert full(lake.store, LocalEngine(lake.host)).findings == []
    assert lake.load(folder, salvage=True).status == "unchanged"


def test_an_inner_batch_behind_the_end_of_a_record_batch_is_the_one_that_is_named(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_store.lake.broker.records.BATCH_BYTES", 1000)
    packed = {"stored_body": zlib.compress(bytes(1000)), "sys_flag": 1}
    folder = store_of(tmp_path / "made", packed, packed, {"properties": {"INNER_NUM": "10"}})
    with pytest.raises(UnsupportedRecord, match="topic T, queue 3, offset 2: several messages in one record"):
        lake.load(folder)


@pytest.mark.parametrize(
    ("name", "most"), [("max_body_bytes", 1 << 30), ("max_config_bytes", 1 << 30), ("max_queues", 1 << 20)]
)
def test_a_limit_that_no_import_can_keep_is_refused(lake: Lake, broker: Path, name: str, most: int) -> None:
    for limit in (0, most + 1):
        limits: Any = {name: limit}
        with pytest.raises(WrongUse, match=f"{name} must be a whole number from 1 to {most}; it is {limit}"):
            lake.load(broker, **limits)


@pytest.mark.parametrize("salvage", [False, True])
def test_what_is_over_a_limit_stops_the_import_and_names_the_option(lake: Lake, broker: Path, salvage: bool) -> None:
    size = max(file.stat().st_size for file in (broker / "config").iterdir())
    with pytest.raises(OverLimit, match=rf"is larger than {size - 1:,} bytes.*\(--max-config-bytes\)"):
        lake.load(broker, salvage=salvage, max_config_bytes=size - 1)
    with pytest.raises(OverLimit, match=r"readQueueNums 18; an import takes up to 17.*\(--max-queues\)"):
        lake.load(broker, salvage=salvage, max_queues=17)
    assert lake.positions() == {}
    assert lake.load(broker, salvage=salvage, max_config_bytes=size).status == "committed"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "a\x1bb", "a\nb", "b" * 256])
def test_a_broker_name_that_is_no_name_is_refused(lake: Lake, broker: Path, name: str) -> None:
    with pytest.raises(WrongUse, match="invalid broker name"):
        lake.load(broker, broker=name)


def test_a_config_file_without_end_is_not_read_whole(lake: Lake, broker: Path) -> None:
    with (broker / "config" / "topics.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(OverLimit, match=r"config/topics\.json in .* is larger than 67,108,864 bytes"):
        lake.load(broker)


def test_what_becomes_large_is_kept_in_several_files(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that no more of it is in memory at a time than PART_BYTES and one batch."""
    monkeypatch.setattr("rmq_store.lake.broker.records.BATCH_BYTES", 5_000)
    monkeypatch.setattr("rmq_store.lake.broker.import_slice.PART_BYTES", 10_000)
    plain = [bytes([number]) * 4_000 for number in range(8)]
    values = [{"stored_body": zlib.compress(body), "sys_flag": 1} for body in plain]
    assert lake.load(store_of(tmp_path / "made", *values)).messages == 8
    assert bodies(lake) == plain
    (shard,) = lake.store.shards()
    (ctl,) = shard.ctls_since(0, action="import")
    assert [(segment.base, segment.count) for segment in ctl.produced] == [(0, 4), (4, 4)]
    assert len({segment.file for segment in ctl.produced}) == 2


# --- salvage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [bad_crc, late_store_time, negative_store_time])
def test_salvage_skips_a_damaged_record_and_records_what_it_skipped(
    lake: Lake, broker: Path, damage: Callable[[Path], None]
) -> None:
    damage(broker)
    start, size = record_starts()[5]
    report = lake.load(broker, salvage=True)
    assert report.messages == len(record_starts()) - 1
    (skipped,) = report.salvaged
    assert (skipped.begin, skipped.end) == (start, start + size)
    (shard,) = lake.store.shards()
    (ctl,) = shard.ctls_since(0, action="salvage")
    assert ctl.parameter("skipped") == [[start, start + size, skipped.reason]]


def test_times_that_no_calendar_has_are_kept_where_nothing_is_filed_by_them(lake: Lake, broker: Path) -> None:
    """The born time is the producer's own word: only the store time says on which day a message is kept."""
    start, _ = record_starts()[5]
    overwrite(commit_log(broker, 0), start + 40, struct.pack(">q", 2**63 - 1))
    assert lake.load(broker).messages == len(record_starts())
    (row,) = query(lake.store, f"SELECT born_timestamp FROM messages WHERE commit_log_offset = {start}").to_pylist()
    assert row == {"born_timestamp": 2**63 - 1}


def test_a_damaged_record_is_named_by_file_and_position(lake: Lake, broker: Path) -> None:
    bad_crc(broker)
    start, _ = record_starts()[5]
    with pytest.raises(DamagedRecord) as raised:
        lake.load(broker)
    assert (raised.value.file, raised.value.position) == ("commitlog/00000000000000000000", start)
    assert raised.value.commit_log_offset == start


FILE_BYTES = 1_048_576


def punch(broker: Path, begin: int, end: int) -> None:
    """As a copy that was cut off leaves it: zeros where records stood."""
    while begin < end:
        start = begin // FILE_BYTES * FILE_BYTES
        until = min(end, start + FILE_BYTES)
        path = broker / "commitlog" / f"{start:020}"
        data = bytearray(path.read_bytes())
        data[begin - start : until - start] = bytes(until - begin)
        path.write_bytes(data)
        begin = until


@pytest.mark.parametrize(("first", "last"), [(200, 240), (2000, 2400), (-300, -200)])
def test_salvage_goes_on_behind_a_hole_and_records_it(lake: Lake, broker: Path, first: int, last: int) -> None:
    """Inside a file, from one file into the next, and in the last file, where a log without the rest would end."""
    starts = record_starts()
    (begin, _), (end, _) = starts[first], starts[last]
    punch(broker, begin, end)
    report = lake.load(broker, salvage=True)
    assert report.messages == len(starts) - len(starts[first:last])
    assert [one for one in report.salvaged if one.begin < begin or one.end > end] == []
    assert sum(one.end - one.begin for one in report.salvaged) >= sum(size for _, size in starts[first:last])
    (shard,) = lake.store.shards()
    (ctl,) = shard.ctls_since(0, action="salvage")
    assert ctl.parameter("range") == [0, sum(starts[-1])]


def test_records_behind_a_marker_in_the_middle_of_a_file_are_not_dropped_without_a_word(
    lake: Lake, broker: Path
) -> None:
    start, size = record_starts()[5]
    overwrite(commit_log(broker, 0), start, struct.pack(">iI", 5, 0xCBD43194))
    with pytest.raises(DamagedRecord, match=f"at byte {start} .*end-of-file marker says that 5 bytes are left"):
        lake.load(broker)
    report = lake.load(broker, salvage=True)
    assert [(skip.begin, skip.end) for skip in report.salvaged] == [(start, start + size)]
    assert report.messages == len(record_starts()) - 1


@pytest.mark.parametrize("chunk_bytes", range(2 * 96 + 1, 4 * 96, 5))
def test_salvage_finds_the_record_after_damage_wherever_a_chunk_of_reading_ends(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    """The end of a chunk may cut it off, and the chunk does not have its bytes to check then."""
    monkeypatch.setattr(import_slice, "CHUNK_BYTES", chunk_bytes)
    folder = store_of(tmp_path / "made", {}, {}, {}, {})
    overwrite(commit_log(folder, 0), 96 + 90, b"?")
    report = lake.load(folder, salvage=True)
    assert report.messages == 3
    assert (min(one.begin for one in report.salvaged), max(one.end for one in report.salvaged)) == (96, 2 * 96)


@pytest.mark.parametrize("chunk_bytes", [3 * 96, FILE_BYTES])
@pytest.mark.parametrize("damage", [b"", b"?"], ids=["size", "size-and-body"])
def test_a_record_whose_size_reaches_behind_the_last_one_hides_none(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes, chunk_bytes: int
) -> None:
    """Only zeros follow the bytes that it claims, as they follow a record that a broker is writing."""
    monkeypatch.setattr(import_slice, "CHUNK_BYTES", chunk_bytes)
    folder = store_of(tmp_path / "made", *[{}] * 6)
    overwrite(commit_log(folder, 0), 96, struct.pack(">i", 6 * 96))
    overwrite(commit_log(folder, 0), 96 + 90, damage)
    with pytest.raises(DamagedRecord, match="at byte 96 "):
        lake.load(folder)
    report = lake.load(folder, salvage=True)
    assert [(one.begin, one.end) for one in report.salvaged] == [(96, 2 * 96)]
    assert (report.messages, report.end) == (5, 6 * 96)


@pytest.mark.parametrize("chunk_bytes", [3 * 96, 5 * 96, FILE_BYTES])
def test_bytes_after_the_end_of_the_log_are_noted_wherever_a_chunk_of_reading_ends(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    """A hole that begins in one chunk may end in the next one."""
    monkeypatch.setattr(import_slice, "CHUNK_BYTES", chunk_bytes)
    folder = store_of(tmp_path / "made", *[{}] * 6)
    punch(folder, 2 * 96, 4 * 96)
    for status in ("committed", "unchanged"):
        report = lake.load(folder)
        assert (report.status, report.end) == (status, 2 * 96)
        assert any("where nothing is written, but other bytes follow" in note for note in report.notes)


def test_the_next_good_record_is_looked_for_where_a_record_names_its_own_place(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are not taken for one: the check of each may read all that follows it."""
    folder = store_of(tmp_path / "made", {}, {}, {})
    path = commit_log(folder, 0)
    (size,) = struct.unpack(">i", path.read_bytes()[:4])
    overwrite(path, 3 * size, struct.pack(">iI", FILE_BYTES - 100, 0xDAA320A7) * 2000)
    looked_at: list[int] = []

    def counted(data: bytes, position: int, start: int, file_end: int) -> Any:
        looked_at.append(start + position)
        return item_at(data, position, start, file_end)

    monkeypatch.setattr("rmq_store.lake.broker.salvage.item_at", counted)
    report = lake.load(folder, salvage=True)
    assert (report.messages, report.end, report.salvaged) == (3, 3 * size, ())
    assert looked_at == []


@pytest.mark.parametrize("chunk_bytes", [150, FILE_BYTES])
@pytest.mark.parametrize("damage", [b"garbage of a bad copy" * 20, None])
def test_salvage_does_not_pass_over_what_the_broker_writes_behind_a_damaged_last_record(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None, chunk_bytes: int
) -> None:
    """The rest of the file is empty until then. None: a store time that no calendar has, which the broker does not mind."""
    monkeypatch.setattr("rmq_store.lake.broker.salvage.CHUNK_BYTES", chunk_bytes)
    folder = store_of(tmp_path / "made", *[{}] * 6)
    path = commit_log(folder, 0)
    whole, begin = path.read_bytes(), 2 * 96
    path.write_bytes(whole[:begin].ljust(FILE_BYTES, b"\0"))
    if damage is None:
        overwrite(path, begin, whole[begin : begin + 96])
        overwrite(path, begin + 56, struct.pack(">q", -1))
    else:
        overwrite(path, begin, damage)
    report = lake.load(folder, salvage=True)
    skipped = [(begin, begin + 96)] if damage is None else []
    assert [(one.begin, one.end) for one in report.salvaged] == skipped
    assert report.messages == 2
    path.write_bytes(whole)
    if damage is None:
        overwrite(path, begin + 56, struct.pack(">q", -1))
    assert lake.load(folder, salvage=True).messages == (3 if damage is None else 4)


def test_a_file_that_would_become_too_many_files_is_refused_before_their_numbers_come_again(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    day_ms = 86_400_000
    folder = store_of(tmp_path / "made", *({"store_timestamp": day * day_ms} for day in range(5)))
    monkeypatch.setattr(import_slice, "PARTS_PER_FILE", 4)
    with pytest.raises(BadData, match=r"00000000000000000000 would become more than 4 files: .*too many days"):
        lake.load(folder)
    assert lake.positions() == {}
    monkeypatch.setattr(import_slice, "PARTS_PER_FILE", 5)
    assert lake.load(folder).messages == 5


def test_a_queue_that_began_again_says_what_it_means_and_what_can_be_done(lake: Lake, tmp_path: Path) -> None:
    folder = store_of(tmp_path / "made", {}, {}, {"queue_offset": 1})
    for salvage in (False, True):
        with pytest.raises(
            BadData, match=r"offset 1 comes again.*deleted and made again.*another broker name \(--broker\)"
        ):
            lake.load(folder, salvage=salvage)


def salvages(lake: Lake) -> list[dict[str, Any]]:
    """What SQL tells of the salvages, oldest first."""
    found = query(lake.store, "SELECT parameters FROM ctl WHERE action = 'salvage' ORDER BY read_version").to_pylist()
    return [json.loads(row["parameters"]) for row in found]


def test_salvage_records_the_gap_in_a_queue(lake: Lake, tmp_path: Path) -> None:
    """Also where no byte of the log was skipped: no check sum covers a queue offset."""
    source = store_of(tmp_path / "made", {}, {}, {"queue_offset": 5}, {"queue_offset": 10**9})
    with pytest.raises(BadData, match=r"no message at \[2, 5\).*--salvage to continue and record the gap"):
        lake.load(source)
    report = lake.load(source, salvage=True, request="2026-01-01-gap")
    gaps = [QueueGap("T", 3, 2, 5), QueueGap("T", 3, 6, 10**9)]
    assert (report.status, report.messages, report.queue_gaps) == ("committed", 4, tuple(gaps))
    assert lake.load(source, salvage=True, request="2026-01-01-gap").queue_gaps == tuple(gaps)
    (said,) = salvages(lake)
    assert said["queue_gaps"] == [["T", 3, 2, 5, NO_MESSAGE], ["T", 3, 6, 10**9, NO_MESSAGE]]
    assert lake.load(source, salvage=True).status == "unchanged"


def test_salvage_records_the_files_that_are_missing_and_what_the_broker_removed(lake: Lake, broker: Path) -> None:
    kept = {path.name: path.read_bytes() for path in (broker / "commitlog").iterdir()}
    remove_from(broker, FILE_BYTES)
    first = lake.load(broker)
    commit_log(broker, 0).unlink()
    for name, data in kept.items():
        if int(name) >= 2 * FILE_BYTES:
            (broker / "commitlog" / name).write_bytes(data)
    with pytest.raises(BadData, match=r"removed .* of its log before it was imported"):
        lake.load(broker)
    report = lake.load(broker, salvage=True)
    assert report.salvaged == (Skipped(first.end, 2 * FILE_BYTES, GONE),)
    assert report.queue_gaps
    other = Lake(Path(lake.store.root.location).with_name("other"))
    (broker / "commitlog" / f"{0:020}").write_bytes(kept[f"{0:020}"])
    assert other.load(broker, salvage=True).salvaged == (Skipped(FILE_BYTES, 2 * FILE_BYTES, MISSING_FILES),)
    again = other.load(broker)  # what is missing before the position was skipped
    assert (again.status, again.salvaged) == ("unchanged", ())


def test_a_file_that_is_missing_just_before_the_position_is_named(lake: Lake, broker: Path) -> None:
    """Without it nothing shows that the log is the one that was imported."""
    last = {
        path.name: path.read_bytes() for path in (broker / "commitlog").iterdir() if int(path.name) >= 2 * FILE_BYTES
    }
    remove_from(broker, 2 * FILE_BYTES)
    lake.load(broker)
    for name, data in last.items():
        (broker / "commitlog" / name).write_bytes(data)
    commit_log(broker, FILE_BYTES).unlink()
    with pytest.raises(BadData, match=f"commitlog/{FILE_BYTES:020} is missing"):
        lake.load(broker)


def test_a_log_that_ends_at_a_hole_says_that_more_follows_until_it_is_filled(lake: Lake, broker: Path) -> None:
    """As far as the log is known nothing is wrong: a living broker may have been writing there."""
    starts = record_starts()
    before = {path.name: path.read_bytes() for path in (broker / "commitlog").iterdir()}
    punch(broker, starts[-300][0], starts[-200][0])
    for status in ("committed", "unchanged"):
        report = lake.load(broker)
        assert (report.status, report.end) == (status, starts[-300][0])
        (note,) = [note for note in report.notes if "the copy has a hole" in note]
        assert f"commit log offset {starts[-300][0]}" in note
    for name, data in before.items():
        (broker / "commitlog" / name).write_bytes(data)
    whole = lake.load(broker)
    assert (whole.end, whole.messages) == (sum(starts[-1]), 300)
    assert [note for note in whole.notes if "hole" in note] == []


def test_a_cut_over_says_that_the_log_has_a_message_that_was_not_imported(lake: Lake, tmp_path: Path) -> None:
    """Also where the message came alone after the last import, until it was imported."""
    folder = store_of(tmp_path / "made", *[{}] * 3)
    path = commit_log(folder, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[: 2 * 96].ljust(FILE_BYTES, b"\0"))
    assert lake.load(folder).messages == 2
    (shard,) = lake.store.shards()
    assert cut_over(lake, shard, "moved", dry_run=True).notes == ()
    path.write_bytes(whole)
    overwrite(path, 2 * 96 + 93, b"\0")  # in its topic
    (note,) = lake.load(folder).notes[-1:]
    assert f"(commit log offset {2 * 96}) before a record that is not whole" in note
    assert lake.load(folder).status == "unchanged"
    assert cut_over(lake, shard, "moved").notes == (f"at the last import {note}",)
    hand_back(shard, BROKER, lake.host, request_id="2026-01-01-back", actor=TESTS, reason="it runs again")
    assert cut_over(lake, shard, "moved", request_id="2026-01-01-2", dry_run=True).notes == (
        f"at the last import {note}",
    )
    path.write_bytes(whole)
    assert lake.load(folder).messages == 1
    assert cut_over(lake, shard, "moved", request_id="2026-01-01-2", dry_run=True).notes == ()


# --- queues without messages ------------------------------------------------------------------------------------------


def queue_bounds(lake: Lake, topic: str) -> list[tuple[int, int]]:
    (shard,) = lake.store.shards()
    positions = shard.positions()
    return [(positions.min_offset(queue), positions.max_offset(queue)) for queue in positions.queues_of(topic)]


def edit_topics(broker: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = broker / "config" / "topics.json"
    topics = json.loads(path.read_text())
    edit(topics["topicConfigTable"])
    path.write_text(json.dumps(topics))


def test_a_topic_that_was_only_created_is_known_with_its_readable_queues(lake: Lake, broker: Path) -> None:
    edit_topics(broker, lambda topics: topics.update(Later={"topicName": "Later", "readQueueNums": 2, "perm": 6}))
    edit_topics(broker, lambda topics: topics.update(Closed={"topicName": "Closed", "readQueueNums": 2, "perm": 2}))
    report = lake.load(broker)
    assert queue_bounds(lake, "Later") == [(0, 0)] * 2
    assert queue_bounds(lake, "EmptyRoom") == [(0, 0)] * 4
    assert queue_bounds(lake, "Closed") == []  # it may be written only
    (shard,) = lake.store.shards()
    topics = {queue.topic for queue in shard.positions().all_queues()}
    assert not topics & {"TBW102", "BenchmarkTest", "oracle", "oracle_REPLY_TOPIC", BROKER}
    configs = read_topics(LocalFileSource(broker)).value
    missing = {name: max(config.read_queue_nums, 0) for name, config in configs.items() if name not in topics}
    assert report.unlisted_queues >= sum(missing.values()) > 1024
    assert report.unlisted_topics >= len(missing)


def test_a_topic_that_shrinks_or_is_closed_for_reading_keeps_the_queues_that_hold_messages(
    lake: Lake, broker: Path
) -> None:
    """RocketMQ's clients would see them no more, and what is in them would never be consumed."""
    lake.load(broker)
    before = queue_bounds(lake, "OrderEvents")
    assert len(before) == 8
    assert all(end > 0 for _, end in before)
    edit_topics(broker, lambda topics: topics["OrderEvents"].update(readQueueNums=1, writeQueueNums=1))
    assert lake.load(broker).status == "committed"
    assert queue_bounds(lake, "OrderEvents") == before
    edit_topics(broker, lambda topics: topics["OrderEvents"].update(perm=2))
    lake.load(broker)
    assert queue_bounds(lake, "OrderEvents") == before
    asked = ConsumeRequest("2026-01-01-c", TESTS, client_id="c2", client_ids=("c1", "c2"))
    (shard,) = lake.store.shards()
    plan = Planner(ShardLookup(shard), group("late", ["OrderEvents"]), lake.host.now_ms()).plan(asked, [])
    assert [(p.queue.queue_id, p.range.end) for p in plan.ranges] == [(n, before[n][1]) for n in (4, 5, 6, 7)]


def test_a_group_is_reset_in_a_topic_without_messages(lake: Lake, broker: Path) -> None:
    lake.load(broker)
    (shard,) = lake.store.shards()
    request = ResetRequest("gm_empty", "EmptyRoom", ResetTo.MAX, "2026-01-01-reset", TESTS, "a test says so")
    (report,) = move_in_all([(shard, request)], lake.host)
    assert [move.to_offset for move in report.moves] == [0] * 4


def test_a_store_that_an_older_version_imported_gets_its_empty_queues_with_the_next_import(
    lake: Lake, broker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(import_commit, "queues_of_users", lambda *_: [])
        lake.load(broker)
    assert queue_bounds(lake, "EmptyRoom") == []
    assert lake.load(broker).status == "committed"
    assert queue_bounds(lake, "EmptyRoom") == [(0, 0)] * 4
    assert lake.load(broker).status == "unchanged"


def test_messages_that_come_later_are_appended_to_a_queue_that_was_empty(lake: Lake, broker: Path) -> None:
    whole = Path(shutil.copytree(broker, broker.parent / "whole"))
    remove_from(broker, FILE_BYTES)
    shutil.rmtree(broker / "consumequeue")
    lake.load(broker)
    before = {topic: queue_bounds(lake, topic) for topic in ("LaterBox", "TxnLedger", "StockTicks", "PaymentFlow")}
    lake.load(whole)
    at_once = Lake(broker.parent / "at-once")
    at_once.load(whole)
    assert (0, 0) in [bounds for several in before.values() for bounds in several]
    assert {topic: queue_bounds(lake, topic) for topic in before} == {t: queue_bounds(at_once, t) for t in before}


# --- the cut-over -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_after_the_cut_over_the_brokers_waiting_retries_are_delivered_here_once_and_not_early(
    lake: Lake, broker_store: Callable[[str], Path]
) -> None:
    """In the clean store retries of gm_waiting wait at level 17 (ten minutes there) when the broker stops."""
    lake.load(broker_store("market-clean"))
    (shard,) = lake.store.shards()
    waiting = [
        row["tagsCode"]
        for row in expected("market-clean.messages")
        if row["topic"] == "SCHEDULE_TOPIC_XXXX" and row["queueId"] in (16, 17)
    ]
    first, last = min(waiting), max(waiting)
    assert deliver(lake.store, shard, "2026-01-01-d1", TESTS, lake.host, now_ms=last).status == "empty"
    before = shard.positions()
    dry = cut_over(lake, shard, "moved", dry_run=True)
    assert (dry.status, dry.commit_id, shard.positions()) == ("dry_run", None, before)
    report = cut_over(lake, shard, "moved")
    assert report == replace(dry, status=Status.COMMITTED, commit_id=report.commit_id)
    assert report.waiting == len(waiting)
    (note,) = report.notes
    assert note.startswith("3 messages for LaterBox wait in the broker's own timer (rmq_sys_wheel_timer), due from")
    early = deliver(lake.store, shard, "2026-01-01-d2", TESTS, lake.host, now_ms=first - 1)
    assert (early.status, early.delivered) == ("empty", 0)
    due = deliver(lake.store, shard, "2026-01-01-d3", TESTS, lake.host, now_ms=last)
    assert (due.status, due.delivered, due.more) == ("committed", len(waiting), False)
    again = deliver(lake.store, shard, "2026-01-01-d4", TESTS, lake.host, now_ms=last)
    assert again.status == "empty"
    positions = shard.positions()
    assert positions.max_offset(MessageQueue("%RETRY%gm_waiting", "lake-s1", 0)) > 0
    # A level queue has the time of its delivery as tags code; where the message goes, subscriptions ask for its tag again.
    delivered = query(lake.store, "SELECT tags, tags_code FROM message_rows WHERE cause = 'deliver'").to_pylist()
    assert [row["tags_code"] for row in delivered] == [tags_code(row["tags"]) for row in delivered]
    assert len(delivered) == len(waiting)
    assert full(lake.store, LocalEngine(lake.host)).findings == []


def test_the_log_of_a_stopped_broker_says_of_each_delay_level_what_its_delay_offsets_say(
    lake: Lake, broker_store: Callable[[str], Path]
) -> None:
    folder = broker_store("market-clean")
    lake.load(folder)
    (shard,) = lake.store.shards()
    positions = shard.positions()
    queues = [queue for queue in positions.queues_of(SCHEDULE_TOPIC) if queue.broker_name == BROKER]
    asked = {queue.queue_id: (0, positions.max_offset(queue)) for queue in queues}
    levels = delivered_levels(lake.store, "s1", [BROKER], asked)
    recorded = parse_delay_offsets((folder / "config" / "delayOffset.json").read_text())
    assert {level.level: level.next_offset for level in levels} == recorded
    assert (sum(level.waiting for level in levels), sum(level.uncertain for level in levels)) == (162, 0)
    ranges = [QueueRange(queue, 0, positions.max_offset(queue)) for queue in queues]
    passed = passed_over(lake.store, "s1", [BROKER], ranges, 0)
    assert {queue_id_to_delay_level(one.queue.queue_id): (one.first, one.messages) for one in passed} == {
        level.level: (level.next_offset, level.waiting) for level in levels if level.waiting
    }


def test_a_copy_of_a_delayed_message_without_a_unique_key_is_uncertain(lake: Lake, tmp_path: Path) -> None:
    delay = {"DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "3"}
    waits: dict[str, Any] = {"topic": SCHEDULE_TOPIC, "queue_id": 2, "properties": delay}
    delivered = {"properties": {"REAL_TOPIC": "T", "REAL_QID": "3"}, "queue_offset": 0}
    lake.load(store_of(tmp_path / "made", waits | {"queue_offset": 0}, waits | {"queue_offset": 1}, delivered))
    (level,) = delivered_levels(lake.store, "s1", [BROKER], {2: (0, 2)})
    assert (level.delivered, level.waiting, level.uncertain) == (0, 2, 2)


@pytest.mark.parametrize("lost", [False, True])
def test_what_the_log_of_a_killed_broker_shows_as_delivered_is_not_delivered_here(
    lake: Lake, broker: Path, lost: bool
) -> None:
    """Its delayOffset.json says 109 of level 3, or is lost; its log says 124."""
    if lost:
        (broker / "config" / "delayOffset.json").unlink()
        (broker / "config" / "delayOffset.json.bak").unlink()
    lake.load(broker)
    (shard,) = lake.store.shards()
    dry = cut_over(lake, shard, "moved", dry_run=True)
    report = cut_over(lake, shard, "moved")
    assert report == replace(dry, status=Status.COMMITTED, commit_id=report.commit_id)
    again = cut_over(lake, shard, "moved")
    assert again == replace(report, status=Status.ALREADY_COMMITTED)
    third = LevelProgress(3, 0, 124, 87) if lost else LevelProgress(3, 109, 15, 87)
    assert third in report.levels
    assert {level.level: level.waiting for level in report.levels if level.waiting} == {3: 87, 17: 9, 18: 15}
    assert report.waiting == 111
    assert "file 'abort' was there at the last import" in report.notes[0]
    assert any(f"shows {third.delivered} messages after offset {third.recorded} of" in note for note in report.notes)
    deliver(lake.store, shard, "2026-01-01-d1", TESTS, lake.host, now_ms=ALL_DUE_MS)
    copies = query(lake.store, _COPIES).to_pylist()
    assert copies == [{"messages": 205, "most": 1}]


_COPIES = """
SELECT sum(copies)::BIGINT AS messages, max(copies) AS most
FROM (
    SELECT count(*) AS copies
    FROM messages
    WHERE topic = '%RETRY%gm_crash'
    GROUP BY unique_key, reconsume_times
)
"""


def test_a_broker_that_was_stopped_well_is_cut_over_without_a_note_of_its_abort_file(lake: Lake, broker: Path) -> None:
    lake.load(broker)
    (broker / "abort").unlink()
    assert lake.load(broker).status == "committed"
    (shard,) = lake.store.shards()
    report = cut_over(lake, shard, "moved")
    assert [note for note in report.notes if "abort" in note] == []


def test_what_waits_in_a_brokers_timer_is_what_did_not_arrive(lake: Lake, broker_store: Callable[[str], Path]) -> None:
    """The timer log of the clean store, which is not imported, says the same of these nine messages."""
    folder = broker_store("market-clean")
    checked_ms, _, read_messages = struct.unpack(">3q", (folder / "config" / "timercheck").read_bytes()[:24])
    lake.load(folder)
    (found,) = waiting_timers(lake.store, "s1", [BROKER])
    due = [
        int(properties["TIMER_OUT_MS"]) + 1000
        for row in expected("market-clean.messages")
        if row["topic"] == "rmq_sys_wheel_timer" and (properties := row["properties"])
    ]
    late = [due_ms for due_ms in due if due_ms > checked_ms]
    assert read_messages == len(due)
    assert found == WaitingTimers("LaterBox", len(late), min(late), max(late))


def test_a_timer_message_whose_time_cannot_be_read_is_told_and_stops_no_cut_over(lake: Lake, tmp_path: Path) -> None:
    """No check sum covers the properties; the note is made when the cut-over has been committed."""
    timer = {"topic": "rmq_sys_wheel_timer"}
    times = [("A", "1000"), ("A", "soon"), ("A", str(2**63 - 1)), ("B", "")]
    values = [
        timer | {"properties": {"REAL_TOPIC": topic, "REAL_QID": "0", "UNIQ_KEY": f"k{number}", "TIMER_OUT_MS": text}}
        for number, (topic, text) in enumerate(times)
    ]
    lake.load(store_of(tmp_path / "made", *values))
    assert waiting_timers(lake.store, "s1", [BROKER]) == [
        WaitingTimers("A", 3, 2000, 2**63 + 999),
        WaitingTimers("B", 1, None, None),
    ]
    (shard,) = lake.store.shards()
    first, second = cut_over(lake, shard, "moved").notes
    assert "3 messages for A" in first
    assert f"due from 1970-01-01T00:00:02.000Z to {2**63 + 999}." in first
    assert "1 messages for B" in second
    assert "due at a time that cannot be read" in second


def test_a_timer_message_that_does_not_say_its_topic_is_counted_in_a_note_of_its_own(
    lake: Lake, tmp_path: Path
) -> None:
    """One flipped bit of the name REAL_TOPIC, which no check sum of the broker covers."""
    timer = {"topic": "rmq_sys_wheel_timer"}
    names = ("REAL_TOPIC", "SEAL_TOPIC", "REAL_UOPIC")
    values = [
        timer | {"properties": {name: "T", "REAL_QID": "0", "UNIQ_KEY": f"k{number}", "TIMER_OUT_MS": "1000"}}
        for number, name in enumerate(names)
    ]
    lake.load(store_of(tmp_path / "made", *values))
    assert waiting_timers(lake.store, "s1", [BROKER]) == [
        WaitingTimers("T", 1, 2000, 2000),
        WaitingTimers(None, 2, 2000, 2000),
    ]
    (shard,) = lake.store.shards()
    first, second = cut_over(lake, shard, "moved").notes
    assert "1 messages for T wait in the broker's own timer" in first
    assert second.startswith(
        "2 messages in the broker's own timer (rmq_sys_wheel_timer) do not say their topic (REAL_TOPIC)"
    )
    assert "due from 1970-01-01T00:00:02.000Z" in second


def test_a_trimmed_broker_is_cut_over_without_a_note_of_its_timer_and_its_levels_begin_at_their_first_message(
    lake: Lake, broker_store: Callable[[str], Path]
) -> None:
    """Its timer queue holds nothing. Its delayOffset.json says 0 of level 18, whose queue is [15, 15)."""
    lake.load(broker_store("market-trimmed"))
    (shard,) = lake.store.shards()
    assert cut_over(lake, shard, "moved").notes == ()
    level = MessageQueue(SCHEDULE_TOPIC, BROKER, 17)
    positions = shard.positions()
    assert (positions.min_offset(level), positions.max_offset(level)) == (15, 15)
    assert positions.offsets_of(SCHEDULE_GROUP)[level] == 15
    assert deliver(lake.store, shard, "2026-01-01-d1", TESTS, lake.host, now_ms=ALL_DUE_MS).status == "empty"


@pytest.mark.parametrize("is_raised", [True, False], ids=["this-cut-over", "an-older-cut-over"])
def test_a_level_whose_first_messages_the_broker_removed_is_delivered_from_its_first_message(
    lake: Lake, tmp_path: Path, is_raised: bool
) -> None:
    """Cut-overs of earlier versions kept the offset of delayOffset.json."""
    place: dict[str, Any] = {"topic": SCHEDULE_TOPIC, "queue_id": 2}
    waits = [
        place | {"queue_offset": n, "properties": {"REAL_TOPIC": "T", "REAL_QID": "0", "UNIQ_KEY": f"k{n}"}}
        for n in (2, 3)
    ]
    folder = store_of(tmp_path / "made", *waits)
    (folder / "config").mkdir()
    (folder / "config" / "delayOffset.json").write_text('{"offsetTable":{3:1}}')
    lake.load(folder)
    (shard,) = lake.store.shards()
    level = MessageQueue(SCHEDULE_TOPIC, BROKER, 2)
    if is_raised:
        assert cut_over(lake, shard, "moved").waiting == 2
    else:
        moves = adopted_moves(shard.positions(), [Observed(SCHEDULE_GROUP, level, 1)])
        ctl = Ctl(lake.host.new_commit_id(), Action.CUTOVER, TESTS, request_id="2026-01-01-cutover", moved=moves)
        proposal = cutover_proposal(ctl, shard.positions(), BROKER, [BROKER])
        commit_steps.commit(shard, proposal, lake.host, started_ms=lake.host.now_ms())
    assert shard.positions().offsets_of(SCHEDULE_GROUP) == {level: 2 if is_raised else 1}
    assert deliver(lake.store, shard, "2026-01-01-d1", TESTS, lake.host, now_ms=ALL_DUE_MS).delivered == 2
    assert shard.positions().offsets_of(SCHEDULE_GROUP) == {level: 4}
    assert query(lake.store, "SELECT * FROM audit").to_pylist() == []


@pytest.mark.parametrize("why_not", ["", "a salvage", "retention here"])
def test_delayed_messages_that_the_broker_went_past_are_told_where_it_is_certain(
    lake: Lake, tmp_path: Path, why_not: str
) -> None:
    """Its retention removed the second and the third of five before they were due. The copy of the first is of a topic that was
    deleted since."""
    delayed: list[dict[str, Any]] = [
        {"properties": {"REAL_TOPIC": "T", "REAL_QID": "3", "UNIQ_KEY": f"k{n}"}} for n in range(5)
    ]
    waits = [{"topic": SCHEDULE_TOPIC, "queue_id": 2} | one for one in delayed]
    made_again = {"queue_offset": 0, "stored_body": b"new!"}
    folder = store_of(tmp_path / "made", *waits, delayed[0] | {"queue_offset": 0}, made_again, {"queue_offset": 1})
    (folder / "config").mkdir()
    (folder / "config" / "delayOffset.json").write_text('{"offsetTable":{3:3}}')
    if why_not == "a salvage":  # it may have left out the copies
        log = folder / "commitlog" / f"{0:020}"
        log.write_bytes(log.read_bytes().replace(b"new!", b"torn"))
    lake.load(folder, salvage=why_not == "a salvage")
    (shard,) = lake.store.shards()
    if why_not == "retention here":  # it may have removed them
        rules = [RetentionRule(topic="T", max_age_ms=1)]
        retain(shard, RetentionRequest(request_id="2026-01-01-retain", actor=TESTS, rules=rules), lake.host)
    dry = cut_over(lake, shard, "moved", dry_run=True)
    assert (dry.waiting, len(dry.notes)) == (2, 0 if why_not else 1)
    assert all(note.startswith("delay level 3: the broker is past 2 messages of which") for note in dry.notes)
    assert all(f"queue {BROKER}:2 of {SCHEDULE_TOPIC} from offset 1 on" in note for note in dry.notes)
    assert cut_over(lake, shard, "moved").notes == dry.notes
    assert deliver(lake.store, shard, "2026-01-01-d1", TESTS, lake.host, now_ms=ALL_DUE_MS).delivered == 2
    assert cut_over(lake, shard, "moved").notes == dry.notes  # the report of the first time


def test_a_level_offset_beyond_the_end_of_its_queue_is_its_end(lake: Lake, tmp_path: Path) -> None:
    """As after a power failure that took the end of the log, but not delayOffset.json; rules 3.4."""
    delayed: dict[str, Any] = {"properties": {"REAL_TOPIC": "T", "REAL_QID": "3", "UNIQ_KEY": "k"}}
    folder = store_of(
        tmp_path / "made", delayed | {"topic": SCHEDULE_TOPIC, "queue_id": 2}, delayed | {"queue_offset": 0}
    )
    (folder / "config").mkdir()
    (folder / "config" / "delayOffset.json").write_text('{"offsetTable":{3:2}}')
    lake.load(folder)
    (shard,) = lake.store.shards()
    report = cut_over(lake, shard, "moved")
    assert (report.waiting, report.levels, report.left_out) == (0, (), ())
    assert report.notes == ()
    assert shard.positions().offsets_of(SCHEDULE_GROUP) == {MessageQueue(SCHEDULE_TOPIC, BROKER, 2): 1}
    assert deliver(lake.store, shard, "2026-01-01-d1", TESTS, lake.host, now_ms=ALL_DUE_MS).status == "empty"
    assert query(lake.store, "SELECT * FROM audit").to_pylist() == []


def test_a_message_at_a_level_offset_that_was_beyond_the_end_waits(lake: Lake, tmp_path: Path) -> None:
    """The broker has corrected the offset, and stored a message there."""
    level: dict[str, Any] = {"topic": SCHEDULE_TOPIC, "queue_id": 2}
    delayed = [{"properties": {"REAL_TOPIC": "T", "REAL_QID": "3", "UNIQ_KEY": f"k{n}"}} for n in range(2)]
    messages = [level | delayed[0], delayed[0] | {"queue_offset": 0}, level | delayed[1] | {"queue_offset": 1}]
    for number, (count, offset) in enumerate([(2, 2), (3, 1)]):
        folder = store_of(tmp_path / f"made-{number}", *messages[:count])
        (folder / "config").mkdir()
        (folder / "config" / "delayOffset.json").write_text(f'{{"offsetTable":{{3:{offset}}}}}')
        lake.load(folder)
    (shard,) = lake.store.shards()
    assert cut_over(lake, shard, "moved").waiting == 1
    assert deliver(lake.store, shard, "2026-01-01-d1", TESTS, lake.host, now_ms=ALL_DUE_MS).delivered == 1


def test_the_gap_of_a_salvage_in_a_level_is_lost_and_stops_no_delivery(lake: Lake, tmp_path: Path) -> None:
    """Of the messages 0, 2, 3 and 5 the broker has delivered the first two."""
    level: dict[str, Any] = {"topic": SCHEDULE_TOPIC, "queue_id": 2}
    delayed = [{"properties": {"REAL_TOPIC": "T", "REAL_QID": "3", "UNIQ_KEY": f"k{n}"}} for n in (0, 2, 3, 5)]
    waits = [level | one | {"queue_offset": n} for one, n in zip(delayed, (0, 2, 3, 5), strict=True)]
    copies = [one | {"queue_offset": n} for n, one in enumerate(delayed[:2])]
    assert lake.load(store_of(tmp_path / "made", *waits, *copies), salvage=True).queue_gaps
    (shard,) = lake.store.shards()
    report = cut_over(lake, shard, "moved")
    assert (report.waiting, report.levels) == (2, (LevelProgress(3, 0, 2, 2, lost=1),))
    assert deliver(lake.store, shard, "2026-01-01-d1", TESTS, lake.host, now_ms=ALL_DUE_MS).delivered == 2
    assert shard.positions().offsets_of(SCHEDULE_GROUP) == {MessageQueue(SCHEDULE_TOPIC, BROKER, 2): 6}
    lost = query(lake.store, "SELECT begin_offset, end_offset, reason FROM outcomes WHERE outcome = 'lost'").to_pylist()
    assert lost == [{"begin_offset": 4, "end_offset": 5, "reason": "no message is there"}]
    assert full(lake.store, LocalEngine(lake.host)).findings == []
    assert query(lake.store, "SELECT * FROM audit").to_pylist() == []


def test_a_broker_is_imported_into_one_shard_only(lake: Lake, tmp_path: Path) -> None:
    """Consumers that share a group's queues leave out a queue that another shard has too."""
    folder = store_of(tmp_path / "made", {})
    lake.load(folder)
    request = ImportRequest(broker_name=BROKER, shard_name="s2", request_id="2026-01-01-second", actor=TESTS)
    with pytest.raises(WrongUse, match=rf"broker {BROKER} is imported into shard s1: .*--shard s1"):
        import_store(lake.store, Root.parse(str(folder)), request, lake.host, LocalEngine(lake.host))
    assert lake.store.shard_names() == ["s1"]
