"""The views of docs/sql.md as plain SQL that both DuckDB and Spark SQL run: one file per view, with the view's name.

The head of a file says what a row is, and ``-- needs:`` names what the view reads: other views, or the base relations
of ``lake/sql/relations.py``. The body is one SELECT in the part of SQL that both engines share, which ``docs/sql.md``
describes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files

_NEEDS = re.compile(r"^-- needs: (.+)$", re.MULTILINE)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class View:
    """A view."""

    name: str
    sql: str
    """One SELECT."""
    needs: tuple[str, ...]
    """The relations that must be made before it."""


@cache
def views() -> Mapping[str, View]:
    """All views by name, each after the views that it needs."""
    unordered = {}
    for file in files(__name__).iterdir():
        name, _, ending = file.name.rpartition(".")
        if ending == "sql":
            text = file.read_text(encoding="utf-8")
            needs = _NEEDS.search(text)
            assert needs is not None, f"{file.name} has no line '-- needs:'"
            unordered[name] = View(name, text, tuple(needs[1].split(", ")))
    order = TopologicalSorter({view.name: sorted(view.needs) for _, view in sorted(unordered.items())}).static_order()
    return {name: unordered[name] for name in order if name in unordered}


def words_of(text: str) -> set[str]:
    """The words of a query in lower case; the relations that it reads are among them."""
    return {word.lower() for word in _WORD.findall(text)}


def with_needs(names: Iterable[str]) -> set[str]:
    """The names and every relation below them, base relations included."""
    needed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += views()[name].needs if name in views() else ()
    return needed
