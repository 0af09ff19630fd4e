"""Deliver what is due: messages that wait in a delay level go to the topic they are meant for.

**What it does.** Over all levels and shards, oldest first, what is due by this host's clock is moved in one commit per
shard (more when very much is due). Never early; typically within one tick of the schedule.

**Again.** What was delivered is not delivered twice. A run that finds nothing due commits nothing and starts no JVM.

**When not to use it.** To hand a retry to its group at once: a level's delay is part of RocketMQ's rules, wait for it.

Runs every minute (`$RMQ_DELIVER_SCHEDULE`). Triggering it by hand is harmless.
"""

from __future__ import annotations

from airflow.sdk import task
from rmq_dags import rmq_dag, ticks
from rmq_deployment import Deployment
from rmq_operators import Answer, deliver_due


@rmq_dag(__doc__, "retry", schedule=ticks(Deployment.from_env().deliver_schedule))
def rmq_deliver_delayed() -> None:
    @task
    def deliver() -> list[Answer]:
        return deliver_due()

    deliver()


rmq_deliver_delayed()
