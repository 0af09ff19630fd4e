"""Lists that a page shows: a SELECT with filters, a page of its rows, sorted.

Only constants of this package become a part of SQL. What a user gives are values of parameters; a column to sort by is
looked up among the columns of the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rmq_store.errors import WrongUse
from rmq_store.utils.suggestions import listed
from rmq_store.utils.times import parse_time

MOST_ROWS = 500
"""Of a page."""
MOST_CSV_ROWS = 100_000
TIME_FILTERS = ("since", "until")
"""Times as ``parse_time`` reads them."""
NUMBER_FILTERS = ("queue_id", "delay_level", "attempt")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """A SELECT and the values of its parameters."""

    text: str
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A list of rows of one or more views."""

    title: str
    source: str
    """What follows FROM: a view, or a SELECT in parentheses."""
    columns: tuple[str, ...]
    """Of the source; the list can be sorted by each."""
    order: str
    """How rows are sorted by default, and where the chosen column has the same value: it names each row."""
    filters: Mapping[str, str] = field(default_factory=dict)
    """A condition by the name of its only parameter: ``{"group": "group_name = $group"}``."""
    needs: tuple[str, ...] = ()
    """Filters without which the list would read too much."""

    def question(self, page: Page) -> Question:
        """The rows of a page; each has in ``total`` how many rows all pages have together. Raises WrongUse for an unknown
        filter or column."""
        where, values = self._where(page.filters)
        text = (
            f"SELECT {', '.join(self.columns)}, count(*) OVER () AS total FROM {self.source} AS listed{where}"
            f" ORDER BY {self._order(page)} LIMIT $row_limit OFFSET $row_offset"
        )
        return Question(text, values | {"row_limit": page.limit, "row_offset": page.offset})

    def count(self, page: Page) -> Question:
        """Only ``total``, for a page behind the last one."""
        where, values = self._where(page.filters)
        return Question(f"SELECT count(*) AS total FROM {self.source} AS listed{where}", values)

    def _where(self, given: Mapping[str, str]) -> tuple[str, dict[str, object]]:
        unknown = sorted(set(given) - set(self.filters))
        if unknown:
            raise WrongUse(f"unknown filter {', '.join(unknown)}; known: {listed(list(self.filters))}")
        missing = [name for name in self.needs if name not in given]
        if missing:
            raise WrongUse(f"this list needs {', '.join(missing)}")
        conditions = [condition for name, condition in self.filters.items() if name in given]
        values = {name: _value(name, text) for name, text in given.items()}
        return f" WHERE {' AND '.join(conditions)}" if conditions else "", values

    def _order(self, page: Page) -> str:
        if page.sort is None:
            return self.order
        if page.sort not in self.columns:
            raise WrongUse(f"there is no column {page.sort!r}; columns: {listed(list(self.columns))}")
        return f"{page.sort} {'DESC' if page.descending else 'ASC'} NULLS LAST, {self.order}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Which rows of a list are asked for: ``[offset, offset + limit)``."""

    limit: int = 50
    offset: int = 0
    sort: str | None = None
    """A column; None: the list's own order."""
    descending: bool = False
    filters: Mapping[str, str] = field(default_factory=dict)
    """By name, without those that are empty."""

    @classmethod
    def of(cls, query: Mapping[str, str], most: int = MOST_ROWS) -> Page:
        """From the query of a URL: ``limit``, ``offset``, ``sort`` (``column`` or ``-column``), filters. Raises WrongUse."""
        named = {name: text for name, text in query.items() if text != ""}
        sort = named.pop("sort", None)
        return cls(
            limit=_number(named.pop("limit", "50"), "limit", 1, most),
            offset=_number(named.pop("offset", "0"), "offset", 0, 2**31),
            sort=None if sort is None else sort.removeprefix("-"),
            descending=sort is not None and sort.startswith("-"),
            filters=named,
        )


def _value(name: str, text: str) -> object:
    if name in TIME_FILTERS:
        return parse_time(text)
    if name in NUMBER_FILTERS:
        return _number(text, name, 0, 2**31 - 1)
    return text


def _number(text: str, name: str, least: int, most: int) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 12 or not least <= int(text) <= most:
        raise WrongUse(f"{name} must be a whole number from {least} to {most:,}; it is {text[:40]!r}")
    return int(text)


def filters_of(*names: str, **more: str) -> Mapping[str, str]:
    """Equality for each name, by the column of that name; ``more``: other conditions."""
    columns = {"group": "group_name", "broker": "broker_name"}
    return {name: f"{columns.get(name, name)} = ${name}" for name in names} | more


def without_total(rows: Sequence[Row]) -> list[Row]:
    """Rows of ``Listing.question`` without the count."""
    return [{name: value for name, value in row.items() if name != "total"} for row in rows]


def document(listing: Listing, page: Page, rows: Sequence[Row], total: int) -> dict[str, Any]:
    """The JSON answer of a list."""
    return {
        "title": listing.title,
        "columns": list(listing.columns),
        "filters": list(listing.filters),
        "offset": page.offset,
        "total": total,
        "rows": list(rows),
    }
