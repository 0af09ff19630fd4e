"""Make an archive of the classes that Spark loads: ``python -m tests.spark.class_archive FILE``.

With it (``-XX:SharedArchiveFile``) a JVM of the tests starts with two thirds of the processor time, and a run starts dozens.
Java checks that its version and the jars are those of the archive, else it starts without.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from spark_jobs.connect_server import connect_settings, port_of, warm_up_through
from spark_jobs.launch import launch_settings
from spark_jobs.session import TOKEN_VARIABLE, open_session, warm_up
from tests.java_options import OPTIONS

MASTER = "local[2]"


def main(file: Path) -> None:
    """Use what most tests use: a classic session, Delta tables, and a client of Spark Connect."""
    os.environ |= {"JAVA_TOOL_OPTIONS": OPTIONS, TOKEN_VARIABLE: "archive"}
    new = file.with_suffix(".new")
    driver = "spark.driver.extraJavaOptions"
    session = open_session(
        "class-archive",
        master=MASTER,
        conf=connect_settings("127.0.0.1", 0)
        | {driver: f"{launch_settings(MASTER)[driver]} -XX:ArchiveClassesAtExit={new}"},
    )
    warm_up_through(f"sc://localhost:{port_of(session)}/;token=archive")
    warm_up(session)
    with tempfile.TemporaryDirectory() as folder:
        session.range(10).selectExpr("id", "id % 2 AS part").write.format("delta").partitionBy("part").save(folder)
        rows = session.read.format("delta").load(folder).groupBy("part").count().toArrow()
    if rows.num_rows != 2:
        raise RuntimeError(f"the Delta table has {rows.num_rows} partitions instead of 2")
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # with it the JVM ends
    if code := gateway.proc.wait():
        raise RuntimeError(f"the JVM ended with {code}")
    new.rename(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
