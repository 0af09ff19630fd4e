"""What the jobs for spark-submit have in common: the options of all, the engines, one JSON line as the answer."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rmq_store.errors import RmqError
from rmq_store.host import Host
from rmq_store.lake.engine import Engines
from spark_jobs.engine import opened_engine


def job_parser(program: str, description: str) -> argparse.ArgumentParser:
    """``--root`` and ``--request``."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    root = os.environ.get("RMQ_ROOT") or "var/store"
    parser.add_argument("--root", default=root, help="the store; default $RMQ_ROOT, else var/store")
    parser.add_argument(
        "--request", metavar="ID", help="YYYY-MM-DD...: the same id is the same request; default: a new one"
    )
    return parser


def engines_of(command: str, choice: str, host: Host, python_path: Sequence[str | Path] = ()) -> Engines:
    """The engines of a job; Spark is the server that $SPARK_REMOTE names, else a session of this process."""
    remote = os.environ.get("SPARK_REMOTE") or None
    return Engines(choice, host, partial(opened_engine, f"rmq {command}", remote=remote, python_path=python_path))


def report_as_json(work: Callable[[], dict[str, Any]]) -> int:
    """Run it, print its answer or its RmqError as one JSON line, return the exit code."""
    try:
        answer, code = work(), 0
    except RmqError as error:
        answer = {"status": "failed", "error": type(error).__name__, "message": str(error)}
        code = error.exit_code
    print(json.dumps(answer), flush=True)
    return code
