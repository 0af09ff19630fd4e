"""The application ``rmq``: all commands, and the one place that turns an error into a line and an exit code.

A new command is a function in the module of its noun (``messages.py``, ``offsets.py``, ...), registered by that module's
``add_to``. Only a new module is added here.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, NoReturn

import typer

from rmq_store.cli import (
    audit,
    backup,
    deliver,
    diff,
    dispatch,
    groups,
    maintain,
    messages,
    offsets,
    redrive,
    send,
    store,
    views,
    windows,
)
from rmq_store.cli.common import COMMITTED, REQUEST
from rmq_store.cli.options import BEFORE, NOTHING_BEFORE, Before, JsonOption, RootOption
from rmq_store.cli.output import S3_REQUESTS, AnswerNotWritten, answering, print_error
from rmq_store.errors import STOPPED, BadData, RmqError, Terminated, WrongUse, defect, error_answer
from rmq_store.lake.table.request_counter import counted_requests
from rmq_store.settings.environment import Environment
from rmq_store.settings.private_files import apply_umask
from rmq_store.utils.process_end import end_process
from rmq_store.utils.redaction import NAME_BYTES, cleaned, secret_values
from rmq_store.utils.signals import ANSWERING, STOPPED_BY, handle_signals, stopped_text

app = typer.Typer(
    name="rmq",
    help="Keep, replay and reprocess RocketMQ messages in a lakehouse.",
    epilog="Times are ISO 8601 with a zone, or epoch milliseconds. Exit codes: 0 done, 1 failed, 2 wrong use, "
    "3 another request holds the queues or has moved the offsets. RMQ_DEBUG=1 prints the traceback of an error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(is_given: bool) -> None:
    if is_given:
        from importlib.metadata import version

        typer.echo(f"rmq {version('rocketmq-lakehouse')}")
        raise typer.Exit


@app.callback()
def before(
    root: RootOption = None,
    as_json: JsonOption = False,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    BEFORE.set(Before(root, as_json))


for commands in (
    store,
    backup,
    dispatch,
    maintain,
    send,
    windows,
    deliver,
    redrive,
    offsets,
    groups,
    messages,
    views,
    audit,
    diff,
):
    commands.add_to(app)


CTRL_C = 130
"""What typer returns for a KeyboardInterrupt."""


def command() -> NoReturn:
    """The program ``rmq``."""
    _open_closed_streams()
    end_process(main())


def _open_closed_streams() -> None:
    """Python has no object for a standard stream that was closed at the start, as by ``>&-``: what goes there goes nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``arguments``: default ``sys.argv[1:]``, with handlers for signals."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        handle_signals()
    STOPPED_BY.set(None)
    ANSWERING.set(False)
    STOPPED.clear()
    as_json = "--json" in words
    BEFORE.set(NOTHING_BEFORE)
    REQUEST.set("")
    COMMITTED.set(dict)
    with counted_requests() as counter:
        S3_REQUESTS.set(counter)
        try:
            return _run(words, as_json, own_process=arguments is None)
        except Terminated:  # between an error and its answer
            return _stopped(STOPPED_BY.get() or signal.SIGTERM, as_json)


def _run(words: Sequence[str], as_json: bool, *, own_process: bool) -> int:
    try:
        if own_process:
            apply_umask()
        _check_characters(words)
        with answering() if _prints_help(words) else nullcontext():
            code = _commands()(words, prog_name="rmq", standalone_mode=False) or 0
        return _stopped(signal.SIGINT, as_json) if code == CTRL_C else code
    except Terminated:
        return _stopped(STOPPED_BY.get() or signal.SIGTERM, as_json)
    except AnswerNotWritten as error:
        if isinstance(error.__cause__, BrokenPipeError) and not REQUEST.get():  # of a query: the reader has read enough
            return 1
        return _failed(error, type(error).__name__, f"{error}. {_course(error)}".rstrip(), error.exit_code, as_json)
    except RmqError as error:
        if (number := STOPPED_BY.get()) and not REQUEST.get():  # a query ends with DuckDB's error
            return _stopped(number, as_json)
        # Running it again is of no use after these, unless some shards are done.
        is_final = isinstance(error, WrongUse | BadData) and not error.reports
        request = "" if is_final or not REQUEST.get() else f" (request {REQUEST.get()})"
        return _failed(error, type(error).__name__, f"{error}{request}", error.exit_code, as_json)
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its text is the help, which is already on the screen
            return error.exit_code
        command = getattr(getattr(error, "ctx", None), "command_path", "rmq")
        message = f"{error.format_message().rstrip('.')} - see {command} --help"
        return _failed(error, "WrongUse", message, error.exit_code, as_json)
    except typer.Abort as error:
        return _failed(error, "Abort", "stopped", 1, as_json)
    except KeyboardInterrupt:
        return _stopped(signal.SIGINT, as_json)
    except BaseException as error:  # also a SystemExit of foreign code, whose code 0 would read as success
        if isinstance(error.__context__, BrokenPipeError):  # typer's own exit: the reader of the pipe has gone
            return 1
        if number := STOPPED_BY.get():
            return _stopped(number, as_json)
        return _failed(error, type(error).__name__, f"{defect(error)}; RMQ_DEBUG=1 prints the traceback", 1, as_json)


def _check_characters(words: Sequence[str]) -> None:
    """What no shell can pass, and a caller in Python can. Bytes of a shell that are not UTF-8 are surrogates of their own."""
    if any("\0" in word for word in words):
        raise WrongUse("an argument has a NUL character, which no name and no text can have")
    try:
        "".join(words).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise WrongUse(
            "an argument contains an unpaired surrogate (U+D800 to U+DFFF), which is not a character"
        ) from error


@cache
def _commands() -> Any:
    """Typer's application makes all of them at each call again, which takes longer than many a command."""
    return typer.main.get_command(app)


def _prints_help(words: Sequence[str]) -> bool:
    return not words or "--help" in words or "--version" in words


def _course(error: AnswerNotWritten) -> str:
    """What became of the command whose answer cannot be written."""
    request = f" (request {REQUEST.get()})" if REQUEST.get() else ""
    if not error.ended:
        return f"What the command committed stays: run the same request again to finish, or to see that it is done{request}"
    status = error.status or COMMITTED.get()().get("status", "")
    return f"The command itself ended{f' with status {status}' if status else ''}{request}"


def _stopped(number: signal.Signals, as_json: bool) -> int:
    request = f" (request {REQUEST.get()})" if REQUEST.get() else ""
    text = stopped_text(number, has_request=bool(request))
    return _report("Stopped", f"{text}{request}", 128 + number, as_json)


def _failed(error: BaseException, kind: str, message: str, exit_code: int, as_json: bool) -> int:
    if Environment.read().debug:
        typer.echo(cleaned("".join(traceback.format_exception(error)), secret_values(os.environ), 1 << 20), err=True)
    return _report(kind, message, exit_code, as_json)


def _report(kind: str, message: str, exit_code: int, as_json: bool) -> int:
    ANSWERING.set(True)
    kind, message = cleaned(kind, (), NAME_BYTES), cleaned(message, secret_values(os.environ))
    print_error(COMMITTED.get()() | error_answer(kind, message, exit_code, REQUEST.get()), as_json)
    return exit_code
