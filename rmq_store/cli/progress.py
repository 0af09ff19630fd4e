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
        last_tenth = 0

        def print_line(count: int, total: int) -> None:
            nonlocal last_tenth
            tenth = 10 * count // total if total else 10
            if tenth > last_tenth:
                last_tenth = tenth
                line = (
                    f"{count / 1e6:,.0f} of {total / 1e6:,.0f} MB"
                    if counted is None
                    else f"{count:,} of {total:,} {counted}"
                )
                typer.echo(line, err=True)

        yield None if output.as_json else print_line
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

    amount: list[ProgressColumn] = [MofNCompleteColumn()] if counted else [DownloadColumn(), TransferSpeedColumn()]
    columns = (BarColumn(), *amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(counted or "bytes", total=None)
        yield lambda count, total: bar.update(task, completed=count, total=total)
