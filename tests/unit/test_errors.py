"""Errors come from Spark's workers to the driver in pickled form."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from rmq_store.errors import (
    DamagedBehindCut,
    DamagedRecord,
    LogDamaged,
    RecordError,
    RmqError,
    UnsupportedRecord,
    clause,
)
from rmq_store.filter.sql92_parser import InvalidSelector, TooDeep
from rmq_store.filter.sql92_values import EvaluationError
from rmq_store.lake.table.shard import UnknownRecord
from rmq_store.lake.table.shard_entry import DescriptionDamaged, ShardOfAnother

ARGUMENTS: dict[type[RmqError], tuple[object, ...]] = {
    RecordError: ("commitlog/0", 17, 1017, "{it} is not good"),
    DamagedBehindCut: ("commitlog/0", 17, 1017, "BODYCRC is wrong"),
    DamagedRecord: ("commitlog/0", 17, 1017, "BODYCRC is wrong"),
    UnsupportedRecord: ("commitlog/0", 17, 1017, "it is an inner batch"),
    InvalidSelector: ("a >", 3, "it ends too early"),
    TooDeep: ("((((", 3),
    EvaluationError: ("ClassCastException", "a text is no number"),
    DescriptionDamaged: ("it is gone", "store.json"),
    ShardOfAnother: ("it is a copy", "shards/broker-a.json"),
    UnknownRecord: ("its action is unknown", "broker-a", "kind=ctl/1.parquet"),
}


def kinds(parent: type[RmqError] = RmqError) -> Iterator[type[RmqError]]:
    yield parent
    for child in parent.__subclasses__():
        yield from kinds(child)


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
def test_every_error_is_the_same_behind_a_process_border(kind: type[RmqError]) -> None:
    error = kind(*ARGUMENTS.get(kind, ("what is wrong",)))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (kind, str(error), vars(error))
    assert str(pickle.loads(pickle.dumps(copy))) == str(error)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("not a parquet file.", "not a parquet file"), ("it is cut", "it is cut"), ("v1.2.\n", "v1.2")],
)
def test_a_sentence_goes_on_with_the_text_of_an_error(text: str, expected: str) -> None:
    assert clause(OSError(text)) == expected
    damage = LogDamaged(text)
    assert (damage.facts, str(damage)) == (expected, f"{expected}. Restore it from a backup.")
