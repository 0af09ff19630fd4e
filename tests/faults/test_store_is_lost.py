"""The store disappears while a window runs: the error says so at once, and nothing is written where the store was."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest

from rmq_store.errors import BadData, StoreUnusable
from rmq_store.lake.commit import commit as commit_steps
from rmq_store.utils.host import Host
from tests.faults.stores import Lake

STEPS = ("1.planned", "2.claimed", "3.staged", "4.decided", "4.ctl-written")


def at_step(monkeypatch: pytest.MonkeyPatch, step: str, do: Callable[[], object]) -> None:
    """``do`` when the window reaches the step."""
    monkeypatch.setattr(commit_steps, "on_step", lambda reached: do() if reached == step else None)


def no_waiting(seconds: float) -> None:
    raise AssertionError("it waits for a store that is gone")


@pytest.mark.parametrize("folder", ["", "s1/commitlog/_delta_log"])
@pytest.mark.parametrize("step", STEPS)
def test_a_folder_that_is_removed_while_a_window_runs_is_not_made_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str, folder: str
) -> None:
    removed = lake.folder / folder
    at_step(monkeypatch, step, lambda: shutil.rmtree(removed))
    with pytest.raises((StoreUnusable, BadData), match=r"gone|no table|no store|missing"):
        replace(lake, host=Host(sleep=no_waiting)).consume()
    assert not [file for file in removed.rglob("*") if file.is_file()]
