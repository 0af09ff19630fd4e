"""A window on a real cluster, whose workers have only the packages of ``docs/cluster.md``, and one of them dies."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.cli import main
from tests.spark.cluster import running_cluster

SETTINGS = """
[[group]]
name = "orders"
listener = "shop.listeners:consume_message"
listener_environment = ["GATE"]
engine = "spark"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
[[group.subscription]]
topic = "OrderEvents"

[spark]
master = "{master}"
[spark.conf]
spark.cores.max = 2
spark.executor.memory = "512m"
spark.driver.host = "127.0.0.1"
spark.driver.bindAddress = "127.0.0.1"
spark.pyspark.python = "{python}"
spark.executorEnv.GATE = "{gate}"
"""
LISTENER = """
import os
from shop.gate import wait_at

def consume_message(msgs, context):
    wait_at(os.environ["GATE"])
    return "CONSUME_SUCCESS"
"""
GATE = """
import os, time
from functools import cache
from pathlib import Path

@cache
def wait_at(folder):
    import rmq_store
    Path(folder, f"{os.getpid()}.part").write_text(f"{os.getcwd()} {rmq_store.__file__}")
    Path(folder, f"{os.getpid()}.part").rename(Path(folder, f"{os.getpid()}.at"))
    while not Path(folder, "open").exists():
        time.sleep(0.02)
"""


@pytest.fixture
def folder(tmp_path: Path, broker_store: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with the messages of a broker, and a package with a listener."""
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv("RMQ_ROOT", str(tmp_path / "store"))
    files = str(broker_store("market-clean"))
    assert main(["init"]) == 0
    assert main(["import-store", files, "--broker", "broker-a", "--engine", "local"]) == 0
    for name, text in (("shop/__init__.py", ""), ("shop/listeners.py", LISTENER), ("shop/gate.py", GATE)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "gate").mkdir()
    return tmp_path


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    rmq = [str(Path(sys.executable).with_name("rmq")), *words, "--json"]
    return subprocess.Popen(rmq, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer_of(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate()
    assert process.returncode == 0, err[-4000:]
    return json.loads(out)


def test_a_window_survives_a_killed_worker_of_a_cluster_that_got_the_code_with_it(folder: Path) -> None:
    (folder / "cluster").mkdir()
    with running_cluster(folder / "cluster", workers=2) as (cluster, python):
        settings = SETTINGS.format(master=cluster.master, python=python, gate=folder / "gate")
        (folder / "consumers.toml").write_text(settings)
        window = command(folder, "consume", "--group", "orders")

        def at_the_gate(number: int) -> list[str]:
            """The files of ``rmq_store`` in the Python processes of a worker that wait in the listener."""
            texts = [path.read_text().split() for path in (folder / "gate").glob("*.at")]
            return [file for cwd, file in texts if Path(cwd).is_relative_to(cluster.folder / f"worker-{number}")]

        while not (at_the_gate(0) and at_the_gate(1)):
            assert window.poll() is None, window.communicate()
            time.sleep(0.05)
        assert all(".zip/rmq_store/" in file for number in (0, 1) for file in at_the_gate(number))
        cluster.kill(0)
        (folder / "gate" / "open").touch()
        answer = answer_of(window)

    [shard] = answer["shards"]
    assert (shard["status"], shard["engine"], shard["messages"]) == ("committed", "spark", 4200)
    assert shard["outcomes"] == {"acked": 4200}
    assert main(["audit", "--group", "orders"]) == 0, "the audit is empty"
