"""Spark that spark-submit starts, for one Airflow task."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from spark_jobs import import_store
from tests.spark.processes import family, is_gone

CHECKOUT = Path(__file__).resolve().parents[2]

TASK = """
import json, sys
from functools import partial
from rmq_store.airflow.deployment import Deployment
from rmq_store.commit.ctl import Actor
from rmq_store.lake.window.consumption import Consumption
from rmq_store.lake.window.window import consume_window
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest

deployment, host = Deployment.from_env(), Host()
store, group = deployment.open_store(), deployment.settings().group("demo-payments")
(shard,) = store.shards()
request = ConsumeRequest("2026-01-01/submit", Actor("tests", "tests"))
with deployment.engines(None, [group.listener]) as engines:
    window = partial(consume_window, store, shard, group, request, engine_of=engines.for_window, host=host)
    answer = Consumption.of(window).summary()
    print(json.dumps(answer), flush=True)
    sys.stdin.read()
"""


def test_a_window_runs_in_a_spark_of_spark_submit_which_ends_with_a_task_that_is_killed(
    tmp_path: Path, broker_store: Callable[[str], Path]
) -> None:
    root = str(tmp_path / "store")
    LakeStore.init(Root.parse(root))
    words = ["--root", root, "--broker", "broker-a", "--engine", "local"]
    assert import_store.main([str(broker_store("market-clean")), *words]) == 0
    variables = {
        "RMQ_ROOT": root,
        "RMQ_SETTINGS": str(CHECKOUT / "demo/consumers.toml"),
        "RMQ_SPARK_MASTER": "local[1]",
        "RMQ_SPARK_SUBMIT": "spark-submit --conf 'spark.driver.extraClassPath=/no such/folder' --driver-memory 700m",
        "AWS_SECRET_ACCESS_KEY": "the-secret-key",
    }
    members: list[psutil.Process] = []
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-c", TASK],
            cwd=CHECKOUT,
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as task,
    ):
        try:
            assert task.stdout is not None
            line = task.stdout.readline()
            assert line, (tmp_path / "log").read_text()[-4000:]
            members = family(task.pid)
            commands = list(commands_of(members))
        finally:
            task.kill()
    answer = json.loads(line)
    assert (answer["status"], answer["engine"], answer["messages"]) == ("committed", "spark", 5100)
    assert answer["outcomes"] == {"acked": 1752, "filtered": 3320, "retried": 28}
    (java,) = [command for command in commands if "org.apache.spark.deploy.SparkSubmit" in command]
    assert {"-Xmx700m", "local[1]", "spark.driver.extraClassPath=/no such/folder"} <= set(java)
    assert not any("the-secret-key" in word for command in commands for word in command)
    while not all(map(is_gone, members)):
        time.sleep(0.1)


def commands_of(members: list[psutil.Process]) -> Iterator[list[str]]:
    """The words of each that runs: one may just have ended."""
    for member in members:
        with suppress(psutil.NoSuchProcess):
            yield member.cmdline()
