"""The values of a SQL92 expression: Java's types, how text is read as one of them, and how two compare (rules 7.8).

A property is text; the type of the other operand decides as what it is read. Java and Python read different texts as
numbers: Java accepts "3d", "0x1p4" and " 1.5", and refuses "1_000", "inf" and, as a whole number, " 3".

| Java    | here   |
|---------|--------|
| Integer | int    |
| Long    | Long   |
| Double  | float  |
| Boolean | bool   |
| String  | str    |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from rmq_store.errors import BadData
from rmq_store.message.java_text import JAVA_BLANKS

_INTEGER_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


class EvaluationError(BadData):
    """RocketMQ throws an exception for this message; ``java_type`` is its class."""

    def __init__(self, java_type: str, reason: str) -> None:
        super().__init__(f"{java_type}: {reason}")
        self.java_type = java_type


class Long(int):
    """A whole number of 64 bits; a plain int is an Integer, of 32."""

    __slots__ = ()


class LongText(str):
    """The text of a Long: beside a whole number of any size it is read as one. RocketMQ has no such value: every property is
    plain text, and beside an Integer one of more than 32 bits is no number."""

    __slots__ = ()


Scalar: TypeAlias = "str | bool | int | float"
Value: TypeAlias = "Scalar | None"
"""None: unknown."""


def whole_number(digits: str) -> int:
    """An Integer where it fits, else a Long. Raises ValueError beyond 64 bits."""
    value = int(digits)
    if value > _LONG_MAX:
        raise ValueError(f"{digits} is more than {_LONG_MAX}")
    return value if value <= _INTEGER_MAX else Long(value)


def negate(value: Value) -> Value:
    """A number with the other sign, of the same type; unknown for any other value."""
    if value is None or isinstance(value, str | bool):
        return None
    return type(value)(-value)


def compare(left: Scalar, right: Scalar) -> int:
    """Negative, 0 or positive, as ``ComparisonExpression#__compare``: text is read as the type of the other side, whole
    numbers as Double where the other is one, and a Boolean is less than any number, on either side.

    Raises EvaluationError: RuntimeException for text that is no number, ClassCastException for a Boolean on the left of
    text (RocketMQ casts the wrong one of the two).
    """
    if type(left) is bool and isinstance(right, str):
        raise EvaluationError("ClassCastException", f"{left} is not text and cannot be compared with {right!r}")
    if isinstance(left, str) and not isinstance(right, str):
        left = _read(left, right)
    elif isinstance(right, str) and not isinstance(left, str):
        right = _read(right, left)
    if (type(left) is bool) != (type(right) is bool):
        return -1
    if isinstance(left, float) or isinstance(right, float):
        return _sign(_double_order(float(left)), _double_order(float(right)))
    return _sign(left, right)


def _read(text: str, other: bool | int | float) -> Scalar:
    """The text as the type of the other side."""
    return _READ[Long if isinstance(text, LongText) and type(other) is int else type(other)](text)


def compare_by_size(left: Scalar, right: Scalar) -> int:
    """``compare`` for ``> >= < <=``: two texts are read as Double; a RuntimeException if one is not a number."""
    if isinstance(left, str) and isinstance(right, str):
        return compare(read_double(left), read_double(right))
    return compare(left, right)


def _sign(left: Any, right: Any) -> int:
    return bool(left > right) - bool(left < right)


def _double_order(value: float) -> tuple[bool, float, float]:
    """``Double.compareTo``: -0.0 is less than 0.0; NaN equals itself and is greater than every other number."""
    return (True, 0.0, 0.0) if math.isnan(value) else (False, value, math.copysign(1.0, value))


# --- text as a value -------------------------------------------------------------------------------------------------

# Decimal digits of any script, but of one UTF-16 unit: Character.digit takes one unit at a time.
_WHOLE = re.compile(r"[+-]?(?:(?![\U00010000-\U0010ffff])\d)+")

_DOUBLE = re.compile(
    r"""(?P<sign>[+-]?)(?:
        (?P<name>NaN|Infinity)
      | (?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?
      | (?P<hex>0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?
    )""",
    re.VERBOSE,
)


def _no_number(text: str, java_type: str) -> EvaluationError:
    return EvaluationError("RuntimeException", f"{text!r} is not a valid {java_type}")


def _read_whole(text: str, java_type: str, most: int) -> int:
    if not _WHOLE.fullmatch(text):
        raise _no_number(text, java_type)
    try:
        value = int(text)
    except ValueError:  # more digits than Python converts
        raise _no_number(text, java_type) from None
    if not -most - 1 <= value <= most:
        raise _no_number(text, java_type)
    return value


def read_double(text: str) -> float:
    """``Double.valueOf``. Raises EvaluationError (RuntimeException)."""
    match = _DOUBLE.fullmatch(text.strip(JAVA_BLANKS))
    if match is None:
        raise _no_number(text, "Double")
    if match["hex"] is None:
        return float(match["sign"] + (match["name"] or match["decimal"]))
    try:
        return float.fromhex(match["sign"] + match["hex"])
    except OverflowError:
        return math.copysign(math.inf, -1 if match["sign"] == "-" else 1)


_READ: dict[type, Callable[[str], Scalar]] = {
    bool: lambda text: text.lower() == "true",
    int: lambda text: _read_whole(text, "Integer", _INTEGER_MAX),
    Long: lambda text: Long(_read_whole(text, "Long", _LONG_MAX)),
    float: read_double,
}


# --- a value as text -------------------------------------------------------------------------------------------------


def value_text(value: Value) -> str:
    """A constant as RocketMQ prints it."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return double_text(value) if isinstance(value, float) else str(int(value))


def double_text(value: float) -> str:
    """``Double.toString`` of a positive, finite number: the fewest digits that identify it, at least two."""
    if 1e-3 <= value < 1e7:
        return repr(value)
    digits = next(text for places in range(1, 18) if float(text := f"{value:.{places}e}") == value)
    mantissa, _, exponent = digits.partition("e")
    return f"{mantissa}E{int(exponent)}"
