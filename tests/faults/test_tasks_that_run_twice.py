"""An engine may run a task twice to its end, as Spark does with a second copy of a slow task: the answer of one copy counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from rmq_store.lake.window.window import consume_window
from rmq_store.window.consume_request import ConsumeRequest
from tests.faults.stores import REQUEST, TESTS, Lake, group_named


@dataclass(frozen=True)
class TwiceEngine:
    """Runs the tasks in this process, each twice."""

    counts: int
    """Which answer of a task counts: 0, that of its first copy, or 1."""
    slots: int = 2
    name: str = "twice"
    on_cluster: bool = False

    def __call__(self, run: Callable[[Any, Any, str], Any], job: Any, tasks: Sequence[Any]) -> list[Any]:
        return [[run(job, task, f"copy{copy}") for copy in (0, 1)][self.counts] for task in reversed(tasks)]


@pytest.mark.parametrize("counts", [0, 1])
def test_the_answer_of_one_copy_of_a_task_counts(lake: Lake, windowed: Lake, counts: int) -> None:
    request, engine = ConsumeRequest(REQUEST, TESTS), TwiceEngine(counts)
    report = consume_window(lake.store, lake.shard, group_named(), request, lambda _: engine, lake.host)
    assert report.status == "committed"
    assert lake.projections() == windowed.projections()
    staged = [file.name for file in lake.folder.rglob("kind=msg/*.parquet")]
    named = [path.rpartition("/")[2] for path in lake.shard.commitlog.files().column("path").to_pylist()]
    copies = [{name for name in staged if f"copy{copy}" in name} for copy in (0, 1)]
    assert len(copies[0]) == len(copies[1]) > 0
    assert copies[counts] <= set(named)
    assert not copies[1 - counts] & set(named)
    assert lake.audit() == []
