"""spark-submit as the starter of Spark: for clusters whose clients are configured for it, by its options and its files.

It starts a Spark Connect server (``spark_jobs.connect_server``), which ends with the block that asked for it: the window is
planned and committed by the caller, as with every other Spark (``docs/decisions/0024-spark-submit.md``).
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from rmq_store.errors import StoreUnusable
from rmq_store.settings.spark_settings import SparkSettings, is_local_master
from spark_jobs.java import MachineNotReady
from spark_jobs.launch import launch_settings
from spark_jobs.session import ConnectServer


def submit_command(program: str, spark: SparkSettings) -> list[str]:
    """The command with its options; those that ``spark.submit`` names come last, and so before all others.

    Without a master the files of spark-submit name it. The driver is a Python like this one, whatever the workers have.
    """
    conf = {"spark.pyspark.driver.python": sys.executable}
    if spark.master is not None and is_local_master(spark.master):
        conf |= {key: value for key, value in launch_settings(spark.master).items() if key != "spark.master"}
    settings = [word for key, value in {**conf, **spark.conf}.items() for word in ("--conf", f"{key}={value}")]
    return [program, *(["--master", spark.master] if spark.master else []), *settings, *(spark.submit or ())]


def find_submit() -> str:
    """spark-submit of the PATH, else that of the package pyspark. Raises MachineNotReady."""
    if on_path := shutil.which("spark-submit"):
        return on_path
    package = find_spec("pyspark")
    own = Path(package.origin).parent / "bin" / "spark-submit" if package and package.origin else None
    if own is None or not own.is_file():
        raise MachineNotReady("there is no spark-submit: add the folder bin of a Spark to the PATH")
    return str(own)


@contextmanager
def submitted_server(spark: SparkSettings, python_path: Sequence[Path], scratch: Path) -> Iterator[str]:
    """The address of a server that spark-submit has started, for as long as the block lasts. What spark-submit and the server
    print goes to standard error. ``scratch``: a folder that stays as long.

    Raises StoreUnusable when it does not start, MachineNotReady when there is no spark-submit.
    """
    log = scratch / "spark-submit.log"
    server = ConnectServer(
        submit=submit_command(find_submit(), spark),
        python_path=python_path,
        log_file=log,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    with _shown(log):
        try:
            server.start()
        except MachineNotReady as error:
            raise StoreUnusable(f"spark-submit: {error}") from error
        try:
            yield server.remote
        finally:
            server.stop()


@contextmanager
def _shown(log: Path) -> Iterator[None]:
    """Copy what is written to the file to standard error, which is an Airflow task's log, while the block lasts."""
    log.touch()
    ended = threading.Event()
    copying = threading.Thread(target=_copy, args=(log, ended), daemon=True)
    copying.start()
    try:
        yield
    finally:
        ended.set()
        copying.join()


def _copy(log: Path, ended: threading.Event) -> None:
    with log.open("rb") as written, os.fdopen(os.dup(2), "wb") as shown:
        is_last = False
        while not is_last:
            is_last = ended.wait(0.5)  # what is there then is all
            shutil.copyfileobj(written, shown)
            shown.flush()
