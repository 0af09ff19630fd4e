"""SQL92 expressions over a message's properties: the tree, its canonical text, and its value (rules 7.8).

Logic has three values: an expression over an absent property is mostly unknown, and only messages for which the value
is true are delivered. ``evaluate`` raises where RocketMQ throws (a comparison with text that is not a number);
``matches`` is the broker's decision. The nodes have the names of RocketMQ's classes (package ``filter.expression``).
``sql92_parser`` makes the trees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

from rmq_store.filter.sql92_values import EvaluationError, Value, compare, compare_by_size, negate, value_text
from rmq_store.message.java_hash import in_hash_set_order

Properties: TypeAlias = Mapping[str, str | None]
"""A message's properties; None means the same as a missing name."""


def evaluate(tree: BooleanExpression, properties: Properties) -> bool | None:
    """The value for a message with these properties; None: unknown.

    Raises EvaluationError where RocketMQ throws.
    """
    return tree.evaluate(properties)


def matches(tree: BooleanExpression, properties: Properties) -> bool:
    """Whether a broker delivers the message (``ExpressionMessageFilter#isMatchedByCommitLog``): only if the value is
    true, not if it is unknown or the evaluation fails."""
    try:
        return evaluate(tree, properties) is True
    except EvaluationError:
        return False


def property_names(tree: BooleanExpression) -> tuple[str, ...]:
    """The properties that the value depends on, sorted."""
    return tuple(sorted({node.name for node, _ in nodes(tree) if isinstance(node, PropertyExpression)}))


def nodes(tree: Expression) -> Iterator[tuple[Expression, int]]:
    """All nodes with their depth; that of the whole tree is 1."""
    waiting = [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        waiting += [(part, depth + 1) for part in node.parts]


class Expression(ABC):
    """A node. ``str`` of it is its canonical text."""

    __slots__ = ()

    @property
    def parts(self) -> tuple[Expression, ...]:
        """The nodes below it."""
        return ()

    @abstractmethod
    def evaluate(self, properties: Properties) -> Value: ...

    @abstractmethod
    def __str__(self) -> str: ...


class BooleanExpression(Expression):
    """A node that is true, false or unknown."""

    __slots__ = ()

    @abstractmethod
    def evaluate(self, properties: Properties) -> bool | None: ...


# --- leaves ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConstantExpression(Expression):
    """A number or a text."""

    value: str | int | float

    def evaluate(self, properties: Properties) -> Value:
        return self.value

    def __str__(self) -> str:
        return value_text(self.value)


@dataclass(frozen=True, slots=True)
class BooleanConstantExpression(BooleanExpression):
    """TRUE, FALSE or NULL."""

    value: bool | None

    def evaluate(self, properties: Properties) -> bool | None:
        return self.value

    def __str__(self) -> str:
        return value_text(self.value)


@dataclass(frozen=True, slots=True)
class PropertyExpression(Expression):
    """A property's text; unknown where the message has none of that name."""

    name: str

    def evaluate(self, properties: Properties) -> Value:
        return properties.get(self.name)

    def __str__(self) -> str:
        return self.name


# --- one operand -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NegateExpression(Expression):
    """``- right`` of a number; of a property, which is text, it is unknown."""

    right: Expression

    @property
    def parts(self) -> tuple[Expression, ...]:
        return (self.right,)

    def evaluate(self, properties: Properties) -> Value:
        return negate(self.right.evaluate(properties))

    def __str__(self) -> str:
        return f"(- {self.right})"


@dataclass(frozen=True, slots=True)
class BooleanCastExpression(BooleanExpression):
    """A property in the place of a condition. Text is never true, not even "true": false, or unknown if absent."""

    right: PropertyExpression

    @property
    def parts(self) -> tuple[Expression, ...]:
        return (self.right,)

    def evaluate(self, properties: Properties) -> bool | None:
        return None if self.right.evaluate(properties) is None else False

    def __str__(self) -> str:
        return str(self.right)


@dataclass(frozen=True, slots=True)
class NotExpression(BooleanExpression):
    """``NOT right``; unknown stays unknown."""

    right: BooleanExpression

    @property
    def parts(self) -> tuple[Expression, ...]:
        return (self.right,)

    def evaluate(self, properties: Properties) -> bool | None:
        value = self.right.evaluate(properties)
        return None if value is None else not value

    def __str__(self) -> str:
        return f"(NOT {self.right})"


@dataclass(frozen=True, slots=True)
class InExpression(BooleanExpression):
    """``right [NOT] IN (elements)`` compares texts; unknown for an absent property."""

    right: PropertyExpression
    elements: tuple[str, ...]
    negated: bool = False

    @property
    def parts(self) -> tuple[Expression, ...]:
        return (self.right,)

    def evaluate(self, properties: Properties) -> bool | None:
        value = self.right.evaluate(properties)
        return None if value is None else (value in self.elements) != self.negated

    def __str__(self) -> str:
        """Up to four elements as written; RocketMQ keeps five and more in a set, each once."""
        elements = self.elements if len(self.elements) < 5 else in_hash_set_order(self.elements)
        return f"{self.right} {'NOT ' if self.negated else ''}IN ( {', '.join(elements)} )"


_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": lambda text, search: search in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


@dataclass(frozen=True, slots=True)
class SearchExpression(BooleanExpression):
    """``right [NOT] CONTAINS | STARTSWITH | ENDSWITH 'search'``. For an absent property, a value that is not text, and
    an empty search it is false, with and without NOT."""

    symbol: str
    right: Expression
    search: str
    negated: bool = False

    @property
    def parts(self) -> tuple[Expression, ...]:
        return (self.right,)

    def evaluate(self, properties: Properties) -> bool:
        if not self.search:
            return False
        text = self.right.evaluate(properties)
        return isinstance(text, str) and _SEARCHES[self.symbol](text, self.search) != self.negated

    def __str__(self) -> str:
        return f"({'NOT ' if self.negated else ''}{self.symbol} {self.right})"


# --- two and more ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EqualExpression(BooleanExpression):
    """``left = right``. Two unknowns are equal. One unknown: unknown if it is the left one, else false."""

    left: Expression
    right: Expression

    @property
    def parts(self) -> tuple[Expression, ...]:
        return self.left, self.right

    def evaluate(self, properties: Properties) -> bool | None:
        left, right = self.left.evaluate(properties), self.right.evaluate(properties)
        if left is None:
            return True if right is None else None
        return right is not None and compare(left, right) == 0

    def __str__(self) -> str:
        return f"({self.left} == {self.right})"


_ORDERS: dict[str, Callable[[int], bool]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


@dataclass(frozen=True, slots=True)
class ComparisonExpression(BooleanExpression):
    """``left > right`` and the other three; unknown if either side is."""

    symbol: str
    left: Expression
    right: Expression

    @property
    def parts(self) -> tuple[Expression, ...]:
        return self.left, self.right

    def evaluate(self, properties: Properties) -> bool | None:
        left = self.left.evaluate(properties)
        if left is None:  # the right side is not evaluated, so it cannot throw
            return None
        right = self.right.evaluate(properties)
        return None if right is None else _ORDERS[self.symbol](compare_by_size(left, right))

    def __str__(self) -> str:
        return f"({self.left} {self.symbol} {self.right})"


@dataclass(frozen=True, slots=True)
class LogicExpression(BooleanExpression):
    """``terms`` joined by ``&&`` or ``||``, evaluated from left to right up to the first that decides, so that nothing
    behind it can throw. If none decides, the value is unknown if one of them is."""

    symbol: str
    terms: tuple[BooleanExpression, ...]

    @property
    def parts(self) -> tuple[Expression, ...]:
        return self.terms

    def evaluate(self, properties: Properties) -> bool | None:
        decides = self.symbol == "||"
        unknown = False
        for term in self.terms:
            value = term.evaluate(properties)
            if value is decides:
                return decides
            unknown |= value is None
        return None if unknown else not decides

    def __str__(self) -> str:
        return reduce(lambda left, right: f"({left} {self.symbol} {right})", map(str, self.terms))
