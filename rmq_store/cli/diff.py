"""``rmq diff``: compare two attempts of a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import open_store
from rmq_store.cli.options import ShardOption, StoreOptions
from rmq_store.cli.output import Output
from rmq_store.commit.positions import Outcome
from rmq_store.utils.times import format_time

if TYPE_CHECKING:
    from rmq_store.admin.diff import AttemptDone, DiffReport, MessageDiff

PANEL = "Inspect"


def add_to(app: typer.Typer) -> None:
    add_command(
        app,
        diff,
        [
            "rmq diff --group orders-replay-0123456789",
            "rmq diff --group orders-replay-0123456789 --attempts 1 3 --limit 1000 --json",
        ],
        panel=PANEL,
    )


def diff(
    *,
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="The group of the replay.")],
    attempts: Annotated[
        tuple[int, int] | None,
        typer.Option("--attempts", metavar="OLD NEW", help="The two attempts to compare. Default: the last two."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="List at most N messages; all are counted.")
    ] = 100,
    shard: ShardOption = None,
    options: StoreOptions,
) -> None:
    """List the messages that ended differently in two attempts of a replay.

    Retries are followed to their last outcome: acked, acked_later (by a retry), filtered, retried (still to be retried),
    dead, dropped, duplicate, lost, or unread (not reached by the attempt yet). Two messages differ when the outcome or
    the class of the last error differs. Exit code 0: none differs, 1: some differ.
    """
    output = Output(options.as_json)
    store = open_store(options.root)
    from rmq_store.lake.admin.diff import diff as diff_in
    from rmq_store.lake.admin.replay import shards_replayed

    reports = diff_in(store, shards_replayed(store, group, shard), group, attempts, limit)
    attempts_done = [_attempt(report.shard, one) for report in reports for one in (report.first, report.second)]
    table = _table(reports)
    listed = [_message(report.shard, one) for report in reports for one in report.listed]
    messages, differing = sum(row["messages"] for row in table), sum(row["differing"] for row in table)
    output.table(
        [row | {"begun_at": _time(row["begun_at"]), "outcomes": _counts(row["outcomes"])} for row in attempts_done],
        _ATTEMPT,
    )
    output.line("")
    output.table(table, _PAIR, empty="neither attempt has read a message")
    if listed:
        output.line("")
        output.table([_ends_as_texts(row) for row in listed], [*_PLACE, *_END])
    more = f"; {len(listed):,} are shown, --limit N shows more" if len(listed) < differing else ""
    output.answer(
        {"status": "different" if differing else "same", "group": group, "attempts": attempts_done}
        | {"messages": messages, "differing": differing, "table": table, "listed": listed},
        f"messages: {differing:,} of {messages:,} ended differently{more}",
    )
    if differing:
        raise typer.Exit(1)


_ATTEMPT = (
    "shard", "attempt", "begun_at", "actor", "reason", "listener", "subscription", "complete", "outcomes", "request_id",
)  # fmt: skip


def _attempt(shard: str, attempt: AttemptDone) -> dict[str, Any]:
    begun, last = attempt.begun, attempt.windows[-1] if attempt.windows else None
    values = (
        shard, attempt.number, begun and begun.store_timestamp, begun and begun.actor.name, begun and begun.reason,
        last and last.listener, last and last.subscription, attempt.complete,
        {str(outcome): attempt.count(outcome) for outcome in Outcome if attempt.count(outcome)},
        begun and begun.request_id,
    )  # fmt: skip
    return dict(zip(_ATTEMPT, values, strict=True))


def _time(ms: int | None) -> str:
    return "" if ms is None else format_time(ms)


def _counts(outcomes: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items())


_PAIR = ("first", "second", "messages", "differing")


def _table(reports: Sequence[DiffReport]) -> list[dict[str, Any]]:
    """The table over all shards: messages per pair of outcomes."""
    messages: Counter[tuple[str, str]] = Counter()
    differing: Counter[tuple[str, str]] = Counter()
    for pair in (pair for report in reports for pair in report.table):
        messages[pair.first, pair.second] += pair.messages
        differing[pair.first, pair.second] += pair.differing
    rows = [(*pair, count, differing[pair]) for pair, count in sorted(messages.items())]
    return [dict(zip(_PAIR, row, strict=True)) for row in rows]


_PLACE = ("shard", "topic", "broker_name", "queue_id", "queue_offset", "offset_msg_id", "unique_key", "keys")
_END = ("first", "tries", "error", "second", "tries_2", "error_2")


def _message(shard: str, one: MessageDiff) -> dict[str, Any]:
    queue = one.queue
    place = dict(
        zip(_PLACE, (shard, queue.topic, queue.broker_name, queue.queue_id, one.offset, *one.named), strict=True)
    )
    return place | {"first": asdict(one.first), "second": asdict(one.second)}


def _ends_as_texts(row: dict[str, Any]) -> dict[str, Any]:
    ends = [value for name in ("first", "second") for value in _end(row[name])]
    return {name: row[name] for name in _PLACE} | dict(zip(_END, ends, strict=True))


def _end(end: dict[str, Any]) -> tuple[str, int, str]:
    error = ": ".join(end[name] for name in ("error_type", "error_text") if end[name])
    return end["outcome"], end["tries"], error
