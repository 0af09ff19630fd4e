"""``rmq deliver``: deliver retries and delayed messages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import new_request, open_store
from rmq_store.cli.options import NowOption, RequestOptions, ShardOption
from rmq_store.cli.output import Output
from rmq_store.cli.windows import PANEL
from rmq_store.commit.request import actor_of, overall
from rmq_store.utils.host import Host
from rmq_store.utils.times import format_time

if TYPE_CHECKING:
    from rmq_store.window.deliver import DeliverReport


def add_to(app: typer.Typer) -> None:
    add_command(app, deliver, ["rmq deliver", "rmq deliver --now 2026-11-20T12:00:00Z"], panel=PANEL)


def deliver(*, now: NowOption = None, shard: ShardOption = None, options: RequestOptions) -> None:
    """Deliver the retries and delayed messages that are due.

    Retries become readable for their groups, and delayed messages are written to their topics. Nothing is delivered by
    itself: run this command every minute, or switch on the DAG rmq_deliver_delayed.
    """
    output, host = Output(options.as_json), Host()
    store = open_store(options.root)
    from rmq_store.lake.window.deliver import deliver as deliver_due
    from rmq_store.window.deliver import deliver_all

    request_id, actor = new_request("deliver", options.request, host), actor_of(options.actor)
    reports = [
        report
        for one in store.shards(shard)
        for report in deliver_all(
            request_id,
            partial(deliver_due, store, one, actor=actor, host=host, now_ms=now),
            lambda report: output.line(_delivery_line(report), ended=False),
        )
    ]
    last = {report.shard: report.next_due_ms for report in reports}  # what waits once all its commits are made
    answer = {
        "status": overall(report.status for report in reports),
        "request_id": request_id,
        "delivered": sum(report.delivered for report in reports),
        "next_due_ms": min((ms for ms in last.values() if ms is not None), default=None),
        "deliveries": [
            {
                "status": report.status,
                "shard": report.shard,
                "request_id": report.request_id,
                "delivered": report.delivered,
                "commit_id": report.commit_id,
            }
            for report in reports
        ],
        "warnings": [warning for report in reports for warning in report.warnings],
    }
    output.answer(answer, f"request: {request_id}")


def _delivery_line(report: DeliverReport) -> str:
    due = f", next due {format_time(report.next_due_ms)}" if report.next_due_ms is not None else ""
    return f"shard {report.shard}: {report.status}, {report.delivered:,} delivered{due}"
