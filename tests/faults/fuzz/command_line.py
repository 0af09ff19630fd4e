"""One command line of ``rmq`` in this process, in a folder of its own, and all that it answers."""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from rmq_store.cli import app, doctor, engines
from rmq_store.cli.output import print_error
from rmq_store.errors import StoreUnusable, defect
from rmq_store.lake.listener import pool

ENVIRONMENT = {
    "RMQ_ROOT": "store",
    "RMQ_SQL_TIMEOUT": "3s",
    "RMQ_SQL_MEMORY": "256MiB",
    "RMQ_SQL_SPILL": "256MiB",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    "AWS_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "user",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_EC2_METADATA_DISABLED": "true",
    "COLUMNS": "200",
    "PATH": os.environ.get("PATH", ""),
    "TERM": "dumb",
}
"""Of every command: no S3 answers, and a query ends soon."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one command has done."""

    line: tuple[str, ...]
    exit_code: int
    out: bytes
    err: bytes
    error: Mapping[str, Any] = field(default_factory=dict)
    """The error as JSON, also of a command without ``--json``; empty if it answered none."""
    raised: str = ""
    """What ``main`` raised, which it never should."""

    @property
    def kind(self) -> str:
        """The name of the error's class, "" without an error."""
        return str(self.error.get("error", ""))

    def shown(self) -> str:
        return self.raised or (self.err + b"\n" + self.out)[-2000:].decode("utf-8", "backslashreplace").strip()


def run_command(
    folder: Path, line: tuple[str, ...], stdin: bytes = b"", variables: Mapping[str, str] | None = None
) -> Answer:
    """Run a command in ``folder``, and put everything back that it, or a listener of the folder, has changed."""
    out, err = io.BytesIO(), io.BytesIO()
    errors: list[Mapping[str, Any]] = []
    raised, code = "", 1
    with _as_it_was(folder, variables or {}), _captured(stdin, out, err), _noted(errors):
        try:
            code = app.main(list(line))
        except BaseException as error:
            raised = f"main raised: {defect(error)}"
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError) as error:
                raised = raised or f"the output cannot be written: {error}"
    return Answer(line, code, out.getvalue(), err.getvalue(), errors[-1] if errors else {}, raised)


@contextlib.contextmanager
def _as_it_was(folder: Path, variables: Mapping[str, str]) -> Iterator[None]:
    before, path, state = Path.cwd(), list(sys.path), random.getstate()
    os.chdir(folder)
    try:
        environment = {**ENVIRONMENT, "HOME": str(folder), "TMPDIR": str(folder), **variables}
        with mock.patch.dict(os.environ, environment, clear=True):
            yield
    finally:
        pool.close()  # as the end of the command's process does
        os.chdir(before)
        sys.path[:] = path
        random.setstate(state)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
                del sys.modules[name]


@contextlib.contextmanager
def _captured(stdin: bytes, out: io.BytesIO, err: io.BytesIO) -> Iterator[None]:
    streams = (io.TextIOWrapper(io.BytesIO(stdin), "utf-8"), *(io.TextIOWrapper(one, "utf-8") for one in (out, err)))
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for stream in streams[1:]:
            stream.detach()


@contextlib.contextmanager
def _noted(errors: list[Mapping[str, Any]]) -> Iterator[None]:
    """The errors that ``main`` prints; Spark, which needs a JVM for each command, is not installed."""

    def note(answer: Mapping[str, Any], as_json: bool) -> None:
        errors.append(answer)
        print_error(answer, as_json)

    def no_spark(name: str) -> Any:
        raise StoreUnusable(f"there is no Spark for {name} here")

    with (
        mock.patch.object(app, "print_error", note),
        mock.patch.object(engines, "spark_module", no_spark),
        mock.patch.object(doctor, "spark_module", no_spark),
    ):
        yield
