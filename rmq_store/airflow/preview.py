"""What the first task of a run shows, and what the tasks after it take from there: they do what was shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rmq_store.airflow.task import NOTHING_TO_DO, Answer
from rmq_store.commit.request import Status
from rmq_store.message.message import MessageQueue

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rmq_store.lake.table.shard import Shard

PREVIEW = "preview"
"""The XCom with what a run is going to do: ``text``, a row per queue in ``queues``, ``offsets``, and ``notes``."""


class Preview(NamedTuple):
    """What a dry run has shown."""

    facts: Answer
    """The XCom ``preview``. Empty: there is none, since nothing was to do, the request was committed before, or no task has
    shown anything."""
    nothing_to_do: str | None = None
    """Why nothing was to do; None: something was."""

    @classmethod
    def of_task(cls, context: Context, task_id: str | None) -> Preview:
        """What the task with this id has shown in this run. None: no task has."""
        if task_id is None:
            return cls({})
        ti = context["ti"]
        facts, nothing = (ti.xcom_pull(task_ids=task_id, key=key) for key in (PREVIEW, NOTHING_TO_DO))
        return cls(facts or {}, nothing)

    @property
    def is_to_do(self) -> bool:
        """Whether it has shown something that is still to be done."""
        return bool(self.facts) and self.facts.get("status") != Status.ALREADY_COMMITTED

    def offsets(self, shard: Shard, topics: Sequence[str]) -> dict[MessageQueue, int] | None:
        """The offsets that it has shown in a shard, of queues of these topics; None: it has shown none there."""
        shown = self.facts.get("offsets", {}).get(shard.name)
        if shown is None:
            return None
        positions = shard.positions()
        queues = [queue for topic in topics for queue in positions.queues_of(topic)]
        return {queue: shown[queue.label] for queue in queues if queue.label in shown}


def offsets_of(rows: Sequence[Answer], column: str) -> dict[str, dict[str, Any]]:
    """By shard, and by queue as in ``offsets`` of a window's answer, the value of a column of a preview's rows."""
    offsets: dict[str, dict[str, Any]] = {}
    for row in rows:
        queue = MessageQueue(row["topic"], row["broker_name"], row["queue_id"])
        offsets.setdefault(row["shard"], {})[queue.label] = row[column]
    return offsets
