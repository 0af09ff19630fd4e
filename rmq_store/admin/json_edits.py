"""Edits of a JSON text by pointer (RFC 6901). They change the text at the place of the value only, so that numbers, blanks,
escapes and the order of members stay as the producer wrote them; a parser and a writer would change them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmq_store.errors import BadData, WrongUse
from rmq_store.utils.json_text import Item, items, refuse_constant, skip_blanks, value_end

MOST_NESTED = 100
"""How deep a JSON body may be nested, and a pointer may go."""


class DoesNotApply(BadData):
    """An edit has nothing to act on in this message; the text says why."""


class Pointer(NamedTuple):
    """A JSON pointer: the names of members, or numbers of elements, from the root on."""

    text: str
    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Pointer:
        """``/orders/0/price``; "" is the whole document. ``~1`` is a slash in a name, ``~0`` a tilde. Raises WrongUse."""
        if text and not text.startswith("/"):
            raise WrongUse(f"{text!r} is not a JSON pointer: it begins with a slash, like /orders/0/price (RFC 6901)")
        if re.search("~(?![01])", text):
            raise WrongUse(
                f"{text!r} is not a JSON pointer: write ~0 for a tilde in a name and ~1 for a slash (RFC 6901)"
            )
        names = tuple(name.replace("~1", "/").replace("~0", "~") for name in text.split("/")[1:])
        if len(names) > MOST_NESTED:
            raise WrongUse(f"the JSON pointer {text[:40]!r}… is more than {MOST_NESTED} levels deep")
        return cls(text, names)


class JsonBody:
    """A JSON text that is changed. Raises DoesNotApply for a text that is not JSON (RFC 8259), or nested too deep."""

    def __init__(self, text: str) -> None:
        try:
            json.loads(text, parse_constant=refuse_constant, parse_int=str, parse_float=str)
        except ValueError:
            raise DoesNotApply("the body is not JSON") from None
        except RecursionError:
            too_deep = True
        else:
            too_deep = is_deep(text)
        if too_deep:  # a limit of our own: Python's depends on the caller, and an audit must come to the same result
            raise DoesNotApply(f"the body is nested more than {MOST_NESTED} levels deep")
        self.text = text

    def remove(self, pointer: Pointer) -> None:
        """Remove a member or an element, with its comma. Raises DoesNotApply when it is not there."""
        members, member = self._within(pointer)
        number = members.index(member)
        if number:
            self._put(members[number - 1].end, member.end, "")
        else:
            self._put(member.begin, members[1].begin if len(members) > 1 else member.end, "")

    def replace(self, pointer: Pointer, change: Callable[[str], str]) -> None:
        """Replace a value by what ``change`` makes of its text. Raises DoesNotApply when it is not there, and what ``change``
        raises."""
        begin, end = self._place(pointer)
        self._put(begin, end, change(self.text[begin:end]))

    def set(self, pointer: Pointer, value: str) -> None:
        """Set a value (JSON text): one that is there, a new member of an object, or with ``-`` a new last element. Raises
        DoesNotApply when the object or array is not there, or the array has no such element."""
        if not pointer.names:
            self._put(*self._place(pointer), value)
            return
        *_, name = pointer.names
        begin, _ = self._place(Pointer(pointer.text.rpartition("/")[0], pointer.names[:-1]))
        members = self._members(begin, pointer)
        if same := self._named(members, name, pointer):
            self._put(same.at, same.end, value)
            return
        is_object = self.text[begin] == "{"
        if not is_object and name != "-":
            raise _not_there(pointer)
        item = f"{json.dumps(name, ensure_ascii=False)}:{value}" if is_object else value
        if members:
            self._put(members[-1].end, members[-1].end, f",{item}")
        else:
            self._put(begin + 1, begin + 1, item)

    # --- places ---

    def _put(self, begin: int, end: int, text: str) -> None:
        self.text = self.text[:begin] + text + self.text[end:]

    def _place(self, pointer: Pointer) -> tuple[int, int]:
        """The value's place in the text, ``[begin, end)``."""
        if not pointer.names:
            begin = skip_blanks(self.text, 0)
            return begin, value_end(self.text, begin)
        _, member = self._within(pointer)
        return member.at, member.end

    def _within(self, pointer: Pointer) -> tuple[Sequence[Item], Item]:
        """All members beside it, and the member or element itself."""
        at = skip_blanks(self.text, 0)
        members: Sequence[Item] = ()
        member = None
        for name in pointer.names:
            members = self._members(at, pointer)
            member = self._named(members, name, pointer)
            if member is None:
                raise _not_there(pointer)
            at = member.at
        if member is None:
            raise _not_there(pointer)
        return members, member

    def _members(self, at: int, pointer: Pointer) -> Sequence[Item]:
        if self.text[at] not in "{[":
            raise _not_there(pointer)
        return list(items(self.text, at))

    def _named(self, members: Sequence[Item], name: str, pointer: Pointer) -> Item | None:
        same = [member for member in members if member.name == name]
        if len(same) > 1:
            raise DoesNotApply(f"the body has the name {name!r:.100} of {pointer.text!r:.100} twice in one object")
        return same[0] if same else None


def _not_there(pointer: Pointer) -> DoesNotApply:
    return DoesNotApply(f"the body has nothing at {pointer.text!r:.100}")


_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


def is_deep(text: str) -> bool:
    """Whether the objects and arrays of a JSON text are nested more than ``MOST_NESTED`` levels deep."""
    if text.count("[") + text.count("{") <= MOST_NESTED:
        return False
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth > MOST_NESTED:
            return True
    return False
