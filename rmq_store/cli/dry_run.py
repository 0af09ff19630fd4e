"""The dry run of windows as an answer: a row per window and queue, and what it is in all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import typer

from rmq_store.cli.output import Output
from rmq_store.errors import error_answer
from rmq_store.utils.redaction import cleaned, secret_values
from rmq_store.utils.times import format_time

if TYPE_CHECKING:
    from rmq_store.window.dry_run import ConsumePlan, Counts, Retries

_COLUMNS = (
    "shard", "part", "topic", "broker_name", "queue_id", "begin_offset", "end_offset", "messages", "bytes", "matched",
    "filtered", "dropped", "lost",
)  # fmt: skip


def show_plan(output: Output, plan: ConsumePlan) -> None:
    """Print the plan. Ends with the exit code of its error, if it has one: the run that follows would."""
    whole = plan_answer(plan)
    rows = [
        range_ | {"shard": window["shard"], "part": window["part"]}
        for window in whole["windows"]
        for range_ in window["ranges"]
    ]
    output.table(rows, _COLUMNS, empty="there is nothing to consume")
    for note in plan.notes:
        output.note(note)
    output.answer(whole, f"group: {plan.group}", *_lines(plan))
    if plan.error is not None:
        output.note(f"the run ends with an error: {plan.error}")
        raise typer.Exit(plan.error.exit_code)


def plan_answer(plan: ConsumePlan) -> dict[str, Any]:
    """The plan as JSON, with the error of the run that would follow, if there is one."""
    whole = plan.summary() | {"warnings": []}
    error = plan.error
    if error is None:
        return whole
    message = cleaned(str(error), secret_values(os.environ))
    described = error_answer(type(error).__name__, message, error.exit_code, plan.request_id)
    return whole | described


def _lines(plan: ConsumePlan) -> list[str]:
    windows = sum(len(shard.windows) for shard in plan.shards)
    lines = [shard.idle for shard in plan.shards if shard.idle]
    if windows:
        lines += [f"in all: {_counts_text(plan.counts)}, in {windows:,} {'window' if windows == 1 else 'windows'}"]
        lines += [f"time: {plan.time}"]
    if plan.counts.last_attempts:
        lines += [f"last attempts: {plan.counts.last_attempts:,} messages become dead letters if they fail"]
    lines += _retry_lines(plan.retries)
    for shard in plan.shards:
        for held in {held.queue: held for window in shard.windows for held in window.held}.values():
            lines += [f"{held.queue} is held by {held.holder or 'another run'} for {held.remaining_s} s more"]
    return lines


def _counts_text(counts: Counts) -> str:
    text = f"{counts.messages:,} messages, {counts.bytes:,} bytes of bodies; {counts.matched:,} for the listener"
    others = (("filtered", counts.filtered), ("dropped", counts.dropped), ("lost", counts.lost))
    return text + "".join(f", {count:,} {name}" for name, count in others if count)


def _retry_lines(retries: Retries) -> list[str]:
    lines = [f"retries: {retries.read:,} among them"] if retries.read else []
    if retries.due:
        lines += [f"retries that are due: {retries.due:,}; run 'rmq deliver' first to read them too"]
    if retries.waiting and retries.next_due_ms is not None:
        lines += [f"retries that wait: {retries.waiting:,}, the first is due at {format_time(retries.next_due_ms)}"]
    return lines
