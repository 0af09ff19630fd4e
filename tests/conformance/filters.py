"""Filters as the walks of a pull consumer need them: by tags (rules 7.7) and SQL92 (rules 7.8).

Our subscriptions refuse SQL92 that a broker takes for something else, so what a broker makes of a text is asked of the
parser: it reads as far as it can, and what is behind counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import Any

import pyarrow as pa

from rmq_store.filter import sql92
from rmq_store.filter.sql92_parser import InvalidSelector, parse
from rmq_store.filter.subscription import ExpressionType, SubscriptionData, build_subscription_data
from rmq_store.lake.read.filter import matching

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Filter:
    """``data``: our subscription, None where it refuses the text; ``tree``: what the broker reads of SQL92."""

    data: SubscriptionData | None
    tree: sql92.BooleanExpression | None = None

    def passes(self, row: Row) -> bool:
        """The broker's half, for a row of the view ``messages``."""
        if self.tree is not None:
            return sql92.matches(self.tree, row["properties"])
        return self.data is not None and self.data.matches_code(row["tags_code"])

    def delivers(self, row: Row) -> bool:
        """Both halves."""
        if self.data is None:
            return self.passes(row)
        return self.data.matches(row["tags_code"], row["properties"])

    def delivered_in_lake(self, batch: pa.RecordBatch) -> list[int]:
        """The offsets of a batch of that view, as a window filters it."""
        assert self.data is not None
        offsets = batch.column("queue_offset").to_pylist()
        wanted = matching(batch, self.data)
        return offsets if wanted is None else list(compress(offsets, wanted))


def filter_of(topic: str, expression: str, expression_type: str) -> Filter | None:
    """What a broker makes of an expression; None: it cannot be parsed, and a push consumer with it does not start."""
    if expression_type != ExpressionType.SQL92:
        return Filter(build_subscription_data(topic, expression, expression_type))
    try:
        tree, rest = parse(expression)
    except InvalidSelector:
        return None
    return Filter(None if rest else build_subscription_data(topic, expression, expression_type), tree)
