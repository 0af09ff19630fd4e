"""The filter on whole batches answers as the rule does, message by message."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.filter.subscription import SubscriptionData, build_subscription_data
from rmq_store.lake.read.filter import filter_columns, matching
from rmq_store.message.message_const import MessageConst
from rmq_store.message.properties import tags_code

# --- expressions, all of which parse ---------------------------------------------------------------------------------

NAMES = ("price", "region", "vip", "TAGS", "absent")
TEXTS = ("7", "100", "7.5", " 7", "7d", "-0", "NaN", "n/a", "", "true", "eu", "it's", "日本", "Aa", "BB")

names = st.sampled_from(NAMES)
quoted = st.sampled_from(TEXTS).map(lambda text: "'" + text.replace("'", "''") + "'")
numbers = st.sampled_from(["7", "-7", "100L", "7.5", "2147483648", "1e2"])
values = st.one_of(names, numbers, quoted, st.sampled_from(["TRUE", "FALSE"]))

equal = st.tuples(names, st.sampled_from(["=", "<>"]), values).map(" ".join)
turned = st.tuples(values, st.sampled_from(["=", "<>"]), names).map(" ".join)
ordered = st.tuples(names, st.sampled_from([">", ">=", "<", "<="]), st.one_of(names, numbers)).map(" ".join)
between = st.tuples(names, st.sampled_from([" ", " NOT "]), st.sampled_from(["-7 AND 7", "7 AND 100"])).map(
    lambda parts: "{}{}BETWEEN {}".format(*parts)
)
searched = st.tuples(names, st.sampled_from(["CONTAINS", "NOT STARTSWITH", "ENDSWITH"]), quoted).map(" ".join)
listed = st.tuples(names, st.sampled_from(["IN", "NOT IN"]), st.lists(quoted, min_size=1, max_size=3)).map(
    lambda parts: f"{parts[0]} {parts[1]} ({', '.join(parts[2])})"
)
known = st.tuples(names, st.sampled_from(["IS NULL", "IS NOT NULL"])).map(" ".join)
single = st.one_of(equal, turned, ordered, between, searched, listed, known, names, st.sampled_from(["TRUE", "NULL"]))
expressions = st.recursive(
    single,
    lambda inner: st.one_of(
        inner.map(lambda text: f"NOT ({text})"),
        st.tuples(inner, st.sampled_from([" AND ", " OR "]), inner).map(lambda parts: "({}{}{})".format(*parts)),
    ),
    max_leaves=5,
)

# --- messages --------------------------------------------------------------------------------------------------------

tags = st.one_of(st.none(), st.sampled_from(["Aa", "BB", "TagA", ""]))
messages = st.lists(st.none() | st.dictionaries(names, st.sampled_from(TEXTS), max_size=5), max_size=12)
edges = st.tuples(st.integers(0, 3), st.integers(0, 3))


def in_a_batch(
    subscription: SubscriptionData, rows: list[dict[str, str] | None], edges: tuple[int, int], beyond: int = 0
) -> pa.RecordBatch:
    """What a window reads for the filter. A batch is a slice of a bigger one, here with strangers at both ends."""
    begin, end = edges
    strangers = [{"price": "7", MessageConst.TAGS: "Aa"}]
    stored = [*strangers * begin, *rows, *strangers * end]
    found = [(properties or {}).get(MessageConst.TAGS) for properties in stored]
    everything = pa.record_batch(
        {
            "tags_code": pa.array([tags_code(tag) + (beyond << 32) for tag in found], pa.int64()),
            "tags": pa.array(found, pa.string()),
            "properties": pa.array(
                [None if row is None else list(row.items()) for row in stored], pa.map_(pa.string(), pa.string())
            ),
        }
    )
    names = filter_columns(subscription)
    return everything.select(names or ["tags"]).slice(begin, len(rows))


def passed(subscription: SubscriptionData, batch: pa.RecordBatch) -> list[bool]:
    found = matching(batch, subscription)
    return [True] * batch.num_rows if found is None else found.tolist()


@settings(max_examples=300)
@given(expression=expressions, rows=messages, edges=edges)
def test_sql92_on_a_batch_is_the_rule_for_each_message(
    expression: str, rows: list[dict[str, str] | None], edges: tuple[int, int]
) -> None:
    subscription = build_subscription_data("T", expression, "SQL92")
    batch = in_a_batch(subscription, rows, edges)
    assert passed(subscription, batch) == [subscription.matches(0, row or {}) for row in rows]


@given(
    expression=st.sampled_from(["*", "Aa", "BB || TagA", "Aa || BB", " "]),
    found=st.lists(tags, max_size=12),
    edges=edges,
    beyond=st.integers(-1, 1),
)
def test_tags_on_a_batch_are_the_rule_for_each_message(
    expression: str, found: list[str | None], edges: tuple[int, int], beyond: int
) -> None:
    subscription = build_subscription_data("T", expression)
    rows: list[dict[str, str] | None] = [{} if tag is None else {MessageConst.TAGS: tag} for tag in found]
    batch = in_a_batch(subscription, rows, edges, beyond)
    assert passed(subscription, batch) == [
        subscription.matches(tags_code(tag), row or {}) for tag, row in zip(found, rows, strict=True)
    ]


def test_many_properties_with_many_values_each_are_told_apart() -> None:
    names = [f"p{n}" for n in range(9)]
    rows: list[dict[str, str] | None] = [
        {name: str(n * (k + 1) % 997) for k, name in enumerate(names)} for n in range(997)
    ]
    subscription = build_subscription_data("T", " AND ".join(f"{name} > 100" for name in names), "SQL92")
    wanted = [subscription.matches(0, row or {}) for row in rows]
    assert passed(subscription, in_a_batch(subscription, rows, (0, 0))) == wanted
    assert 0 < sum(wanted) < len(rows)


@pytest.mark.parametrize(
    ("expression", "kind", "columns"),
    [
        ("*", "TAG", []),
        ("TagA", "TAG", ["tags_code", "tags"]),
        ("TRUE", "SQL92", ["properties"]),
    ],
)
def test_a_filter_reads_only_what_it_compares(expression: str, kind: str, columns: list[str]) -> None:
    assert filter_columns(build_subscription_data("T", expression, kind)) == columns
