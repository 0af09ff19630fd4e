"""A real Spark cluster on loopback: a master and workers, each a process of its own with its own environment and folder."""

from __future__ import annotations

import os
import re
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from spark_jobs.java import find_java


@dataclass
class Cluster:
    """Worker N writes below ``folder/worker-N``, its executors too."""

    folder: Path
    master: str
    workers: list[psutil.Process]

    def kill(self, number: int) -> None:
        """SIGKILL for a worker, its executor and their Python processes, by their ids."""
        worker = self.workers[number]
        for process in [worker, *worker.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # some end with their parents
                process.kill()


@contextmanager
def running_cluster(folder: Path, *, workers: int, memory: str = "600m") -> Iterator[Cluster]:
    """A master, and workers with one core each that may still be starting: an application waits for them. ``memory``: of a
    worker, as Spark writes it. Worker N is the host 127.0.0.N+1 of loopback, so Spark takes them for different hosts."""
    with ExitStack() as exits:
        log = folder / "master" / "log"
        master = _start(folder / "master", "master.Master", "127.0.0.1", [], exits)
        cluster = Cluster(folder, _first_match(log, master, r"Starting Spark master at (spark://\S+)"), [])
        for number in range(workers):
            here = folder / f"worker-{number}"
            words = ["--cores", "1", "--memory", memory, "--work-dir", str(here), cluster.master]
            cluster.workers.append(
                psutil.Process(_start(here, "worker.Worker", f"127.0.0.{number + 1}", words, exits).pid)
            )
        yield cluster


def _start(folder: Path, kind: str, address: str, words: list[str], exits: ExitStack) -> subprocess.Popen[bytes]:
    """A process of the cluster in a folder of its own, with an environment that does not name the checkout."""
    folder.mkdir(parents=True)
    packages = sysconfig.get_paths()["purelib"]
    on_loopback = ["--host", address, "--port", "0", "--webui-port", "0"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [f"{packages}/pyspark/bin/spark-class", f"org.apache.spark.deploy.{kind}", *on_loopback, *words],
            cwd=folder,
            env={
                "PATH": os.defpath,
                "JAVA_HOME": str(find_java()),
                "JAVA_TOOL_OPTIONS": os.environ.get("JAVA_TOOL_OPTIONS", ""),
                "SPARK_LOCAL_IP": address,
                "SPARK_DAEMON_MEMORY": "256m",
                "TMPDIR": str(folder),
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    exits.callback(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            process.kill()


def _first_match(log: Path, process: subprocess.Popen[bytes], pattern: str) -> str:
    """The first group of the pattern, as soon as the process has written it to its log."""
    while not (match := re.search(pattern, log.read_text())):
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    return match[1]
