"""Airflow with its UI on loopback, until Ctrl-C: ``make up``, or ``python scripts/up.py --port 8081 --no-spark``.

The environment names the store and the settings, as for the command line: ``RMQ_ROOT`` (default ``var/store``, which is
created), ``RMQ_SETTINGS`` (default ``consumers.toml``, or the demo's when there is none), ``RMQ_IMPORT_ROOTS`` (default
``var/import``). Airflow's own files are in ``var/airflow``, also those of its database in PostgreSQL; without PostgreSQL it is
an SQLite file. DAGs are paused at first: the UI has a switch for each.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from rmq_store.errors import RmqError  # noqa: E402
from rmq_store.settings.environment import Environment  # noqa: E402
from rmq_store.settings.private_files import apply_umask  # noqa: E402
from scripts.airflow_home import (  # noqa: E402
    USER,
    Airflow,
    AirflowHome,
    AirflowNotReady,
    free_port,
    is_free,
    only_one,
    stop_on_signals,
)
from scripts.postgres import NoPostgres, Postgres  # noqa: E402
from spark_jobs.session import ConnectServer  # noqa: E402

VAR = CHECKOUT / "var"
USUAL_PORT = 8080
SPARK_NEEDS_BYTES = 6 << 30
"""The Spark server takes 2 to 3 GiB, Airflow 2."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="up.py", description="Airflow with its UI on loopback, until Ctrl-C.")
    parser.add_argument("--port", type=int, help=f"default {USUAL_PORT}, or any free one when that is taken")
    parser.add_argument(
        "--spark",
        action=argparse.BooleanOptionalAction,
        help="also a warm Spark Connect server, so that windows start fast; default: where 6 GiB of memory are free",
    )
    parser.add_argument("--home", type=Path, default=VAR / "airflow", help="Airflow's folder (default var/airflow)")
    options = parser.parse_args(arguments)
    stop_on_signals()
    try:
        apply_umask()
        spark = wants_spark(options.spark, psutil.virtual_memory().available)
        run(options.home.resolve(), options.port, spark=spark)
    except KeyboardInterrupt:
        say("stopped")
    except (RmqError, AirflowNotReady, NoPostgres) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def run(folder: Path, port_option: int | None, *, spark: bool) -> None:
    """Start everything, print the addresses, wait until Ctrl-C. A process that ends is started again, unless it ends soon."""
    if port_option is not None and not is_free(port_option):
        raise AirflowNotReady(f"port {port_option} is taken: leave out --port, or choose another")
    with ThreadPoolExecutor() as beside, ExitStack() as at_the_end:
        lock = at_the_end.enter_context(only_one(folder / "lock", "Airflow", say))
        port = port_option or free_port(USUAL_PORT)
        variables = places()
        for name, value in variables.items():
            say(f"{name} = {value}")
        if spark:
            say("starting a Spark Connect server; SPARK=0 leaves it out")
            log_file = folder / "process-logs" / "spark-connect.log"
            server = ConnectServer(port=free_port(), log_file=log_file, say=say)
            at_the_end.callback(server.stop)
            variables |= {"SPARK_REMOTE": server.remote}
            starting = beside.submit(server.start)
        postgres = Postgres(folder / "postgres", "-c", "synchronous_commit=off", keep_open=[lock])
        at_the_end.callback(postgres.stop)
        home = AirflowHome(folder, port, Path(variables["RMQ_SETTINGS"]), variables, lock=lock)
        home = replace(home, database=database(postgres, home.made_file))
        home.initialise()
        at_the_end.callback(say_stopped, port)
        say("starting Airflow: about 10 s on an idle machine")
        airflow = at_the_end.enter_context(Airflow(home, say=say))
        airflow.wait_until_healthy()
        if spark:
            starting.result()
        say(f"Airflow is at {home.url}   user: {USER}   password: {home.password} (in {home.password_file})")
        say("DAGs are paused at first; switch on those that you want. Ctrl-C stops everything.")
        while True:
            if home.database is not None:
                postgres.check_alive()
            airflow.start_ended_again()
            if spark and starting.done():
                starting.result()
                if server.has_ended:
                    say(
                        "the Spark Connect server has ended; it is started again, and windows that used it are tried again"
                    )
                    starting = beside.submit(server.start_again)
            time.sleep(1)


def wants_spark(option: bool | None, free_bytes: int) -> bool:
    """Whether to start a Spark server: as the option says, else where it leaves memory for the rest."""
    return free_bytes >= SPARK_NEEDS_BYTES if option is None else option


def database(postgres: Postgres, made_file: Path) -> str | None:
    """Start PostgreSQL and return the address of Airflow's database, None where there is no PostgreSQL."""
    try:
        if postgres.start(say):
            made_file.unlink(missing_ok=True)  # of tables that the new database does not have
    except NoPostgres as reason:
        say(f"Airflow's database is an SQLite file, in which Airflow refuses backfills (503): {reason}")
        return None
    say("Airflow's database is in PostgreSQL")
    return postgres.address


def places() -> dict[str, str]:
    """Variables of Airflow's processes. Creates the default store. Raises StoreUnusable when another one does not exist."""
    from rmq_store.lake.table.object_store import Root
    from rmq_store.lake.table.store import LakeStore

    environment = Environment.read()
    if "RMQ_ROOT" in environment.chosen:
        root = Root.parse(environment.root)
        LakeStore.open(root)
    else:
        root = Root.parse(str(CHECKOUT / environment.root))
        LakeStore.init(root)
    if "RMQ_SETTINGS" in environment.chosen:
        settings = Path(environment.settings)
    else:
        own = CHECKOUT / environment.settings
        settings = own if own.exists() else CHECKOUT / "demo" / "consumers.toml"
    export_folder = environment.export_folder
    if "RMQ_EXPORT_FOLDER" not in environment.chosen:
        export_folder = str(CHECKOUT / export_folder)
    return {
        "RMQ_ROOT": root.location,
        "RMQ_SETTINGS": str(settings.resolve()),
        "RMQ_IMPORT_ROOTS": ",".join(environment.import_roots) or str(VAR / "import"),
        "RMQ_EXPORT_FOLDER": export_folder,
    }


def say_stopped(port: int) -> None:
    deadline = time.monotonic() + 30
    while not is_free(port) and time.monotonic() < deadline:
        time.sleep(0.1)
    say(f"Airflow has ended; port {port} is {'free' if is_free(port) else 'still taken'}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
