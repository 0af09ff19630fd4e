"""Run a Spark Connect server in the foreground: ``python -m spark_jobs.connect_server``.

It is an ordinary session of spark_jobs.session with the Connect service as a plugin, so both have the same settings.
When it is ready, which is after a first query, one JSON line with its port goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import Sequence

from pyspark.errors import PySparkException

from rmq_store.errors import RmqError
from spark_jobs.session import open_session, warm_up

_TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.connect_server",
        description=f"A warm Spark Connect server on loopback. Clients need its token: give one in ${_TOKEN_VARIABLE}, "
        "or take the one printed.",
    )
    parser.add_argument("--master", help="default local[*]")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback)")
    parser.add_argument("--port", type=int, default=0, help="0 (default): any free one")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a Spark setting, repeatable")
    parser.add_argument("--stop-with-stdin", action="store_true", help="stop when standard input ends")
    chosen = parser.parse_args(arguments)

    told = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.set())
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(
        sys.stderr.fileno(), sys.stdout.fileno()
    )  # whatever the JVM or a listener prints must not fill the answer's pipe
    token_is_ours = _TOKEN_VARIABLE not in os.environ
    token = os.environ.setdefault(_TOKEN_VARIABLE, secrets.token_urlsafe(24))
    try:
        session = open_session(
            "rmq-connect-server",
            master=chosen.master,
            conf={
                "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
                "spark.connect.grpc.binding.address": chosen.host,
                "spark.connect.grpc.binding.port": str(chosen.port),
            }
            | dict(setting.split("=", 1) for setting in chosen.conf),
        )
    except (RmqError, PySparkException) as error:  # why a JVM ended, it has told standard error itself
        print(f"error: {error}", file=sys.stderr)
        return 1
    try:
        service = getattr(session._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
        port = getattr(service, "MODULE$").localPort()
        _warm_up_through(f"sc://localhost:{port}/;token={token}")
        ready = {"remote": f"sc://localhost:{port}", "port": port} | ({"token": token} if token_is_ours else {})
        print(json.dumps(ready), file=answer, flush=True)
        if chosen.stop_with_stdin:
            threading.Thread(target=_when_stdin_ends, args=(told,), daemon=True).start()
        told.wait()
    finally:
        session.stop()
    return 0


def _warm_up_through(remote: str) -> None:
    """A first query over the wire, as a client would send it."""
    from pyspark.sql.connect.session import SparkSession

    client = SparkSession.builder.remote(remote).create()
    try:
        warm_up(client)
    finally:
        client.stop()


def _when_stdin_ends(told: threading.Event) -> None:
    while sys.stdin.buffer.read(4096):
        pass
    told.set()


if __name__ == "__main__":
    sys.exit(main())
