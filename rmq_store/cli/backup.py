"""``rmq backup``: copy a store to another root, and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import open_store
from rmq_store.cli.options import DryRunOption, StoreOptions
from rmq_store.cli.output import Output
from rmq_store.cli.progress import progress_of

PANEL = "Store"


def add_to(app: typer.Typer) -> None:
    add_command(
        app,
        backup,
        [
            "rmq backup s3://backups/orders",
            "rmq backup /mnt/backup/orders --dry-run",
            "rmq backup s3://lake/orders-restored --root s3://backups/orders",
        ],
        panel=PANEL,
    )


def backup(
    *,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A folder or s3://bucket/prefix outside of the store.")
    ],
    dry_run: DryRunOption = False,
    options: StoreOptions,
) -> None:
    """Copy the store to another root.

    The copy is a store as of the time at which the command began. Safe beside running windows. The target is empty or has an
    earlier backup of this store; files that it has are not copied again. If the command was stopped, run it again. To restore,
    copy the backup to an empty root, and use that.
    """
    output, store = Output(options.as_json), open_store(options.root)
    from rmq_store.lake.maintain.backup import backup as copy_store
    from rmq_store.lake.table.object_store import Root

    with progress_of(output) as progress:
        report = copy_store(store, Root.parse(target), dry_run=dry_run, progress=progress)
    rows = [asdict(table) for table in report.tables]
    output.table(rows, _COLUMNS, empty="no shards yet")
    for name in report.copied_descriptions:
        output.line(f"{name}: {'would be copied' if dry_run else 'copied'}")
    for name in report.left_out:
        output.line(f"{name}: damaged, and left out of the backup, which has the checkpoint with what it said")
    status = "dry_run" if dry_run else "done" if report.is_new else "already_there"
    output.answer(
        {
            "status": status,
            "target": report.target,
            "store_id": report.store_id,
            "tables": rows,
            "descriptions": list(report.copied_descriptions),
            "left_out": list(report.left_out),
        },
        f"store {report.store_id} at {report.target}",
    )


_COLUMNS = ("shard", "table", "version", "files", "copied_files", "copied_bytes", "copied_entries")
