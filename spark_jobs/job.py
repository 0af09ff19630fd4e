"""Common parts of the jobs for spark-submit: options, engines, the answer as one JSON line."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rmq_store.commit.request import request_id_of
from rmq_store.errors import RmqError, defect, error_answer
from rmq_store.lake.window.engine import Engines
from rmq_store.settings.environment import Environment
from rmq_store.utils.host import Host
from rmq_store.utils.numbers import whole_number
from rmq_store.utils.redaction import NAME_BYTES, cleaned, secret_values
from spark_jobs.engine import opened_engine


def job_parser(program: str, description: str) -> argparse.ArgumentParser:
    """``--root`` and ``--request``."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--root", default=Environment.read().root, help="the store; default: $RMQ_ROOT, else var/store")
    parser.add_argument(
        "--request", metavar="ID", help="YYYY-MM-DD...: a repeated id is the same request; default: a new id"
    )
    return parser


def count(text: str) -> int:
    """The parser of an option that is a whole number of at least 1."""
    found = whole_number(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return found


def engines_of(command: str, choice: str, host: Host, python_path: Sequence[str | Path] = ()) -> Engines:
    """The engines of a job. Spark is the server of $SPARK_REMOTE, else a session of this process."""
    remote = Environment.read().spark_remote
    return Engines(choice, host, partial(opened_engine, f"rmq {command}", remote=remote, python_path=python_path))


def report_as_json(
    verb: str,
    request_id: str | None,
    host: Host,
    work: Callable[[str], dict[str, Any]],
    so_far: Callable[[str], dict[str, Any]] = lambda _: {},
) -> int:
    """Run ``work`` under a request id (None: a new one), print its answer or error as one JSON line, return the exit code.
    ``so_far``: the JSON keys that an error adds: what the request with this id has committed before it."""
    its_id = ""
    try:
        its_id = request_id_of(request_id, verb, host)
        answer, code = work(its_id), 0
        for warning in answer.get("warnings", ()):
            print(f"warning: {warning}", file=sys.stderr)
    except RmqError as error:
        code = error.exit_code
        answer = so_far(its_id) | _error_answer(error, str(error), code, its_id)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also a SystemExit of foreign code, whose code 0 would read as success
        said = cleaned("".join(traceback.format_exception(error)), secret_values(os.environ), 1 << 20)
        print(said, file=sys.stderr)
        code = 1
        answer = so_far(its_id) | _error_answer(error, defect(error), code, its_id)
    print(json.dumps(answer), flush=True)
    return code


def _error_answer(error: BaseException, message: str, code: int, request_id: str) -> dict[str, Any]:
    kind = cleaned(type(error).__name__, (), NAME_BYTES)
    return error_answer(kind, cleaned(message, secret_values(os.environ)), code, request_id)
