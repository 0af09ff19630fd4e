"""Import a broker's files, as a job: ``spark-submit spark_jobs/import_store.py SRC --broker NAME``.

It reads only what is new since the last import. Progress goes to standard error, the answer to standard output as one
JSON line; exit codes are those of ``consume_window.py``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rmq_store.broker_files.limits import MAX_CONFIG_BYTES, MAX_QUEUES
from rmq_store.commit.request import actor_of
from rmq_store.lake.broker.import_request import ImportRequest
from rmq_store.lake.broker.import_store import import_store
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.sys_flag import MAX_BODY_BYTES
from rmq_store.settings.spark_settings import SparkSettings
from rmq_store.utils.host import Host
from spark_jobs.job import count, engines_of, job_parser, report_as_json, run_job


def main(arguments: Sequence[str] | None = None) -> int:
    parser = job_parser("import_store.py", "Import what is new in a broker's store directory.")
    parser.add_argument("source", metavar="SRC", help="the broker's store directory, or s3://bucket/prefix")
    parser.add_argument("--broker", required=True, metavar="NAME", help="the broker's name")
    parser.add_argument("--shard", help="the shard to import into; default: the broker's name")
    parser.add_argument("--engine", choices=("spark", "local"), default="spark")
    parser.add_argument(
        "--salvage", action="store_true", help="skip damaged or missing records, and record what was skipped"
    )
    parser.add_argument(
        "--max-body-bytes", type=count, default=MAX_BODY_BYTES, help="the largest body, in bytes, after decompression"
    )
    parser.add_argument(
        "--max-config-bytes",
        type=count,
        default=MAX_CONFIG_BYTES,
        help="the largest config file of the broker, in bytes",
    )
    parser.add_argument("--max-queues", type=count, default=MAX_QUEUES, help="the most queues of a topic")
    chosen = parser.parse_args(arguments)
    host = Host()
    return report_as_json("import", chosen.request, host, lambda request_id: _import(chosen, request_id, host))


def _import(chosen: argparse.Namespace, request_id: str, host: Host) -> dict[str, Any]:
    store = LakeStore.open(Root.parse(chosen.root))
    with engines_of("import-store", chosen.engine, host, SparkSettings()) as engines:
        request = ImportRequest(
            broker_name=chosen.broker,
            shard_name=chosen.broker if chosen.shard is None else chosen.shard,
            request_id=request_id,
            actor=actor_of(),
            salvage=chosen.salvage,
            max_body_bytes=chosen.max_body_bytes,
            max_config_bytes=chosen.max_config_bytes,
            max_queues=chosen.max_queues,
        )
        source = Root.parse(chosen.source)
        report = import_store(store, source, request, host, engines.for_import(), progress=_print_progress)
    return asdict(report)


def _print_progress(read_bytes: int, all_bytes: int) -> None:
    print(f"{read_bytes:,} of {all_bytes:,} bytes", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_job(main)
