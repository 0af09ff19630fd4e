"""The tasks of an operator's actions: reset the offsets of a group, send dead letters again.

This module translates and makes no decisions. Heavy imports are inside the functions, so that parsing a DAG is fast.
"""

from __future__ import annotations

from dataclasses import replace

from rmq_deployment import Deployment
from rmq_task import Answer, current_run, log_line, logged, nothing_to_do, translated

from rmq_store.admin.dag_params import redrive_request, reset_request
from rmq_store.commit.ctl import Moved
from rmq_store.settings.settings import read_settings
from rmq_store.utils.host import Host


@translated
def reset_group(*, dry_run: bool) -> list[Answer]:
    """Show the new offsets of the group, or move the offsets, in all shards that have the topic."""
    from rmq_store.lake.admin.offset_moves import move_in_all
    from rmq_store.lake.window.consumption import shards_with_queues

    run, params = current_run()
    request = replace(reset_request(run, params), dry_run=dry_run)
    shards = shards_with_queues(Deployment.from_env().open_store().shards(), request.topic, request.queues)
    answers = []
    for report in move_in_all([(shard, replace(request, queues=queues)) for shard, queues in shards], Host()):
        for move in report.moves:
            log_line(f"{move.queue}: {move.from_offset} -> {move.to_offset}")
        answer = {
            "status": report.status,
            "shard": report.shard,
            "moves": [_move_values(move) for move in report.moves],
            "warnings": list(report.warnings),
        }
        answers.append(logged(answer))
    return answers


def _move_values(move: Moved) -> list[str | int | None]:
    """``[broker:queue, from, to]``."""
    return [f"{move.queue.broker_name}:{move.queue.queue_id}", move.from_offset, move.to_offset]


@translated
def is_dry_run() -> bool:
    run, params = current_run()
    return reset_request(run, params).dry_run


@translated
def redrive_dead_letters(*, dry_run: bool) -> list[Answer]:
    """List the dead letters that would be sent again, or send them, in all shards that have some of the group."""
    from rmq_store.admin.redrive import NO_MATCH, no_dead_letters, of_settings
    from rmq_store.lake.admin.groups import need_group
    from rmq_store.lake.admin.redrive import redrive_all, shards_with_dead_letters

    run, params = current_run()
    deployment = Deployment.from_env()
    settings, store = read_settings(deployment.settings), deployment.open_store()
    request, readers = of_settings(redrive_request(run, params), settings)
    shards = shards_with_dead_letters(store.shards(), replace(request, dry_run=dry_run))
    if not shards:
        need_group(store, request.group, [group.name for group in settings.groups])
    answers = []
    for shard, request_of_shard in shards:
        report = redrive_all(shard, request_of_shard, Host())
        for letter in report.listed:
            log_line(f"{letter.queue} offset {letter.offset}: {letter.unique_key} {letter.original_topic}")
        for preview in report.previews:
            for change in preview.changes:
                name = change.name or "body"
                log_line(f"{preview.queue} offset {preview.offset}: {name} {change.before!r} -> {change.after!r}")
        for failure in report.failures:
            log_line(f"{failure.queue} offset {failure.offset}: not sent, {failure.reason}")
        answer = {
            "status": report.status,
            "shard": shard.name,
            "letters": report.letters,
            "failed": report.failed,
            "topic": report.topic,
            "readers": sorted({*readers, *report.readers}),
            "warnings": list(report.warnings),
        }
        answers.append(logged(answer))
    if not any(answer["letters"] or answer["failed"] for answer in answers):
        nothing_to_do(NO_MATCH if shards else no_dead_letters(request.group))
    return answers


@translated
def is_redrive_dry_run() -> bool:
    run, params = current_run()
    return redrive_request(run, params).dry_run
