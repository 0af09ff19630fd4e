"""A window that is killed when half of its messages were consumed, and requested again, next to one that is not killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.bench import DAY, SLOTS, Bench, check
from benchmarks.broker_log import TOPIC, queue_ends
from benchmarks.listeners import NamedFails83, failing
from benchmarks.table import Measurement, Target

TITLE = "a window that is killed at half, rmq consume from process start, Spark session of its own"
LISTENER = '''
"""Counts the messages that it gets; while the file ``hold`` is there, each call waits once half of them are counted."""

import os
import time
from pathlib import Path

from benchmarks.listeners import NamedFails83

FOLDER = Path({folder!r})


class Counting(NamedFails83):
    def consume_batch(self, batch):
        if (FOLDER / "hold").exists():
            with (FOLDER / f"{{os.getpid()}}.rows").open("a") as file:
                file.write(f"{{batch.num_rows}}\\n")
            counts = [sum(map(int, path.read_text().split())) for path in FOLDER.glob("*.rows")]
            if sum(counts) >= {half}:
                (FOLDER / "half").touch()
                while (FOLDER / "hold").exists():
                    time.sleep(0.01)
        return super().consume_batch(batch)
'''


def measure(bench: Bench) -> Iterator[Measurement]:
    """In quick mode the windows run in the process of the command, so no JVM starts."""
    store, _ = bench.copy(bench.lake(bench.messages))
    windows = _Windows(bench, store.root.location)
    samples = bench.in_turns({"clean": windows.clean, "killed": windows.killed})
    yield Measurement("killed.clean", "not killed", "s", samples["clean"], more_is_better=False)
    yield Measurement(
        "killed.again", "from the kill to the end of the same request", "s", samples["killed"], more_is_better=False
    )
    yield Measurement(
        "killed.ratio",
        "from the kill, relative to a window that is not killed",
        "times",
        tuple(again / clean for again, clean in zip(samples["killed"], samples["clean"], strict=True)),
        target=Target("<=", 1.1),
        more_is_better=False,
    )


class _Windows:
    """Windows over all messages of one store, each of a new group. A sample is in seconds."""

    def __init__(self, bench: Bench, root: str) -> None:
        self._bench = bench
        self._folder = bench.new_folder("killed")
        self._folder.mkdir(parents=True)
        self._number = 0
        self._settings = self._folder / "consumers.toml"
        self._environment = os.environ | {"RMQ_ROOT": root, "RMQ_SETTINGS": str(self._settings)}
        self._environment.pop("SPARK_REMOTE", None)
        text = LISTENER.format(folder=str(self._folder), half=bench.messages // 2)
        (self._folder / "counting_listener.py").write_text(text)

    def clean(self) -> float:
        words = self._new_group()
        started = time.perf_counter()
        self._finish(self._start(words))
        return time.perf_counter() - started

    def killed(self) -> float:
        words = self._new_group()
        hold, half = self._folder / "hold", self._folder / "half"
        hold.touch()
        process = self._start(words)
        try:
            while not half.exists():
                check("the command that is to be killed", process.poll(), None)
                time.sleep(0.01)
        finally:
            process.kill()
        started = time.perf_counter()
        for path in (hold, half, *self._folder.glob("*.rows")):
            path.unlink()
        again = self._start(words)
        process.communicate()
        self._finish(again)
        return time.perf_counter() - started

    def _new_group(self) -> list[str]:
        """The words of a command that consumes everything."""
        self._number += 1
        group = f"killed-{self._number}"
        self._settings.write_text(_SETTINGS.format(group=group, topic=TOPIC))
        engine = ["--engine", "local"] if self._bench.quick else ["--engine", "spark", "--master", f"local[{SLOTS}]"]
        return ["--group", group, "--request", f"{DAY}-{group}", "--listener-path", str(self._folder), *engine]

    def _start(self, words: Sequence[str]) -> subprocess.Popen[str]:
        command = [str(Path(sys.executable).with_name("rmq")), "consume", *words, "--json"]
        return subprocess.Popen(
            command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def _finish(self, process: subprocess.Popen[str]) -> None:
        """Raises WrongResult unless the command commits all messages in one window."""
        try:
            out, err = process.communicate()
        finally:
            process.kill()  # where the benchmark is stopped
        check(f"exit code of rmq consume ({err.strip()[-500:]})", process.returncode, 0)
        answer = json.loads(out)
        (shard,) = answer["shards"]
        check("the windows", [window["status"] for window in answer["windows"]], ["committed"])
        check("the outcomes", shard["outcomes"], _expected(self._bench.messages))


_SETTINGS = """
[[group]]
name = "{group}"
listener = "counting_listener:Counting"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
[[group.subscription]]
topic = "{topic}"
"""


def _expected(messages: int) -> dict[str, int]:
    """The messages of each outcome."""
    retried = sum(len(failing(end, NamedFails83.every)) for end in queue_ends(messages))
    return {"acked": messages - retried, "retried": retried}
