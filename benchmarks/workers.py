"""A window on a cluster with one worker and with two, each with one core of this machine."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benchmarks.bench import Bench, Lake
from benchmarks.spark_cluster import running_cluster
from benchmarks.table import Measurement, Target
from benchmarks.windows import CASES, Windows

TITLE = "window on a Spark cluster, workers of one core each"
CASE_KEYS = ("window.named", "window.json")
LIMIT_S = 900


def measure(bench: Bench) -> Iterator[Measurement]:
    lake = bench.lake(bench.messages)
    cases = [case for case in CASES if case.key in CASE_KEYS]
    rates: dict[str, dict[int, list[float]]] = {case.key: {} for case in cases}
    for workers in (1, 2):
        for key, of_key in _rates_with(bench, lake, workers).items():
            rates[key][workers] = of_key
    for case in cases:
        for workers, samples in rates[case.key].items():
            what = f"{case.what}, {'1 worker' if workers == 1 else f'{workers} workers'}"
            yield Measurement(f"workers.{case.key}.{workers}", what, "M messages/s", tuple(samples))
        one, two = rates[case.key][1], rates[case.key][2]
        ratios = tuple(of_two / of_one for of_one, of_two in zip(one, two, strict=True))
        target = Target(">=", 1.8) if case.key == "window.json" else None
        yield Measurement(
            f"workers.{case.key}", f"{case.what}: two workers relative to one", "times", ratios, target=target
        )


def _rates_with(bench: Bench, lake: Lake, workers: int) -> dict[str, list[float]]:
    """Million messages a second of each case and round. A process can have one Spark session, so this is another process."""
    with running_cluster(bench.new_folder("cluster"), workers=workers, memory="2g") as cluster:
        bench.say(f"{lake.messages:,} messages on {workers} worker(s)")
        words = ["--master", cluster.master, "--lake", str(lake.folder), "--folder", str(bench.new_folder("driver"))]
        words += ["--messages", str(lake.messages), "--rounds", str(bench.rounds), "--cores", str(workers)]
        run = subprocess.run(
            [sys.executable, "-m", "benchmarks.workers", *words],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=LIMIT_S,
        )
    rates: dict[str, list[float]] = json.loads(run.stdout.splitlines()[-1])
    return rates


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the windows on the cluster, and print their rates as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--master", "--lake", "--folder"):
        parser.add_argument(name, required=True)
    for name in ("--messages", "--rounds", "--cores"):
        parser.add_argument(name, required=True, type=int)
    chosen = parser.parse_args(arguments)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    bench = Bench(
        folder=Path(chosen.folder), messages=chosen.messages, rounds=chosen.rounds, windows=1, quick=False, say=say
    )
    print(json.dumps(_rates(bench, Lake(Path(chosen.lake), chosen.messages), chosen.master, chosen.cores)), flush=True)


def _rates(bench: Bench, lake: Lake, master: str, cores: int) -> dict[str, tuple[float, ...]]:
    from rmq_store.settings.spark_settings import SparkSettings
    from spark_jobs.engine import opened_engine

    conf = {
        "spark.cores.max": str(cores),
        "spark.executor.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.pyspark.python": sys.executable,
    }
    cases = [case for case in CASES if case.key in CASE_KEYS]
    listeners = [f"benchmarks.listeners:{case.listener}" for case in cases]
    with opened_engine("benchmarks", SparkSettings(master=master, conf=conf), listeners=listeners) as engine:
        windows = Windows(bench, lake, engine)
        return bench.in_turns({case.key: partial(windows.rate, case) for case in cases})


if __name__ == "__main__":
    main()
