"""Import a broker's files, as a job: ``spark-submit spark_jobs/import_store.py SRC --broker NAME``.

Only what is new since the last import is read. Progress goes to standard error, one JSON line with what was done to
standard output; exit codes as in ``consume_window.py``.
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rmq_store.host import Host
from rmq_store.lake.engine import Engine, Job, Result, Task
from rmq_store.lake.import_store import ImportReport, import_store
from rmq_store.lake.object_store import Root
from rmq_store.lake.store import LakeStore
from rmq_store.store import Actor
from spark_jobs.consume_window import engines, job_parser, report_as_json, request_id_of


def main(arguments: Sequence[str] | None = None) -> int:
    parser = job_parser("import_store.py", "Import what is new in a broker's store directory.")
    parser.add_argument("source", metavar="SRC", help="the broker's store directory, or s3://bucket/prefix")
    parser.add_argument("--broker", required=True, metavar="NAME", help="the broker's name")
    parser.add_argument("--shard", help="where to; default: the broker's name")
    parser.add_argument("--engine", choices=("spark", "local"), default="spark")
    parser.add_argument("--salvage", action="store_true", help="skip what is damaged or missing, and record it")
    chosen = parser.parse_args(arguments)
    return report_as_json(lambda: _import(chosen, Host()))


def _import(chosen: argparse.Namespace, host: Host) -> dict[str, Any]:
    store = LakeStore.open(Root.parse(chosen.root))
    with engines(chosen.engine, host, remote=os.environ.get("SPARK_REMOTE")) as engine_of:
        return summary(
            import_store(
                store,
                Root.parse(chosen.source),
                chosen.broker,
                chosen.shard or chosen.broker,
                request_id_of(chosen.request, "import-store", host),
                Actor(getpass.getuser(), "os"),
                host,
                WhenNeeded(lambda: engine_of(None)),
                salvage=chosen.salvage,
                progress=_say_progress,
            )
        )


@dataclass(frozen=True, slots=True)
class WhenNeeded:
    """An engine that is made for the first tasks: an import that is refused, or was done before, starts no JVM."""

    make: Callable[[], Engine]
    name: str = "spark"
    slots: int = os.cpu_count() or 1

    def __call__(self, run: Callable[[Job, Task, str], Result], job: Job, tasks: Sequence[Task]) -> list[Result]:
        return self.make()(run, job, tasks) if tasks else []


def summary(report: ImportReport) -> dict[str, Any]:
    """The report as a small JSON value."""
    return asdict(report) | {"salvaged": [asdict(skipped) for skipped in report.salvaged]}


def _say_progress(done_bytes: int, all_bytes: int) -> None:
    print(f"{done_bytes:,} of {all_bytes:,} bytes", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
