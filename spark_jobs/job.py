"""Shared by the jobs for spark-submit: common options, engines, and the answer as one JSON line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rmq_store.commit.request import request_id_of
from rmq_store.errors import RmqError, Terminated, defect, error_answer
from rmq_store.lake.window.engine import Engines
from rmq_store.settings.environment import Environment
from rmq_store.settings.private_files import apply_umask
from rmq_store.settings.spark_settings import SparkSettings, spark_target
from rmq_store.utils.host import Host
from rmq_store.utils.numbers import whole_number
from rmq_store.utils.process_end import end_process
from rmq_store.utils.redaction import NAME_BYTES, cleaned, secret_values
from rmq_store.utils.signals import ANSWERING, STOPPED_BY, handle_signals, stopped_text
from spark_jobs.engine import opened_engine
from spark_jobs.process_watch import stop_with, submitted_by
from spark_jobs.session import IS_SUBMITTED


def run_job(main: Callable[[], int]) -> NoReturn:
    """Run a job as this process. A signal stops it as it stops ``rmq``, and so does the end of spark-submit, which leaves the
    Python alone that it has started: it would go on with the window, and its answer would be lost."""
    apply_umask()
    handle_signals()
    if submit := submitted_by("job"):
        stop_with(submit)
    end_process(main())


def job_parser(program: str, description: str) -> argparse.ArgumentParser:
    """A parser with ``--root`` and ``--request``."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--root", default=Environment.read().root, help="the store; default: $RMQ_ROOT, else var/store")
    parser.add_argument(
        "--request", metavar="ID", help="YYYY-MM-DD...: a repeated id is the same request; default: a new id"
    )
    return parser


def count(text: str) -> int:
    """An option that is a whole number, 1 or more."""
    number = whole_number(text)
    if not number:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return number


def engines_of(
    command: str,
    choice: str,
    host: Host,
    file: SparkSettings,
    python_path: Sequence[Path] = (),
    listeners: Sequence[str] = (),
) -> Engines:
    """The engines of a job. Spark is the Connect server of $SPARK_REMOTE, else a session in this process: that of spark-submit,
    or on the master of $RMQ_SPARK_MASTER or of the settings ``file``."""
    spark = spark_target(file, SparkSettings(), Environment.read())
    if IS_SUBMITTED in os.environ:
        spark = SparkSettings(
            remote=spark.remote, py_files=spark.py_files
        )  # spark-submit has its own options for the rest
    return Engines(
        choice, host, partial(opened_engine, f"rmq {command}", spark, python_path=python_path, listeners=listeners)
    )


def report_as_json(
    verb: str,
    request_id: str | None,
    host: Host,
    work: Callable[[str], dict[str, Any]],
    so_far: Callable[[str], dict[str, Any]] = lambda _: {},
) -> int:
    """Call ``work(request_id)``, print its answer or its error as one JSON line, return the exit code.

    ``request_id``: None makes a new one. ``so_far(request_id)``: added to the answer of an error, such as the windows
    that were committed before it.
    """
    checked_id = ""
    ANSWERING.set(False)
    try:
        checked_id = request_id_of(request_id, verb, host)
        answer, code = work(checked_id), 0
        for warning in answer.get("warnings", ()):
            print(f"warning: {cleaned(warning, secret_values(os.environ))}", file=sys.stderr)
    except RmqError as error:
        ANSWERING.set(True)
        code = error.exit_code
        answer = so_far(checked_id) | _error_answer(type(error).__name__, str(error), code, checked_id)
    except KeyboardInterrupt:
        raise
    except Terminated:
        if (number := STOPPED_BY.get()) is None:  # it was not a signal of this process
            raise
        ANSWERING.set(True)
        code = 128 + number
        message = stopped_text(number, has_request=True)
        answer = so_far(checked_id) | _error_answer("Stopped", message, code, checked_id)
    except BaseException as error:  # also a SystemExit of a listener: its exit code 0 would look like success
        ANSWERING.set(True)
        trace = cleaned("".join(traceback.format_exception(error)), secret_values(os.environ), 1 << 20)
        print(trace, file=sys.stderr)
        code = 1
        answer = so_far(checked_id) | _error_answer(type(error).__name__, defect(error), code, checked_id)
    ANSWERING.set(True)
    print(json.dumps(answer), flush=True)
    return code


def _error_answer(kind: str, message: str, code: int, request_id: str) -> dict[str, Any]:
    kind = cleaned(kind, (), NAME_BYTES)
    return error_answer(kind, cleaned(message, secret_values(os.environ)), code, request_id)
