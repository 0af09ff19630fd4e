"""The options of ``rmq redrive`` that select dead letters and edit their copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_store.cli.input import read_text_input
from rmq_store.cli.options import TIME
from rmq_store.errors import WrongUse
from rmq_store.utils.json_text import JsonText

if TYPE_CHECKING:
    from rmq_store.admin.dead_letters import DeadLetterFilter, Place
    from rmq_store.admin.redrive_edits import MessageEdits

EDITS = "Edits of the copies; the dead letters stay as they are"


def _place(text: str) -> Place:
    from rmq_store.admin.dag_params import dead_letter_place

    try:
        return dead_letter_place(text)
    except WrongUse as error:
        raise typer.BadParameter(str(error)) from error


def _pair(form: str, example: str, *, is_json: bool = False) -> Callable[[str], tuple[str, Any]]:
    """The parser of NAME=VALUE. A name may not hold an equals sign; an edit that needs one is written to a file."""

    def parsed(text: str) -> tuple[str, Any]:
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r:.100} is not an edit: write {form}, for example {example}")
        try:
            return name, JsonText.parse(value) if is_json else value
        except ValueError:
            raise typer.BadParameter(
                f'{value!r:.100} is not JSON: text needs double quotes, for example {name}="text"'
            ) from None

    return parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOptions:
    """Which dead letters; the options narrow each other."""

    every: Annotated[bool, typer.Option("--all", help="All dead letters of the group.")] = False
    since: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="TIME", parser=TIME, help="Only messages that became dead letters at or after this time."
        ),
    ] = None
    until: Annotated[
        int | None,
        typer.Option(
            "--until", metavar="TIME", parser=TIME, help="Only messages that became dead letters before this time."
        ),
    ] = None
    original_topic: Annotated[
        str | None, typer.Option("--original-topic", metavar="TOPIC", help="Only messages first read from this topic.")
    ] = None
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="KEY", help="Only messages with this key or unique key. Repeatable."),
    ] = None
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="SQL92",
            help="Only messages for which this expression of RocketMQ's SQL92 filter is true, over their properties and, with "
            "an underscore before them, columns of the view dead_letters: \"region = 'eu' AND _cause = 'timeout'\".",
        ),
    ] = None
    letter: Annotated[
        list[Any] | None,
        typer.Option(
            "--letter",
            metavar="BROKER:QUEUE:OFFSET",
            parser=_place,
            help="Only the dead letter at this place (see the view dead_letters). Repeatable.",
        ),
    ] = None

    def dead_letters(self) -> DeadLetterFilter:
        """Raises WrongUse for a selection that contradicts itself."""
        from rmq_store.admin.dead_letters import DeadLetterFilter

        return DeadLetterFilter(
            from_ms=self.since,
            until_ms=self.until,
            original_topic=self.original_topic,
            keys=frozenset(self.key) if self.key else None,
            places=tuple(self.letter) if self.letter else None,
            where=self.where,
            all=self.every,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EditOptions:
    """What is changed in the copies."""

    edit: Annotated[
        str | None,
        typer.Option(
            "--edit",
            metavar="FILE",
            help="A .toml or .json file with edits, by the names of the options below: set_property = { region = 'eu' }.",
            rich_help_panel=EDITS,
        ),
    ] = None
    set_property: Annotated[
        list[Any] | None,
        typer.Option(
            "--set-property",
            metavar="NAME=VALUE",
            parser=_pair("NAME=VALUE", "region=eu"),
            help="Set a property. Repeatable.",
            rich_help_panel=EDITS,
        ),
    ] = None
    remove_property: Annotated[
        list[str] | None,
        typer.Option("--remove-property", metavar="NAME", help="Remove a property. Repeatable.", rich_help_panel=EDITS),
    ] = None
    cast_property: Annotated[
        list[Any] | None,
        typer.Option(
            "--cast-property",
            metavar="NAME=TYPE",
            parser=_pair("NAME=TYPE", "price=int"),
            help="Write a property as int, number or boolean: ' +07 ' as int is '7'. Repeatable.",
            rich_help_panel=EDITS,
        ),
    ] = None
    replace_body_text: Annotated[
        list[Any] | None,
        typer.Option(
            "--replace-body-text",
            metavar="OLD=NEW",
            parser=_pair("OLD=NEW", "EUR=USD"),
            help="Replace a text in the body wherever it occurs. Repeatable.",
            rich_help_panel=EDITS,
        ),
    ] = None
    set_json: Annotated[
        list[Any] | None,
        typer.Option(
            "--set-json",
            metavar="POINTER=JSON",
            parser=_pair("POINTER=JSON", "/price=12.5", is_json=True),
            help="Set a value of a JSON body, as it is written here: /price=12.50, /name='\"text\"'. Repeatable.",
            rich_help_panel=EDITS,
        ),
    ] = None
    remove_json: Annotated[
        list[str] | None,
        typer.Option(
            "--remove-json",
            metavar="POINTER",
            help="Remove a value of a JSON body: /items/0. Repeatable.",
            rich_help_panel=EDITS,
        ),
    ] = None
    cast_json: Annotated[
        list[Any] | None,
        typer.Option(
            "--cast-json",
            metavar="POINTER=TYPE",
            parser=_pair("POINTER=TYPE", "/price=number"),
            help="Write a value of a JSON body as int, number, boolean or string. Repeatable.",
            rich_help_panel=EDITS,
        ),
    ] = None
    all_or_nothing: Annotated[
        bool,
        typer.Option(
            "--all-or-nothing",
            help="Send nothing if the edits do not apply to a dead letter. Default: the others are sent.",
            rich_help_panel=EDITS,
        ),
    ] = False

    def edits(self) -> MessageEdits:
        """Raises WrongUse for edits that are invalid, or given twice."""
        from rmq_store.admin.redrive_edits import edits_of_text, with_more

        pairs = ("set_property", "cast_property", "replace_body_text", "set_json", "cast_json")
        more: dict[str, Any] = {name: _once(name, getattr(self, name)) for name in pairs if getattr(self, name)}
        lists = {"remove_property": self.remove_property, "remove_json": self.remove_json}
        more |= {name: list(names) for name, names in lists.items() if names}
        values: dict[str, Any] = {}
        if self.edit is not None:
            text = read_text_input("--edit", self.edit)
            values = edits_of_text(text, is_json=self.edit.endswith(".json"))
        return with_more(values, more)


def _once(name: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise WrongUse(f"--{name.replace('_', '-')} names the same place twice")
    return values
