"""What the first task of a run shows, and what the tasks after it take from there: they do what was shown."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import timedelta
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rmq_store.airflow.assets import PREVIEWS, previews_asset
from rmq_store.airflow.task import NOTHING_TO_DO, Answer
from rmq_store.commit.request import Status
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.utils.suggestions import did_you_mean

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rmq_store.lake.table.shard import Shard

PREVIEW = "preview"
"""The XCom with what a run is going to do: ``text``, a row per queue in ``queues``, ``shards``, ``offsets``, and ``notes``. An
approval has the one that it lets pass. Users may write XComs: a task reads it only with its ``Record``."""


class Preview(NamedTuple):
    """What a dry run has shown."""

    facts: Answer
    """The XCom ``preview``. Empty: there is none, since nothing was to do, or the task that acts names no task that shows."""
    nothing_to_do: str | None = None
    """Why nothing was to do; None: something was."""

    @classmethod
    def of_task(cls, context: Context, task_id: str, records: Records | None = None) -> Preview:
        """What the task with this id has shown in this run, or, of an approval, let pass.

        Raises WrongUse where it has done neither, as a task that a person marked as success, and where its XComs are not what
        it has recorded: then no person has seen what the run is going to do.

        :param records: Those of the run; None reads them.
        """
        ti = context["ti"]
        facts, nothing = (ti.xcom_pull(task_ids=task_id, key=key) for key in (PREVIEW, NOTHING_TO_DO))
        if any(isinstance(value, Sequence) and not isinstance(value, str) for value in (facts, nothing)):
            raise WrongUse(f"the task {task_id} is mapped: what is shown and approved must be that of one task")
        if (facts is None and nothing is None) or not isinstance(facts, dict | None):
            raise _nothing_shown(task_id)
        shown = cls(facts or {}, nothing)
        recorded = (Records.of_run(context) if records is None else records).newest(task_id)
        if recorded is None or recorded.seal != shown.seal(context):
            raise _nothing_shown(task_id)
        return shown

    @classmethod
    def of_approvals(cls, context: Context, task_id: str, approvals: Sequence[str]) -> Preview:
        """What the task with this id has shown; where there are approvals of it, what all of these let pass.

        Raises WrongUse as ``of_task``, where an approval is older than what the task shows now, and where they are not of the
        same preview.
        """
        records = Records.of_run(context)
        shown = cls.of_task(context, task_id, records)
        if not approvals:
            return shown
        first, *others = [cls.of_task(context, approval, records) for approval in approvals]
        for approval in approvals:
            if records.is_older(approval, task_id):
                raise _nothing_shown(approval)
        if any(other != first for other in others):
            raise WrongUse(
                f"{' and '.join(approvals)} have approved different previews: trigger a new run. Nothing was done"
            )
        return first

    def record(self, context: Context) -> None:
        """Record it as what the current task shows or lets pass."""
        _record(context, {_SEAL: self.seal(context)})

    def let_pass(self, context: Context) -> None:
        """Have it as what the current task, an approval, lets the next ones do."""
        for key, value in ((PREVIEW, self.facts or None), (NOTHING_TO_DO, self.nothing_to_do)):
            if value is not None:
                context["ti"].xcom_push(key, value)
        self.record(context)

    def seal(self, context: Context) -> str:
        """64 hexadecimal digits that are others for another preview and for another run."""
        run = context["dag_run"]
        named = [run.dag_id, run.run_id, run.run_after.isoformat(), run.conf or {}, self.facts, self.nothing_to_do]
        return sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()

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


class Record(NamedTuple):
    """What a task of the run has said when it succeeded."""

    task_id: str
    seal: str | None
    """That of what it has shown or let pass; None: it is an approval that was rejected."""


class Records(tuple[Record, ...]):
    """The records of a run, oldest first: events of an asset. Users may write XComs, and mark a task as success; no user can
    write an event that has a task as its source."""

    @classmethod
    def of_run(cls, context: Context) -> Records:
        """Ask Airflow for those of this run."""
        from airflow.sdk.execution_time.context import InletEventsAccessors

        ti, asset = context["ti"], previews_asset(context["ti"].dag_id)
        events = InletEventsAccessors([asset])[asset].after((context["dag_run"].run_after - _CLOCKS).isoformat())
        return cls(
            Record(event.source_task_id, cast("str | None", (event.extra or {}).get(_SEAL)))
            for event in sorted(events, key=attrgetter("id"))  # not by times, which several hosts give
            if event.source_task_id is not None
            and (event.source_dag_id, event.source_run_id, event.source_map_index) == (ti.dag_id, ti.run_id, -1)
        )

    def newest(self, task_id: str) -> Record | None:
        """The newest one of a task."""
        return next((record for record in reversed(self) if record.task_id == task_id), None)

    def is_older(self, task_id: str, than: str) -> bool:
        """Whether the newest one of a task is older than that of another task. Both have some."""
        tasks = [record.task_id for record in reversed(self)]
        return tasks.index(task_id) > tasks.index(than)


def record_rejection(context: Context) -> None:
    """Record that the current task, an approval, lets nothing pass."""
    _record(context, {_SEAL: None})


def _record(context: Context, extra: Answer) -> None:
    context["outlet_events"][PREVIEWS].add(previews_asset(context["ti"].dag_id), extra)


_SEAL = "seal"
_CLOCKS = timedelta(hours=1)
"""How far the clocks of Airflow's hosts may differ."""


def check_comes_before(task_id: str, before: Collection[str]) -> None:
    """Raise WrongUse unless the task that is to show what is done is one of those before the current one."""
    if task_id not in before:
        raise WrongUse(
            f"preview is {task_id!r}{did_you_mean(task_id, sorted(before))}: no task with this id comes before this one in the "
            "DAG. Nothing was done"
        )


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
