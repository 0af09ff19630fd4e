"""``rmq maintain``: remove old messages, join small files, write checkpoints, delete files that nothing names."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import COMMITTED, new_request, open_store, optional_settings
from rmq_store.cli.options import DURATION, ActorOption, DryRunOption, ReasonOption, SettingsOptions, ShardOption
from rmq_store.cli.output import Output
from rmq_store.cli.progress import progress_of
from rmq_store.commit.request import actor_of, reason_of
from rmq_store.maintain.orphans import DEFAULT_AGE_MS
from rmq_store.maintain.request import MaintainRequest, Step, TableReport
from rmq_store.utils.host import Host
from rmq_store.utils.times import format_time

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rmq_store.utils.progress import Progress

PANEL = "Store"


def add_to(app: typer.Typer) -> None:
    add_command(
        app,
        maintain,
        ["rmq maintain", "rmq maintain --dry-run", "rmq maintain --step derived --step checkpoint"],
        panel=PANEL,
    )


def maintain(
    *,
    step: Annotated[
        list[Step] | None,
        typer.Option(
            "--step",
            metavar="STEP",
            help="retention, messages, derived, checkpoint or vacuum. Repeatable. Default: all.",
        ),
    ] = None,
    older_than: Annotated[
        int | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            parser=DURATION,
            help="Vacuum: delete files that were written, or removed from their table, so long ago, 25h to 144h. Default: 48h.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    reason: ReasonOption = "maintenance",
    actor: ActorOption = None,
    shard: ShardOption = None,
    options: SettingsOptions,
) -> None:
    """Keep the tables fast: run it every day.

    Removes old messages where the settings have a table [\\[retention]], joins the small files that each commit leaves, writes
    checkpoints, deletes log entries that no process needs, and data files that nothing names. Safe at any time, beside running
    windows: what these may need is never deleted, and none of them is overtaken.
    """
    output, host = Output(options.as_json), Host()
    settings = optional_settings(options.settings)
    shards = open_store(options.root).shards(shard)
    from rmq_store.lake.maintain.maintain import committed
    from rmq_store.lake.maintain.maintain import maintain as maintain_shard

    request = MaintainRequest(
        request_id=new_request("maintain", None, host),
        actor=actor_of(actor),
        reason=reason_of(reason, dry_run=False),
        steps=frozenset(step or Step),
        rules=settings.retention if settings else (),
        age_ms=DEFAULT_AGE_MS if older_than is None else older_than,
        dry_run=dry_run,
    )

    def progress(unit: str) -> AbstractContextManager[Progress | None]:
        return progress_of(output, unit)

    reports: list[TableReport] = []

    def answer_so_far() -> dict[str, Any]:
        """Also of a shard in which a later step failed."""
        of_shards: dict[str, dict[str, int]] = {}
        with suppress(Exception):  # the answer is about another error, and the store may be gone
            of_shards |= {one.name: counts for one in shards if (counts := committed(one, request))}
        return {"committed": of_shards, "tables": [report.answer() for report in reports]}

    COMMITTED.set(answer_so_far)
    for one in shards:
        reports += maintain_shard(one, request, host, progress)
    removals = [row for report in reports for row in _removals(report)]
    if removals:
        output.table(removals, _REMOVAL_COLUMNS)
    if dry_run:
        output.table(_files(reports), _FILE_COLUMNS, empty="no file would be deleted")
    output.table([report.answer() for report in reports], _COLUMNS, empty="no shards yet")
    answer: dict[str, Any] = {
        "status": "dry_run" if dry_run else "done",
        "request_id": request.request_id,
        "tables": [report.answer() for report in reports],
        "removals": removals,
        "warnings": [warning for report in reports for warning in report.warnings],
    }
    output.answer(answer | ({"files": _files(reports)} if dry_run else {}))


_COLUMNS = (
    *("shard", "table", "files_before", "files_after", "bytes_before", "bytes_after", "joined", "checkpoint"),
    *("messages_removed", "removed_rows", "archived_rows", "log_files_deleted", "files_deleted", "bytes_deleted"),
)
_REMOVAL_COLUMNS = (
    *("shard", "topic", "broker_name", "queue_id", "begin_offset", "end_offset"),
    *("limit", "held_to", "held_by", "archive", "lost"),
)
_FILE_COLUMNS = ("shard", "table", "path", "size", "written_at")


def _files(reports: list[TableReport]) -> list[dict[str, Any]]:
    return [
        {
            "shard": report.shard,
            "table": report.table,
            "path": file.path,
            "size": file.size,
            "written_at": format_time(file.modified_ms),
        }
        for report in reports
        for file in report.deleted
    ]


def _removals(report: TableReport) -> list[dict[str, Any]]:
    """By queue the offsets that are removed; those up to ``held_to`` exceed the limit too, but a group needs them."""
    return [
        {
            "shard": report.shard,
            "topic": one.range.queue.topic,
            "broker_name": one.range.queue.broker_name,
            "queue_id": one.range.queue.queue_id,
            "begin_offset": one.range.begin,
            "end_offset": one.range.end,
            "limit": str(one.limit),
            "held_to": one.held_to,
            "held_by": one.held_by,
            "archive": one.archive,
            "lost": {group: [range_.begin, range_.end] for group, range_ in one.lost.items()},
        }
        for one in report.removals
    ]
