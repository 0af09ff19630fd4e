"""A backup of a store that is in use: the copy is a store, whatever happens meanwhile and wherever the backup is stopped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from deltalake import DeltaTable

from rmq_store.errors import (
    BadData,
    CommitOutcomeUnknown,
    DerivedTableDamaged,
    LogDamaged,
    MissingFile,
    StaleAttempt,
    WrongUse,
)
from rmq_store.lake.admin.doctor import OtherMend, commit_logs_found
from rmq_store.lake.audit.finding import Problem, advice_for
from rmq_store.lake.commit import commit as commits
from rmq_store.lake.commit.commit import STEPS
from rmq_store.lake.commit.cursor import refuse_other_history
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.commit.rebuild import check, rebuild
from rmq_store.lake.maintain import compact as compaction
from rmq_store.lake.maintain.backup import BackupReport, backup
from rmq_store.lake.maintain.compact import CompactRequest, compact
from rmq_store.lake.maintain.vacuum import files_of_segments
from rmq_store.lake.table.checkpoint import LEAST_AGE_MS, clean_up, write_checkpoint
from rmq_store.lake.table.delta_log import DeltaLog
from rmq_store.lake.table.object_store import Root
from rmq_store.maintain.files_to_join import Limits
from tests.faults.stores import REQUEST, SHARD, TESTS, Lake, copied

TABLES = ("commitlog", "consumequeue", "offsets", "commits")


class Killed(BaseException):
    """The end of the process that makes a backup."""


def back_up(lake: Lake, folder: Path, *, dry_run: bool = False) -> BackupReport:
    return backup(lake.store, Root.parse(str(folder)), dry_run=dry_run)


def backup_of(lake: Lake, folder: Path) -> Lake:
    back_up(lake, folder)
    return replace(lake, folder=folder)


def assert_is_a_store(copy: Lake) -> None:
    assert [(one.table, one.differences, one.damage) for one in check(copy.shard)] == [
        (name, (), "") for name in ("commits", "consumequeue", "offsets")
    ]
    dispatch(copy.shard, copy.host)
    assert copy.audit() == []


def assert_has_its_files(copy: Lake) -> None:
    """Those of the newest versions, and those that segments name; no derived table is ahead of the commit log."""
    shard = copy.shard
    segments = files_of_segments(shard.consumequeue)
    for name in TABLES:
        table = getattr(shard, name)
        for row in table.files().select(["path", "size_bytes"]).to_pylist():
            assert table.root.size(f"{table.path}/{row['path']}") == row["size_bytes"]
        refuse_other_history(shard, table)
    assert all(shard.root.exists(f"{shard.commitlog.path}/{path}") for path in segments)


def numbers(lake: Lake) -> dict[str, int]:
    """The versions of the tables."""
    return {name: getattr(lake.shard, name).version for name in TABLES}


def files_in(folder: Path) -> dict[str, int]:
    """Names and i-nodes."""
    return {path.relative_to(folder).as_posix(): path.stat().st_ino for path in folder.rglob("*") if path.is_file()}


def clean(lake: Lake) -> None:
    """A checkpoint of each table, and no entries before it."""
    deleted = 0
    for name in TABLES:
        table = getattr(lake.shard, name)
        write_checkpoint(table)
        then = (lake.host.now_ms() - 2 * LEAST_AGE_MS) / 1000
        for path in Path(lake.folder, table.path, "_delta_log").glob("*.parquet"):
            os.utime(path, (then, then))
        deleted += clean_up(table)
    assert deleted


def join(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The messages of the commit log in one file."""
    monkeypatch.setattr(compaction, "SETTLED_MS", -1)
    shard = lake.shard
    request = CompactRequest("2026-01-01-compact", TESTS, limits=Limits(least_files=2, target_rows=10_000))
    assert compact(shard, request, lake.host).replaced_files > 1


@contextmanager
def stopped_at(write: int, target: Path) -> Iterator[None]:
    """The process ends before the write with this number, from 0, at the target."""
    numbers_of_writes = count()
    with pytest.MonkeyPatch.context() as patch:
        for method in ("replace", "create_exclusively"):
            real = getattr(Root, method)

            def wrapped(root: Root, name: str, content: bytes, real: Callable[..., object] = real) -> object:
                if root.location == str(target) and next(numbers_of_writes) == write:
                    raise Killed
                return real(root, name, content)

            patch.setattr(Root, method, wrapped)
        yield


# --- a copy is a store -----------------------------------------------------------------------------------------------


def test_a_backup_has_every_message_offset_and_commit(windowed: Lake, tmp_path: Path) -> None:
    copy = backup_of(windowed, tmp_path / "copy")
    assert copy.projections() == windowed.projections()
    assert copy.store.store_id == windowed.store.store_id
    assert numbers(copy) == numbers(windowed)
    assert_is_a_store(copy)
    for name in TABLES:
        rows = DeltaTable(str(copy.folder / copy.shard_name / name)).to_pyarrow_table().num_rows
        assert rows == DeltaTable(str(windowed.folder / copy.shard_name / name)).to_pyarrow_table().num_rows
    assert copy.deliver().delivered > 0


def test_a_backup_at_every_step_of_a_window_is_a_store_that_the_same_request_continues(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = dict[str, Lake]()

    def on_step(step: str) -> None:
        copies[step] = backup_of(lake, tmp_path / step)

    with monkeypatch.context() as patch:
        patch.setattr(commits, "on_step", on_step)
        lake.consume()
    assert tuple(copies) == STEPS
    for step in STEPS[1::2]:
        copy = copies[step]
        assert_has_its_files(copy)
        is_committed = STEPS.index(step) >= STEPS.index("5.put")
        assert copy.consume().status == ("already_committed" if is_committed else "committed"), step
        assert copy.projections() == lake.projections(), step


def test_what_is_committed_joined_and_cleaned_while_files_are_copied_is_in_the_next_backup(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, target = lake.projections(), tmp_path / "copy"
    begun = numbers(lake)
    then: list[Callable[[], object]] = [lake.consume, lambda: join(lake, monkeypatch), lambda: clean(lake)]
    changes = iter(then)
    real = Root.replace

    def replacing(root: Root, name: str, content: bytes) -> None:
        if root.location == str(target) and (change := next(changes, None)):
            change()
        real(root, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(Root, "replace", replacing)
        copy = backup_of(lake, target)
    assert numbers(copy) == begun
    assert copy.projections() == before != lake.projections()
    assert_is_a_store(copied(copy, tmp_path / "first"))
    assert back_up(lake, target).is_new
    assert numbers(copy) == numbers(lake)
    assert copy.projections() == lake.projections()
    assert_is_a_store(copy)


def test_files_that_only_a_segment_names_are_copied(
    windowed: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction whose process ended before it updated the consume queues."""
    lake = copied(windowed, tmp_path / "lake")
    old = Path(shutil.copytree(lake.folder / lake.shard_name / "consumequeue", tmp_path / "consumequeue"))
    join(lake, monkeypatch)
    shutil.rmtree(lake.folder / lake.shard_name / "consumequeue")
    shutil.copytree(old, lake.folder / lake.shard_name / "consumequeue")
    clean(lake)
    segments = lake.shard.consumequeue.read(lake.shard.consumequeue.files().column("path").to_pylist(), ["file"])
    names = set(segments.column("file").to_pylist())
    assert names - set(lake.shard.commitlog.files().column("path").to_pylist())
    copy = backup_of(lake, tmp_path / "copy")
    assert all((copy.folder / copy.shard_name / "commitlog" / name).exists() for name in names)


# --- the next backup -------------------------------------------------------------------------------------------------


def test_a_second_backup_copies_only_what_is_new(lake: Lake, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    before_first = files_in(lake.folder)
    first = back_up(lake, target)
    assert {name for name in before_first if "_last_checkpoint" not in name} == files_in(target).keys()
    assert sum(table.copied_files for table in first.tables) == sum(table.files for table in first.tables) > 0
    again = back_up(lake, target)
    assert (again.is_new, files_in(target)) == (False, files_in(target))
    lake.consume()
    before = files_in(target)
    dry = back_up(lake, target, dry_run=True)
    assert files_in(target) == before
    second = back_up(lake, target)
    assert (dry, second.is_new) == (second, True)
    after = files_in(target)
    assert {name: after[name] for name in before} == before, "no file was written again"
    new = files_in(lake.folder).keys() - before_first.keys()
    assert after.keys() - before.keys() == new
    copied_files = sum(table.copied_files + table.copied_entries for table in second.tables)
    assert copied_files == len(new)


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_a_backup_that_is_killed_at_any_file_leaves_the_one_before_or_a_later_state(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cleaned: bool
) -> None:
    copy = backup_of(lake, tmp_path / "copy")
    before, states = numbers(copy), list[dict[str, int]]()
    lake.consume()
    if is_cleaned:
        clean(lake)
        join(lake, monkeypatch)  # so the checkpoint names files that the newest version does not have
    writes = 0
    while True:
        with stopped_at(1, copy.folder):  # a run makes one write, and the next one goes on behind it
            try:
                back_up(lake, copy.folder)
                break
            except Killed:
                writes += 1
        if numbers(copy) == before:
            continue
        assert all(numbers(copy)[name] >= version for name, version in before.items())
        before = numbers(copy)
        assert_has_its_files(copy)
        states.append(before)
    assert writes > len(states) > 2
    assert numbers(copy) == numbers(lake)
    assert copy.projections() == lake.projections()
    assert_is_a_store(copy)


def test_a_first_backup_that_was_killed_is_no_store_and_the_next_one_completes_it(
    windowed: Lake, tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    with stopped_at(4, target), pytest.raises(Killed):
        back_up(windowed, target)
    with pytest.raises(Exception, match="no store at"):
        _ = Lake(target).store
    copy = backup_of(windowed, target)
    assert_is_a_store(copy)
    assert copy.projections() == windowed.projections()


def test_a_file_that_was_cut_at_the_target_is_copied_again(windowed: Lake, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    back_up(windowed, target)
    file = next(path for path in target.rglob("*.parquet") if "kind=msg" in str(path))
    file.write_bytes(file.read_bytes()[:10])
    assert sum(table.copied_files for table in back_up(windowed, target).tables) == 1
    assert_is_a_store(Lake(target))


# --- what is refused -------------------------------------------------------------------------------------------------


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:20])


def message_file(lake: Lake) -> Path:
    """The newest one."""
    files = lake.shard.commitlog.files()
    path: str = next(path for path in files.column("path").to_pylist()[::-1] if "kind=msg" in path)
    return lake.folder / lake.shard_name / "commitlog" / path


def entry(lake: Lake, number: int) -> Path:
    return sorted((lake.folder / lake.shard_name / "commitlog" / "_delta_log").glob("*.json"))[number]


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (lambda lake: message_file(lake).unlink(), MissingFile, "is missing, and the store names it"),
        (lambda lake: cut(message_file(lake)), BadData, "is damaged: it has 20 bytes"),
        (lambda lake: cut(entry(lake, -1)), LogDamaged, r"\.json is damaged"),
        (lambda lake: entry(lake, 1).unlink(), LogDamaged, r"\.json is missing"),
        (lambda lake: entry(lake, -1).unlink(), DerivedTableDamaged, "one of them was restored from a backup"),
        (lambda lake: shutil.rmtree(lake.folder / lake.shard_name / "offsets"), DerivedTableDamaged, "offsets is gone"),
    ],
    ids=["file gone", "file cut", "entry cut", "entry gone", "log ends early", "table gone"],
)
def test_a_damaged_store_is_named_and_the_backup_before_stays(
    lake: Lake, tmp_path: Path, damage: Callable[[Lake], None], error: type[Exception], words: str
) -> None:
    target = tmp_path / "copy"
    copy = backup_of(lake, target)
    before = numbers(copy)
    lake.consume()
    damage(lake)
    with pytest.raises(error, match=words):
        back_up(lake, target)
    assert numbers(copy) == before
    assert_is_a_store(copy)


def test_a_target_that_is_not_of_this_store_is_refused(
    windowed: Lake, new_lake: Callable[[str], Lake], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").touch()
    with pytest.raises(WrongUse, match=r"not empty and has no backup; it has notes\.txt"):
        back_up(windowed, other)
    (other / "shards").mkdir()
    (other / "notes.txt").rename(other / "shards" / "zz.json")
    with pytest.raises(WrongUse, match=r"not empty and has no backup; it has shards/zz\.json"):
        back_up(windowed, other)  # the entry of a shard that the copy would not have
    store = new_lake("again").folder / "store.json"
    store.write_text(store.read_text().replace(windowed.store.store_id, "0" * 32))
    with pytest.raises(WrongUse, match="has another store"):
        back_up(windowed, store.parent)
    for inside in (windowed.folder, windowed.folder / "backup", windowed.folder.parent):
        with pytest.raises(WrongUse, match="outside of the store"):
            back_up(windowed, inside)


@pytest.mark.parametrize("is_cleaned", [False, True])
def test_a_backup_that_was_written_to_is_refused(lake: Lake, tmp_path: Path, is_cleaned: bool) -> None:
    copy = backup_of(lake, tmp_path / "copy")
    copy.consume("2026-01-01-other")
    for number in range(3):
        lake.consume(f"{REQUEST}-{number}")
        lake.deliver(f"2026-01-01-d{number}")
    if is_cleaned:
        clean(lake)
    with pytest.raises(WrongUse, match="something has written to the backup"):
        back_up(lake, copy.folder)


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_copy_of_a_table_that_was_made_again_is_refused(lake: Lake, tmp_path: Path, ahead: int) -> None:
    """The folder of its log was gone, so the new log begins at 0. The old one ends where the new one has its checkpoint, or one
    entry later."""
    for number in range(4):
        lake.consume(f"{REQUEST}-{number}")
        lake.deliver(f"2026-01-01-d{number}")
    write_checkpoint(lake.shard.consumequeue)
    copy = backup_of(lake, tmp_path / "copy")
    newest = numbers(lake)["consumequeue"]
    shutil.rmtree(lake.folder / SHARD / "consumequeue")
    rebuild(lake.shard, lake.host)
    for number in count():
        if numbers(lake)["consumequeue"] >= newest - ahead:
            break
        if number % 2:
            lake.deliver(f"2026-01-02-d{number}")
        else:
            lake.reset(f"2026-01-02-{number}", 0)
            lake.consume(f"2026-01-02-{number}")
    assert numbers(lake)["consumequeue"] == newest - ahead
    write_checkpoint(lake.shard.consumequeue)
    lake.reset("2026-01-03-r", 0)
    lake.consume("2026-01-03-c")
    with pytest.raises(
        WrongUse, match=r"the table was made again since .* or remove \S+consumequeue and run this again"
    ):
        back_up(lake, copy.folder)
    shutil.rmtree(copy.folder / SHARD / "consumequeue")
    back_up(lake, copy.folder)
    assert_is_a_store(copy)


def test_a_store_that_was_replaced_by_an_older_copy_is_refused(lake: Lake, tmp_path: Path) -> None:
    older = copied(lake, tmp_path / "older")
    lake.consume()
    back_up(lake, tmp_path / "copy")
    with pytest.raises(WrongUse, match="the store was replaced by an older copy"):
        back_up(older, tmp_path / "copy")


# --- restoring -------------------------------------------------------------------------------------------------------


def test_a_restored_store_consumes_again_what_came_after_the_backup(lake: Lake, tmp_path: Path) -> None:
    copy = backup_of(lake, tmp_path / "copy")
    window = lake.consume()
    restored = backup_of(copy, tmp_path / "restored")
    assert restored.offsets() != lake.offsets()
    again = restored.consume()
    assert (again.status, again.counts()) == ("committed", window.counts())
    assert restored.projections() == lake.projections()
    assert_is_a_store(restored)


def test_after_a_restore_in_place_under_a_running_process_the_log_is_refused(lake: Lake, tmp_path: Path) -> None:
    """It cannot be told what that process has seen. So whatever writes is stopped first (``docs/backup.md``)."""
    copy = backup_of(lake, tmp_path / "copy")
    lake.consume()
    running = lake.shard
    shutil.rmtree(lake.folder)
    backup_of(copy, lake.folder)

    def sleep(seconds: float) -> None:
        pytest.fail("waiting does not repair a damaged log")

    with pytest.raises(CommitOutcomeUnknown, match=r"\.json is missing, and later entries are there"):
        running.commitlog.put([], {"x": 1}, host=replace(lake.host, sleep=sleep))
    with pytest.raises(LogDamaged, match=r"\.json is missing, and later entries are there"):
        lake.shard.commitlog.refresh()
    shutil.rmtree(lake.folder)
    assert_is_a_store(backup_of(copy, lake.folder))


@pytest.fixture(params=["folder", "as in S3"])
def outlived(
    request: pytest.FixtureRequest, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], object]:
    """A window that has its claim when its store is restored in place and used: the group has claimed its queues there as
    often, and what followed fills the log to where the window had read."""
    if request.param == "as in S3":
        monkeypatch.setattr(DeltaLog, "_is_freed", lambda log: False)
    copy = backup_of(lake, tmp_path / "copy")
    lake.reset("2026-01-01-lost", 3)

    def killed() -> None:
        raise KeyboardInterrupt

    def restored() -> None:
        shutil.move(lake.folder, tmp_path / "aside")
        backup_of(copy, lake.folder)
        lake.reset("2026-01-01-new", 3)
        with pytest.raises(KeyboardInterrupt):
            before_its_commit(lake, killed).consume("2026-01-01-other")

    return before_its_commit(lake, restored).consume


def before_its_commit(lake: Lake, event: Callable[[], object]) -> Lake:
    """The store as used from a host at which something happens before it makes its second id: the first one is that of the
    claim."""
    ids = count(1)

    def entropy(size: int) -> bytes:
        if next(ids) == 2:
            event()
        return os.urandom(size)

    return replace(lake, host=replace(lake.host, entropy=entropy))


def test_a_window_that_outlives_a_restore_in_place_commits_nothing(lake: Lake, outlived: Callable[[], object]) -> None:
    with pytest.raises(
        StaleAttempt, match=r"does not have the claim .* of this run: it was restored from a copy since"
    ):
        outlived()
    assert lake.audit() == []
    assert lake.consume().status == "committed"
    assert lake.audit() == []


def test_a_window_is_refused_in_a_folder_whose_restored_log_ends_where_it_has_read(lake: Lake, tmp_path: Path) -> None:
    copy = backup_of(lake, tmp_path / "copy")

    def restored() -> None:
        shutil.move(lake.folder, tmp_path / "aside")
        backup_of(copy, lake.folder)
        lake.reset("2026-01-01-new", 3)  # as many entries as the claim was

    with pytest.raises(StaleAttempt, match="was claim 1 and is claim 0"):
        before_its_commit(lake, restored).consume()
    assert lake.audit() == []


def test_a_window_that_was_committed_after_a_restore_in_place_is_named(
    lake: Lake, outlived: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an earlier version."""
    monkeypatch.setattr(commits, "_check_claim", lambda shard, ctl: None)
    outlived()
    found = lake.audit()
    assert {one.problem for one in found} == {Problem.ANOTHER_HISTORY}
    assert "which the log does not have" in str(found[0].detail)


def emptied(file: Path) -> None:
    os.truncate(file, 0)


def cut_in_an_action(file: Path) -> None:
    os.truncate(file, 300)


def of_unknown_action(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'{"add":', b'{"adf":', 1))


def folder_in_its_place(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [emptied, cut_in_an_action, of_unknown_action, folder_in_its_place])
@pytest.mark.parametrize("number", [-1, -2])
def test_a_damaged_entry_that_a_checkpoint_covers_is_named_and_stops_nothing(
    lake: Lake, tmp_path: Path, damage: Callable[[Path], None], number: int
) -> None:
    """Nothing is read of it any more. A backup is without it, and the next one continues that."""
    write_checkpoint(lake.shard.commitlog)
    damaged = entry(lake, number)
    damage(damaged)
    (finding,) = lake.audit()
    name = f"commitlog/_delta_log/{damaged.name}"
    assert (finding.problem, finding.file) == (Problem.COVERED_ENTRY_DAMAGED, name)
    first = back_up(lake, tmp_path / "copy")
    assert first.left_out == ((f"{SHARD}/{name}",) if number == -1 else ())
    copy = replace(lake, folder=tmp_path / "copy")
    restored = copied(copy, tmp_path / "restored")
    assert_is_a_store(restored)
    for store in (restored, lake):
        assert store.consume().status == "committed"
        assert not any(report.differs for report in check(store.shard))
    assert_is_a_store(restored)
    write_checkpoint(lake.shard.commitlog)
    assert back_up(lake, copy.folder).left_out == ()
    assert_is_a_store(copy)
    assert {one.problem for one in lake.audit()} == {Problem.COVERED_ENTRY_DAMAGED}
    with pytest.raises(WrongUse, match="is not an entry of"):  # each has a window of its own
        back_up(restored, copy.folder)


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_backup_without_the_entry_of_its_checkpoint_takes_no_other_history(
    lake: Lake, tmp_path: Path, is_copied: bool
) -> None:
    """``is_copied``: as by an earlier version, which copied the damaged entry."""
    older = copied(lake, tmp_path / "older")
    lake.consume()
    write_checkpoint(lake.shard.commitlog)
    damaged, copy = entry(lake, -1), tmp_path / "copy"
    os.truncate(damaged, 300)
    back_up(lake, copy)
    if is_copied:
        shutil.copy(damaged, copy / damaged.relative_to(lake.folder))
    for number in range(3):
        older.reset(f"2026-01-01-o{number}", number)
        older.consume(f"2026-01-01-o{number}")
    with pytest.raises(WrongUse, match=r"is not an entry of \S+commitlog:"):
        back_up(older, copy)
    write_checkpoint(older.shard.commitlog)
    with pytest.raises(WrongUse, match=r"is not an entry of \S+commitlog:"):
        back_up(older, copy)
    lake.deliver("2026-01-01-d")
    write_checkpoint(lake.shard.commitlog)
    clean(lake)
    assert back_up(lake, copy).left_out == ()
    found = {one.problem for one in replace(lake, folder=copy).audit()}
    assert found == ({Problem.COVERED_ENTRY_DAMAGED} if is_copied else set())


# --- copies by other tools -------------------------------------------------------------------------------------------


def test_a_copy_by_another_tool_is_a_store_if_the_logs_are_copied_before_the_data(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of ``docs/backup.md``, with a commit between any two steps, and with a hint at a later checkpoint."""
    source, target = lake.folder / SHARD, tmp_path / "copy" / SHARD
    for number, name in enumerate(TABLES[::-1]):
        lake.reset(f"2026-01-01-reset-{number}", number)
        shutil.copytree(source / name / "_delta_log", target / name / "_delta_log")
    version = Lake(lake.folder).shard.commitlog.version
    lake.consume()
    join(lake, monkeypatch)
    write_checkpoint(lake.shard.commitlog)
    hint = "commitlog/_delta_log/_last_checkpoint"
    shutil.copy(source / hint, target / hint)
    ignore = shutil.ignore_patterns("_delta_log")
    shutil.copytree(source, target, ignore=ignore, dirs_exist_ok=True)
    shutil.copytree(lake.folder / "shards", target.parent / "shards")
    shutil.copy(lake.folder / "store.json", target.parent)
    copy = replace(lake, folder=target.parent)
    assert copy.shard.commitlog.version == version
    used = copied(copy, tmp_path / "used")
    assert used.consume("2026-01-01-again").status == "committed"
    assert [(one.problem, one.file) for one in used.audit()] == [(Problem.CHECKPOINT_UNREADABLE, "commitlog")]
    write_checkpoint(used.shard.commitlog)
    assert_is_a_store(used)
    assert back_up(lake, copy.folder).is_new
    assert numbers(copy) == numbers(lake)
    assert_is_a_store(copy)


@pytest.mark.parametrize("checkpointed", ["lost", "new", "neither"])
def test_a_copy_over_one_of_before_a_restore_has_two_histories(lake: Lake, tmp_path: Path, checkpointed: str) -> None:
    """The entries of both fit together: a reset of the restored store, and the window that came after that of the lost one."""
    backed_up, copy = backup_of(lake, tmp_path / "backup"), replace(lake, folder=tmp_path / "copy")
    lake.reset("2026-01-01-lost", 3)
    if checkpointed == "lost":
        write_checkpoint(lake.shard.commitlog)
    lake.consume()
    shutil.copytree(lake.folder, copy.folder)
    shutil.rmtree(lake.folder)
    backup_of(backed_up, lake.folder)
    lake.reset("2026-01-01-new", 3)
    if checkpointed == "new":
        write_checkpoint(lake.shard.commitlog)
    elif checkpointed == "lost":  # its checkpoint has the reset: what is mixed begins behind it
        lake.reset("2026-01-01-newer", 4)
    assert lake.audit() == []
    shutil.copytree(lake.folder, copy.folder, dirs_exist_ok=True)
    found = copy.audit()
    assert Problem.ANOTHER_HISTORY in {one.problem for one in found}
    assert "which the log does not have before it" in commit_logs_checked(copy)
    advice, *_ = [one for one in advice_for(found) if one["problem"] == Problem.ANOTHER_HISTORY]
    assert "do not rebuild" in advice["action"]


def commit_logs_checked(lake: Lake) -> str:
    """What ``rmq doctor`` finds in them."""
    with pytest.raises(OtherMend) as caught:
        commit_logs_found(lake.store.root)
    assert "restore it from a backup; a rebuild of the derived tables would only hide it" in caught.value.mend
    return str(caught.value)


def test_who_goes_on_behind_a_log_that_was_replaced_has_begun_another_history(lake: Lake, tmp_path: Path) -> None:
    """``docs/backup.md``, "Restore in place": its commits fit behind others that have filled the gap."""
    backed_up = backup_of(lake, tmp_path / "backup")
    lake.reset("2026-01-01-lost", 3)
    lake.reset("2026-01-01-goes-on", 5)
    late = entry(lake, -1).read_bytes()
    shutil.move(lake.folder, tmp_path / "aside")
    backup_of(backed_up, lake.folder)
    lake.reset("2026-01-01-new", 3)
    ignore = shutil.ignore_patterns("_delta_log")
    shutil.copytree(
        tmp_path / "aside" / SHARD / "commitlog", lake.folder / SHARD / "commitlog", ignore=ignore, dirs_exist_ok=True
    )
    last = entry(lake, -1)
    name = f"{int(last.stem) + 1:020d}.json"
    last.with_name(name).write_bytes(late)
    (finding,) = lake.audit()
    assert (finding.problem, finding.file) == (Problem.ANOTHER_HISTORY, f"commitlog/_delta_log/{name}")
