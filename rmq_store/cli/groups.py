"""``rmq delete-group``: delete a group's offsets and the retries that wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import check_group, new_request, open_store, optional_settings, shards_of_request
from rmq_store.cli.offset_moves import moving
from rmq_store.cli.offsets import PANEL
from rmq_store.cli.options import GroupChangeOptions, GroupOption
from rmq_store.cli.output import Output
from rmq_store.commit.positions import ABSENT
from rmq_store.commit.request import Status, actor_of, overall, reason_of
from rmq_store.message.message_const import dlq_topic
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from rmq_store.admin.offset_moves import MoveReport
    from rmq_store.commit.ctl import Moved


def add_to(app: typer.Typer) -> None:
    add_command(
        app,
        delete_group,
        [
            "rmq delete-group --group old-orders --dry-run",
            "rmq delete-group --group old-orders --reason 'replaced by orders-v2'",
        ],
        panel=PANEL,
    )


def delete_group(*, group: GroupOption, options: GroupChangeOptions) -> None:
    """Delete a group: its offsets are removed, its waiting retries are dropped.

    The next window of that name creates it again, as a new group: remove a scheduled group from the settings first. With
    --shard the group ends in that shard only, and begins there as a new one: with CONSUME_FROM_LAST_OFFSET it passes over what
    is stored there until its next window. Dead letters stay and can be redriven. For a broadcasting group, name one client:
    GROUP@CLIENT.
    """
    output, host = Output(options.as_json), Host()
    store = open_store(options.root)
    from rmq_store.admin.delete_group import DeleteGroupRequest, Waiting, waiting_of
    from rmq_store.lake.admin.delete_group import delete_group as delete_in
    from rmq_store.lake.window.consumption import empty_store

    dry_run = options.dry_run
    request = DeleteGroupRequest(
        group=group,
        request_id=new_request("delete", options.request, host),
        actor=actor_of(options.actor),
        reason=reason_of(options.reason, dry_run),
        dry_run=dry_run,
    )
    check_group(store, group, optional_settings(options.settings))
    chosen, every = shards_of_request(store, options)
    if not chosen:
        raise empty_store(store)

    def answer(reports: Sequence[MoveReport]) -> dict[str, Any]:
        return {
            "status": overall(report.status for report in reports),
            "group": group,
            "request_id": request.request_id,
            "shards": [report.shard for report in reports],
            "offsets": [_move(report.shard, move) for report in reports for move in report.moves],
            "notes": [f"shard {report.shard}: {note}" for report in reports for note in report.notes],
            "warnings": [warning for report in reports for warning in report.warnings],
        } | sum(map(waiting_of, reports), Waiting()).parameters()

    def table(of: dict[str, Any]) -> None:
        output.table(of["offsets"], list(_MOVE), "the group has no offsets in this store")

    with moving(answer, table) as finished:
        reports = delete_in(chosen, request, host, every=every, finished=finished)
    whole = answer(reports)
    void = sum(move["becomes"] == "void" for move in whole["offsets"])
    would = "would be" if whole["status"] == Status.DRY_RUN else "are"
    for note in whole["notes"]:
        output.note(note)
    table(whole)
    output.answer(
        whole,
        f"offsets that {would} void: {void:,}",
        f"retries that {would} dropped: {whole['retries']:,} in retry queues, {whole['delayed']:,} still delayed",
        f"dead letters that stay in {dlq_topic(group)}: {whole['dead_letters']:,}",
        f"request: {request.request_id}",
    )


_MOVE = ("shard", "topic", "broker_name", "queue_id", "from_offset", "to_offset", "becomes")


def _move(shard: str, move: Moved) -> dict[str, Any]:
    """``becomes``: void, or the end of a retry queue, where a new group of that name would start."""
    queue, is_void = move.queue, move.to_offset == ABSENT
    to_offset = None if is_void else move.to_offset
    becomes = "void" if is_void else "end"
    values = (shard, queue.topic, queue.broker_name, queue.queue_id, move.from_offset, to_offset, becomes)
    return dict(zip(_MOVE, values, strict=True))
