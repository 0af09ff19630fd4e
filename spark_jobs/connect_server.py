"""Run a Spark Connect server in the foreground: ``python -m spark_jobs.connect_server``.

It is an ordinary session of spark_jobs.session with the Connect service as a plugin, so both have the same settings.
When it is ready, which is after a first query, it writes one JSON line with its port to standard output, or for its starter
(``spark_jobs.session.ConnectServer``) to a file. spark-submit can start it too.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import secrets
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq_store.errors import RmqError, Terminated
from rmq_store.settings.private_files import apply_umask
from rmq_store.settings.spark_settings import SparkSettings
from rmq_store.utils.process_end import end_process
from spark_jobs.jars import are_fetched
from spark_jobs.launch import worker_python_path
from spark_jobs.locked_folder import LOCK, scratch_folder
from spark_jobs.process_watch import has_ended, submitted_by
from spark_jobs.s3a import GROUP as S3A
from spark_jobs.s3a import knows_region
from spark_jobs.session import DEFAULT_MASTER, TOKEN_VARIABLE, open_session, warm_up
from spark_jobs.ship import ship

_LONGEST_STOP_S = 15.0
_JVM_IS_GONE = (Py4JError, OSError)
"""What a call of a JVM that has ended raises."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.connect_server",
        description=f"A warm Spark Connect server on loopback. Clients need its token: set one in ${TOKEN_VARIABLE}, "
        "or take the one printed.",
    )
    parser.add_argument("--master", help=f"default {DEFAULT_MASTER}")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback)")
    parser.add_argument("--port", type=int, default=0, help="default 0: any free port")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting, repeatable")
    parser.add_argument("--s3a", action="store_true", help="fail without the jars for Spark SQL over s3:// roots")
    parser.add_argument("--no-delta", action="store_true", help="without the settings for Delta tables in Spark SQL")
    parser.add_argument(
        "--starter",
        type=Path,
        metavar="FOLDER",
        help=f"write the line to its file 'address'; when no process holds the lock of its file '{LOCK}', remove it and stop",
    )
    options = parser.parse_args(arguments)

    submit = submitted_by("server")
    stop, ready = threading.Event(), threading.Event()

    def on_signal(number: int, _: FrameType | None) -> None:
        """A server that is still starting has no client, so it ends at once."""
        is_first = not stop.is_set()
        stop.set()
        if is_first and not ready.is_set():
            raise Terminated(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    try:
        return _serve(options, submit, stop, ready)
    except Terminated as stopped:
        print("error: stopped before the server was ready", file=sys.stderr)
        (number,) = stopped.args
        return 128 + int(number)


def _serve(
    options: argparse.Namespace, submit: psutil.Process | None, stop: threading.Event, ready: threading.Event
) -> int:
    """Until ``stop`` is set, or the JVM has ended. ``ready``: set once clients can come."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # What the JVM or a listener prints must not fill the pipe of the answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if options.starter is not None:
        threading.Thread(target=_when_starter_ends, args=(options.starter, stop, ready, submit), daemon=True).start()
    os.environ.pop("SPARK_REMOTE", None)  # for clients; Spark refuses to start a server with it
    # A Connect server hands no setting for it to its workers; they have what the JVM was started with.
    os.environ["PYTHONPATH"] = worker_python_path()
    made_token = TOKEN_VARIABLE not in os.environ
    token = os.environ.setdefault(TOKEN_VARIABLE, secrets.token_urlsafe(24))
    try:
        session = open_session(
            "rmq-connect-server",
            master=options.master,
            delta=not options.no_delta,
            s3a=options.s3a or (not options.no_delta and are_fetched(S3A) and knows_region(os.environ)),
            conf=connect_settings(options.host, options.port) | dict(setting.split("=", 1) for setting in options.conf),
        )
    except (RmqError, PySparkException) as error:  # a JVM that ended has written why to standard error
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        port = port_of(session)
        warm_up_through(f"sc://localhost:{port}/;token={token}")
        address = {"remote": f"sc://localhost:{port}", "port": port} | ({"token": token} if made_token else {})
        ready.set()
        if options.starter is None:
            print(json.dumps(address), file=answer, flush=True)
        else:
            written = options.starter / "address.new"
            written.write_text(json.dumps(address))
            written.rename(options.starter / "address")
        if has_ended(submit or _jvm_of(session), stop):
            print("error: the JVM of Spark has ended", file=sys.stderr)
            return 1
    finally:
        with suppress(*_JVM_IS_GONE):
            session.stop()
    return 0


def connect_settings(host: str, port: int) -> dict[str, str]:
    """The settings with which a session is a server too. ``port``: 0 takes any free one."""
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": host,
        "spark.connect.grpc.binding.port": str(port),
    }


def port_of(session: SparkSession) -> int:
    """On which the session's server listens."""
    service = getattr(session._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    port: int = getattr(service, "MODULE$").localPort()
    return port


def _jvm_of(session: SparkSession) -> psutil.Process:
    """A child of this process."""
    gateway = session.sparkContext._gateway
    assert gateway is not None
    return psutil.Process(gateway.proc.pid)


def warm_up_through(remote: str) -> None:
    """A first query over the wire, as a client would send it, with the code if the workers are on a cluster."""
    from pyspark.sql.connect.session import SparkSession

    client = SparkSession.builder.remote(remote).create()
    try:
        with scratch_folder("ship") as scratch:
            ship(client, SparkSettings(), (), (), scratch)
            warm_up(client)
    finally:
        client.stop()


def _when_starter_ends(
    folder: Path, stop: threading.Event, ready: threading.Event, submit: psutil.Process | None = None
) -> None:
    """Stop the server, and remove the starter's folder, when the starter gives its lock back, or is killed.

    A server that is still starting, or hangs while it stops, is killed, and so is ``submit``, the JVM of spark-submit: no other
    process may be left to end it.
    """
    with suppress(FileNotFoundError), (folder / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    shutil.rmtree(folder, ignore_errors=True)
    if ready.is_set():
        stop.set()
        time.sleep(_LONGEST_STOP_S)
    this = psutil.Process()
    for process in [*this.children(recursive=True), *([submit] if submit else [])]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    os._exit(1)


if __name__ == "__main__":
    apply_umask()
    end_process(main())
