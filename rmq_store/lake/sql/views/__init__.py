"""The views of docs/sql.md as plain SQL that DuckDB and Spark SQL both run: one file per view, named like it.

The head of a file says what a row is, and ``-- needs:`` names what the view reads: other views, or the base relations
of ``lake/sql/relations.py``. The body is one SELECT in the part of SQL that both engines share; what that leaves out is in
``docs/sql.md``.
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
    """``sql`` is a SELECT; ``needs`` are the relations that must be there first."""

    name: str
    sql: str
    needs: tuple[str, ...]


@cache
def views() -> Mapping[str, View]:
    """All views by name, each after what it needs."""
    found = {}
    for file in files(__name__).iterdir():
        name, _, ending = file.name.rpartition(".")
        if ending == "sql":
            text = file.read_text(encoding="utf-8")
            needs = _NEEDS.search(text)
            assert needs is not None, f"{file.name} does not say what it needs"
            found[name] = View(name, text, tuple(needs[1].split(", ")))
    order = TopologicalSorter({view.name: sorted(view.needs) for _, view in sorted(found.items())}).static_order()
    return {name: found[name] for name in order if name in found}


def words_of(text: str) -> set[str]:
    """The words of a query in lower case: every relation that it reads is among them."""
    return {word.lower() for word in _WORD.findall(text)}


def with_needs(names: Iterable[str]) -> set[str]:
    """The names and everything below them, base relations included."""
    wanted: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += views()[name].needs if name in views() else ()
    return wanted
