"""Which messages of a topic a group wants: by tags (``FilterAPI``, rules 7.7) or by a SQL92 expression over the
properties (``SelectorParser``, rules 7.8).

A message is delivered if it passes two filters, the broker's and the client's:

| type  | broker                          | client          |
|-------|---------------------------------|-----------------|
| TAG   | by the 32-bit hash of its tag   | by the tag      |
| SQL92 | by the value of the expression  | lets all pass   |

"Aa" and "BB" have the same hash, so only the client's filter distinguishes them. A message that does not match is
*filtered*: it counts as consumed and moves the offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rmq_store.errors import WrongUse
from rmq_store.filter import sql92
from rmq_store.filter.sql92_parser import parse
from rmq_store.message.java_text import JAVA_BLANKS
from rmq_store.message.message_const import MessageConst
from rmq_store.message.properties import tags_code

SUB_ALL = "*"


class ExpressionType(StrEnum):
    """RocketMQ's names for the two languages of a subscription."""

    TAG = "TAG"
    SQL92 = "SQL92"


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """One topic of a subscription, as ``FilterAPI#build`` makes it."""

    topic: str
    expression: str
    """``*`` for everything, else the text of the settings."""
    expression_type: ExpressionType = ExpressionType.TAG
    tags: frozenset[str] = frozenset()
    """Empty for "*", for SQL92, and for an expression of blanks only, which matches nothing."""
    codes: frozenset[int] = frozenset()
    """The hash codes of ``tags``, signed 32 bits."""
    sub_version: int = 1
    """The version of the group's subscription; a higher one replaces a lower one."""
    tree: sql92.BooleanExpression | None = field(default=None, compare=False, repr=False)
    """The parsed expression of SQL92, None for TAG."""

    def __post_init__(self) -> None:
        if (self.tree is None) is (self.expression_type is ExpressionType.SQL92):
            raise ValueError(f"topic {self.topic}: a SQL92 subscription has a tree, and no other has one")

    @property
    def takes_all(self) -> bool:
        """Whether every message of the topic matches, so that nothing needs to be compared."""
        return self.tree is None and self.expression == SUB_ALL

    @property
    def takes_none(self) -> bool:
        """Whether no message can match (an expression of blanks and bars)."""
        return self.tree is None and not self.takes_all and not self.tags

    def matches_code(self, code: int) -> bool:
        """The broker's filter over the consume queue: by the low 32 bits of the tags code
        (``ExpressionMessageFilter#isMatchedByConsumeQueue``)."""
        return self.tree is not None or self.takes_all or _signed_32(code) in self.codes

    def matches_properties(self, properties: Mapping[str, str]) -> bool:
        """The broker's filter over the commit log: by the stored properties
        (``ExpressionMessageFilter#isMatchedByCommitLog``)."""
        return self.tree is None or sql92.matches(self.tree, properties)

    def matches_tag(self, tag: str | None) -> bool:
        """The client's filter: by the tag itself; a message without a tag passes only where the expression names no tag
        (``PullAPIWrapper#processPullResult``)."""
        return not self.tags or tag in self.tags

    def matches(self, code: int, properties: Mapping[str, str]) -> bool:
        """Whether a message with this tags code and these properties passes all filters."""
        return (
            self.matches_code(code)
            and self.matches_properties(properties)
            and self.matches_tag(properties.get(MessageConst.TAGS))
        )


def build_subscription_data(
    topic: str,
    expression: str | None,
    expression_type: str | None = ExpressionType.TAG,
    version: int = 1,
) -> SubscriptionData:
    """``FilterAPI#build``: parse one expression. ``expression_type`` None means TAG.

    TAG: ``expression`` None, "" and "*" match everything. Other texts are split at ``||``, trimmed, and empty parts are
    dropped; a single bar is part of a tag, and a star beside blanks or other tags is a tag of that name.

    Raises WrongUse for an expression without a tag between its bars ("||"), for a SQL92 expression that is missing,
    does not parse or has text behind it that RocketMQ ignores, and for an unknown type.
    """
    if expression_type == ExpressionType.SQL92:
        tree = _selector(topic, expression)
        return SubscriptionData(topic, expression or "", ExpressionType.SQL92, sub_version=version, tree=tree)
    if expression_type is not None and expression_type != ExpressionType.TAG:
        raise WrongUse(f"topic {topic}: unknown expression type {expression_type!r}; known are TAG and SQL92")
    if not expression or expression == SUB_ALL:
        return SubscriptionData(topic, SUB_ALL, sub_version=version)
    parts = expression.split("||")
    while parts and not parts[-1]:  # Java's split drops empty parts at the end
        parts.pop()
    if not parts:
        raise WrongUse(f"topic {topic}: the expression {expression!r} names no tag; write '*' or 'TagA || TagB'")
    tags = frozenset(tag for part in parts if (tag := part.strip(JAVA_BLANKS)))
    codes = frozenset(map(tags_code, tags))
    return SubscriptionData(topic, expression, tags=tags, codes=codes, sub_version=version)


def _selector(topic: str, expression: str | None) -> sql92.BooleanExpression:
    if not expression:
        raise WrongUse(f"topic {topic}: a SQL92 subscription needs an expression, like price > 100 AND region = 'eu'")
    try:
        return whole_selector(expression)
    except WrongUse as error:
        raise WrongUse(f"topic {topic}: {error}") from error


def whole_selector(expression: str) -> sql92.BooleanExpression:
    """The tree of a text that is a SQL92 expression and nothing more. Raises WrongUse, which names the place."""
    tree, rest = parse(expression)
    if rest:  # a broker uses the part before it (rules 7.8)
        at = len(expression) - len(rest) + 1
        raise WrongUse(
            f"the SQL92 expression {expression!r} is complete before character {at}, and RocketMQ "
            f"silently ignores {rest!r}: remove it, or join it with AND or OR"
        )
    return tree


def _signed_32(code: int) -> int:
    return ((code & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
