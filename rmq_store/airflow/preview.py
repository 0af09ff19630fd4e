"""What the first task of a run shows, and what the tasks after it take from there: they do what was shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from airflow.sdk.definitions.mappedoperator import MappedOperator

from rmq_store.airflow.assets import previews_asset, report
from rmq_store.airflow.task import NOTHING_TO_DO, Answer
from rmq_store.commit.request import Status, differences
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.utils.redaction import shortened
from rmq_store.utils.suggestions import did_you_mean

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import Operator

    from rmq_store.lake.table.shard import Shard

PREVIEW = "preview"
"""The XCom with what a run is going to do: ``text``, a row per queue in ``queues``, ``shards``, ``offsets``, ``notes``, and
all that decides it (``Preview.check``). An approval has the one that it lets pass. Users may write XComs: a task reads it only
with its ``Record``."""


class Preview(NamedTuple):
    """What a dry run has shown."""

    facts: Answer
    """The XCom ``preview``. Empty: there is none, since nothing was to do, or the task that acts names no task that shows."""
    nothing_to_do: str | None = None
    """Why nothing was to do; None: something was."""
    is_approved: bool = False
    """Whether the run asks for an approval of it: a task then does exactly this, or fails."""

    @classmethod
    def of_task(cls, context: Context, task_id: str, records: Records | None = None) -> Preview:
        """What the task with this id has shown in this run, or, of an approval, let pass.

        Raises WrongUse where it has done neither, as a task that a person marked as success, and where its XComs are not what
        it has recorded: then no person has seen what the run is going to do.

        :param records: Those of the run; None reads them.
        """
        ti = context["ti"]
        facts, nothing = (ti.xcom_pull(task_ids=task_id, key=key) for key in (PREVIEW, NOTHING_TO_DO))
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

    def check_place(self, now: Mapping[str, Any]) -> None:
        """Raise WrongUse where a task is about to act on another store or group than was shown, with or without an approval.

        :param now: The task's ``act_facts``.
        """
        place = {name: now[name] for name in _PLACE}
        if self.facts and (different := differences(self.facts, place)):
            raise WrongUse(
                f"what was shown is not what this task would do now: shown was {shortened(different, _LONGEST_DIFFERENCE)}. "
                "Nothing was done: clear the task that showed it with its downstream tasks, or trigger a new run. Both must "
                "have the same group and request_name, and connections of the same store"
            )

    def check(self, now: Mapping[str, Any], *, is_committed: bool = False) -> None:
        """Raise WrongUse where a task is about to do something else than was approved.

        :param now: What decides what the task does, by the names of the preview: each must have the value that was shown.
        :param is_committed: Whether the task only finds what it has committed: the requests of others may have come since.
        """
        if is_committed:
            now = {name: value for name, value in now.items() if name != "other_requests"}
        if self.is_approved and self.facts and (different := differences(self.facts, now)):
            raise WrongUse(
                "what was approved is not what this task would do now: approved was "
                f"{shortened(different, _LONGEST_DIFFERENCE)}. It does not do this: trigger a new run. The arguments of both "
                "tasks must be the same, also those from templates"
            )

    @property
    def is_to_do(self) -> bool:
        """Whether it has shown something that is still to be done."""
        is_new = self.facts.get("status") != Status.ALREADY_COMMITTED
        return bool(self.facts) and (is_new or bool(self.facts.get("to_finish")))

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that are others for another preview: the text may be the same where the offsets are not."""
        return sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:16]

    def offsets(self, shard: Shard, topics: Sequence[str], name: str = "offsets") -> dict[MessageQueue, int] | None:
        """The offsets that it has shown in a shard under this name, of queues of these topics; None: it has shown none."""
        if name not in self.facts:
            return None
        shown = self.facts[name].get(shard.name, {})
        positions = shard.positions()
        queues = [queue for topic in topics for queue in positions.queues_of(topic)]
        return {queue: shown[queue.label] for queue in queues if queue.label in shown}


def shards_mapped(shown: Sequence[str], index: int, shard: str, count: int) -> list[str]:
    """The shards of ``count`` mapped tasks, as the one with this index, which has ``shard``, knows them. Each of the others
    compares its own, so together they have those that were ``shown`` if each finds these. A task that is not mapped has the
    index -1, and knows of no others."""
    if index < 0:
        return [*shown] if shard in shown else [shard]
    return [shard if at == index else shown[at] if at < len(shown) else "?" for at in range(count)]


def mapped_count(context: Context, task_id: str) -> int:
    """How many mapped tasks with this id the run has. Airflow keeps those of an earlier try that had more, as removed."""
    return sum(name != task_id and state != "removed" for name, state in _states(context, [task_id]).items())


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
    report(context, previews_asset(context["ti"].dag_id), extra)


_PLACE = ("store", "group")
"""What a task and the one that showed it have in common, also without an approval: a time such as "an hour ago" is another one
by now, and the offsets that were shown hold for it."""
_SEAL = "seal"
_CLOCKS = timedelta(hours=1)
"""How far the clocks of Airflow's hosts may differ."""
_LONGEST_DIFFERENCE = 2000
"""The most characters of an error that say what differs."""


def check_comes_before(task_id: str, before: Mapping[str, Operator]) -> None:
    """Raise WrongUse unless the task that is to show what is done is one of those before the current one, and runs once."""
    if task_id not in before:
        raise WrongUse(
            f"preview is {task_id!r}{did_you_mean(task_id, sorted(before))}: no task with this id comes before this one in the "
            "DAG. Nothing was done"
        )
    check_runs_once(before[task_id])


def check_runs_once(task: Operator) -> None:
    """Raise WrongUse for a task that shows or approves and is mapped, alone or with its task group: what it has shown would be
    several things."""
    alone = isinstance(task, MappedOperator)
    if alone or task.get_closest_mapped_task_group() is not None:
        raise WrongUse(
            f"the task {task.task_id} is {'mapped' if alone else 'in a mapped task group'}: what is shown and approved must be "
            "that of one task. Make a DAG with these tasks, and trigger a run of it for each. Nothing was done"
        )


def check_ended(context: Context, task_ids: Sequence[str]) -> None:
    """Raise WrongUse unless all of these tasks have succeeded since they were cleared: Airflow keeps the XComs of a task that
    was cleared until it starts again."""
    states = _states(context, task_ids)
    for task_id in task_ids:
        if states.get(task_id) != "success":
            raise _nothing_shown(task_id)


def _states(context: Context, task_ids: Sequence[str]) -> dict[str, Any]:
    """The states of these tasks of the run; the name of a mapped one is its id, an underscore and its index."""
    ti = context["ti"]
    states: dict[str, dict[str, Any]] = ti.get_task_states(
        dag_id=ti.dag_id, task_ids=list(task_ids), run_ids=[ti.run_id]
    )
    return states.get(ti.run_id, {})


def _nothing_shown(task_id: str) -> WrongUse:
    return WrongUse(
        f"the task {task_id} of this run has shown or approved nothing: clear it with its downstream tasks. Nothing was done"
    )


def labelled(offsets: Mapping[MessageQueue, int]) -> dict[str, int]:
    """The offsets of some queues as ``offsets_of`` has those of a shard."""
    return {queue.label: offset for queue, offset in offsets.items()}


def offsets_of(rows: Sequence[Answer], column: str) -> dict[str, dict[str, Any]]:
    """By shard, and by queue as in ``offsets`` of a window's answer, the value of a column of a preview's rows."""
    offsets: dict[str, dict[str, Any]] = {}
    for row in rows:
        queue = MessageQueue(row["topic"], row["broker_name"], row["queue_id"])
        offsets.setdefault(row["shard"], {})[queue.label] = row[column]
    return offsets
