"""How a command is added to the application: its panel, its examples and its groups of options.

typer knows one option per parameter. Here a parameter may also be a group: a dataclass from ``options.py`` whose fields are
options. ``rmq COMMAND --help`` shows the fields where the parameter stands, and the command gets them as one value.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand

Command = Callable[..., None]


def add_command(
    app: typer.Typer,
    command: Command,
    examples: Sequence[str],
    *,
    panel: str | None = None,
    name: str | None = None,
    cls: type[TyperCommand] | None = None,
) -> None:
    """``examples``: whole command lines, shown at the end of the help. ``name``: by default that of the function."""
    app.command(name, cls=cls, rich_help_panel=panel, epilog=_epilog(examples))(with_option_groups(command))


class QueryCommand(TyperCommand):
    """A command whose argument is SQL."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """A query may begin with a comment, ``-- such as this``, which is no option."""
        return super().parse_args(ctx, [f"\n{arg}" if _COMMENT.match(arg) else arg for arg in args])


_COMMENT = re.compile(r"--\s|--[^=\n]*\n")


def with_option_groups(command: Command) -> Command:
    """The command with the fields of each group as its own keyword parameters, as typer reads them."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    parameters = list(_parameters(command, hints))
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameters(command: Command, hints: dict[str, Any]) -> Iterator[Parameter]:
    for parameter in inspect.signature(command).parameters.values():
        group = hints[parameter.name]
        if not is_dataclass(group):
            yield parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=group)
            continue
        options = get_type_hints(group, include_extras=True)
        for field in fields(group):
            default = Parameter.empty if field.default is MISSING else field.default
            yield Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=options[field.name])


def _epilog(examples: Sequence[str]) -> str:
    """A paragraph for each example, so that typer does not join the lines."""
    return "\n\n".join([f"Example{'s' if len(examples) > 1 else ''}:", *examples])
