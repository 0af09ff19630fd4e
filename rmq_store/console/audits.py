"""The view ``audit`` for pages: it compares all commits with their rows, which takes seconds, so its answer is kept."""

from __future__ import annotations

from threading import Lock
from typing import Any

from rmq_store.console.listing import Question
from rmq_store.console.reader import StoreReader
from rmq_store.utils.host import Host

MOST_FINDINGS = 1000
KEPT_MS = 10 * 60_000
"""After this time the first reader waits for a new answer."""
LEAST_MS = 30_000
"""For so long an answer is kept also when a user asks for a new one."""

_FINDINGS = Question(
    "SELECT *, count(*) OVER () AS total FROM audit"
    " ORDER BY shard, group_name, topic, broker_name, queue_id, begin_offset, problem LIMIT $most",
    {"most": MOST_FINDINGS},
)


class Audits:
    """The newest answer. One thread at a time makes one; the others wait for it."""

    def __init__(self, reader: StoreReader, host: Host | None = None) -> None:
        self._reader = reader
        self._host = host or Host()
        self._lock = Lock()
        self._answer: dict[str, Any] | None = None

    def newest(self, *, again: bool = False) -> dict[str, Any]:
        """``rows`` (at most ``MOST_FINDINGS``), their number ``total``, and ``checked_at``, UTC ms."""
        with self._lock:
            age = KEPT_MS if self._answer is None else self._host.now_ms() - self._answer["checked_at"]
            if self._answer is None or age >= (LEAST_MS if again else KEPT_MS):
                (rows,) = self._reader.rows(_FINDINGS)
                total = rows[0].pop("total") if rows else 0
                for row in rows[1:]:
                    del row["total"]
                self._answer = {"checked_at": self._host.now_ms(), "total": total, "rows": rows}
            return self._answer
