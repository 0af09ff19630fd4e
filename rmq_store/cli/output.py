"""The form of an answer: a table or lines of text, or one JSON document. An error is one line, and JSON as well."""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout, suppress
from contextvars import ContextVar
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import typer

from rmq_store.cli.options import before_the_command
from rmq_store.errors import RmqError
from rmq_store.lake.table.request_counter import RequestCounter
from rmq_store.utils.redaction import ANY_BYTES, cleaned, escaped_json, one_line, secret_values
from rmq_store.utils.signals import ANSWERING

if TYPE_CHECKING:
    from rich.console import Console

Row = Mapping[str, Any]

S3_REQUESTS: ContextVar[RequestCounter] = ContextVar("S3_REQUESTS")
"""The requests to S3 of the running command. Its JSON answer, also that of an error, has them as ``requests``, if any."""


class AnswerNotWritten(RmqError):
    """Standard output cannot be written: its disk is full, or its reader has gone. Says nothing about what was committed."""

    ended = True
    """Whether the command had finished its work."""
    status = ""
    """The status of the answer, "" where it is not known."""


@contextmanager
def answering(*, ended: bool = True) -> Iterator[None]:
    """Around what writes on standard output: raises AnswerNotWritten. ``ended``: the command has finished its work."""
    try:
        yield
    except OSError as error:
        refusal = AnswerNotWritten(f"the answer cannot be written to standard output: {error.strerror or error}")
        refusal.ended = ended
        raise refusal from error


class Output:
    """Prints a command's answer. ``as_json``: as one document, with nothing else on standard output."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json or before_the_command().as_json

    def kept_clean(self) -> AbstractContextManager[object]:
        """For the time that a listener runs: its prints must not get into the JSON document."""
        return redirect_stdout(sys.stderr) if self.as_json else nullcontext()

    def line(self, text: str, *, ended: bool = True) -> None:
        """A line of the text answer. ``ended``: the command has finished its work."""
        if not self.as_json:
            with answering(ended=ended):
                typer.echo(_shown(text))

    def file(self, text: str) -> None:
        """The content of a file, as it is."""
        if not self.as_json:
            with answering():
                typer.echo(text)

    def note(self, text: str) -> None:
        """Something to know besides the answer; always on standard error."""
        _print(f"note: {text}", "yellow")

    def table(self, rows: Sequence[Row], columns: Sequence[str], empty: str = "nothing") -> None:
        """Rows of the text answer. ``empty``: the line for no rows, which says what that means."""
        if self.as_json:
            return
        if rows:
            print_table(rows, columns)
        else:
            self.line(empty)

    def document(self, answer: Mapping[str, Any]) -> None:
        """The JSON answer."""
        if self.as_json:
            with answering():
                typer.echo(_document(answer))

    def answer(self, answer: Mapping[str, Any], *lines: str) -> None:
        """The answer in both forms; as text the status comes first. Its ``warnings`` go to standard error as well. A signal
        meanwhile makes no error of it: the work has ended."""
        before = ANSWERING.set(True)
        try:
            self.line(f"status: {answer['status']}")
            for text in lines:
                self.line(text)
            for warning in answer.get("warnings", ()):
                _print(f"warning: {warning}", "yellow")
            self.document(answer)
        except AnswerNotWritten as error:
            error.status = answer["status"]
            raise
        finally:
            ANSWERING.reset(before)


def print_error(answer: Mapping[str, Any], as_json: bool) -> None:
    """Print the message on standard error, red in a terminal; with ``--json`` also the whole answer on standard output, if
    that can be written."""
    _print(f"error: {answer['message']}", "red")
    if as_json:
        with suppress(AnswerNotWritten), answering():
            typer.echo(_document(answer))


def s3_requests() -> dict[str, Any]:
    """The requests to S3 that the running command has made so far, as JSON; empty when there are none."""
    return S3_REQUESTS.get(RequestCounter()).summary()


def _document(answer: Mapping[str, Any]) -> str:
    requests = s3_requests()
    return to_json({**answer, "requests": requests} if requests else answer)


def _shown(text: str) -> str:
    """The text without secrets, and with its control characters escaped."""
    return cleaned(text, secret_values(os.environ), ANY_BYTES)


def _print(text: str, colour: str) -> None:
    """Print on standard error, if that can be written: a terminal may have been closed. Further lines are indented, so that
    none looks like a note or an error of its own."""
    text = cleaned(text, secret_values(os.environ))
    with suppress(OSError):
        typer.secho(text.replace("\n", "\n  "), err=True, fg=colour, color=_colour())


def _colour() -> bool | None:
    """None: typer checks whether standard error is a terminal."""
    return False if os.environ.get("NO_COLOR") else None


# --- JSON ------------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> str:
    """One JSON document. Bytes become base64 text, times ISO 8601, decimals numbers, and numbers that JSON cannot hold
    text."""
    return escaped_json(json.dumps(_plain(value), ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case str():
            return str(value)
        case float():
            return value if math.isfinite(value) else str(value)
        case Mapping():
            return {str(_plain(key)): _plain(item) for key, item in value.items()}
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case timedelta():
            return value.total_seconds()
        case Iterable():
            return [_plain(item) for item in value]
        case _:
            return str(value)


# --- tables ----------------------------------------------------------------------------------------------------------

MANY_ROWS = 1000
"""A text table is cut after so many rows."""
_WIDEST = 1_000_000


def print_table(rows: Sequence[Row], columns: Sequence[str], of: int | None = None) -> None:
    """In a terminal cells are folded to its width; elsewhere nothing is cut. ``of``: the number of rows in all."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDEST
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    shown = rows[:MANY_ROWS]
    with answering():
        typer.echo(table_text(shown, columns, secret_values(os.environ), console))
        if hidden := (len(rows) if of is None else of) - len(shown):
            typer.echo(f"({hidden:,} more rows are not shown; --json has all)")


def table_text(
    rows: Sequence[Row], columns: Sequence[str], secrets: Sequence[str], console: Console | None = None
) -> str:
    """The rows as a table, without ``secrets``. ``console``: None is a file, where nothing is cut or coloured."""
    from rich.box import ASCII_DOUBLE_HEAD, SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console(file=io.StringIO(), width=_WIDEST, color_system=None, force_terminal=False)
    box = SIMPLE_HEAD if (console.encoding or "").lower().startswith("utf") else ASCII_DOUBLE_HEAD
    table = Table(box=box, show_edge=False, pad_edge=False, header_style="bold")
    for name in columns:
        numbers = all(isinstance(row[name], int | float | Decimal | None) for row in rows)
        table.add_column(Text(one_line(name)), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cleaned(cell(row[name]), secrets, ANY_BYTES))) for name in columns))
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").split("\n"))


def cell(value: Any) -> str:
    """A value as text in a table or in CSV."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case datetime() | date() | time():
            return value.isoformat()
        case Mapping() | list() | tuple():
            return to_json(_texts(value))
        case _:
            return str(value)


_FORMULA = re.compile(r"[=+\-@\t\r\n\uff0b\uff0d\uff1d\uff20]")
"""How a formula begins in a spreadsheet, also in full width."""
_NUMBER = re.compile(r"[+-][0-9]+(?:\.[0-9]+)?")


def harmless(value: str | bytes | None) -> str:
    """``cell`` for a program that may be a spreadsheet: a text that it would run as a formula gets a ``'`` before it."""
    text = cell(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def _texts(value: Any) -> Any:
    """Bytes as text inside lists and maps, as in a cell of their own."""
    match value:
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case Mapping():
            return {key: _texts(item) for key, item in value.items()}
        case list() | tuple():
            return [_texts(item) for item in value]
        case _:
            return value
