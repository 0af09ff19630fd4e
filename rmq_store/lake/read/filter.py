"""A subscription's filter on whole batches: the same answers as ``SubscriptionData.matches``, without a row at a time.

A SQL92 expression is evaluated once for each distinct combination of the properties that it names, not once per message.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.filter import sql92
from rmq_store.filter.subscription import SubscriptionData

Mask = npt.NDArray[np.bool_]


def filter_columns(subscription: SubscriptionData) -> list[str]:
    """The columns of a batch that ``matching`` reads."""
    if subscription.takes_all:
        return []
    return ["tags_code", "tags"] if subscription.tree is None else ["properties"]


def matching(batch: pa.RecordBatch, subscription: SubscriptionData) -> Mask | None:
    """The mask of the rows that match; None: all do."""
    if subscription.takes_all:
        return None
    tree = subscription.tree
    mask = _by_tags(batch, subscription) if tree is None else _by_properties(batch.column("properties"), tree)
    return None if mask.all() else mask


def _by_tags(batch: pa.RecordBatch, subscription: SubscriptionData) -> Mask:
    """By the hash of the tag, then by the tag itself: ``ExpressionMessageFilter#isMatchedByConsumeQueue`` and the client
    (rules 7.7)."""
    codes = pa.array(sorted(subscription.codes), pa.int32())
    by_code = pc.is_in(batch.column("tags_code").cast(pa.int32(), safe=False), value_set=codes)
    by_tag = pc.is_in(batch.column("tags"), value_set=pa.array(sorted(subscription.tags), pa.string()))
    mask: Mask = pc.and_(by_code, by_tag).to_numpy(zero_copy_only=False)
    return mask


def _by_properties(properties: pa.MapArray, tree: sql92.BooleanExpression) -> Mask:
    """By the value of the expression: ``ExpressionMessageFilter#isMatchedByCommitLog`` (rules 7.8)."""
    names = sql92.property_names(tree)
    if not names:
        return np.full(len(properties), sql92.matches(tree, {}))
    columns = [pc.map_lookup(properties, name, "last") for name in names]
    first, kind = _kinds(columns)
    texts = [column.take(pa.array(first)).to_pylist() for column in columns]
    verdicts = [sql92.matches(tree, dict(zip(names, row, strict=True))) for row in zip(*texts, strict=True)]
    return np.array(verdicts, np.bool_)[kind]


def _kinds(columns: Sequence[pa.Array]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Rows that are equal in all columns are of one kind. Returns the first row of each kind, and the kind of each row."""
    first = kind = np.zeros(len(columns[0]), np.intp)
    for column in columns:
        encoded = column.dictionary_encode("encode")  # an absent property is a value of its own
        combined = kind * len(encoded.dictionary) + encoded.indices.to_numpy()
        _, first, kind = np.unique(combined, return_index=True, return_inverse=True)
    return first, kind
