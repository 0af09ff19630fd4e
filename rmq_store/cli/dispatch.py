"""``rmq dispatch``: update the derived tables from the commit log, compare them with it, or rebuild them from it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import open_store
from rmq_store.cli.options import DryRunOption, ShardOption, StoreOptions
from rmq_store.cli.output import Output
from rmq_store.cli.progress import progress_of
from rmq_store.errors import WrongUse
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from rmq_store.lake.commit.rebuild import TableReport
    from rmq_store.lake.table.shard import Shard

PANEL = "Store"


def add_to(app: typer.Typer) -> None:
    add_command(
        app,
        dispatch,
        ["rmq dispatch", "rmq dispatch --check", "rmq dispatch --rebuild --dry-run", "rmq dispatch --rebuild"],
        panel=PANEL,
    )


def dispatch(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the tables with the commit log. Exit code 1 when a row differs.")
    ] = False,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Rebuild the tables that differ from the commit log, each in one commit.")
    ] = False,
    dry_run: DryRunOption = False,
    shard: ShardOption = None,
    options: StoreOptions,
) -> None:
    """Update the derived tables to the newest commit.

    They are consumequeue, offsets and commits. Every command that commits updates them; this command catches up after a
    crash. --rebuild writes them again from the commit log, which is never changed. Safe at any time, beside running
    windows, and as often as you like. Where the log has other commits than those that they were made from, restore the
    store instead: a rebuild gives up what the log lacks.
    """
    if check and (rebuild or dry_run):
        raise WrongUse("--check changes nothing: use it without --rebuild and --dry-run")
    output, shards = Output(options.as_json), open_store(options.root).shards(shard)
    if check or rebuild:
        _compare(output, shards, check=check, dry_run=dry_run)
    else:
        _update(output, shards, dry_run)


def _update(output: Output, shards: list[Shard], dry_run: bool) -> None:
    from rmq_store.lake.commit.dispatch import behind
    from rmq_store.lake.commit.dispatch import dispatch as update

    host = Host()
    commits = {shard.name: behind(shard) if dry_run else update(shard, host) for shard in shards}
    applied = "commits would be applied" if dry_run else "commits applied"
    output.answer(
        {"status": "dry_run" if dry_run else "done", "shards": commits},
        *(f"shard {name}: {count} {applied} to the tables" for name, count in commits.items()),
    )


def _compare(output: Output, shards: list[Shard], *, check: bool, dry_run: bool) -> None:
    from rmq_store.lake.commit.rebuild import check as compare
    from rmq_store.lake.commit.rebuild import rebuild

    host = Host()
    with progress_of(output, "commits") as progress:
        reports = [
            (shard.name, report)
            for shard in shards
            for report in (compare(shard, progress) if check or dry_run else rebuild(shard, host, progress))
        ]
    rows = [_row(name, asdict(difference)) for name, report in reports for difference in report.differences]
    if check or dry_run:
        output.table(rows, _COLUMNS, empty="no row differs")
        for _, report in reports:
            if report.damage:
                output.line(report.damage)
    for name, report in reports:
        if report.not_in_log:
            output.note(_history_note(name, report))
    differs = any(report.differs for _, report in reports)
    status = "dry_run" if dry_run else "done" if not check else "differs" if differs else "ok"
    output.answer(
        {"status": status, "tables": [_table(name, report) for name, report in reports], "differences": rows},
        *(_line(name, report, check) for name, report in reports),
    )
    if check and differs:
        raise typer.Exit(1)


_COLUMNS = ("shard", "table", "in_table", "in_log", "row")


def _row(shard: str, difference: dict[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in difference["row"].items() if value is not None}
    return {"shard": shard} | difference | {"row": values}


def _table(shard: str, report: TableReport) -> dict[str, Any]:
    return {
        "shard": shard, "table": report.table, "rows": report.rows, "differences": len(report.differences),
        "not_in_log": report.not_in_log, "damage": report.damage, "rebuilt": report.rebuilt,
    }  # fmt: skip


def _history_note(shard: str, report: TableReport) -> str:
    named = "named" if report.rebuilt else "name"
    return (
        f"shard {shard}, {report.table}: {report.not_in_log:,} rows {named} commits that are not in the commit log: it was "
        "restored from a backup, or rows of it were deleted. Those messages are no longer in the store."
    )


def _line(shard: str, report: TableReport, check: bool) -> str:
    if report.rebuilt:
        then = ", rebuilt"
    elif report.other_history and check:
        then = "; restore the store from a backup (docs/backup.md). A rebuild gives up what the log lacks"
    elif report.differs:
        then = "; rebuild it with: rmq dispatch --rebuild" if check else ", would be rebuilt"
    else:
        then = ""
    return f"shard {shard}, {report.table}: {len(report.differences):,} of {report.rows:,} rows differ{then}"
