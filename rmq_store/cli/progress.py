"""The progress of a long command, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from rmq_store.cli.output import Output
from rmq_store.utils.progress import Progress, by_tenths


@contextmanager
def progress_of(output: Output, counted: str | None = None) -> Iterator[Progress | None]:
    """A bar in a terminal, else a line for every tenth. ``counted``: the unit, None: bytes."""
    if not sys.stderr.isatty():

        def print_line(count: int, total: int) -> None:
            amounts = f"{count / 1e6:,.0f} of {total / 1e6:,.0f} MB"
            typer.echo(amounts if counted is None else f"{count:,} of {total:,} {counted}", err=True)

        yield None if output.as_json else by_tenths(print_line)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        ProgressColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    amount: list[ProgressColumn] = [MofNCompleteColumn()] if counted else [DownloadColumn(), TransferSpeedColumn()]
    columns = (BarColumn(), *amount, TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(counted or "bytes", total=None)
        yield lambda count, total: bar.update(task, completed=count, total=total)
