"""Groups of options: one parameter of a command, several options of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from rich.text import Text

from rmq_store.cli.app import app
from rmq_store.cli.command import add_command

MOST_PARAMETERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    where: Annotated[str, typer.Option("--where", help="Required.")]
    fast: Annotated[bool, typer.Option("--fast", help="A flag.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Base):
    count: Annotated[int | None, typer.Option("--count", help="With a default.")] = None


def run(*arguments: str) -> list[object]:
    """What the command gets: its argument and its group."""
    values: list[object] = []

    def show(*, name: Annotated[str, typer.Argument()], options: Options) -> None:
        """Show it."""
        values.extend([name, options])

    one = typer.Typer()
    add_command(one, show, ["show x --where here"])
    one(list(arguments), standalone_mode=False)
    return values


def test_the_fields_of_a_group_are_options_and_the_command_gets_them_as_one_value() -> None:
    assert run("a", "--where", "here", "--count", "3") == ["a", Options(where="here", count=3)]
    assert run("a", "--where", "here", "--fast") == ["a", Options(where="here", fast=True)]


def test_a_field_without_a_default_is_a_required_option() -> None:
    with pytest.raises(typer.TyperException, match="where"):
        run("a")


def test_the_help_shows_the_fields_of_inherited_groups_too(capsys: pytest.CaptureFixture[str]) -> None:
    run("--help")
    shown = capsys.readouterr().out
    assert [text for text in ("--where", "--fast", "--count", "Show it.", "show x") if text not in shown] == []


def texts_of(command: Any) -> Iterator[str]:
    """The texts of the help of a command, its options and its subcommands."""
    yield from (text for text in (command.help, command.epilog) if text)
    yield from (text for one in command.params if (text := getattr(one, "help", None)))
    for subcommand in getattr(command, "commands", {}).values():
        yield from texts_of(subcommand)


def test_no_bracket_of_a_help_is_taken_for_markup() -> None:
    texts = list(texts_of(typer.main.get_command(app)))
    assert len(texts) > 200
    assert [text for text in texts if Text.from_markup(text).plain.count("[") < text.count("[")] == []


def test_no_command_has_more_parameters_than_one_reads_at_a_glance() -> None:
    commands = [command.callback for command in app.registered_commands]
    subcommands = [group.typer_instance for group in app.registered_groups if group.typer_instance is not None]
    commands += [command.callback for group in subcommands for command in group.registered_commands]
    functions = [command.__wrapped__ for command in commands if command is not None]  # type: ignore[attr-defined]
    assert len(functions) > 25
    assert [one.__name__ for one in functions if one.__code__.co_kwonlyargcount > MOST_PARAMETERS] == []
