"""The lock of an export: one export to a file at a time, and none that was killed is in the way of the next."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from rmq_store.broker_files.export_lock import one_export
from rmq_store.errors import HeldByAnother, WrongUse


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_export_to_the_file_is_refused_and_one_to_another_file_is_not(tmp_path: Path) -> None:
    file = tmp_path / "consumerOffset.json"
    (tmp_path / "link.json").symlink_to(file)
    with one_export(file):
        for same in (file, tmp_path / "lmqConsumerOffset.json", tmp_path / "link.json"):
            with pytest.raises(HeldByAnother, match=f"another export to {same} runs: wait"), one_export(same):
                pass
        with one_export(tmp_path / "out.json"):
            pass
    with one_export(file):
        pass
    assert names(tmp_path) == ["link.json"]


def test_a_pipe_is_no_file_to_export_to() -> None:
    """As ``/dev/stdout`` is one: where its link ends, there is no folder for a lock file."""
    reader, writer = os.pipe()
    with pytest.raises(WrongUse, match="it is a FIFO, not a file"), one_export(Path(f"/proc/self/fd/{writer}")):
        pass
    os.close(reader)
    os.close(writer)


def test_the_lock_file_of_an_export_that_was_killed_is_taken_over(tmp_path: Path) -> None:
    file = tmp_path / "consumerOffset.json"
    with one_export(file):
        (lock,) = names(tmp_path)
    (tmp_path / lock).touch()
    with one_export(file), pytest.raises(HeldByAnother), one_export(file):
        pass
    assert names(tmp_path) == []


def test_a_lock_file_that_its_holder_has_removed_is_not_the_lock_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other export ends after this one has opened its lock file and before this one locks it."""
    file, lock_it, locked = tmp_path / "out.json", fcntl.flock, list[int]()

    def late(handle: int, operation: int) -> None:
        if not locked:
            os.unlink(tmp_path / names(tmp_path)[0])
        locked.append(handle)
        lock_it(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with one_export(file):
        assert len(locked) == 2
        with pytest.raises(HeldByAnother), one_export(file):
            pass
    assert names(tmp_path) == []


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with (
        pytest.raises(WrongUse, match=r"out\.json cannot be written: .*No locks available"),
        one_export(tmp_path / "out.json"),
    ):
        pass
    assert names(tmp_path) == []


def test_a_folder_that_is_not_writable_needs_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written there: the export says so itself, or finds nothing to change."""

    def refused(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("rmq_store.broker_files.export_lock.os.access", lambda *_: False)
    monkeypatch.setattr("rmq_store.broker_files.export_lock.os.open", refused)
    with one_export(tmp_path / "out.json"):
        pass


def test_a_lock_file_that_may_not_be_opened_is_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("rmq_store.broker_files.export_lock.os.open", refused)
    with (
        pytest.raises(HeldByAnother, match=r"Permission denied.*remove it if no export"),
        one_export(tmp_path / "out.json"),
    ):
        pass


def test_a_file_that_is_none_has_its_own_error(tmp_path: Path) -> None:
    (tmp_path / ".out.json.lock").mkdir()
    with pytest.raises(WrongUse, match=r"cannot be written: .*\.lock"), one_export(tmp_path / "out.json"):
        pass


def test_the_lock_file_of_the_next_export_stays_where_a_person_has_removed_that_of_this_one(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    with one_export(file):
        (lock,) = names(tmp_path)
        (tmp_path / lock).unlink()
        (tmp_path / lock).touch()
    assert names(tmp_path) == [lock]
