"""Windows and their filters: a window filtered the messages that do not match its subscription, and no others."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

import numpy as np
import pyarrow as pa

from rmq_store.commit.positions import Outcome
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.lake.audit.file_content import PLACE, Expression, FilteredRows, Mask, Numbers, Sums
from rmq_store.lake.audit.finding import OF_OUTCOME, Finding, Problem
from rmq_store.lake.table.tables import queue_of_row
from rmq_store.message.message import MessageQueue


class Filters:
    """The ranges that windows of a shard consumed, and what their filters say of the messages in them."""

    QUERY: ClassVar = """
    SELECT c.shard, c.commit_id, c.group_name, c.pass, c.topic, c.broker_name, c.queue_id, c.begin_offset, c.end_offset,
        c.filtered, c.filtered_hash, t.subscription
    FROM ctl_consumed c JOIN ctl t ON t.shard = c.shard AND t.commit_id = c.commit_id
    WHERE c.action = 'consume' AND t.subscription IS NOT NULL
    """

    def __init__(self, ranges: pa.Table) -> None:
        """``ranges``: the answer to QUERY."""
        self._ranges = ranges.combine_chunks()
        count = len(ranges)
        self._begins: Numbers = ranges.column("begin_offset").to_numpy()
        self._ends: Numbers = ranges.column("end_offset").to_numpy()
        self._counts: Numbers = np.zeros(count, np.int64)
        self._sums: Sums = np.zeros(count, np.uint64)
        self._expressions, self._expression_of = _expressions(self._ranges)
        self._of_queue: dict[MessageQueue, Numbers] = {}
        numbered = ranges.select(list(PLACE)).append_column("number", pa.array(np.arange(count)))
        for row in numbered.group_by(list(PLACE)).aggregate([("number", "list")]).to_pylist():
            queue = queue_of_row(row)
            self._of_queue[queue] = np.array(row["number_list"], np.int64)

    def __len__(self) -> int:
        return len(self._ranges)

    def of_file(self, segments: pa.Table) -> tuple[FilteredRows, ...]:
        """The rows of a file that windows filtered. ``segments``: its segments."""
        parts: dict[int, list[tuple[Numbers, Numbers, Numbers]]] = {}
        for segment in segments.to_pylist():
            numbers = self._of_queue.get(queue_of_row(segment))
            if numbers is None:
                continue
            base, end, first = segment["base_offset"], segment["end_offset"], segment["first_row"]
            begins = np.clip(self._begins[numbers], base, end) - base + first
            ends = np.clip(self._ends[numbers], base, end) - base + first
            of_ranges = self._expression_of[numbers]
            for number in np.unique(of_ranges[(begins < ends) & (of_ranges >= 0)]).tolist():
                kept = (of_ranges == number) & (begins < ends)
                parts.setdefault(number, []).append((begins[kept], ends[kept], numbers[kept]))
        return tuple(
            FilteredRows(self._expressions[number], *map(np.concatenate, zip(*several, strict=True)))
            for number, several in sorted(parts.items())
        )

    def add(self, filtered: Sequence[tuple[Numbers, Numbers, Sums]]) -> None:
        """What a file says of some ranges: their numbers, messages that do not match, hash sums."""
        for numbers, counts, sums in filtered:
            np.add.at(self._counts, numbers, counts)
            np.add.at(self._sums, numbers, sums)

    def not_checked(self, least: Mapping[MessageQueue, int]) -> int:
        """How many ranges have messages that were removed, or a filter that is not known here."""
        return int((~self._checked(least, ())).sum())

    def _checked(self, least: Mapping[MessageQueue, int], failed: Collection[MessageQueue]) -> Mask:
        checked: Mask = self._expression_of != _UNKNOWN
        for queue, numbers in self._of_queue.items():
            checked[numbers] &= (self._begins[numbers] >= least.get(queue, 0)) & (queue not in failed)
        return checked

    def findings(
        self, shard: str, least: Mapping[MessageQueue, int], failed: Collection[MessageQueue]
    ) -> Iterator[Finding]:
        """The ranges that counted other messages as filtered. ``least``: the first offsets of queues. ``failed``: queues with
        messages in a damaged file."""
        recorded = np.asarray(self._ranges.column("filtered").combine_chunks(), np.int64)
        sums = np.asarray(self._ranges.column("filtered_hash").combine_chunks(), np.int64).astype(np.uint64)
        wrong = ((recorded != self._counts) | (sums != self._sums)) & self._checked(least, failed)
        for number in np.flatnonzero(wrong).tolist():
            (row,) = self._ranges.slice(number, 1).to_pylist()
            yield Finding(
                shard=shard,
                problem=Problem.FILTERED_DIFFERS.replace(OF_OUTCOME, Outcome.FILTERED),
                group_name=row["group_name"],
                pass_=row["pass"],
                **{name: row[name] for name in PLACE},
                begin_offset=row["begin_offset"],
                end_offset=row["end_offset"],
                detail=f"the window {row['commit_id']} recorded {row['filtered']:,}, by its filter there are "
                f"{self._counts[number]:,}",
            )


_ALL, _UNKNOWN = -1, -2
"""Instead of the number of an expression: one that every message matches, and one that is not known here."""


def _expressions(ranges: pa.Table) -> tuple[list[Expression], Numbers]:
    """The distinct filters, and for each range the number of its own, _ALL or _UNKNOWN."""
    numbers: dict[Expression, int] = {}
    pairs = ranges.select(["subscription", "topic"]).append_column("number", pa.array(np.arange(len(ranges))))
    of_range = np.full(len(ranges), _UNKNOWN, np.int64)
    for row in pairs.group_by(["subscription", "topic"]).aggregate([("number", "list")]).to_pylist():
        with suppress(
            ValueError, TypeError, AttributeError, RecursionError
        ):  # ``positions.py`` names a text that is no JSON
            recorded = json.loads(row["subscription"]).get(row["topic"])
            of_range[row["number_list"]] = _number_of(row["topic"], recorded, numbers)
    return list(numbers), of_range


def _number_of(topic: str, recorded: Mapping[str, str] | None, numbers: dict[Expression, int]) -> int:
    if recorded is None:  # a retry topic: all of its messages match
        return _ALL
    ((kind, text),) = recorded.items()
    try:
        subscription = build_subscription_data(topic, text, kind)
    except WrongUse:
        return _UNKNOWN
    return _ALL if subscription.takes_all else numbers.setdefault(Expression(topic, kind, text), len(numbers))
