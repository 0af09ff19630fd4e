"""The types of arguments from Python, which Python does not check: a text that is not empty would count as true."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import UnionType
from typing import TypeVar

from rmq_store.errors import WrongUse

Item = TypeVar("Item")

_WORDS: dict[type | UnionType, str] = {
    bool: "True or False",
    bool | None: "True or False, or None",
    str: "a text",
    str | None: "a text, or None",
    int: "a whole number",
    int | float: "a number",
    int | None: "a whole number, or None",
    bytes | bytearray | memoryview: "bytes",
    list | tuple: "a list or a tuple",
}
_LONG_MAX = 2**63 - 1


def check_types(type_: type | UnionType, **arguments: object) -> None:
    """Raises WrongUse for an argument that is not of the type, for a text that UTF-8 cannot write, and for a number of more
    than 64 bits: no commit could record them. True and False are no numbers."""
    for name, value in arguments.items():
        check_type(type_, name, value)
        if isinstance(value, str):
            check_characters(name, value)
        if isinstance(value, int) and abs(value) > _LONG_MAX:
            raise WrongUse(f"{name} does not fit into 64 bits")


def check_type(type_: type | UnionType, name: str, value: object) -> None:
    """Raises WrongUse for a value that is not of the type."""
    if not isinstance(value, type_) or (isinstance(value, bool) and type_ not in (bool, bool | None)):
        raise WrongUse(f"{name} must be {_words_of(type_)}, it is of the type {_name_of(type(value))}")


def check_characters(what: str, text: str) -> None:
    """Raises WrongUse for a text that UTF-8 cannot write."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise WrongUse(
            f"{what} {text!r:.80} contains an unpaired surrogate (U+D800 to U+DFFF), which is not a character"
        ) from error


def check_not_empty(**collections: Collection[object] | None) -> None:
    """Raises WrongUse for a selection of nothing. Only None, which is not given, means all."""
    for name, items in collections.items():
        if items is not None and not items:
            raise WrongUse(f"{name} is empty: give at least one item")


def items_of(type_: type[Item], name: str, given: Iterable[Item]) -> tuple[Item, ...]:
    """The items of a list, a generator or the like. Raises WrongUse for none, for an item of another type, for one item alone,
    and for a text, whose items would be its characters."""
    if isinstance(given, (type_, str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise WrongUse(
            f"{name} must be several, such as a list of items that are each {_words_of(type_)}; it is of the type "
            f"{_name_of(type(given))}"
        )
    try:
        items = tuple(given)
    except TypeError as error:  # an array of numpy without dimensions
        raise WrongUse(f"{name} must be several: {error}") from error
    check_not_empty(**{name: items})
    for item in items:
        check_types(type_, **{f"an item of {name}": item})
    return items


def _words_of(type_: type | UnionType) -> str:
    return _WORDS.get(type_) or f"of the type {getattr(type_, '__name__', type_)}"


def _name_of(type_: type) -> str:
    """With its module, unless it is one of Python's own: numpy has a ``bool`` too."""
    return type_.__name__ if type_.__module__ == "builtins" else f"{type_.__module__}.{type_.__name__}"
