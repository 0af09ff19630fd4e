"""``vectors/tags``: the code of a tag and the parsing of subscriptions (rules 2.1, 7.7)."""

from __future__ import annotations

from rmq_store.errors import WrongUse
from rmq_store.filter.sql92_parser import InvalidSelector, parse
from rmq_store.filter.subscription import ExpressionType, SubscriptionData, build_subscription_data
from rmq_store.message.properties import tags_code
from tests.conformance.checks import Line, Outcomes, by_kind, refused, same


def _code(line: Line) -> Outcomes:
    yield same(line["tag"], tags_code(line["tag"]), line["tagsCode"])


def _subscription(row: Line) -> Outcomes:
    if "error" in row:
        yield refused(row["expression"], WrongUse, lambda: build_subscription_data("T", row["expression"]), "no tag")
        return
    data = build_subscription_data("T", row["expression"])
    found = data.expression, sorted(data.tags), sorted(data.codes), data.expression_type
    yield same(row["expression"], found, (row["subString"], sorted(row["tags"]), sorted(row["codes"]), row["type"]))


def _is_whole(expression: str | None) -> bool:
    """Whether it is SQL92 up to its end."""
    try:
        return bool(expression) and not parse(expression or "").rest
    except InvalidSelector:
        return False


def _refused_for(row: Line) -> str | None:
    """The words of our refusal of a subscription with a type; None: it is taken."""
    if row["type"] not in (None, *ExpressionType):  # FilterAPI takes any name and then matches nothing by it
        return f"unknown expression type {row['type']!r}"
    if row["type"] == ExpressionType.SQL92 and not _is_whole(row["expression"]):
        return "SQL92"  # FilterAPI keeps the text as it is and leaves it to the broker; we parse it at once.
    return "no tag" if "error" in row else None


def _typed(row: Line) -> Outcomes:
    def build() -> SubscriptionData:
        return build_subscription_data("T", row["expression"], row["type"])

    words = _refused_for(row)
    if words is not None:
        yield refused(f"{row['expression']!r} as {row['type']!r}", WrongUse, build, words)
        return
    data = build()
    found = data.expression, sorted(data.tags), data.expression_type
    yield same(row["expression"], found, (row["subString"], sorted(row["tags"]), row["expressionType"]))


check = by_kind({"code": _code, "subscription": _subscription, "typed": _typed})
