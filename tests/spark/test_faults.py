"""Faults of Spark's workers and drivers: each window ends as an undisturbed one, or commits nothing and says what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.session import ConnectServer
from tests.faults.stores import GROUP, MESSAGES, REQUEST, TOPIC, Lake, copied, write_broker
from tests.oracle.projection import projection
from tests.spark.commands import answer_of, command, wait_until
from tests.spark.processes import ClassicDriver, family, in_a_client

DISTURBED = """
from pathlib import Path
from spark_jobs.engine import SparkEngine
from tests.spark.faulty_tasks import disturbed

folder, *faults = arguments
answer = disturbed(SparkEngine.of(session), Path(folder), faults)
"""
Windows = dict[str, dict[str, Any]]
"""By the name of a fault of its task: what became of a window."""


@pytest.fixture(scope="module")
def in_classic(classic_driver: ClassicDriver, tmp_path_factory: pytest.TempPathFactory) -> Windows:
    folder = str(tmp_path_factory.mktemp("classic"))
    return dict(classic_driver.run(DISTURBED, folder, "fails_once", "dies_once", "dies", "lacks_memory"))


@pytest.fixture(scope="module")
def in_connect(connect_server: ConnectServer, tmp_path_factory: pytest.TempPathFactory) -> Windows:
    folder = str(tmp_path_factory.mktemp("connect"))
    return dict(in_a_client(connect_server.remote, DISTURBED, folder, "dies_once", "dies"))


@pytest.mark.parametrize(
    ("windows", "fault"), [("in_classic", "fails_once"), ("in_classic", "dies_once"), ("in_connect", "dies_once")]
)
def test_a_task_that_fails_or_is_killed_after_its_work_is_tried_again(
    windows: str, fault: str, request: pytest.FixtureRequest
) -> None:
    window = request.getfixturevalue(windows)[fault]
    assert window["window"] == ["committed", MESSAGES]
    assert window["commits"] == [REQUEST]
    assert window["staged"] == 2, "the first attempt has staged a file, too"
    assert window["same"]
    assert window["audit"] == []


DIED = "died at every try of a task"
NO_MEMORY = "ran out of memory (MemoryError): give each worker more (spark.executor.pyspark.memory"


@pytest.mark.parametrize(
    ("windows", "fault", "advice"),
    [("in_classic", "dies", DIED), ("in_connect", "dies", DIED), ("in_classic", "lacks_memory", NO_MEMORY)],
)
def test_tasks_that_never_succeed_commit_nothing_and_say_what_to_do(
    windows: str, fault: str, advice: str, request: pytest.FixtureRequest
) -> None:
    window = request.getfixturevalue(windows)[fault]
    kind, text = window["window"]
    assert kind == "StoreUnusable", text
    assert advice in text
    assert "Nothing was committed" in text
    assert window["commits"] == []
    assert window["staged"] == 2, "the task was tried again"
    assert window["next window"] == ["committed", MESSAGES]
    assert window["same"]
    assert window["audit"] == []


SETTINGS = f"""
[[group]]
name = "{GROUP}"
listener = "shop:consume_message"
engine = "spark"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
[[group.subscription]]
topic = "{TOPIC}"

[spark.conf]
spark.rmq.ship = true
"""
LISTENER = """
import time
from pathlib import Path

FOLDER = Path({folder!r})

def consume_message(msgs, context):
    (FOLDER / "called").touch()
    while not (FOLDER / "open").exists():
        time.sleep(0.02)
    return "RECONSUME_LATER" if msgs[0].queue_offset % 3 == 0 else "CONSUME_SUCCESS"
"""


def test_a_request_whose_driver_was_killed_is_finished_by_another_driver(
    connect_server: ConnectServer, tmp_path: Path
) -> None:
    """First its JVM is killed, then, in another attempt, its process."""
    lake = Lake(tmp_path / "store")
    lake.load(write_broker(tmp_path / "broker"))
    quiet = copied(lake, tmp_path / "quiet")
    (tmp_path / "consumers.toml").write_text(SETTINGS)
    (tmp_path / "shop.py").write_text(LISTENER.format(folder=str(tmp_path)))
    words = ["consume", "--group", GROUP, "--request", REQUEST]
    env = {"RMQ_ROOT": str(lake.folder)}

    without_jvm = command(tmp_path, *words, "--master", "local[2]", env=env)
    wait_until((tmp_path / "called").exists, without_jvm)
    [jvm] = [process for process in family(without_jvm.pid) if process.name() == "java"]
    jvm.kill()
    out, err = without_jvm.communicate()
    assert (without_jvm.returncode, json.loads(out)["error"]) == (1, "StoreUnusable"), err
    assert "error: Spark's driver has ended, or does not answer any more" in err
    (tmp_path / "called").unlink()

    killed = command(tmp_path, *words, env=env | {"SPARK_REMOTE": connect_server.remote})
    wait_until((tmp_path / "called").exists, killed)
    killed.kill()
    killed.communicate()
    assert lake.commits("consume") == []
    assert lake.offsets() == {}

    (tmp_path / "open").touch()
    answer = answer_of(command(tmp_path, *words, env=env | {"SPARK_REMOTE": connect_server.remote}))
    assert (answer["status"], answer["request_id"]) == ("committed", REQUEST)
    [shard] = answer["shards"]
    assert (shard["engine"], shard["messages"]) == ("spark", MESSAGES)
    answer_of(command(tmp_path, *words, "--engine", "local", env=env | {"RMQ_ROOT": str(quiet.folder)}))
    assert projection(lake.shard, GROUP) == projection(quiet.shard, GROUP)
    assert lake.audit() == []
