"""CPU time and peak memory of commands on large stores: many commits, positions, small files, queues (docs/limits.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.bench import Bench, check, made_once
from benchmarks.big_stores import GROUP, of_positions, of_queues, of_windows
from benchmarks.broker_log import TOPIC
from benchmarks.commands import rmq, settings_text
from benchmarks.table import Measurement

TITLE = "commands on large stores, local disk, each in a new process"


@dataclass(frozen=True, slots=True)
class BigStore:
    """A kind of large store."""

    what: str
    """``{}``: its size."""
    size: int
    quick_size: int
    make: Callable[[str, int], None]
    """Makes it in a folder, in its size."""
    topics: tuple[str, ...] = (TOPIC,)


def _stores(bench: Bench) -> Mapping[str, BigStore]:
    def many_commits(folder: str, size: int) -> None:
        of_windows(folder, bench.host, windows=size // 2, groups=1_000, failing=size // 100, ctl_rows=256)

    def many_files(folder: str, size: int) -> None:
        of_windows(folder, bench.host, windows=size // 3, groups=100, failing=size // 3, ctl_rows=1)

    def many_positions(folder: str, size: int) -> None:
        of_positions(folder, bench.host, groups=size // 200, queues=100)

    def many_queues(folder: str, size: int) -> None:
        of_queues(folder, bench.host, topics=10, queues=size // 10)

    ten = tuple(f"{TOPIC}{number}" for number in range(10))
    return {
        "commits": BigStore("{:,} commits, maintained", 1_000_000, 20_000, many_commits),
        "positions": BigStore("{:,} positions", 200_000, 2_000, many_positions),
        "files": BigStore("{:,} data files, not maintained", 50_000, 600, many_files),
        "queues": BigStore("{:,} queues", 10_000, 100, many_queues, ten),
    }


def _commands(topic: str, unique_key: str) -> Mapping[str, tuple[str, ...]]:
    of_group = ("--group", GROUP)
    return {
        "lag of one group": ("lag", *of_group),
        "lag of all": ("sql", "SELECT * FROM lag"),
        "windows": ("sql", "SELECT count(*) FROM windows"),
        "retries": ("sql", "SELECT count(*) FROM retries"),
        "audit": ("audit",),
        "messages by key": ("messages", "--topic", topic, "--key", "k7"),
        "track": ("track", unique_key),
        "doctor": ("doctor",),
        "window with nothing to do": ("consume", *of_group),
        "maintain --dry-run": ("maintain", "--dry-run"),
    }


def measure(bench: Bench) -> Iterator[Measurement]:
    for key, big in _stores(bench).items():
        size = big.quick_size if bench.quick else big.size
        what = big.what.format(size)
        bench.say(f"writing a store with {what}")
        write = partial(_write, big.make, size)
        folder = made_once(bench.folder / "data" / f"big-{key}-{size}", write)
        settings = folder.with_suffix(".toml")
        settings.write_text(settings_text(GROUP, "Named", big.topics))
        environment = os.environ | {"RMQ_ROOT": str(folder), "RMQ_SETTINGS": str(settings)}
        text = f"SELECT unique_key FROM message_rows WHERE topic = '{big.topics[0]}' LIMIT 1"
        unique_key = rmq("sql", text, "--format", "csv", environment=environment).split()[1]
        for name, command in _commands(big.topics[0], unique_key).items():
            cpu_s, peak_bytes = _measured(bench, command, environment)
            bench.say(f"{what}: {name}: {cpu_s:.2f} CPU s, {peak_bytes >> 20:,} MiB")
            row = f"big.{key}.{name.replace(' ', '-')}"
            yield Measurement(row, f"{what}: {name}", "CPU s", (cpu_s,), more_is_better=False)
            yield Measurement(
                f"{row}.peak", f"{what}: {name}, peak memory", "MiB", (peak_bytes >> 20,), more_is_better=False
            )


def _write(make: Callable[[str, int], None], size: int, folder: Path) -> None:
    make(str(folder), size)


def _measured(bench: Bench, command: tuple[str, ...], environment: Mapping[str, str]) -> tuple[float, int]:
    """CPU seconds and peak bytes of a command. ``doctor`` names what is too large, and ``audit`` positions that no window
    made, so these may fail."""
    file = bench.new_folder("measured")
    file.parent.mkdir(parents=True, exist_ok=True)
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.measured_command", str(file), *command, "--json"],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    expected = (0, 1) if command[0] in ("audit", "doctor") else (0,)
    check(f"exit code of rmq {command[0]} ({run.stderr.strip()[-500:]})", run.returncode in expected, True)
    numbers = json.loads(file.read_text())
    return numbers["cpu_s"], numbers["peak_bytes"]
