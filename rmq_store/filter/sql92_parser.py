"""The parser of SQL92 expressions. It has RocketMQ's grammar (``SelectorParser.jj``, rules 7.8) and refuses the same
texts.

    or          and ( OR and )*
    and         equality ( AND equality )*
    equality    comparison ( ( "=" | "<>" ) comparison | IS [ NOT ] NULL )*
    comparison  unary ( ( ">" | ">=" | "<" | "<=" ) unary
                      | [ NOT ] BETWEEN unary AND unary
                      | [ NOT ] ( CONTAINS | STARTSWITH | ENDSWITH ) string
                      | [ NOT ] IN "(" string ( "," string )* ")" )*
    unary       ( "+" | "-" | NOT ) unary | literal | property | "(" or ")"

NOT binds tighter than ``=``. RocketMQ reads one token behind a complete expression and ignores the rest; ``parse``
returns that rest, so that its caller can refuse it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rmq_store.errors import WrongUse
from rmq_store.filter.sql92 import (
    BooleanCastExpression,
    BooleanConstantExpression,
    BooleanExpression,
    ComparisonExpression,
    ConstantExpression,
    EqualExpression,
    Expression,
    InExpression,
    LogicExpression,
    NegateExpression,
    NotExpression,
    PropertyExpression,
    SearchExpression,
    nodes,
)
from rmq_store.filter.sql92_values import compare, whole_number

MOST_NESTED = 50
"""How deep an expression may be nested: this project's limit, RocketMQ's is its stack. ``a AND b AND c`` is one
level."""


class InvalidSelector(WrongUse):
    """An expression that RocketMQ refuses. ``position``: of the wrong character, from 0."""

    def __init__(self, expression: str, position: int, reason: str) -> None:
        super().__init__(f"the SQL92 expression {expression!r} is wrong at character {position + 1}: {reason}")
        self.position = position


class TooDeep(InvalidSelector):
    """An expression that is nested more than ``MOST_NESTED`` levels deep."""

    def __init__(self, expression: str, position: int) -> None:
        super().__init__(expression, position, f"it is nested more than {MOST_NESTED} levels deep")


class Selector(NamedTuple):
    """A parsed expression."""

    tree: BooleanExpression
    rest: str
    """The text behind it that RocketMQ ignores, "" if there is none."""


def parse(text: str) -> Selector:
    """The tree of an expression. Raises InvalidSelector."""
    return _Parser(text).selector()


def named(text: str) -> Iterator[tuple[str, int]]:
    """The names in a text that ``parse`` accepts as a whole, each with its position, from 0."""
    for token in _tokens(text):
        if token.kind == "end":
            return
        if token.kind == "name":
            yield token.text, token.at


# --- tokens ----------------------------------------------------------------------------------------------------------

_SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_CONSTANTS: dict[str, bool | None] = {"TRUE": True, "FALSE": False, "NULL": None}
_KEYWORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "IS", *_CONSTANTS, *_SEARCHES})

# The longer of two possible tokens comes first. A line comment needs its line break: without one it is two minus signs.
_TOKEN = re.compile(
    r"""(?P<blank>[ \t\n\r\f]+ | --[^\n\r]*(?:\r\n|[\n\r]) | /\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)
      | (?P<double>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+)
      | (?P<whole>0|[1-9][0-9]*[lL]?)
      | (?P<string>'(?:''|[^'])*')
      | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<symbol><>|>=|<=|[=<>(),+-])""",
    re.VERBOSE,
)


class _Token(NamedTuple):
    """``kind``: a keyword in capitals, a symbol, "string", "whole", "double", "name" or "end"."""

    kind: str
    text: str
    at: int


def _tokens(text: str) -> Iterator[_Token]:
    """The tokens, read one at a time: text behind the last one that the parser takes may be anything."""
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidSelector(text, at, _no_token(text, at))
        kind, image = str(match.lastgroup), match[0]
        if kind == "symbol" or (kind == "name" and image.upper() in _KEYWORDS):
            kind = image.upper()
        if kind != "blank":
            yield _Token(kind, image, at)
        at = match.end()
    while True:
        yield _Token("end", "", at)


def _no_token(text: str, at: int) -> str:
    if text[at] == "'":
        return "the text that begins here has no closing quote (a quote within a text is written twice)"
    if text.startswith("/*", at):
        return "the comment that begins here has no end"
    return f"unexpected character {text[at]!r}"


# --- grammar ---------------------------------------------------------------------------------------------------------

_A_VALUE = "a property, a number, a text in single quotes, TRUE, FALSE, NULL, NOT, +, - or ("


class _Parser:
    """One method per rule of the grammar, then the checks that RocketMQ makes for each node."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._more = _tokens(text)
        self._next = next(self._more)
        self._nested = 0

    def selector(self) -> Selector:
        at = self._next.at
        tree = self._boolean(self._or(), at)
        if max(depth for _, depth in nodes(tree)) > MOST_NESTED:
            raise TooDeep(self._text, at)
        return Selector(tree, self._text[self._next.at :])

    def _or(self) -> Expression:
        return self._joined("OR", "||")

    def _and(self) -> Expression:
        return self._joined("AND", "&&")

    def _joined(self, keyword: str, symbol: str) -> Expression:
        term = self._and if keyword == "OR" else self._equality
        at = self._next.at
        first = term()
        if self._next.kind != keyword:
            return first
        terms = [self._boolean(first, at)]
        while self._take(keyword):
            at = self._next.at
            terms.append(self._boolean(term(), at))
        return LogicExpression(symbol, tuple(terms))

    def _equality(self) -> Expression:
        left = self._comparison()
        while True:
            operator = self._next
            if self._take("=", "<>"):
                equal = self._equal(left, self._comparison(), operator)
                left = equal if operator.kind == "=" else NotExpression(equal)
            elif self._take("IS"):
                negated = self._take("NOT")
                self._need("NULL", expected="NULL" if negated else "NULL or NOT NULL")
                null = EqualExpression(left, BooleanConstantExpression(None))
                left = NotExpression(null) if negated else null
            else:
                return left

    def _comparison(self) -> Expression:
        left = self._unary()
        while True:
            operator = self._next
            if self._take(">", ">=", "<", "<="):
                left = self._compared(operator.kind, left, self._unary(), operator)
                continue
            negated = self._take("NOT")
            operator = self._next
            if self._take("BETWEEN"):
                left = self._between(left, operator, negated)
            elif self._take("IN"):
                left = self._in(left, operator, negated)
            elif self._take(*_SEARCHES):
                left = SearchExpression(operator.kind, left, self._string(), negated)
            elif negated:
                raise self._unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH behind NOT")
            else:
                return left

    def _unary(self) -> Expression:
        """RocketMQ's unaryExpr and primaryExpr."""
        token = self._next
        node: Expression
        self._nested += 1
        if self._nested > MOST_NESTED:
            raise TooDeep(self._text, token.at)
        if self._take("+"):
            node = self._unary()
        elif self._take("-"):
            node = NegateExpression(self._unary())
        elif self._take("NOT"):
            at = self._next.at
            node = NotExpression(self._boolean(self._unary(), at))
        elif self._take("("):
            node = self._or()
            self._need(")", expected=") or an operator")
        elif self._take("name"):
            node = PropertyExpression(token.text)
        elif token.kind == "string":
            node = ConstantExpression(self._string())
        elif self._take("whole", "double"):
            node = self._number(token)
        elif self._take(*_CONSTANTS):
            node = BooleanConstantExpression(_CONSTANTS[token.kind])
        else:
            raise self._unexpected(_A_VALUE)
        self._nested -= 1
        return node

    # --- RocketMQ's checks of a node's operands ---

    def _boolean(self, node: Expression, at: int) -> BooleanExpression:
        if isinstance(node, BooleanExpression):
            return node
        if isinstance(node, PropertyExpression):
            return BooleanCastExpression(node)
        raise self._wrong(at, f"{node} is not a condition that is true or false")

    def _equal(self, left: Expression, right: Expression, operator: _Token) -> EqualExpression:
        if BooleanConstantExpression(None) in (left, right):
            raise self._wrong(operator.at, "no value is equal to NULL; write IS NULL or IS NOT NULL")
        if isinstance(left, BooleanConstantExpression) and isinstance(right, ConstantExpression):
            raise self._wrong(operator.at, f"{left} cannot be compared with {right}")
        return EqualExpression(left, right)

    def _compared(self, symbol: str, left: Expression, right: Expression, operator: _Token) -> ComparisonExpression:
        for side in (left, right):
            text = isinstance(side, ConstantExpression) and isinstance(side.value, str)
            if text or isinstance(side, BooleanExpression):
                raise self._wrong(operator.at, f"{operator.text} compares numbers and properties, {side} is neither")
        return ComparisonExpression(symbol, left, right)

    def _between(self, value: Expression, operator: _Token, negated: bool) -> BooleanExpression:
        least = self._unary()
        self._need("AND", expected="AND and the upper end")
        most = self._unary()
        symbols = ("<", ">") if negated else (">=", "<=")
        low, high = (self._compared(s, value, end, operator) for s, end in zip(symbols, (least, most), strict=True))
        if negated:
            return LogicExpression("||", (low, high))
        match least, most:
            case ConstantExpression(from_), ConstantExpression(to) if compare(to, from_) < 0:
                raise self._wrong(
                    operator.at, f"no value is between {least} and {most}; write the smaller number first"
                )
        return LogicExpression("&&", (low, high))

    def _in(self, left: Expression, operator: _Token, negated: bool) -> InExpression:
        self._need("(", expected="( and texts in single quotes")
        elements = [self._string()]
        while self._take(","):
            elements.append(self._string())
        self._need(")", expected=", or )")
        if not isinstance(left, PropertyExpression):
            raise self._wrong(operator.at, f"IN needs a property on its left, not {left}")
        return InExpression(left, tuple(elements), negated)

    def _number(self, token: _Token) -> ConstantExpression:
        if token.kind == "double":
            value = float(token.text)
            if not 0.0 < value < float("inf"):
                raise self._wrong(
                    token.at, f"{token.text} is out of range: a decimal number must be above 0 and finite"
                )
            return ConstantExpression(value)
        try:
            return ConstantExpression(whole_number(token.text.rstrip("lL")))
        except ValueError:
            raise self._wrong(token.at, f"{token.text} does not fit into 64 bits") from None

    def _string(self) -> str:
        token = self._need("string", expected="a text in single quotes")
        return token.text[1:-1].replace("''", "'")

    # --- tokens ---

    def _take(self, *kinds: str) -> bool:
        """Step over the next token if it is one of these."""
        if self._next.kind not in kinds:
            return False
        self._next = next(self._more)
        return True

    def _need(self, kind: str, *, expected: str) -> _Token:
        token = self._next
        if not self._take(kind):
            raise self._unexpected(expected)
        return token

    def _unexpected(self, expected: str) -> InvalidSelector:
        return self._wrong(self._next.at, f"expected {expected}, found {self._next.text or 'the end'}")

    def _wrong(self, at: int, reason: str) -> InvalidSelector:
        return InvalidSelector(self._text, at, reason)
