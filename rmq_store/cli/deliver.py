"""``rmq deliver``: deliver retries and delayed messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import COMMITTED, new_request, open_store, part_error
from rmq_store.cli.options import NowOption, RequestOptions, ShardOption
from rmq_store.cli.output import Output
from rmq_store.cli.windows import PANEL
from rmq_store.commit.request import actor_of, overall
from rmq_store.utils.host import Host
from rmq_store.utils.times import format_time

if TYPE_CHECKING:
    from rmq_store.window.deliver import DeliverReport, Delivery


def add_to(app: typer.Typer) -> None:
    add_command(app, deliver, ["rmq deliver", "rmq deliver --now 2026-11-20T12:00:00Z"], panel=PANEL)


def deliver(*, now: NowOption = None, shard: ShardOption = None, options: RequestOptions) -> None:
    """Deliver the retries and delayed messages that are due.

    Retries become readable for their groups, and delayed messages are written to their topics. Nothing is delivered by
    itself: run this command every minute, or switch on the DAG rmq_deliver_delayed. An error in one shard does not stop the
    others. A message that does not say where it goes stops its own queue only; the error says how to pass over it.
    """
    output, host = Output(options.as_json), Host()
    store = open_store(options.root)
    from rmq_store.lake.window.deliver import deliver as deliver_due
    from rmq_store.window.deliver import Delivery

    delivery, actor = Delivery(new_request("deliver", options.request, host)), actor_of(options.actor)
    shards = store.shards(shard)
    failures = cache(partial(_failures, delivery))  # asked for when the shards are done, or the command is stopped
    COMMITTED.set(lambda: _answer(delivery, failures()))
    delivery.run(
        {one.name: partial(deliver_due, store, one, actor=actor, host=host, now_ms=now) for one in shards},
        lambda report: output.line(_delivery_line(report), ended=False),
    )
    for failure in failures() if len(shards) > 1 else ():
        output.line(f"shard {failure['shard']}: error, {failure['error']}: {failure['message']}", ended=False)
    delivery.raise_error()
    last = {report.shard: report.next_due_ms for report in delivery.reports}  # what waits once all its commits are made
    next_due_ms = min((ms for ms in last.values() if ms is not None), default=None)
    output.answer(_answer(delivery, failures()) | {"next_due_ms": next_due_ms}, f"request: {delivery.request_id}")


def _answer(delivery: Delivery, failures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What it has done, as JSON. ``failures``: as ``_failures``."""
    reports = delivery.reports
    return {
        "status": "error" if failures else overall(report.status for report in reports),
        "request_id": delivery.request_id,
        "delivered": sum(report.delivered for report in reports),
        "failed": len(failures),
        "deliveries": [
            *(
                {
                    "status": report.status,
                    "shard": report.shard,
                    "request_id": report.request_id,
                    "delivered": report.delivered,
                    "commit_id": report.commit_id,
                }
                for report in reports
            ),
            *failures,
        ],
        "warnings": [warning for report in reports for warning in report.warnings],
    }


def _failures(delivery: Delivery) -> list[dict[str, Any]]:
    """The shards in which it failed, each with its error."""
    return [{"shard": shard} | part_error(error, delivery.request_id) for shard, error in delivery.errors.items()]


def _delivery_line(report: DeliverReport) -> str:
    due = f", next due {format_time(report.next_due_ms)}" if report.next_due_ms is not None else ""
    return f"shard {report.shard}: {report.status}, {report.delivered:,} delivered{due}"
