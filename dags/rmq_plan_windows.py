"""Consume for all planned groups, together.

**What it does.** Consumes for each group of `$RMQ_SETTINGS` with `schedule = "planned"` what it has not consumed yet, up to
the window's upper bound, in one task: groups without unread messages cost only a look at their offsets, the others share
commits. The XCom `groups` of the task has a row for each group that had work, with its messages and outcomes, also when the
task fails. A group whose queues another run holds, such as a run of its own DAG, is skipped: it consumes in a later run. The
error of a group ends its own work only. When all groups are finished, the task fails and names those with errors.

**The window.** As in the groups' own DAGs: it begins at the committed offset and ends at the parameter `until`, else at the
run's partition key, else at the end of a scheduled run's data interval, else it has no upper bound. `max_messages` applies
to each group.

**Running it again.** A run is one request of each group: if you retry it or clear it, messages are committed once, and
groups that were complete answer `already_committed`.

**When not to use it.** To consume for one group only: trigger the group's own DAG, `rmq_consume__<group>`. For a group that
takes longer than the interval, since the next run begins when all groups are finished: give it a schedule of its own.

It runs on the schedule of the table `[planned]`. Without a planned group there is no such DAG.
"""

from __future__ import annotations

from rmq_store.airflow.dags import LONGEST_RUN, intervals, max_messages, moment, rmq_dag
from rmq_store.airflow.deployment import Deployment
from rmq_store.airflow.operators.consume import RmqConsumePlannedOperator
from rmq_store.errors import WrongUse
from rmq_store.settings.settings import Settings

PARAMS = {"until": moment("Until", "Only messages stored before this time."), "max_messages": max_messages()}


def plan_dag(settings: Settings) -> None:
    """The DAG of the planned groups."""

    @rmq_dag(__doc__, "consume", schedule=intervals(settings.planned_schedule), params=PARAMS)
    def rmq_plan_windows() -> None:
        RmqConsumePlannedOperator(task_id="consume", use_run_params=True, execution_timeout=LONGEST_RUN)

    rmq_plan_windows()


try:
    settings = Deployment.from_env().settings()
except WrongUse:
    pass  # rmq_consume.py reports it
else:
    if settings.planned_groups:
        plan_dag(settings)
