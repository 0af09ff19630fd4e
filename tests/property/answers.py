"""What a listener of a random history says: every form of answer, concurrent and in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rmq_store.consumer.listener import ConsumeFailed


@dataclass(frozen=True)
class Says:
    """``form``: how a concurrent listener answers; ``k``: the ackIndex, the failing message or the pattern of statuses;
    ``status``, ``auto_commit``: how one answers in order."""

    form: str
    k: int
    level: int
    status: str
    auto_commit: bool

    def verdicts(self, n: int, all_or_nothing: bool) -> list[bool]:
        """Whether each of ``n`` messages has succeeded."""
        pattern = [bool(self.k >> (i % 4) & 1) for i in range(n)]
        match self.form:
            case "success":
                return [True] * n
            case "ack_index":
                return [i <= self.k for i in range(n)]
            case "list" | "yield":
                return pattern
            case "fails_at" | "yield_fails" if not all_or_nothing:
                before = pattern if self.form == "yield_fails" else [True] * n
                return [before[i] and i < self.k % n for i in range(n)]
            case _:
                return [False] * n

    def answer(self, n: int, context: Any) -> Any:
        context.delay_level_when_next_consume = self.level
        statuses = ["CONSUME_SUCCESS" if ok else "RECONSUME_LATER" for ok in self.verdicts(n, False)]
        match self.form:
            case "success":
                return "CONSUME_SUCCESS"
            case "ack_index":
                context.ack_index = self.k
                return "CONSUME_SUCCESS"
            case "list":
                return statuses
            case "yield":
                return (status for status in statuses)
            case "fails_at":
                raise ConsumeFailed(self.k % n, ValueError("no price"))
            case "yield_fails":
                return self._yield(statuses[: self.k % n])
            case "raises":
                raise RuntimeError("no database")
            case "none":
                return None
            case _:
                return "RECONSUME_LATER"

    @staticmethod
    def _yield(statuses: Sequence[str]) -> Iterator[str]:
        yield from statuses
        raise ValueError("no price")


ALL_WELL = Says("success", 0, 0, "SUCCESS", True)
