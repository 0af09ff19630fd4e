"""Scenarios of the benchmarks that need no Spark run to their end, at the smallest size. Nothing is timed here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import SCENARIOS, measured
from benchmarks.bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(folder=tmp_path, messages=1_000, rounds=1, windows=6, quick=True, say=print)


@pytest.mark.parametrize("name", ["deliver", "groups", "console", "growth", "killed", "tick"])
def test_a_scenario_measures_and_its_results_are_right(bench: Bench, name: str) -> None:
    section = measured(SCENARIOS[name], bench)
    assert section.failed == ""
    keys = [measurement.key for measurement in section.measurements]
    assert len(keys) == len(set(keys)) >= 3
    assert {measurement.target for measurement in section.measurements} == {None}, "a small size says nothing"


def test_a_scenario_on_s3_says_what_is_missing(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQ_JARS", str(tmp_path / "none"))
    section = measured(SCENARIOS["requests"], bench)
    assert section.measurements == ()
    assert section.failed.startswith("MachineNotReady: s3proxy")
    assert "make jars" in section.failed
