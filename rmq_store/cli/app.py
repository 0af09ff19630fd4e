"""The commands put together, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

import typer

from rmq_store.cli import consuming, moving, questions, stores
from rmq_store.cli.options import COMMON, Common, Json, Root
from rmq_store.cli.output import say_error
from rmq_store.errors import RmqError

app = typer.Typer(
    name="rmq",
    help="Keep, replay and reprocess RocketMQ messages in a lakehouse.",
    epilog="Times are ISO 8601 with a zone, or epoch milliseconds. Exit codes: 0 done, 1 failed, 2 wrong use, 3 held or "
    "moved by somebody else. RMQ_DEBUG=1 shows where an error comes from.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"rmq {version('rocketmq-lakehouse')}")
        raise typer.Exit


@app.callback()
def before(
    root: Root = None,
    as_json: Json = False,
    version_asked: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Say it and end."),
) -> None:
    COMMON.set(Common(root, as_json))


for commands in (stores, consuming, moving, questions):
    commands.add_to(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``arguments``: default those of the process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in given
    try:
        return app(given, prog_name="rmq", standalone_mode=False) or 0
    except RmqError as error:
        return _failed(error, type(error).__name__, str(error), error.exit_code, as_json)
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its text is the help, which has been shown
            return error.exit_code
        message = error.format_message().rstrip(".")
        return _failed(error, "WrongUse", f"{message}. See: rmq {_command(given)}--help", error.exit_code, as_json)
    except typer.Abort as error:
        return _failed(error, "Abort", "stopped", 1, as_json)
    except Exception as error:
        message = f"{type(error).__name__}: {error} This is a defect; RMQ_DEBUG=1 shows where."
        return _failed(error, type(error).__name__, message, 1, as_json)


def _failed(error: Exception, kind: str, message: str, exit_code: int, as_json: bool) -> int:
    if os.environ.get("RMQ_DEBUG") == "1":
        traceback.print_exception(error)
    say_error(kind, message, exit_code, getattr(error, "__notes__", ()), as_json)
    return exit_code


def _command(given: Sequence[str]) -> str:
    """The command that was meant, if there is such a one, for a hint."""
    names = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    return next((f"{word} " for word in given if word in names), "")
