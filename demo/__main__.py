"""``make demo``: the main job on the files of a real broker, with a real Airflow, a Spark Connect server and a store on
local disk.

All files are in ``var/demo``; each run begins with a new store. All processes end with the demo, also after an error or
Ctrl-C, and the demo checks that.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from demo.airflow_api import AirflowApi, RunFailed
from demo.archives import unpack
from demo.narrator import Narrator
from demo.story import DAGS, GROUP, STEPS, first_value, tell
from rmq_store.consumer.delay import DelayLevels
from rmq_store.errors import RmqError
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.settings.private_files import apply_umask
from rmq_store.utils.process_end import end_process
from scripts.airflow_home import Airflow, AirflowHome, AirflowNotReady, free_port, only_one, stop_on_signals
from spark_jobs.session import ConnectServer

DEMO = Path(__file__).resolve().parent
CHECKOUT = DEMO.parent
FOLDER = CHECKOUT / "var" / "demo"
LEVELS = "1s 2s 3s 4s 5s 6s 7s 8s 9s 10s 11s 12s 13s 14s 15s 16s 10m 2h"
"""The delay levels of the broker that wrote the files; with RocketMQ's default levels the first retry takes 10 s."""


def main() -> int:
    stop_on_signals()
    narrator = Narrator(STEPS + 3)
    code = 1
    try:
        apply_umask()
        with only_one(CHECKOUT / "var" / "demo.lock", "the demo", narrator.say) as lock:
            run(narrator, lock)
        code = 0
    except KeyboardInterrupt:
        narrator.error("stopped")
        code = 130
    except (RmqError, AirflowNotReady, RunFailed) as error:
        narrator.error(str(error))
    alive = [process for process in psutil.Process().children(recursive=True) if process.is_running()]
    if alive:
        narrator.error(f"these processes have not ended: {', '.join(f'{p.pid} {p.name()}' for p in alive)}")
        return 1
    return code


def run(narrator: Narrator, lock: int) -> None:
    with narrator.step("A new store, and the files of a RocketMQ broker (var/demo)"):
        store = prepare()
        narrator.say(f"broker files: {files_in(FOLDER / 'broker')}, as Apache RocketMQ 5.5.0 wrote them")
        narrator.say(f"delay levels of that broker: {DelayLevels(LEVELS).delay_ms(3) // 1000} s before the first retry")
    with ExitStack() as at_the_end:
        with narrator.step("A warm Spark Connect server, and Airflow's database and processes"):
            api = at_the_end.enter_context(services(narrator, lock))
        tell(store, api, narrator)
        with narrator.step("Stopping Airflow and Spark"):
            at_the_end.close()
            narrator.say("all processes have ended")
    dead = first_value(store, f"SELECT unique_key FROM dead_letters WHERE group_name = '{GROUP}'")
    rmq = f".venv/bin/rmq --root {short(FOLDER / 'store')}"
    narrator.end(
        [
            f"The store is {short(FOLDER / 'store')}, Airflow's files and logs are in {short(FOLDER / 'airflow')}.",
            "Try next:",
            f"  {rmq} lag --group {GROUP}",
            f"  {rmq} sql 'SELECT * FROM offset_history ORDER BY committed_at'",
            f"  {rmq} track {dead}     # the dead message: each attempt with its outcome",
            f"  {rmq} redrive --group {GROUP} --all --dry-run     # shows what --reason would send again",
            f"  {rmq} send --topic PaymentFlow 'a payment'     # consumed in the group's next window",
            "  RMQ_ROOT=var/demo/store RMQ_SETTINGS=demo/consumers.toml make up     # the same DAGs in Airflow's UI",
        ]
    )


def prepare() -> LakeStore:
    """A new store. The files of an earlier demo are removed, so that every demo shows the same."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    broker = FOLDER / "broker"
    broker.mkdir(parents=True)
    unpack(DEMO / "broker-store.tar.gz", broker)
    store, _ = LakeStore.init(Root.parse(str(FOLDER / "store")), levels=LEVELS)
    return store


@contextmanager
def services(narrator: Narrator, lock: int) -> Iterator[AirflowApi]:
    """Spark and Airflow, which end with the block. Spark starts while Airflow is set up."""
    spark = ConnectServer(python_path=[CHECKOUT], log_file=FOLDER / "spark-connect.log", say=narrator.say)
    with ThreadPoolExecutor() as beside, ExitStack() as at_the_end:
        at_the_end.callback(spark.stop)
        starting = beside.submit(spark.start)
        home = AirflowHome(FOLDER / "airflow", free_port(), DEMO / "consumers.toml", lock=lock)
        home.initialise(lambda: narrator.waiting("Airflow makes its database"))
        narrator.wait_until(starting.done, "Spark starts")
        starting.result()
        narrator.say("Spark Connect server on loopback: ready")
        home = replace(home, variables=variables(spark.remote))
        names = ["api-server", "scheduler", "dag-processor"]
        airflow = at_the_end.enter_context(Airflow(home, names, meanwhile=lambda: narrator.waiting("Airflow starts")))
        airflow.wait_until_healthy()
        api = AirflowApi(home, airflow, narrator.waiting)
        api.wait_for_dags(set(DAGS))
        narrator.say(
            f"Airflow: api-server on {home.url}, scheduler and dag-processor are healthy, {len(DAGS)} DAGs read"
        )
        yield api


def variables(spark_remote: str) -> dict[str, str]:
    """The environment of the DAGs. They have no schedule: the demo triggers them."""
    return {
        "RMQ_ROOT": str(FOLDER / "store"),
        "RMQ_IMPORT_ROOTS": str(FOLDER / "broker"),
        "RMQ_EXPORT_FOLDER": str(FOLDER / "exports"),
        "RMQ_DELIVER_SCHEDULE": "",
        "RMQ_PERSIST_SCHEDULE": "",
        "RMQ_MAINTAIN_SCHEDULE": "",
        "SPARK_REMOTE": spark_remote,
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",  # no file changes, and each round takes seconds of CPU
    }


def files_in(folder: Path) -> str:
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return f"{len(sizes)} files, {sum(sizes) / 1e6:.0f} MB"


def short(path: Path) -> str:
    return os.path.relpath(path, CHECKOUT)


if __name__ == "__main__":
    end_process(main())
