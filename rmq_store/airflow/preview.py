"""What the first task of a run shows, and what the tasks after it take from there: they do what was shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from rmq_store.airflow.task import NOTHING_TO_DO, Answer
from rmq_store.commit.request import Status
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rmq_store.lake.table.shard import Shard

PREVIEW = "preview"
"""The XCom with what a run is going to do: ``text``, a row per queue in ``queues``, ``shards``, ``offsets``, and ``notes``. An
approval has the one that it lets pass."""


class Preview(NamedTuple):
    """What a dry run has shown."""

    facts: Answer
    """The XCom ``preview``. Empty: there is none, since nothing was to do, or the task that acts names no task that shows."""
    nothing_to_do: str | None = None
    """Why nothing was to do; None: something was."""

    @classmethod
    def of_task(cls, context: Context, task_id: str) -> Preview:
        """What the task with this id has shown in this run, or, of an approval, let pass.

        Raises WrongUse where it has done neither, as a task that a person marked as success: then no person has seen what the
        run is going to do.
        """
        ti = context["ti"]
        facts, nothing = (ti.xcom_pull(task_ids=task_id, key=key) for key in (PREVIEW, NOTHING_TO_DO))
        if facts is None and nothing is None:
            raise _nothing_shown(task_id)
        return cls(facts or {}, nothing)

    @classmethod
    def of_tasks(cls, context: Context, task_ids: Sequence[str]) -> Preview:
        """What all of these tasks have shown or let pass. Raises WrongUse as ``of_task``, and where it is not the same."""
        first, *others = [cls.of_task(context, task_id) for task_id in task_ids]
        if any(other != first for other in others):
            raise WrongUse(
                f"{' and '.join(task_ids)} have approved different previews: trigger a new run. Nothing was done"
            )
        return first

    @staticmethod
    def withdraw(context: Context, task_id: str) -> None:
        """Take back what the task with this id, an approval, lets the next ones do."""
        from airflow.sdk.execution_time.xcom import XCom

        ti = context["ti"]
        for key in (PREVIEW, NOTHING_TO_DO):
            XCom.delete(key, task_id, ti.dag_id, ti.run_id)

    def let_pass(self, context: Context) -> None:
        """Have it as what the current task, an approval, lets the next ones do."""
        for key, value in ((PREVIEW, self.facts or None), (NOTHING_TO_DO, self.nothing_to_do)):
            if value is not None:
                context["ti"].xcom_push(key, value)

    @property
    def is_to_do(self) -> bool:
        """Whether it has shown something that is still to be done."""
        is_new = self.facts.get("status") != Status.ALREADY_COMMITTED
        return bool(self.facts) and (is_new or bool(self.facts.get("to_finish")))

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that are others for another preview: the text may be the same where the offsets are not."""
        return sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:16]

    def offsets(self, shard: Shard, topics: Sequence[str]) -> dict[MessageQueue, int] | None:
        """The offsets that it has shown in a shard, of queues of these topics; None: it has shown no offsets at all."""
        if "offsets" not in self.facts:
            return None
        shown = self.facts["offsets"].get(shard.name, {})
        positions = shard.positions()
        queues = [queue for topic in topics for queue in positions.queues_of(topic)]
        return {queue: shown[queue.label] for queue in queues if queue.label in shown}


def check_ended(context: Context, task_ids: Sequence[str]) -> None:
    """Raise WrongUse unless all of these tasks have succeeded since they were cleared: Airflow keeps the XComs of a task that
    was cleared until it starts again."""
    ti = context["ti"]
    states = ti.get_task_states(dag_id=ti.dag_id, task_ids=list(task_ids), run_ids=[ti.run_id]).get(ti.run_id, {})
    for task_id in task_ids:
        if states.get(task_id) != "success":
            raise _nothing_shown(task_id)


def _nothing_shown(task_id: str) -> WrongUse:
    return WrongUse(
        f"the task {task_id} of this run has shown or approved nothing: clear it with its downstream tasks. Nothing was done"
    )


def offsets_of(rows: Sequence[Answer], column: str) -> dict[str, dict[str, Any]]:
    """By shard, and by queue as in ``offsets`` of a window's answer, the value of a column of a preview's rows."""
    offsets: dict[str, dict[str, Any]] = {}
    for row in rows:
        queue = MessageQueue(row["topic"], row["broker_name"], row["queue_id"])
        offsets.setdefault(row["shard"], {})[queue.label] = row[column]
    return offsets
