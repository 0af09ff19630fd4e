"""Windows on a real cluster, whose workers have only the packages of ``docs/cluster.md``: of one Spark runs a second copy of a
task, in another a worker dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.spark_cluster import Cluster
from rmq_store.cli import main
from tests.faults.stores import Lake, copied
from tests.oracle.projection import projection
from tests.spark.cluster import running_cluster
from tests.spark.commands import answer_of, command, wait_until

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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Path]]:
    """Two workers, and their Python. The last test kills one."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), workers=2) as running:
        yield running


SPECULATION = """
"spark.speculation" = true
spark.speculation.interval = "100ms"
spark.speculation.multiplier = 1.1
spark.speculation.quantile = 0.1
"""
FIRST_WAITS = """
import os, time
from functools import cache
from pathlib import Path

FOLDER = Path({gate!r})

def consume_message(msgs, context):
    wait(f"{{context.message_queue.queue_id}}-{{msgs[0].queue_offset}}")
    return "RECONSUME_LATER" if msgs[0].queue_offset % 10 == 0 else "CONSUME_SUCCESS"

@cache
def wait(first):
    (FOLDER / f"{{first}}.{{os.getpid()}}").touch()
    try:
        (FOLDER / "slow").open("x").close()
    except FileExistsError:
        return
    (FOLDER / "slow").write_text(first)
    while len(list(FOLDER.glob(f"{{first}}.*"))) < 2 and not (FOLDER / "open").exists():
        time.sleep(0.02)
"""


def test_a_task_of_which_two_copies_run_to_the_end_counts_once(folder: Path, cluster: tuple[Cluster, Path]) -> None:
    (spark, python), gate = cluster, folder / "gate"
    settings = SETTINGS.format(master=spark.master, python=python, gate=gate) + SPECULATION
    (folder / "consumers.toml").write_text(settings)
    (folder / "shop/listeners.py").write_text(FIRST_WAITS.format(gate=str(gate)))
    lake, quiet = Lake(folder / "store", shard_name="broker-a"), copied(Lake(folder / "store"), folder / "quiet")

    [shard] = answer_of(command(folder, "consume", "--group", "orders"))["shards"]

    assert (shard["status"], shard["engine"], shard["messages"]) == ("committed", "spark", 4200)
    slow = (gate / "slow").read_text()
    assert len(list(gate.glob(f"{slow}.*"))) == 2, "the slow task was called in two processes"
    (gate / "open").touch()
    env = {"RMQ_ROOT": str(quiet.folder)}
    answer_of(command(folder, "consume", "--group", "orders", "--engine", "local", env=env))
    undisturbed = Lake(quiet.folder, shard_name="broker-a")
    assert projection(lake.shard, "orders") == projection(undisturbed.shard, "orders")
    assert lake.audit() == []


def test_a_window_survives_a_killed_worker_of_a_cluster_that_got_the_code_with_it(
    folder: Path, cluster: tuple[Cluster, Path]
) -> None:
    spark, python = cluster
    settings = SETTINGS.format(master=spark.master, python=python, gate=folder / "gate")
    (folder / "consumers.toml").write_text(settings)
    window = command(folder, "consume", "--group", "orders")

    def at_the_gate(number: int) -> list[str]:
        """The files of ``rmq_store`` in the Python processes of a worker that wait in the listener."""
        texts = [path.read_text().split() for path in (folder / "gate").glob("*.at")]
        return [file for cwd, file in texts if Path(cwd).is_relative_to(spark.folder / f"worker-{number}")]

    wait_until(lambda: at_the_gate(0) and at_the_gate(1), window)
    assert all(".zip/rmq_store/" in file for number in (0, 1) for file in at_the_gate(number))
    spark.kill(0)
    (folder / "gate" / "open").touch()

    [shard] = answer_of(window)["shards"]
    assert (shard["status"], shard["engine"], shard["messages"]) == ("committed", "spark", 4200)
    assert shard["outcomes"] == {"acked": 4200}
    assert main(["audit", "--group", "orders"]) == 0, "the audit is empty"
