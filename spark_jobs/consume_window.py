"""Consume for one group, as a job: ``spark-submit spark_jobs/consume_window.py --group G``, or by a call in-process.

A request is consumed window by window until it is complete. The answer is one JSON line on standard output, as of
``rmq consume --json``. Exit codes are those of the command line: 0 done (also when it was done before), 1 failed,
2 wrong use, 3 held or moved by another request, 129, 130 and 143 stopped by a signal, or with spark-submit.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rmq_store.admin.replay import group_settings
from rmq_store.commit.request import actor_of, client_ids_of
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.consumption import Consumption, answer, answer_so_far, shards_of
from rmq_store.lake.window.window import consume_window
from rmq_store.settings.environment import Environment
from rmq_store.settings.listener_folders import add_listener_folders
from rmq_store.settings.settings import read_settings
from rmq_store.settings.settings_values import ENGINES
from rmq_store.utils.host import Host
from rmq_store.utils.times import parse_time
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import ConsumeRequest
from spark_jobs.job import count, engines_of, job_parser, report_as_json, run_job


def main(arguments: Sequence[str] | None = None) -> int:
    parser = job_parser("consume_window.py", "Consume for one group until the request is complete.")
    settings = Environment.read().settings
    parser.add_argument(
        "--settings", default=settings, help="the consumer groups; default: $RMQ_SETTINGS, else consumers.toml"
    )
    parser.add_argument("--group", required=True)
    parser.add_argument("--shard", help="only this shard")
    parser.add_argument(
        "--until", metavar="TIME", help="only messages stored before this time: ISO 8601 with a zone, or epoch ms"
    )
    parser.add_argument("--max-messages", type=count)
    parser.add_argument("--client", metavar="ID", help="this client, one of --clients: it gets only its own queues")
    parser.add_argument(
        "--clients", metavar="ID,ID", help="the ids of all clients of the group that run now; they share its queues"
    )
    parser.add_argument("--engine", choices=ENGINES, help="default: the group's setting")
    parser.add_argument(
        "--listener-path", action="append", default=[], help="a folder with listener modules; repeatable"
    )
    options = parser.parse_args(arguments)
    host = Host()
    windows: list[WindowReport] = []
    return report_as_json(
        "consume",
        options.request,
        host,
        lambda request_id: _consume(options, request_id, host, windows.append),
        lambda request_id: answer_so_far(options.group, request_id, windows),
    )


def _consume(
    options: argparse.Namespace, request_id: str, host: Host, on_window: Callable[[WindowReport], None]
) -> dict[str, Any]:
    folders = add_listener_folders(options.listener_path)
    store = LakeStore.open(Root.parse(options.root))
    settings = read_settings(options.settings)
    group, scope = group_settings(settings, options.group)
    request = ConsumeRequest(
        request_id=request_id,
        actor=actor_of(),
        until_ms=None if options.until is None else parse_time(options.until),
        max_messages=options.max_messages,
        client_id=options.client,
        client_ids=client_ids_of(options.clients),
    )
    shards = shards_of(store, group, scope, chosen=options.shard)
    choice = options.engine or group.engine
    with engines_of("consume", choice, host, settings.spark, folders, [group.listener]) as engines:
        window = partial(
            consume_window, group=group, request=request, engine_of=engines.for_window, host=host, scope=scope
        )
        consumptions = [Consumption.of(partial(window, store, shard), on_window) for shard in shards]
    return answer(group.name, request.request_id, consumptions)


if __name__ == "__main__":
    run_job(main)
