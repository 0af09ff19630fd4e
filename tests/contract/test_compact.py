"""Compaction of the commit log: fewer files, the same messages, and whoever comes after sees no difference."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rmq_store.commit.ctl import SCHEDULE_GROUP, Produced, StagedFile
from rmq_store.commit.positions import QueueRange
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.duplicates import AbsorbRule
from rmq_store.errors import BadData, DerivedTableDamaged, StoreUnusable
from rmq_store.lake.audit.finding import Problem
from rmq_store.lake.commit import commit as committing
from rmq_store.lake.commit import tail
from rmq_store.lake.commit.commit import STEPS
from rmq_store.lake.commit.rebuild import check
from rmq_store.lake.maintain import checked_file
from rmq_store.lake.maintain.compact import SETTLED_MS, CompactReport, CompactRequest, compact
from rmq_store.lake.maintain.placed_rows import SegmentsByFile
from rmq_store.lake.read.message_search import message_by_id, messages_at
from rmq_store.lake.read.time_search import search_offsets
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.imports import last_import
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.maintain.files_to_join import Limits
from rmq_store.message.message import MessageQueue
from tests.contract.test_import_store import opened_ctl_files
from tests.faults.answers import Clock, set_clock
from tests.faults.stores import BROKER, GROUP, HOUR_MS, OPERATOR, Lake, copied, group_named, write_broker
from tests.planted_shard import PlantedShard

OF_IMPORTS = 2
"""The ctl files of the newest import and of the one that recorded the configuration stay."""

VIEWS = (
    "message_rows", "outcomes", "retries", "dead_letters", "windows", "lag", "acked_keys",
)  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Two imports, windows with failures, deliveries and dead letters, a group that absorbs duplicates, a redrive; and the
    time two hours later."""
    folder, clock = tmp_path_factory.mktemp("compact"), Clock()
    clock.ms += HOUR_MS - clock.ms % (24 * HOUR_MS)  # the first hour of a day: all that follows is of that day
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_clock(monkeypatch, clock)
        lake = Lake(folder / "store", clock.host)
        for messages in (30, 60):
            lake.load(write_broker(folder / "broker", messages), f"2026-01-01-import-{messages}")
            lived(lake, clock, str(messages))
        lake.redrive()
    return lake.folder, clock.ms + 2 * HOUR_MS


@pytest.fixture
def clock(built: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(built[1])
    set_clock(monkeypatch, clock)
    return clock


@pytest.fixture
def lake(built: tuple[Path, int], clock: Clock, tmp_path: Path) -> Lake:
    return copied(Lake(built[0], clock.host), tmp_path / "store")


def lived(lake: Lake, clock: Clock, name: str) -> None:
    absorbing = group_named("absorbing", absorb_duplicates=AbsorbRule("UNIQ_KEY", 24 * HOUR_MS))
    audit = replace(group_named("audit"), name=f"audit@host-{name}", message_model=MessageModel.BROADCASTING)
    for number in range(4):
        lake.consume(f"2026-01-01-{name}-{number}")
        lake.consume(f"2026-01-01-{name}-{number}", absorbing)
        clock.ms += HOUR_MS
        lake.deliver(f"2026-01-01-deliver-{name}-{number}", after_ms=0)
    lake.consume(f"2026-01-01-{name}", audit)


def compacted(lake: Lake, **options: Any) -> CompactReport:
    request = CompactRequest("2026-01-02-maintain", OPERATOR, "daily", Limits(least_files=2))
    return compact(lake.shard, request, lake.host, **options)


def files_of(lake: Lake, kind: str) -> int:
    kinds: list[str] = lake.shard.commitlog.files().column("partition.kind").to_pylist()
    return kinds.count(kind)


@pytest.mark.slow
def test_every_view_shows_the_same_rows_from_fewer_files(lake: Lake) -> None:
    before = lake.rows(*VIEWS)
    all_files = len(lake.shard.commitlog.files())
    report = compacted(lake)
    assert lake.audit() == []
    assert (report.replaced_files, report.overtaken, report.warnings) == (all_files - OF_IMPORTS, 0, ())
    assert lake.rows(*VIEWS) == before
    # The broker's messages are of another day.
    assert {kind: files_of(lake, kind) for kind in ("msg", "key", "outcome")} == {"msg": 2, "key": 1, "outcome": 1}


@pytest.mark.parametrize("kind", ["msg", "outcome", "key"])
def test_a_replaced_file_that_is_put_back_is_found(lake: Lake, kind: str) -> None:
    """Its statistics are right, and the segments of before name all of its rows."""
    compacted(lake)
    replaced = [file for ctl in lake.shard.ctls_since(0, action="compact") for file in ctl.parameter("replaced")]
    file = min(file for file in replaced if file.startswith(f"kind={kind}/"))
    at = PlantedShard(lake.folder, lake.shard_name)
    at.add_entry({"add": at.add_of(file)})
    (finding,) = (one for one in lake.audit() if one.problem == Problem.REPLACED_FILE_LIVE)
    assert finding.file == f"commitlog/{file}"
    assert re.fullmatch("replaced by commit [0-9a-f]{32}", finding.detail or "")


@pytest.mark.parametrize("kind", ["outcome", "key"])
def test_a_joined_file_that_is_taken_out_is_found(lake: Lake, kind: str) -> None:
    """No segment names it, the record of the compaction does."""
    compacted(lake)
    at = PlantedShard(lake.folder, lake.shard_name)
    written = [file.path for ctl in lake.shard.ctls_since(0, action="compact") for file in ctl.files]
    file = min(file for file in written if file.startswith(f"kind={kind}/"))
    at.take_out(file)
    (finding,) = (one for one in lake.audit() if one.problem == Problem.RECORDED_FILE_NOT_LIVE)
    assert finding.file == f"commitlog/{file}"


def test_the_derived_tables_are_those_that_a_rebuild_would_make(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    compacted(lake)
    assert [report for report in check(lake.shard) if report.differs] == []


def test_a_dispatch_without_the_log_makes_no_replaced_segment_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    compacted(lake)
    lake.consume("2026-01-02-later")
    monkeypatch.setattr(tail, "_logged", lambda *_: None)
    monkeypatch.setattr(tail, "_counted", lambda *_: None)
    lake.consume("2026-01-02-latest")
    monkeypatch.undo()
    assert [report for report in check(lake.shard) if report.differs] == []


def test_a_second_run_finds_nothing(lake: Lake, clock: Clock) -> None:
    compacted(lake)
    clock.ms += 2 * HOUR_MS
    version = lake.shard.commitlog.version
    report = compact(lake.shard, CompactRequest("2026-01-02-maintain", OPERATOR), lake.host)
    assert (report.commits, lake.shard.commitlog.version) == (0, version)


def test_what_is_read_back_wrongly_replaces_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(root: Root, path: str, file: NewFile) -> StagedFile:
        return stage(root, path, replace(file, rows=file.rows.slice(1)))

    files = lake.shard.commitlog.files().column("path").to_pylist()
    monkeypatch.setattr(checked_file, "stage", cut)
    with pytest.raises(StoreUnusable, match="read back"):
        compacted(lake)
    assert lake.shard.commitlog.files().column("path").to_pylist() == files


def test_a_dry_run_writes_nothing(lake: Lake) -> None:
    files = sorted(path for path in lake.folder.rglob("*"))
    report = compacted(lake, dry_run=True)
    assert sorted(path for path in lake.folder.rglob("*")) == files
    assert (report.commits, report.new_files) == (0, 5)
    assert report.replaced_files == len(lake.shard.commitlog.files()) - OF_IMPORTS


def test_young_files_are_left_alone(lake: Lake, clock: Clock) -> None:
    compacted(lake)
    clock.ms += 2 * HOUR_MS
    young = {file.path for file in _files_after(lake, lambda: lived(lake, clock, "young"), clock)}
    assert young <= set(lake.shard.commitlog.files().column("path").to_pylist())


def _files_after(lake: Lake, step: Callable[[], object], clock: Clock) -> list[Any]:
    version, began_ms = lake.shard.commitlog.version, clock.ms
    step()
    clock.ms = began_ms + SETTLED_MS - 1
    compacted(lake)
    return [file for file in lake.shard.commitlog.added_since(version) if file.data_change]


# --- who comes after, and who is at work meanwhile -------------------------------------------------------------------


@pytest.mark.slow
def test_a_store_goes_on_as_one_that_was_not_compacted(lake: Lake, clock: Clock, tmp_path: Path) -> None:
    plain, began_ms = copied(lake, tmp_path / "plain"), clock.ms
    compacted(lake)
    ends = []
    for one in (lake, plain):
        clock.ms = began_ms
        lived(one, clock, "later")
        one.reset("2026-01-03-reset", 0)
        one.consume("2026-01-03-again")
        redriven = one.redrive("2026-01-03-redrive").letters
        assert one.audit() == []
        ends.append((one.projections(GROUP, "absorbing", SCHEDULE_GROUP), one.offsets(), redriven))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("step", STEPS)
def test_a_window_that_began_before_a_compaction_is_committed_after_it(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    lake.reset("2026-01-03-reset", 0)
    plain = copied(lake, tmp_path / "plain")
    once = iter([lake])

    def compacts(reached: str) -> None:
        if reached == step and next(once, None):
            compacted(lake)

    monkeypatch.setattr(committing, "on_step", compacts)
    report = lake.consume("2026-01-03-again")
    assert next(once, None) is None
    assert report.counts() == plain.consume("2026-01-03-again").counts()
    assert lake.audit() == []
    assert [report for report in check(lake.shard) if report.differs] == []


def test_a_reader_that_opened_the_tables_before_reads_the_same(lake: Lake) -> None:
    old = lake.shard
    ranges = [QueueRange(queue, 0, old.positions().max_offset(queue)) for queue in old.positions().all_queues()]
    before = [message for range_ in ranges for message in messages_at(old, range_)]
    compacted(lake)
    for shard in (old, lake.shard):
        assert [message for range_ in ranges for message in messages_at(shard, range_)] == before
    old.commitlog.refresh()
    assert [message for range_ in ranges for message in messages_at(old, range_)] == before


@pytest.mark.slow
def test_every_message_is_found_by_its_id_and_its_time(lake: Lake) -> None:
    messages = query(lake.store, "SELECT * FROM messages").to_pylist()
    shard = lake.shard
    queues = shard.positions().all_queues()
    times = sorted({message["store_timestamp"] + more for message in messages for more in (0, 1)})

    def offsets() -> list[dict[MessageQueue, int]]:
        opened = lake.shard
        return [search_offsets(opened, shard.positions(), queues, time) for time in times]

    before = offsets()
    compacted(lake)
    assert offsets() == before
    for message in messages[:: len(messages) // 12]:
        (same,) = message_by_id(lake.store, message["offset_msg_id"])
        assert (same["topic"], same["queue_offset"], same["body"]) == (
            message["topic"],
            message["queue_offset"],
            message["body"],
        )


# --- two at once, and one that dies ----------------------------------------------------------------------------------


def test_a_second_compaction_meanwhile_replaces_nothing_twice(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    before = lake.rows(*VIEWS)
    others: list[CompactReport] = []

    def compacts(step: str) -> None:
        if step == "4.ctl-written" and not others:
            others.append(CompactReport(shard=""))  # not within the other
            others.append(compacted(lake))

    monkeypatch.setattr(committing, "on_step", compacts)
    report = compacted(lake)
    assert (report.overtaken, report.commits) == (others[1].commits, 0)
    assert lake.rows(*VIEWS) == before
    assert lake.audit() == []


def test_segments_that_another_compaction_has_moved_are_no_damage(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    segments_of = SegmentsByFile.of
    others: list[CompactReport] = []

    def moved(segments: SegmentsByFile, file: str) -> list[Produced]:
        if not others:
            others.append(CompactReport(shard=""))  # not within the other
            others.append(compacted(lake))
            return []
        return segments_of(segments, file)

    monkeypatch.setattr(SegmentsByFile, "of", moved)
    assert compacted(lake).overtaken > 0
    assert lake.audit() == []


def test_the_segments_are_read_once(lake: Lake, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock.ms += 48 * HOUR_MS  # so that there are files of two more days
    lived(lake, clock, "later")
    clock.ms += 2 * HOUR_MS
    opened: list[str] = []
    init = SegmentsByFile.__init__

    def counted(segments: SegmentsByFile, consumequeue: LakeTable) -> None:
        opened.append(consumequeue.path)
        init(segments, consumequeue)

    monkeypatch.setattr(SegmentsByFile, "__init__", counted)
    report = compacted(lake)
    assert files_of(lake, "msg") > 2
    assert (len(opened), report.overtaken) == (1, 0)
    assert [report for report in check(lake.shard) if report.differs] == []


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", STEPS[3:-1])
def test_a_compaction_that_is_killed_at_any_step_hurts_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = lake.rows(*VIEWS)

    def dies(reached: str) -> None:
        if reached == step:
            raise Killed

    monkeypatch.setattr(committing, "on_step", dies)
    with pytest.raises(Killed):
        compacted(lake)
    monkeypatch.setattr(committing, "on_step", lambda step: None)
    assert lake.rows(*VIEWS) == before
    compacted(lake)
    assert lake.rows(*VIEWS) == before
    assert lake.audit() == []
    assert [report for report in check(lake.shard) if report.differs] == []


def test_a_file_whose_segments_are_not_known_is_not_replaced(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SegmentsByFile, "of", lambda segments, file: [])
    with pytest.raises(DerivedTableDamaged, match="has segments of 0 messages in"):
        compacted(lake)


@pytest.mark.parametrize("kind", ["msg", "outcome"])
def test_a_file_with_fewer_rows_than_the_log_says_is_not_replaced(
    lake: Lake, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of an earlier version, without a digest."""
    monkeypatch.setattr("rmq_store.lake.maintain.compact._digests", lambda *_: {})
    live = lake.shard.commitlog.files().select(["path", "num_records"]).to_pylist()
    path = next(row["path"] for row in live if row["path"].startswith(f"kind={kind}/") and row["num_records"] > 1)
    file = lake.folder / lake.shard.commitlog.path / path
    pq.write_table(pq.read_table(file, partitioning=None).slice(1), file)
    with pytest.raises(BadData, match=r"by the log they have .*\. Nothing was replaced"):
        compacted(lake)


def test_a_file_that_was_changed_is_not_joined(lake: Lake) -> None:
    """As many rows, and the sizes agree. A joined file would agree with its commit, and hide it."""
    live = lake.shard.commitlog.files().to_pylist()
    path = next(row["path"] for row in live if row["path"].startswith("kind=msg/"))
    file = lake.folder / lake.shard.commitlog.path / path
    rows = pq.ParquetFile(file).read()
    bodies = [b"another", *rows.column("body").to_pylist()[1:]]
    pq.write_table(rows.set_column(rows.schema.get_field_index("body"), "body", [bodies]), file)
    with pytest.raises(BadData, match="was changed: its SHA-256 is"):
        compacted(lake)
    assert lake.shard.commitlog.is_live(path)
    assert all(ctl.action != "compact" or path not in ctl.parameter("replaced") for ctl in lake.shard.ctls_since(0))


# --- duplicates ------------------------------------------------------------------------------------------------------


def test_the_horizon_of_an_absorbing_group_is_the_same(lake: Lake, clock: Clock, tmp_path: Path) -> None:
    """Keys of old and new windows are in one file now."""
    plain, began_ms = copied(lake, tmp_path / "plain"), clock.ms
    compacted(lake)
    ends = []
    for one in (lake, plain):
        clock.ms = began_ms
        report = one.load(write_broker(tmp_path / f"broker-{one.folder.name}", 90), "2026-01-03-import")
        assert report.messages == 30
        of_group = group_named("absorbing", absorb_duplicates=AbsorbRule("KEYS", 5 * HOUR_MS))
        ends.append(one.consume("2026-01-03-absorbing", of_group).counts())
    assert ends[0] == ends[1]


def test_the_newest_import_is_found_in_one_file_after_a_compaction(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    before = last_import(lake.shard, BROKER)
    compacted(lake)
    shard = Shard(lake.shard.root, lake.shard.name)
    opened = opened_ctl_files(monkeypatch)
    assert last_import(shard, BROKER) == before is not None
    assert len(opened) == 1


@pytest.mark.parametrize("kind", ["msg", "outcome", "key", "ctl"])
def test_a_file_without_a_day_ends_a_compaction_in_words(lake: Lake, kind: str) -> None:
    """Another tool wrote the entry again: the audit finds it too."""
    at = PlantedShard(lake.folder, lake.shard_name)
    add = at.add_of(at.files(kind=kind)[0])
    at.add_entry({"add": add | {"partitionValues": add["partitionValues"] | {"store_day": None}}})
    with pytest.raises(BadData, match="does not say of which day kind="):
        compacted(lake)
    assert Problem.STATISTICS_DIFFER in {finding.problem for finding in lake.audit()}
