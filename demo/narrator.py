"""The demo's output: numbered steps with their duration, progress during waits, tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.status import Status
from rich.table import Table

from rmq_store.utils.times import format_time

_SIGN_OF_LIFE_S = 10.0


class Narrator:
    """Prints to the console. A wait is a spinner in a terminal, and a line every ten seconds elsewhere."""

    def __init__(self, steps: int, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = max(self._console.width, 150)
        self._steps = steps
        self._step = 0
        self._started = self._last_sign = time.monotonic()
        self._status: Status | None = None

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Print the step's title, and its duration at its end."""
        self._step += 1
        started = self._last_sign = time.monotonic()
        self._console.print(f"\n[bold cyan]\\[{self._step}/{self._steps}][/] [bold]{title}[/]")
        with self._console.status("") as status:
            self._status = status
            try:
                yield
            finally:
                self._status = None
        self._console.print(f"      [dim]{time.monotonic() - started:.1f} s[/]")

    def say(self, text: str) -> None:
        self._console.print(f"      {text}", markup=False)

    def waiting(self, what: str) -> None:
        """Call it repeatedly during a wait for ``what``."""
        now = time.monotonic()
        if self._status is not None and self._console.is_terminal:
            self._status.update(f"{what} …")
        elif now - self._last_sign >= _SIGN_OF_LIFE_S:
            self._last_sign = now
            self.say(f"… {what} ({now - self._started:.0f} s since the start)")

    def wait_until(self, is_done: Callable[[], bool], what: str) -> None:
        while not is_done():
            self.waiting(what)
            time.sleep(0.1)

    def table(self, title: str, rows: pa.Table, empty: str = "nothing") -> None:
        """Print the rows of a query; UTC ms are shown as times."""
        self._console.print()
        if not rows.num_rows:
            self._console.print(f"[bold]{title}[/]: {empty}")
            return
        table = Table(title=title, title_justify="left", title_style="bold", header_style="cyan")
        for field in rows.schema:
            table.add_column(field.name, justify="right" if pa.types.is_integer(field.type) else "left")
        for row in rows.to_pylist():
            table.add_row(*(_shown(name, value) for name, value in row.items()))
        self._console.print(table)

    def end(self, lines: Sequence[str]) -> None:
        self._console.print(f"\n[bold green]Done in {time.monotonic() - self._started:.0f} s.[/]")
        for line in lines:
            self._console.print(f"  {line}", markup=False)

    def error(self, text: str) -> None:
        where = f"step {self._step}: " if self._step else ""
        self._console.print(f"\nerror: {where}{text}", style="red", markup=False)


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and name.endswith(("_at", "_timestamp")):
        return format_time(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
