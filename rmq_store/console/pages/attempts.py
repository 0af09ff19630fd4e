"""Two attempts of a replay side by side."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rmq_store.admin.diff import AttemptDone, DiffReport
from rmq_store.commit.positions import Outcome

MOST_DIFFERENT = 200
"""Messages that are listed; all are counted."""


def diff_document(report: DiffReport) -> dict[str, Any]:
    """The comparison in one shard: both attempts, the number of messages per pair of outcomes, and those that differ."""
    return {
        "shard": report.shard,
        "attempts": [_attempt(one) for one in (report.first, report.second)],
        "table": [
            {"first": pair.first, "second": pair.second, "messages": pair.messages, "differing": pair.differing}
            for pair in report.table
        ],
        "rows": [
            {
                "topic": one.queue.topic,
                "broker_name": one.queue.broker_name,
                "queue_id": one.queue.queue_id,
                "queue_offset": one.offset,
                **one.named._asdict(),
                "first": asdict(one.first),
                "second": asdict(one.second),
            }
            for one in report.listed
        ],
    }


def _attempt(attempt: AttemptDone) -> dict[str, Any]:
    begun = attempt.begun
    return {
        "attempt": attempt.number,
        "begun_at": begun and begun.store_timestamp,
        "actor": begun and begun.actor.name,
        "reason": begun and begun.reason,
        "complete": attempt.complete,
        "outcomes": {str(outcome): attempt.count(outcome) for outcome in Outcome if attempt.count(outcome)},
    }
