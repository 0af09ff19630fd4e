"""The types of arguments from Python, which Python does not check: a text that is not empty would count as true."""

from __future__ import annotations

from types import UnionType

from rmq_store.errors import WrongUse

_WORDS: dict[type | UnionType, str] = {
    bool: "True or False",
    str: "a text",
    str | None: "a text, or None",
    int: "a whole number",
    int | None: "a whole number, or None",
}


def check_types(type_: type | UnionType, **arguments: object) -> None:
    """Raises WrongUse for an argument that is not of the type. True and False are no numbers."""
    for name, value in arguments.items():
        if not isinstance(value, type_) or (isinstance(value, bool) and type_ is not bool):
            words = _WORDS.get(type_) or f"of the type {getattr(type_, '__name__', type_)}"
            raise WrongUse(f"{name} must be {words}, it is of the type {_name_of(type(value))}")


def _name_of(type_: type) -> str:
    """With its module, unless it is one of Python's own: numpy has a ``bool`` too."""
    return type_.__name__ if type_.__module__ == "builtins" else f"{type_.__module__}.{type_.__name__}"
