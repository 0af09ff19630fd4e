"""A window is cut into tasks by the rate that the group's last window recorded, and its projection does not depend on it."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from rmq_store.commit.ctl import Action
from rmq_store.lake.window import consume_slice
from rmq_store.window.plan import TASK_MS
from tests.contract.test_import_store import opened_ctl_files
from tests.faults.stores import GROUP, MESSAGES, Lake, group_named, write_broker

SLOTS = 2


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    return write_broker(tmp_path / "broker")


def two_windows(monkeypatch: pytest.MonkeyPatch, lake: Lake, task_ms: int, *, slots: int = SLOTS) -> list[int]:
    """The number of tasks of a window, and of one over the same messages after it, when each task takes ``task_ms``."""
    tasks = []
    for request in ("2026-01-01-first", "2026-01-02-second"):
        calls = count()
        monkeypatch.setattr(consume_slice, "monotonic_ms", lambda calls=calls: next(calls) * task_ms)
        lake.consume(request, slots=slots)
        tasks.append(next(calls) // 2)
        lake.reset(f"{request[:10]}-reset", 0)
    return tasks


def test_the_window_after_a_slow_one_has_smaller_tasks_and_the_same_outcomes(
    broker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = Lake(tmp_path / "slow"), Lake(tmp_path / "fast")
    for lake in (slow, fast):
        lake.load(broker)
    assert two_windows(monkeypatch, fast, task_ms=1) == [2, 2]
    assert two_windows(monkeypatch, slow, task_ms=1_500) == [2, 5]
    assert slow.projections() == fast.projections()
    last = slow.shard.newest_ctl(GROUP, Action.CONSUME)
    assert last is not None
    assert (last.request_id, last.parameter(TASK_MS)) == ("2026-01-02-second", 5 * 1_500)
    assert sum(consumed.messages for consumed in last.consumed) == MESSAGES


def test_a_window_in_this_process_reads_no_commit_for_it(
    broker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path / "lake")
    lake.load(broker)
    monkeypatch.setattr("rmq_store.lake.table.shard.Shard.newest_ctl", None)
    assert two_windows(monkeypatch, lake, task_ms=1_500, slots=1) == [2, 2]


def test_the_last_window_of_a_group_is_found_where_commits_share_a_file(
    broker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path / "lake")
    lake.load(broker)
    groups = [group_named(name) for name in ("first", "second", "third")]
    lake.consume_all("2026-01-01-all", *groups)
    lake.consume("2026-01-02-one")
    shard, opened = lake.shard, opened_ctl_files(monkeypatch)
    last = shard.newest_ctl("second", Action.CONSUME)
    assert last is not None
    assert (last.group, last.request_id) == ("second", "2026-01-01-all")
    assert shard.newest_ctl("fourth", Action.CONSUME) is None
    assert len(opened) == len(set(opened)) <= len(groups), "of each commit once, and of no other group's"
