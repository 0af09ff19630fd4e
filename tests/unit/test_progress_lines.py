"""The progress of long work is shown in few lines."""

from __future__ import annotations

from rmq_store.lake.window.engine import LocalEngine
from rmq_store.utils.host import Host
from rmq_store.utils.progress import by_tenths


def test_progress_is_shown_at_each_tenth_and_again_for_work_that_follows() -> None:
    shown: list[tuple[int, int]] = []
    progress = by_tenths(lambda count, total: shown.append((count, total)))
    for count in range(1, 101):
        progress(count, 100)
    progress(100, 100)
    for count in (1, 2):
        progress(count, 2)
    assert shown == [*((count, 100) for count in range(10, 101, 10)), (1, 2), (2, 2)]


def test_the_local_engine_counts_its_tasks() -> None:
    shown: list[tuple[int, int]] = []
    engine = LocalEngine(Host(), progress=lambda count, total: shown.append((count, total)))
    assert engine(_double, 2, [3, 4]) == [6, 8]
    assert shown == [(1, 2), (2, 2)]


def _double(job: int, task: int, attempt: str) -> int:
    return job * task
