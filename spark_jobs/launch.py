"""The settings of a session that is made in this process: pure functions of the master, with no Spark in them."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rmq_store.settings.environment import Environment
from rmq_store.settings.spark_settings import is_local_master

CHECKOUT = Path(__file__).resolve().parents[1]
_LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")


def session_settings(*, delta: bool) -> dict[str, str]:
    """The settings that every session has. ``delta``: also those for Delta tables in Spark."""
    of_delta = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    return {
        "spark.sql.session.timeZone": "UTC",
        # Spark's default, INT96, has no statistics, so nothing could be skipped by time.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    } | (of_delta if delta else {})


def launch_settings(master: str, jars: Sequence[Path] = ()) -> dict[str, str]:
    """The settings that only apply before the JVM starts. ``jars``: for driver and executors.

    On a ``local`` master everything listens on loopback. On a cluster the executors have to reach the driver, so Spark finds
    its address (the settings ``spark.driver.host`` and ``spark.driver.bindAddress`` name another), and nothing names a folder
    of this host.
    """
    scratch = tempfile.gettempdir()  # honours TMPDIR
    settings = {
        "spark.master": master,
        "spark.driver.memory": Environment.read().spark_driver_memory,
        "spark.driver.extraJavaOptions": (
            f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} -Djava.io.tmpdir={scratch}"
        ),
        "spark.sql.warehouse.dir": str(Path(scratch) / "spark-warehouse"),
    }
    if jars:
        settings["spark.driver.extraClassPath"] = os.pathsep.join(map(str, jars))
    if not is_local_master(master):
        return settings | ({"spark.jars": ",".join(map(str, jars))} if jars else {})
    slots = str(local_slots(master))
    return settings | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.default.parallelism": slots,
        "spark.sql.shuffle.partitions": slots,
        "spark.local.dir": scratch,
    }


def worker_python_path(folders: Sequence[str | Path] = ()) -> str:
    """``PYTHONPATH`` for workers on this host: the user's folders, those of ``RMQ_LISTENER_PATH``, this checkout, and what was
    set before."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = [str(Path(folder).resolve()) for folder in (*folders, *Environment.read().listener_path)]
    entries = [*own, str(CHECKOUT), *before]
    return os.pathsep.join(dict.fromkeys(filter(None, entries)))


def local_slots(master: str) -> int:
    """How many tasks run at once on ``local``, ``local[N]``, ``local[*]``."""
    match = re.search(r"\[(\d+|\*)", master)
    return 1 if match is None else (os.cpu_count() or 1) if match[1] == "*" else int(match[1])
