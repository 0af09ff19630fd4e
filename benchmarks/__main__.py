"""Measure the speed of the parts and of other ways to do the same work, and print one table (docs/speed.md)."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from benchmarks import (
    absorb,
    big,
    commands,
    commits,
    console,
    dag_runs,
    groups,
    growth,
    import_files,
    killed,
    large_import,
    moves,
    requests,
    tick,
    windows,
    workers,
    writers,
)
from benchmarks.bench import Bench, json_text, machine
from benchmarks.speed_page import with_last_run
from benchmarks.table import Measurement, Section, document, table, with_scenarios

CHECKOUT = Path(__file__).resolve().parents[1]
FOLDER = CHECKOUT / "var" / "bench"
LAST_RUN = CHECKOUT / "benchmarks" / "last_run.json"
"""The ``--json`` document that ``docs/speed.md`` shows."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Measurements that belong together."""

    title: str
    measure: Callable[[Bench], Iterator[Measurement]]


SCENARIOS: Mapping[str, Scenario] = {
    "import": Scenario(import_files.TITLE, import_files.measure),
    "large": Scenario(large_import.TITLE, large_import.measure),
    "window": Scenario(windows.TITLE, windows.measure),
    "killed": Scenario(killed.TITLE, killed.measure),
    "workers": Scenario(workers.TITLE, workers.measure),
    "absorb": Scenario(absorb.TITLE, absorb.measure),
    "commit": Scenario(commits.TITLE, commits.measure),
    "command": Scenario(commands.TITLE, commands.measure),
    "deliver": Scenario(moves.DELIVER_TITLE, moves.measure_deliver),
    "seek": Scenario(moves.SEEK_TITLE, moves.measure_seek),
    "key": Scenario(moves.KEY_TITLE, moves.measure_key),
    "requests": Scenario(requests.TITLE, requests.measure),
    "groups": Scenario(groups.TITLE, groups.measure),
    "big": Scenario(big.TITLE, big.measure),
    "tick": Scenario(tick.TITLE, tick.measure),
    "console": Scenario(console.TITLE, console.measure),
    "airflow": Scenario(dag_runs.TITLE, dag_runs.measure),
    "writers": Scenario(writers.TITLE, writers.measure),
    "growth": Scenario(growth.TITLE, growth.measure),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    messages: int
    """Messages in a window."""
    rounds: int
    """Rounds that are measured, after one to warm up."""
    windows: int
    """Windows that ``growth`` makes."""


FULL, QUICK = Sizes(5_000_000, 3, 1_000), Sizes(200_000, 1, 60)


def options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line; wrong use ends the process with exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works, not how fast it is")
    parser.add_argument(
        "--only", action="append", metavar="NAME", choices=SCENARIOS, help=f"repeatable: {', '.join(SCENARIOS)}"
    )
    parser.add_argument(
        "--messages", type=_at_least_one, metavar="N", help=f"messages in a window; default {FULL.messages:,}"
    )
    parser.add_argument(
        "--rounds", type=_at_least_one, metavar="N", help=f"rounds that are measured; default {FULL.rounds}"
    )
    parser.add_argument(
        "--windows", type=_at_least_one, metavar="N", help=f"windows that growth makes; default {FULL.windows:,}"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write every sample to a file; what it has of other scenarios stays in it",
    )
    parser.add_argument(
        "--write-docs",
        type=Path,
        metavar="PAGE",
        help=f"measure nothing: write the last section of docs/speed.md from {LAST_RUN.relative_to(CHECKOUT)}",
    )
    parser.add_argument("--keep", action="store_true", help="keep the messages in var/bench for the next run")
    chosen = parser.parse_args(arguments)
    if chosen.json and not chosen.json.parent.is_dir():
        parser.error(f"--json: folder {chosen.json.parent} does not exist")
    return chosen


def _at_least_one(text: str) -> int:
    if (number := int(text.replace(",", "").replace("_", ""))) < 1:
        raise ValueError(text)
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 if a scenario failed; a target that is not reached is not a failure."""
    chosen = options(arguments)
    if chosen.write_docs:
        page = chosen.write_docs.read_text()
        chosen.write_docs.write_text(with_last_run(page, json.loads(LAST_RUN.read_text())))
        return 0
    default = QUICK if chosen.quick else FULL
    sizes = Sizes(*(getattr(chosen, name) or getattr(default, name) for name in ("messages", "rounds", "windows")))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # clean up as on Ctrl-C
    with only_one(FOLDER.with_suffix(".lock")):
        sections = _run(chosen, sizes)
    return 1 if any(section.failed for section in sections) else 0


def _run(chosen: argparse.Namespace, sizes: Sizes) -> list[Section]:
    """Measure, print the table and write the file."""
    host = machine()
    started = time.monotonic()
    notes = Console(stderr=True, highlight=False)

    def say(line: str) -> None:
        notes.print(f"{time.monotonic() - started:6.0f} s  {line}")

    bench = Bench(folder=FOLDER, **asdict(sizes), quick=chosen.quick, say=say)
    _use_scratch(FOLDER / "run" / "tmp")
    try:
        sections = [measured(SCENARIOS[name], bench) for name in chosen.only or SCENARIOS]
    finally:
        bench.close(keep=chosen.keep)
    caption = (
        f"{host['cores']} cores, load {os.getloadavg()[0]:.1f}, Python {host['python']}; "
        f"took {time.monotonic() - started:,.0f} s{'; --quick: too small to say how fast' if chosen.quick else ''}"
    )
    Console(width=None if sys.stdout.isatty() else 200).print(table(sections, caption))
    if chosen.json:
        newer = document(sections, host, asdict(sizes) | {"quick": chosen.quick})
        older = json.loads(chosen.json.read_text()) if chosen.json.exists() else {"scenarios": []}
        titles = [scenario.title for scenario in SCENARIOS.values()]
        chosen.json.write_text(json_text(with_scenarios(older, newer, titles)))
    return sections


@contextmanager
def only_one(lock_file: Path) -> Iterator[None]:
    """Ends the process when another run holds the lock: two runs would disturb each other, and share their folder."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    with lock_file.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"error: the benchmarks run already in this checkout ({lock_file} is locked)")
        yield


def measured(scenario: Scenario, bench: Bench) -> Section:
    """The measurements of a scenario, until it ended or failed; the other scenarios still run."""
    bench.say(scenario.title)
    began = os.getloadavg()[0]
    measurements: list[Measurement] = []
    failed = ""
    try:
        for measurement in scenario.measure(bench):
            # A small size says nothing about the target.
            measurements.append(replace(measurement, target=None) if bench.quick else measurement)
    except Exception as error:
        traceback.print_exception(error)
        failed = f"{type(error).__name__}: {str(error)[:500]}"
    return Section(scenario.title, tuple(measurements), failed, (began, os.getloadavg()[0]))


def _use_scratch(folder: Path) -> None:
    """Temporary files of this process, of Spark and of its workers go below var/bench."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)


if __name__ == "__main__":
    sys.exit(main())
