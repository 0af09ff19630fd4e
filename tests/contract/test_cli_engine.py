"""Where the command line runs its tasks: in this process or in Spark, and when it opens Spark."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_store.lake.window.engine import LocalEngine
from rmq_store.settings.spark_settings import SparkSettings
from rmq_store.utils.host import Host
from spark_jobs import engine
from tests.contract.rmq import TODAY, Rmq


class Spark:
    """Stands for Spark behind ``spark_jobs``: runs tasks here, and notes what was asked of it."""

    def __init__(self) -> None:
        self.opened: list[dict[str, Any]] = []
        self.shipped: list[tuple[list[str], tuple[str, ...]]] = []
        self.stopped = 0
        self.policies: list[Any] = ["of pyspark"]
        self.client = self

    def set_retry_policies(self, policies: list[Any]) -> None:
        self.policies = policies

    def open_session(
        self,
        app_name: str,
        *,
        master: str | None,
        remote: str | None,
        python_path: Sequence[Path],
        conf: Mapping[str, str],
        delta: bool,
    ) -> Spark:
        assert not delta, "a window needs no Delta jars"
        opened = {"app_name": app_name, "remote": remote, "python_path": [str(p) for p in python_path]}
        self.opened.append(opened | {"master": master, "conf": conf})
        return self

    def ship(
        self, session: Spark, settings: SparkSettings, listeners: Iterable[str], folders: Sequence[Path], scratch: Path
    ) -> None:
        self.shipped.append((list(listeners), settings.py_files))

    def engine_of(self, session: Spark) -> LocalEngine:
        return LocalEngine(Host(), "spark", 2)

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Spark:
    found = Spark()
    monkeypatch.setattr(engine, "open_session", found.open_session)
    monkeypatch.setattr(engine, "ship", found.ship)
    monkeypatch.setattr(engine.SparkEngine, "of", found.engine_of)
    return found


def test_spark_is_opened_once_for_all_windows_of_a_request_and_closed(imported: Rmq, spark: Spark) -> None:
    capped = (
        (imported.folder / "consumers.toml")
        .read_text()
        .replace('engine = "auto"', 'engine = "spark"\nmax_messages = 2000')
    )
    (imported.folder / "consumers.toml").write_text(capped)
    done = imported.json("consume", "-g", "orders")
    assert [window["engine"] for window in done["windows"]] == ["spark"] * 3
    assert spark.opened == [
        {
            "app_name": "rmq consume",
            "remote": None,
            "python_path": [str(imported.folder)],
            "master": None,
            "conf": {},
        }
    ]
    assert spark.stopped == 1


def test_the_master_its_settings_and_the_code_come_from_the_file_the_environment_and_the_options(
    imported: Rmq, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = imported.folder / "consumers.toml"
    table = '[spark]\nmaster = "local[3]"\npy_files = ["a.py"]\n[spark.conf]\nspark.task.cpus = 1\n'
    settings.write_text(table + settings.read_text())
    window = ["consume", "-g", "orders", "--engine", "spark", "--max-messages", "10"]
    imported.json(*window)
    monkeypatch.setenv("RMQ_SPARK_MASTER", "local[4]")
    imported.json(*window)
    options = ["--master", "local[5]", "--spark-conf", "spark.task.cpus=2", "--spark-conf", "spark.rmq.ship=true"]
    imported.json(*window, *options, "--py-files", "b.whl")
    assert [opened["master"] for opened in spark.opened] == ["local[3]", "local[4]", "local[5]"]
    assert spark.opened[0]["conf"] == {"spark.task.cpus": "1"}
    assert spark.opened[2]["conf"] == {"spark.task.cpus": "2", "spark.rmq.ship": "true"}
    (listener,) = {name for listeners, _ in spark.shipped for name in listeners}
    assert ":" in listener
    assert [py_files for _, py_files in spark.shipped] == [("a.py",), ("a.py",), ("a.py", "b.whl")]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--master", "somewhere"], "'somewhere' is not a master: expected local[N], spark://host:port"),
        (["--spark-conf", "spark.cores.max"], "write KEY=VALUE"),
        (["--spark-conf", "cores=2"], "'cores' is not a Spark setting"),
    ],
)
def test_wrong_options_are_refused_also_where_no_spark_starts(imported: Rmq, options: list[str], says: str) -> None:
    answer = imported("consume", "-g", "orders", "--engine", "local", *options)
    assert answer.exit_code == 2
    assert says in answer.err


def test_a_master_that_does_not_answer_is_an_error_that_names_it(imported: Rmq) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    answer = imported("consume", "-g", "orders", "--engine", "spark", "--master", f"spark://127.0.0.1:{port}")
    assert answer.exit_code == 1
    assert f"no Spark master answers at spark://127.0.0.1:{port}" in answer.err


def test_spark_remote_names_the_server_which_must_answer(
    imported: Rmq, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        remote = f"sc://127.0.0.1:{server.getsockname()[1]}/;token=secret"
        monkeypatch.setenv("SPARK_REMOTE", remote)
        imported.json("consume", "-g", "orders", "--engine", "spark")
    assert spark.opened[0]["remote"] == remote
    answer = imported("replay", "-g", "orders", "-t", "OrderEvents", "--from", "0", "--engine", "spark")
    assert (answer.exit_code, len(spark.opened)) == (1, 1)
    assert "no Spark Connect server answers at sc://127.0.0.1" in answer.err
    assert "secret" not in answer.err


def test_a_session_that_cannot_be_had_is_no_defect(
    imported: Rmq, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(session: Any) -> Any:
        raise RuntimeError("the token is wrong\nand a stack trace")

    monkeypatch.setattr(engine.SparkEngine, "of", refuse)
    answer = imported("consume", "-g", "orders", "--engine", "spark")
    assert answer.exit_code == 1
    assert answer.err.startswith("error: no Spark session (RuntimeError: the token is wrong): see 'rmq doctor --spark'")
    assert spark.stopped == 1


def test_a_session_that_cannot_be_stopped_changes_no_answer(
    imported: Rmq, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose JVM was killed."""

    def refuse(*_: Any) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(Spark, "stop", refuse)
    with monkeypatch.context() as patch:
        patch.setattr(engine.SparkEngine, "of", refuse)
        answer = imported("consume", "-g", "orders", "--engine", "spark")
    assert answer.exit_code == 1
    assert answer.err.startswith("error: no Spark session (ConnectionRefusedError: [Errno 111] Connection refused)")
    assert imported.json("consume", "-g", "orders", "--engine", "spark")["status"] == "committed"


def test_a_server_that_does_not_answer_is_not_asked_again_and_again_to_end_a_session(
    imported: Rmq, spark: Spark
) -> None:
    """pyspark would try for ten minutes."""
    imported.json("consume", "-g", "orders", "--engine", "spark")
    assert (spark.policies, spark.stopped) == ([], 1)


@pytest.mark.parametrize("missing", ["spark_jobs.engine", "pyspark.sql"])
def test_without_spark_there_is_still_work_in_this_process(
    imported: Rmq, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    answer = imported("consume", "-g", "orders", "--engine", "spark")
    assert answer.exit_code == 1
    assert answer.err.startswith("error: Spark is not installed (")
    assert (
        "pip install 'rocketmq-lakehouse[spark]' (in a checkout: make setup), or work with --engine local" in answer.err
    )
    assert imported.json("consume", "-g", "orders", "--engine", "local")["status"] == "committed"


def test_auto_stays_in_this_process_for_little_work(
    imported: Rmq, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = imported.json("consume", "-g", "orders", "--max-messages", "100", "--engine", "auto")
    assert (done["windows"][0]["engine"], spark.opened) == ("local", [])
    monkeypatch.setattr("rmq_store.lake.window.engine.AUTO_LOCAL_MESSAGES", 1000)
    assert imported.json("consume", "-g", "orders")["windows"][0]["engine"] == "spark"


def test_no_spark_is_opened_for_an_empty_window(imported: Rmq, spark: Spark) -> None:
    first = imported.json("consume", "-g", "orders", "--engine", "spark", "--until", "0")
    assert [(window["status"], window["engine"]) for window in first["windows"]] == [("committed", "local")]
    imported("consume", "-g", "orders", "--engine", "local")
    assert imported.json("consume", "-g", "orders", "--engine", "spark")["status"] == "empty"
    assert spark.opened == []


def test_an_import_opens_spark_only_when_there_is_something_to_read(
    rmq: Rmq, spark: Spark, broker_store: Callable[[str], Path]
) -> None:
    rmq("init")
    importing = ["import-store", str(broker_store("market-clean")), "--broker", "broker-a"]
    assert rmq.json(*importing, "--engine", "spark", "--request", f"{TODAY}-1")["status"] == "committed"
    assert rmq.json(*importing, "--engine", "spark", "--request", f"{TODAY}-1")["status"] == "already_committed"
    assert (len(spark.opened), spark.stopped) == (1, 1)
