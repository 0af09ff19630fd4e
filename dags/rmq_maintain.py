"""Maintain the tables: remove old messages, join small files, write checkpoints, delete what nothing names.

**What it does.** `retention` removes old messages by the tables `[[retention]]` of the settings; without them it does nothing.
`messages` joins the small files of the commit log, `derived` those of `consumequeue`, `offsets` and `commits`, `checkpoint`
writes a checkpoint of each table and deletes the log entries that no process needs, and `vacuum` deletes the data files that no
version names and that are two days old: replaced ones, and those of runs that never committed. The answers say for each table
how many files it had and has.

**Running it again.** Each task does what is left to do; right after a run that is nothing. A task that is tried again, or
cleared, also says what its run has committed before. Windows, imports and queries run beside it, and none of them is overtaken.

**When not to use it.** To remove single messages: retention removes the oldest ones of a topic.

Runs once a day (`$RMQ_MAINTAIN_SCHEDULE`, UTC). Triggering it manually is harmless.
"""

from __future__ import annotations

from airflow.sdk import chain

from rmq_store.airflow.dags import rmq_dag, ticks
from rmq_store.airflow.operators.maintain import RmqMaintainOperator
from rmq_store.settings.environment import Environment

STEPS = ("retention", "messages", "derived", "checkpoint", "vacuum")


@rmq_dag(__doc__, "admin", schedule=ticks(Environment.read().maintain_schedule))
def rmq_maintain() -> None:
    chain(*[RmqMaintainOperator(task_id=step, step=step, use_run_params=True) for step in STEPS])


rmq_maintain()
