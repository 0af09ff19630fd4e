"""A session in this process, and the warm server: what they promise, in processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rmq_store.errors import StoreUnusable
from spark_jobs import session
from spark_jobs.java import MachineNotReady
from spark_jobs.session import ConnectServer
from tests.spark.processes import ClassicDriver, family, in_a_new_process

CLASSIC = """
import sys
folder, table = arguments
sys.path.insert(0, folder)
import my_listener

session.sql("SELECT id, timestamp_millis(id) AS at FROM range(100)").write.format("delta").save(table)
read = session.read.format("delta").load(table)
answer = {
    "rows": read.count(),
    "mapped": read.select("id").mapInArrow(my_listener.doubled, "id long").groupBy().sum("id").first()[0],
    "zone": session.conf.get("spark.sql.session.timeZone"),
    "host": session.conf.get("spark.driver.host"),
    "slots": session.conf.get("spark.default.parallelism"),
}
"""


def test_a_session_writes_and_reads_delta_and_runs_the_users_listener(
    classic_driver: ClassicDriver, listener_folder: Path, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    table = tmp_path / "table"
    output = classic_driver.run(CLASSIC, str(listener_folder), str(table))
    assert output == {"rows": 100, "mapped": 9900, "zone": "UTC", "host": "127.0.0.1", "slots": "2"}
    written = next(table.glob("part-*.parquet"))
    statistics = pq.ParquetFile(written).metadata.row_group(0).column(1).statistics
    assert statistics.has_min_max, "times without statistics (INT96) cannot be skipped"


CLIENT = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import my_listener
from spark_jobs.session import open_session
spark = open_session("client", remote=os.environ["REMOTE"])
total = spark.range(0, 1000, 1, 4).mapInArrow(my_listener.doubled, "id long").groupBy().sum("id").first()[0]
spark.stop()
print(json.dumps(total))
"""

SENDER = """
import json, os
from pathlib import Path
from rmq_store.settings.spark_settings import SparkSettings
from spark_jobs.engine import opened_engine

def where(job, task, attempt):
    import her_listener
    return her_listener.__file__

spark = SparkSettings(remote=os.environ["REMOTE"], conf={"spark.rmq.ship": "true"})
with opened_engine("sender", spark, listeners=["her_listener:consume"]) as engine:
    print(json.dumps([engine.slots, *engine(where, None, [1])]))
"""

STRANGER = """
import json, os
from pyspark.errors import PySparkException
from spark_jobs.session import open_session
try:
    answer = open_session("stranger", remote=os.environ["REMOTE"]).range(3).count()
except Exception as error:
    answer = str(error)
print(json.dumps(answer))
"""


def test_a_warm_server_on_loopback_serves_clients_that_know_its_token(
    connect_server: ConnectServer, listener_folder: Path, tmp_path: Path
) -> None:
    """The fixture checks that it leaves no process; ``tests/e2e/test_demo.py``, that it ends when its starter is killed."""
    for _ in range(2):
        assert in_a_new_process(CLIENT, str(listener_folder), env={"REMOTE": connect_server.remote}) == 999_000
    hers = tmp_path / "hers"  # the server cannot import from it
    hers.mkdir()
    (hers / "her_listener.py").write_text("def consume(msgs, context): ...")
    slots, listener = in_a_new_process(SENDER, env={"REMOTE": connect_server.remote, "PYTHONPATH": str(hers)})
    assert slots == 2
    assert Path(listener).name == "her_listener.py"
    assert Path(listener).parent != hers, "it came as an artifact"
    wrong = connect_server.remote.partition("token=")[0] + "token=wrong"
    assert "authentication token" in in_a_new_process(STRANGER, env={"REMOTE": wrong}).lower()

    members = family(connect_server.process_id)
    names = {member.name() for member in members}
    addresses = {
        connection.laddr.ip.removeprefix("::ffff:")
        for member in members
        for connection in member.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert "java" in names
    assert len(members) >= 3, "the Python workers stay warm"
    assert addresses == {"127.0.0.1"}


def test_a_server_that_was_stopped_while_it_was_to_be_started_starts_no_process(tmp_path: Path) -> None:
    server = ConnectServer(master="local[1]", log_file=tmp_path / "server.log")
    before = psutil.Process().children(recursive=True)
    server.stop()
    with pytest.raises(MachineNotReady, match="stopped before it had started"):
        server.start()
    assert psutil.Process().children(recursive=True) == before


def test_a_server_that_cannot_start_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    server = ConnectServer(master="no-such-master", log_file=tmp_path / "server.log")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(MachineNotReady, match=r"did not start(.|\n)*Master must either be"):
        server.start()
    assert {child.pid for child in psutil.Process().children(recursive=True)} == before


def test_a_server_that_accepts_and_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is frozen, or has no TLS where the client has it."""
    monkeypatch.setattr(session, "READY_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"sc://127.0.0.1:{server.getsockname()[1]}"
        for remote in (place, f"{place}/;token=secret"):
            with pytest.raises(StoreUnusable, match=f"what listens at {place} has not answered as a Spark") as error:
                session.open_session("test", remote=remote)
            assert "secret" not in str(error.value)


def test_a_missing_jar_is_said_before_a_jvm_starts(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "spark_jobs.connect_server"],
        env=os.environ | {"RMQ_JARS": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert "error: delta-spark_4.2_2.13-4.4.0.jar" in run.stderr
    assert "make jars" in run.stderr
