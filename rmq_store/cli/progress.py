"""The progress of a long command, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from rmq_store.cli.output import Output

Progress = Callable[[int, int], None]


@contextmanager
def progress_of(output: Output, counted: str | None = None) -> Iterator[Progress | None]:
    """A bar in a terminal, else a line for every tenth. ``counted``: the unit, None: bytes."""
    if not sys.stderr.isatty():
        said = [0]

        def tell(done: int, total: int) -> None:
            tenth = 10 * done // total if total else 10
            if tenth > said[0]:
                said[0] = tenth
                of = (
                    f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB"
                    if counted is None
                    else f"{done:,} of {total:,} {counted}"
                )
                typer.echo(of, err=True)

        yield None if output.as_json else tell
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    how_much: list[ProgressColumn] = [MofNCompleteColumn()] if counted else [DownloadColumn(), TransferSpeedColumn()]
    columns = (BarColumn(), *how_much, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(counted or "bytes", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
