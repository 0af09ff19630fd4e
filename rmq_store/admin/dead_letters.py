"""Dead letters: where one is stored, which of them a redrive takes, and what a dry run shows of one.

``where`` is an expression of RocketMQ's SQL92 filter over the properties of a dead letter. A name that begins with one
underscore and a lower-case character is a column of the view ``dead_letters``, such as ``_cause``; no name of RocketMQ
begins so. As in a subscription every value is text, a column without a value is unknown, and an expression that fails
selects nothing. A column of whole numbers is a Long beside a number of any size: beside an Integer such as 0 a property of more
than 32 bits is no number for RocketMQ, and no time would be more than 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rmq_store.errors import WrongUse
from rmq_store.filter import sql92
from rmq_store.filter.sql92_parser import InvalidSelector, named
from rmq_store.filter.sql92_values import LongText
from rmq_store.filter.subscription import whole_selector
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import KEY_SEPARATOR
from rmq_store.utils.arguments import check_not_empty, check_types
from rmq_store.utils.suggestions import did_you_mean, listed
from rmq_store.utils.times import Time, format_time, ms_of

COLUMNS = (
    "topic", "broker_name", "queue_id", "queue_offset", "cause", "attempt", "original_topic",
    "origin_topic", "origin_broker_name", "origin_queue_id", "origin_queue_offset", "unique_key", "keys", "tags",
    "error_type", "error_text", "born_timestamp", "store_timestamp",
)  # fmt: skip
"""The columns of the view ``dead_letters`` that ``where`` may name, with an underscore before them."""

_WHOLE_NUMBERS = frozenset(
    f"_{column}"
    for column in (
        "queue_id", "queue_offset", "attempt", "origin_queue_id", "origin_queue_offset", "born_timestamp", "store_timestamp",
    )
)  # fmt: skip
"""The names of columns of whole numbers."""

_COLUMN = re.compile(r"_([a-z].*)")


class Place(NamedTuple):
    """Where one dead letter is stored in the group's dead-letter topic."""

    broker_name: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter:
    """Which dead letters are taken: those that match every given condition, or ``all``."""

    from_ms: Time | None = None
    """Dead-lettered at or after this time."""
    until_ms: Time | None = None
    """Dead-lettered before this time."""
    original_topic: str | None = None
    """The topic in which the message was first read."""
    keys: frozenset[str] | None = None
    """One of them is among its KEYS, or is its unique key."""
    places: tuple[Place, ...] | None = None
    """It is stored at one of them."""
    where: str | None = None
    """A SQL92 expression over its properties and columns is true."""
    all: bool = False
    _tree: sql92.BooleanExpression | None = field(init=False, default=None, compare=False, repr=False)
    """``where``, parsed."""

    def __post_init__(self) -> None:
        self._check_types()
        self._check_values()
        conditions = (self.from_ms, self.until_ms, self.original_topic, self.keys, self.places, self.where)
        if self.all == any(value is not None for value in conditions):
            raise WrongUse(
                "choose which dead letters to send: by time (from, until), original topic, key, SQL92 expression (where) or "
                "place in the dead-letter queue; or all of them (all). Not both."
            )
        if self.where is not None:
            object.__setattr__(self, "_tree", _checked(self.where))
        begin, end = self.times
        if begin is not None and end is not None and end <= begin:
            span = f"{format_time(begin)} to {format_time(end)}"
            raise WrongUse(f"empty time range {span}: 'until' must be later than 'from'")

    def _check_types(self) -> None:
        check_types(bool, all=self.all)
        check_types(str | None, original_topic=self.original_topic, where=self.where)
        check_types(frozenset | None, keys=self.keys)
        check_types(tuple | None, places=self.places)
        for key in self.keys or ():
            check_types(str, **{"a key": key})
        for place in self.places or ():
            check_types(Place, place=place)
            check_types(str, broker_name=place.broker_name)
            check_types(int, queue_id=place.queue_id, offset=place.offset)

    def _check_values(self) -> None:
        """An empty condition, such as of a variable that is not set, would select other dead letters than were meant."""
        check_not_empty(keys=self.keys, places=self.places)
        texts = {"the original topic (--original-topic)": [self.original_topic], "a key (--key)": self.keys or ()}
        texts["the SQL92 expression (--where)"] = [self.where]
        for what, several in texts.items():
            if any(text is not None and not text.strip() for text in several):
                raise WrongUse(f"{what} is empty")

    @property
    def times(self) -> tuple[int | None, int | None]:
        """``from_ms`` and ``until_ms`` in UTC ms."""
        begin, end = (None if time is None else ms_of(time) for time in (self.from_ms, self.until_ms))
        return begin, end

    @property
    def needs_properties(self) -> bool:
        """Whether a dead letter has to be read to decide if it matches; else its offset is enough."""
        return self.original_topic is not None or self.keys is not None or self._tree is not None

    @property
    def names(self) -> tuple[str, ...]:
        """The names in ``where``: ``column_of`` says which are columns, the others are properties."""
        return () if self._tree is None else sql92.property_names(self._tree)

    def matches(
        self,
        original_topic: str | None,
        keys: str | None,
        unique_key: str | None,
        values: Mapping[str, str | None] | None = None,
    ) -> bool:
        """Whether a dead letter with these properties matches. ``values``: of ``names``, as text. Times and places are compared
        as offsets, not here."""
        if self.original_topic is not None and original_topic != self.original_topic:
            return False
        if self.keys is not None and self.keys.isdisjoint([unique_key, *(keys or "").split(KEY_SEPARATOR)]):
            return False
        if self._tree is None:
            return True
        texts = dict(values or {})
        for name in _WHOLE_NUMBERS & texts.keys():
            if (text := texts[name]) is not None:
                texts[name] = LongText(text)
        return sql92.matches(self._tree, texts)

    def parameters(self) -> dict[str, Any]:
        """The given conditions, for the ctl row."""
        begin, end = self.times
        values: dict[str, Any] = {"from_ms": begin, "until_ms": end}
        values |= {"original_topic": self.original_topic, "where": self.where}
        lists = {"keys": sorted(self.keys or ()), "letters": [list(place) for place in sorted(self.places or ())]}
        return {name: value for name, value in (values | lists).items() if value not in (None, [])}


def column_of(name: str) -> str | None:
    """The column that a name in ``where`` stands for; None: it is a property."""
    match = _COLUMN.fullmatch(name)
    return match[1] if match else None


def _checked(where: str) -> sql92.BooleanExpression:
    tree = whole_selector(where)
    known = [f"_{column}" for column in COLUMNS]
    for name, position in named(where):
        if column_of(name) is not None and name not in known:
            raise InvalidSelector(
                where,
                position,
                f"there is no column {name}{did_you_mean(name, known)}; columns: {listed(known)}. A property whose name "
                "begins with an underscore and a lower-case character cannot be compared",
            )
    return tree


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter as a dry run shows it."""

    queue: MessageQueue
    offset: int
    store_timestamp: int
    """When it was dead-lettered, UTC ms."""
    original_topic: str | None
    keys: str | None
    unique_key: str | None
    reconsume_times: int
