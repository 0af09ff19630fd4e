"""What a staged file's statistics say of its rows."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from rmq_store.lake.table.stage import statistics


@pytest.mark.parametrize("rest", ["", "x", "\U0010ffff", "\U0010ffffx", "\U0010ffff" * 3], ids=ascii)
@pytest.mark.parametrize("least", ["a", "a" * 40])
def test_no_text_lies_outside_the_bounds_of_its_file(least: str, rest: str) -> None:
    values = [least, "b" * 32 + rest]
    told = json.loads(statistics(pa.table({"request_id": values}), ["request_id"]))
    bounds = [told["minValues"]["request_id"], *values, told["maxValues"]["request_id"]]
    assert bounds == sorted(bounds)


def test_a_text_that_was_cut_does_not_look_like_the_only_value() -> None:
    told = json.loads(statistics(pa.table({"request_id": ["b" * 32 + "\U0010ffffx"]}), ["request_id"]))
    assert told["minValues"] != told["maxValues"]
