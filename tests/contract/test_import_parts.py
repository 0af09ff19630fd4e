"""An import that is committed in parts is the same import: same messages, offsets and positions, however it was stopped."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_store.broker_files.mapped_file_queue import MappedFile
from rmq_store.commit.request import Status
from rmq_store.errors import DamagedRecord, NothingThere, WrongUse
from rmq_store.lake.broker import import_part
from rmq_store.lake.broker.export import export_offsets
from rmq_store.lake.broker.import_part import LEAST_PART_BYTES, MOST_PART_BYTES, files_of_part, part_bytes
from rmq_store.lake.broker.salvage import CHUNK_BYTES
from rmq_store.lake.commit import commit as commit_steps
from rmq_store.lake.sql.sql import query
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.window.consume_request import ConsumeRequest
from rmq_store.window.plan import Planner
from tests.contract.test_import_cuts import content, counted_tasks
from tests.contract.test_import_store import (
    BROKER,
    FILE_BYTES,
    TESTS,
    Lake,
    commit_log,
    cut_over,
    edit_topics,
    overwrite,
    record_starts,
)
from tests.contract.world import group

REQUEST = "2026-01-01-parts"


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file of the log is a part."""
    monkeypatch.setattr(import_part, "part_bytes", lambda queues, log_bytes: FILE_BYTES)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.fixture
def broker(tmp_path: Path, broker_store: Callable[[str], Path]) -> Path:
    return Path(shutil.copytree(broker_store("market-killed"), tmp_path / "broker"))


def at_once(broker: Path, *, salvage: bool = False) -> Lake:
    """A lake that has imported the files in one part."""
    lake = Lake(broker.parent / "at-once")
    with pytest.MonkeyPatch.context() as whole:
        whole.setattr(import_part, "part_bytes", lambda queues, log_bytes: MOST_PART_BYTES)
        assert lake.load(broker, request=REQUEST, salvage=salvage).parts == 1
    return lake


def stopped_in_part(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends when the part with this number is staged."""
    staged = list[str]()

    def on_step(step: str) -> None:
        staged.extend([step] if step == "3.staged" else [])
        if step == "3.staged" and len(staged) == number:
            raise KeyboardInterrupt

    monkeypatch.setattr(commit_steps, "on_step", on_step)


def load_stopped(lake: Lake, broker: Path, monkeypatch: pytest.MonkeyPatch, number: int = 2) -> None:
    with monkeypatch.context() as stopped:
        stopped_in_part(number, stopped)
        with pytest.raises(KeyboardInterrupt):
            lake.load(broker, request=REQUEST)


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("name", ["market-clean", "market-killed", "market-trimmed"])
def test_an_import_in_parts_is_the_import_in_one(
    lake: Lake, name: str, broker_store: Callable[[str], Path], tmp_path: Path
) -> None:
    broker = Path(shutil.copytree(broker_store(name), tmp_path / "broker"))
    whole = at_once(broker)
    report = lake.load(broker, request=REQUEST)
    assert content(lake.store) == content(whole.store)
    again = lake.load(broker, request=REQUEST)
    assert again == replace(report, status=Status.ALREADY_COMMITTED)
    of_whole = whole.load(broker, request=REQUEST)
    assert replace(again, parts=1, commit_id=None) == replace(of_whole, commit_id=None)
    (shard,), (other,) = lake.store.shards(), whole.store.shards()
    ctls = shard.ctls_since(0, action="import")
    assert [(ctl.request_part, ctl.request_complete) for ctl in ctls] == [
        (number, number == report.parts) for number in range(1, report.parts + 1)
    ]
    assert report.parts > 1
    assert {ctl.observed for ctl in ctls[:-1]} == {()}
    assert ShardLookup(shard).observed() == ShardLookup(other).observed()
    exports = [export_offsets(one, BROKER) for one in (shard, other)]
    assert (exports[0].offsets, exports[0].delays) == (exports[1].offsets, exports[1].delays)
    assert query(lake.store, "SELECT * FROM audit").num_rows == 0
    assert lake.load(broker).status == "unchanged"


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("request_id", [REQUEST, "2026-01-01-another"])
def test_after_a_crash_the_next_import_begins_at_the_part_that_is_missing(
    lake: Lake, broker: Path, monkeypatch: pytest.MonkeyPatch, request_id: str
) -> None:
    load_stopped(lake, broker, monkeypatch)
    tasks = counted_tasks(monkeypatch)
    report = lake.load(broker, request=request_id)
    assert tasks[0].begin == FILE_BYTES
    is_same = request_id == REQUEST
    assert (report.status, report.begin) == ("committed", 0 if is_same else FILE_BYTES)
    assert content(lake.store) == content(at_once(broker).store)
    assert lake.load(broker, request=request_id) == replace(report, status=Status.ALREADY_COMMITTED)
    (shard,) = lake.store.shards()
    assert {seen.group for seen in ShardLookup(shard).observed()} == {"gm_crash", "CID_RMQ_SYS_SCHEDULE"}


@pytest.mark.usefixtures("in_parts")
def test_in_the_middle_of_an_import_no_group_starts_and_no_broker_is_cut_over(
    lake: Lake, broker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start would be another one at the end: by the broker's offset, or in queues that are not there yet."""
    load_stopped(lake, broker, monkeypatch)
    (shard,) = lake.store.shards()
    billing, request = group("gm_crash", ["PaymentFlow"]), ConsumeRequest("2026-01-01-c", TESTS)

    def start_rules() -> set[str]:
        planned = Planner(ShardLookup(lake.store.shards()[0]), billing, lake.host.now_ms()).plan(request, [])
        return {one.start_rule for one in planned.ranges}

    with pytest.raises(NothingThere, match=f"import of broker {BROKER} is not at its end: .* up to {FILE_BYTES}"):
        start_rules()
    with pytest.raises(WrongUse, match=f"up to {FILE_BYTES}. Finish the import"):
        cut_over(lake, shard, "moved")
    assert ShardLookup(shard).observed() == []
    assert export_offsets(shard, BROKER).groups == 0
    lake.load(broker)
    assert start_rules() == {"observed"}
    assert cut_over(lake, lake.store.shards()[0], "moved").status == "committed"


@pytest.mark.usefixtures("in_parts")
def test_a_file_that_ends_early_is_found_also_where_it_ends_a_part(lake: Lake, broker: Path) -> None:
    start = next(start for start, _ in record_starts() if start > FILE_BYTES // 2)
    overwrite(commit_log(broker, 0), start, bytes(FILE_BYTES - start))
    with pytest.raises(DamagedRecord, match="a later file has records"):
        lake.load(broker)
    assert lake.positions() == {}
    report = lake.load(broker, salvage=True)
    assert report.parts == 2
    assert report.queue_gaps
    assert content(lake.store) == content(at_once(broker, salvage=True).store)


@pytest.mark.usefixtures("in_parts")
def test_what_was_committed_before_damage_stays_and_a_salvage_continues_after_it(lake: Lake, broker: Path) -> None:
    start = next(start for start, _ in record_starts() if start > FILE_BYTES)
    overwrite(commit_log(broker, FILE_BYTES), start + 88 - FILE_BYTES, b"\xff\xff")
    with pytest.raises(DamagedRecord):
        lake.load(broker)
    assert lake.positions()[f"import/{BROKER}"] == FILE_BYTES
    report = lake.load(broker, salvage=True)
    assert (report.begin, [skip.begin for skip in report.salvaged]) == (FILE_BYTES, [start])
    assert content(lake.store) == content(at_once(broker, salvage=True).store)


@pytest.mark.usefixtures("in_parts")
def test_progress_grows_over_the_parts(lake: Lake, broker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rmq_store.lake.broker.import_request import ImportRequest
    from rmq_store.lake.broker.import_store import import_store
    from rmq_store.lake.table.object_store import Root
    from rmq_store.lake.window.engine import LocalEngine

    request = ImportRequest(broker_name=BROKER, shard_name="s1", request_id=REQUEST, actor=TESTS)
    seen: list[tuple[int, int]] = []
    root, engine = Root.parse(str(broker)), LocalEngine(lake.host)
    import_store(lake.store, root, request, lake.host, engine, progress=lambda *now: seen.append(now))
    counts, totals = zip(*seen, strict=True)
    assert list(counts) == sorted(counts)
    files = len(list((broker / "commitlog").iterdir()))
    assert set(totals) == {files * FILE_BYTES}


def test_a_configuration_is_recorded_when_it_changed(lake: Lake, broker: Path) -> None:
    cut = next(start for start, _ in record_starts() if start > FILE_BYTES // 2)
    kept = {path: path.read_bytes() for path in (broker / "commitlog").iterdir()}
    for path in kept:
        path.unlink() if int(path.name) else path.write_bytes(kept[path][:cut] + bytes(FILE_BYTES - cut))
    shutil.rmtree(broker / "consumequeue")
    lake.load(broker)
    (shard,) = lake.store.shards()
    seen = ShardLookup(shard).observed()
    for path, data in kept.items():
        path.write_bytes(data)
    lake.load(broker)
    edit_topics(broker, lambda topics: topics.update(Later={"topicName": "Later", "readQueueNums": 1, "perm": 6}))
    lake.load(broker)
    (shard,) = lake.store.shards()
    first, second, third = shard.ctls_since(0, action="import")
    assert (bool(first.observed), second.observed, bool(third.observed)) == (True, (), True)
    assert second.parameter("configs_of") == first.commit_id
    assert [ctl.parameter("topics") is None for ctl in (first, second, third)] == [False, True, False]
    assert ShardLookup(shard).observed() == seen
    assert cut_over(lake, shard, "moved").groups == 1


# --- which files are a part -------------------------------------------------------------------------------------------


def test_a_part_has_whole_files_and_fewer_bytes_where_there_are_many_queues() -> None:
    files = [MappedFile(str(n), n << 30, 1 << 30) for n in range(10)]
    assert files_of_part(files, 0, 4 << 30) == 4
    assert files_of_part(files, 1 << 29, 4 << 30) == 4
    assert files_of_part(files, 0, 1) == 1
    assert files_of_part([], 0, 1) == 0


@pytest.mark.parametrize(
    ("queues", "log_bytes", "expected"),
    [
        (0, 100 << 30, MOST_PART_BYTES),
        (8, 100 << 30, MOST_PART_BYTES),
        (10**6, 100 << 30, LEAST_PART_BYTES),
        (3000, 100 << 30, 33 * CHUNK_BYTES),
        (8, 20 << 30, 2 << 30),
        (3000, 22 << 30, 33 * CHUNK_BYTES),
        (8, 10 << 30, 1 << 30),
        (8, 1 << 30, 1 << 30),
        (8, 0, 1 << 30),
    ],
)
def test_a_part_is_at_most_a_tenth_of_what_is_to_be_imported_and_at_least_a_gigabyte(
    queues: int, log_bytes: int, expected: int
) -> None:
    assert part_bytes(queues, log_bytes) == expected
