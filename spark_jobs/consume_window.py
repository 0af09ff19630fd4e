"""Consume for one group, as a job: ``spark-submit spark_jobs/consume_window.py --group G``, or by a call in-process.

A request is consumed window by window until it is complete; one JSON line on standard output says what was done. Exit
codes are those of the command line: 0 done (also when it was done before), 1 failed, 2 wrong use, 3 somebody else holds
or has moved it.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rmq_store.errors import RmqError, WrongUse
from rmq_store.host import Host, day_of
from rmq_store.lake.engine import AUTO_LOCAL_MESSAGES, Engine, LocalEngine
from rmq_store.lake.object_store import Root
from rmq_store.lake.plan import LIVE, ConsumeRequest, Plan, Planner, Scope
from rmq_store.lake.replay import group_settings
from rmq_store.lake.shard import Shard
from rmq_store.lake.store import LakeStore
from rmq_store.lake.window import WindowReport, consume_window
from rmq_store.settings import GroupSettings, read_settings
from rmq_store.store import Action, Actor
from rmq_store.times import parse_time
from spark_jobs.session import open_session

_WITHOUT_DELTA = {"spark.sql.extensions": "", "spark.sql.catalog.spark_catalog": "builtin"}
"""No table is read through Spark here, so spark-submit needs no Delta jars."""


# --- what a request works on -----------------------------------------------------------------------------------------


def shards_of(store: LakeStore, group: GroupSettings) -> list[Shard]:
    """The group's shards: those it names, else all that hold a topic of it. Raises WrongUse when there is none."""
    if group.shards is not None:
        return [shard for name in group.shards for shard in store.shards(name)]
    topics = [subscription.topic for subscription in group.subscriptions]
    found = []
    for shard in store.shards():
        positions = shard.positions()
        if any(positions.queues_of(topic) for topic in topics):
            found.append(shard)
    if not found:
        raise WrongUse(f"no shard of {store.root.location} holds a topic of group {group.name}: {', '.join(topics)}")
    return found


def has_work(shard: Shard, group: GroupSettings, request: ConsumeRequest, host: Host, scope: Scope = LIVE) -> bool:
    """Whether a window of the request has something to do, or something to say of what it has done. Reads only."""
    shard.commitlog.refresh()
    if any(ctl.action is Action.CONSUME for ctl in shard.ctls_of_request(request.request_id, group.name)):
        return True
    return bool(Planner(shard, group, host.now_ms(), scope).plan(request, []).ranges)


# --- where it runs ---------------------------------------------------------------------------------------------------


@contextmanager
def engines(
    name: str, host: Host, *, remote: str | None = None, python_path: Sequence[str | Path] = ()
) -> Iterator[Callable[[Plan | None], Engine]]:
    """``engine_of`` for windows, by name: spark, local or auto (local for little work).

    Spark is a session on the Connect server ``remote``, else one in this process. It is made when it is first needed,
    kept for all windows, and closed at the end.
    """
    with ExitStack() as at_the_end:
        made: list[Engine] = []

        def engine_of(plan: Plan | None) -> Engine:
            if name == "local" or (name == "auto" and plan is not None and _messages(plan) < AUTO_LOCAL_MESSAGES):
                return LocalEngine(host)
            if not made:
                from spark_jobs.engine import SparkEngine

                conf = {} if remote else _WITHOUT_DELTA
                session = open_session("rmq", remote=remote, python_path=python_path, conf=conf)
                at_the_end.callback(session.stop)
                made.append(SparkEngine.of(session))
            return made[0]

        yield engine_of


def _messages(plan: Plan) -> int:
    return sum(len(planned.range) for planned in plan.ranges)


# --- doing it --------------------------------------------------------------------------------------------------------


def all_parts(window: Callable[[], WindowReport]) -> list[WindowReport]:
    """Window after window of one request, until it is complete."""
    reports = [window()]
    while reports[-1].status == "committed" and not reports[-1].complete:
        reports.append(window())
    return reports


def summary(reports: Sequence[WindowReport]) -> dict[str, Any]:
    """What the windows of one request did in one shard, as a small JSON value. ``offsets``: "topic broker:queue" to the
    next offset to read."""
    counts: dict[str, int] = {}
    offsets: dict[str, int] = {}
    for report in reports:
        for outcome, count in report.counts().items():
            if count:
                counts[str(outcome)] = counts.get(str(outcome), 0) + count
        for done in report.consumed:
            queue = done.range.queue
            offsets[f"{queue.topic} {queue.broker_name}:{queue.queue_id}"] = done.range.end
    last = reports[-1]
    return {
        "status": "committed" if any(report.status == "committed" for report in reports) else last.status,
        "shard": last.shard,
        "group": last.group,
        "request_id": last.request_id,
        "engine": reports[0].engine,
        "windows": len(reports),
        "complete": last.complete,
        "messages": sum(counts.values()),
        "outcomes": counts,
        "offsets": offsets,
        "commit_id": last.commit_id,
    }


def consume(
    store: LakeStore,
    shard: Shard,
    group: GroupSettings,
    request: ConsumeRequest,
    engine_of: Callable[[Plan], Engine],
    host: Host,
    scope: Scope = LIVE,
) -> dict[str, Any]:
    """All windows of a request in one shard, and their summary. Raises the errors of ``consume_window``."""
    return summary(all_parts(lambda: consume_window(store, shard, group, request, engine_of, host, scope)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = job_parser("consume_window.py", "Consume for one group until the request is complete.")
    parser.add_argument("--settings", default=os.environ.get("RMQ_SETTINGS", "consumers.toml"), help="the groups' file")
    parser.add_argument("--group", required=True)
    parser.add_argument("--shard", help="only this one")
    parser.add_argument(
        "--until", metavar="TIME", help="only what was stored before it: ISO 8601 with a zone, or epoch ms"
    )
    parser.add_argument("--max-messages", type=int)
    parser.add_argument("--engine", choices=("spark", "local", "auto"), help="default: the group's setting")
    parser.add_argument("--listener-path", action="append", default=[], help="where listener modules are; repeatable")
    chosen = parser.parse_args(arguments)
    return report_as_json(lambda: _consume(chosen, Host()))


def _consume(chosen: argparse.Namespace, host: Host) -> dict[str, Any]:
    sys.path[:0] = chosen.listener_path
    store = LakeStore.open(Root.parse(chosen.root))
    group, scope = group_settings(read_settings(chosen.settings), chosen.group)
    request = ConsumeRequest(
        request_id_of(chosen.request, "consume", host),
        Actor(getpass.getuser(), "os"),
        until_ms=None if chosen.until is None else parse_time(chosen.until),
        max_messages=chosen.max_messages,
    )
    shards = shards_of(store, group) if chosen.shard is None else store.shards(chosen.shard)
    remote = os.environ.get("SPARK_REMOTE")
    with engines(chosen.engine or group.engine, host, remote=remote, python_path=chosen.listener_path) as engine_of:
        done = [consume(store, shard, group, request, engine_of, host, scope) for shard in shards]
    return {"group": group.name, "request_id": request.request_id, "shards": done}


# --- what jobs have in common ----------------------------------------------------------------------------------------


def job_parser(program: str, description: str) -> argparse.ArgumentParser:
    """``--root`` and ``--request``."""
    parser = argparse.ArgumentParser(prog=program, description=description)
    root = os.environ.get("RMQ_ROOT", "var/store")
    parser.add_argument("--root", default=root, help="the store; default $RMQ_ROOT, else var/store")
    parser.add_argument(
        "--request", metavar="ID", help="YYYY-MM-DD...: the same id is the same request; default: a new one"
    )
    return parser


def request_id_of(given: str | None, verb: str, host: Host) -> str:
    """The request's id, or a new one. Raises WrongUse for one that does not begin with a UTC date up to today."""
    today = day_of(host.now_ms())
    if given is None:
        return f"{today}/{verb}/{host.new_commit_id()}"
    if not re.match(r"\d{4}-\d\d-\d\d", given, re.ASCII) or given[:10] > today:
        raise WrongUse(
            f"the request id {given!r} must begin with its UTC date, today or earlier, like {today}/{verb}/1"
        )
    return given


def report_as_json(work: Callable[[], dict[str, Any]]) -> int:
    """Run it, print its answer or its RmqError as one JSON line, return the exit code."""
    try:
        answer, code = work(), 0
    except RmqError as error:
        answer = {"status": "failed", "error": type(error).__name__, "message": str(error)}
        code = error.exit_code
    print(json.dumps(answer), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
