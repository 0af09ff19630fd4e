"""A real Spark cluster on loopback: a master and workers as processes of their own, which know nothing of this checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from spark_jobs.java import find_java

_ON_LOOPBACK = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
_PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
_PACKAGES = sysconfig.get_paths()["purelib"]


@dataclass
class Cluster:
    """Worker N writes below ``folder/worker-N``, its executors too."""

    folder: Path
    python: Path
    """The Python of the workers."""
    master: str
    workers: list[psutil.Process]

    def kill(self, number: int) -> None:
        """SIGKILL for a worker, its executor and their Python processes, by their ids."""
        worker = self.workers[number]
        for process in [worker, *worker.children(recursive=True)]:
            process.kill()


@contextmanager
def running_cluster(folder: Path, *, workers: int) -> Iterator[Cluster]:
    """A master, and workers with one core each that may still be starting: an application waits for them."""
    python = worker_python(folder / "python")
    with ExitStack() as exits:
        log = folder / "master" / "log"
        master = start(folder / "master", "master.Master", [], exits)
        cluster = Cluster(folder, python, first_match(log, master, r"Starting Spark master at (spark://\S+)"), [])
        for number in range(workers):
            here = folder / f"worker-{number}"
            words = ["--cores", "1", "--memory", "600m", "--work-dir", str(here), cluster.master]
            cluster.workers.append(psutil.Process(start(here, "worker.Worker", words, exits).pid))
        yield cluster


def start(folder: Path, kind: str, words: list[str], exits: ExitStack) -> subprocess.Popen[bytes]:
    """A process of the cluster in a folder of its own, with an environment that does not name the checkout."""
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [f"{_PACKAGES}/pyspark/bin/spark-class", f"org.apache.spark.deploy.{kind}", *_ON_LOOPBACK, *words],
            cwd=folder,
            env={
                "PATH": os.defpath,
                "JAVA_HOME": str(find_java()),
                "JAVA_TOOL_OPTIONS": os.environ.get("JAVA_TOOL_OPTIONS", ""),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_DAEMON_MEMORY": "256m",
                "TMPDIR": str(folder),
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    exits.callback(end, process)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    with process:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            process.kill()


def first_match(log: Path, process: subprocess.Popen[bytes], pattern: str) -> str:
    """The first group of the pattern, as soon as the process has written it to its log."""
    while not (match := re.search(pattern, log.read_text())):
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    return match[1]


def worker_python(folder: Path) -> Path:
    """A Python with the packages that ``docs/cluster.md`` names for the workers and those that they need, and no others."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", folder], check=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    for path in {
        Path(_PACKAGES, top) for name in with_requirements(packages_of_the_page()) for top in top_levels(name)
    }:
        (site_packages / path.name).symlink_to(path)
    python = folder / "bin" / "python"
    words = [str(python), "-c", "import pyarrow, numpy; import rmq_store"]
    run = subprocess.run(words, cwd=folder, capture_output=True, check=False)
    assert b"No module named 'rmq_store'" in run.stderr, run.stderr
    return python


def packages_of_the_page() -> list[str]:
    command = re.search(r"^pip install -c constraints.txt (.*)$", _PAGE.read_text(), re.MULTILINE)
    assert command
    return command[1].split()


def with_requirements(names: list[str]) -> list[str]:
    """The packages and all that they require, without extras."""
    names = list(names)
    for name in names:  # it grows
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if needed and requirement.name not in names:
                names.append(requirement.name)
    return names


def top_levels(name: str) -> set[str]:
    """The files and folders that a package has in site-packages."""
    return {file.parts[0] for file in metadata.files(name) or () if file.parts[0] not in ("..", "__pycache__")}
