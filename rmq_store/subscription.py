"""Which messages of a topic a group wants: RocketMQ's tag expressions (S7.7).

The broker lets a message pass by the 32-bit hash of its tag, the client then compares the tag itself. Both together
are the delivered set, so ``SubscriptionData.matches`` asks both: "Aa" and "BB" have one hash, only the text tells them
apart. What does not match is *filtered*: it counts as consumed and moves the offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rmq_store.errors import WrongUse
from rmq_store.message import tags_code

SUB_ALL = "*"

# What Java's String.trim removes: everything up to the space, and no other white space.
_JAVA_BLANKS = "".join(map(chr, range(0x21)))


class ExpressionType(StrEnum):
    """RocketMQ's names for the two languages of a subscription."""

    TAG = "TAG"
    SQL92 = "SQL92"


@dataclass(frozen=True, slots=True)
class SubscriptionData:
    """One topic of a subscription, as ``FilterAPI`` makes it.

    ``expression``: "*" for everything, else the text as it was given. ``tags`` and their hash codes ``codes`` (signed
    32 bits) are both empty for "*", and also for an expression of blanks only, which matches nothing.
    ``sub_version``: the version of the group's subscription; a higher one replaces a lower one.
    """

    topic: str
    expression: str
    expression_type: ExpressionType = ExpressionType.TAG
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()
    sub_version: int = 1

    @property
    def takes_all(self) -> bool:
        """Whether every message of the topic is wanted, so that nothing needs to be compared."""
        return self.expression == SUB_ALL

    @property
    def takes_none(self) -> bool:
        """Whether no message can match (an expression of blanks and bars)."""
        return not self.takes_all and not self.tags

    def matches_code(self, code: int) -> bool:
        """The broker's half: by the low 32 bits of the stored tags code."""
        return self.takes_all or _signed_32(code) in self.codes

    def matches_tag(self, tag: str | None) -> bool:
        """The client's half: by the tag itself; a message without a tag passes only where no tags are named."""
        return not self.tags or tag in self.tags

    def matches(self, code: int, tag: str | None) -> bool:
        """Whether a message with this tags code and this TAGS property (None: it has none) is delivered."""
        return self.matches_code(code) and self.matches_tag(tag)


def build_subscription_data(
    topic: str,
    expression: str | None,
    expression_type: str | None = ExpressionType.TAG,
    version: int = 1,
) -> SubscriptionData:
    """``FilterAPI.buildSubscriptionData``: parse one expression (S7.7).

    ``expression`` None, "" and "*" are everything. Else tags between ``||``, trimmed, empty ones left out; a single
    bar is part of a tag, and a star beside blanks or other tags is a tag of that name. ``expression_type`` None: TAG.

    Raises WrongUse for an expression without any tag between its bars ("||"), and for a type that is not "TAG".
    """
    kind = _checked_type(topic, expression_type)
    if not expression or expression == SUB_ALL:
        return SubscriptionData(topic, SUB_ALL, kind, sub_version=version)
    parts = expression.split("||")
    while parts and not parts[-1]:  # Java's split forgets empty parts at the end
        parts.pop()
    if not parts:
        raise WrongUse(f"topic {topic}: the expression {expression!r} names no tag; write '*' or 'TagA || TagB'")
    tags = frozenset(tag for part in parts if (tag := part.strip(_JAVA_BLANKS)))
    return SubscriptionData(topic, expression, kind, tags, frozenset(map(tags_code, tags)), version)


def _checked_type(topic: str, expression_type: str | None) -> ExpressionType:
    """The one place that knows which languages are understood."""
    if expression_type is None or expression_type == ExpressionType.TAG:
        return ExpressionType.TAG
    if expression_type == ExpressionType.SQL92:
        raise WrongUse(f"topic {topic}: SQL92 is not yet supported; subscribe by tags, or filter in the listener")
    raise WrongUse(f"topic {topic}: unknown expression type {expression_type!r}; known are TAG and SQL92")


def _signed_32(code: int) -> int:
    return ((code & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
