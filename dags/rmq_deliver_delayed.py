"""Deliver retries and delayed messages that are due to their topics.

**What it does.** Copies the retries and delayed messages that are due by this host's clock to their topics, from all
delay levels and the timer, oldest first, in one commit per shard (in several if more than 100,000 messages are due).
Messages are never delivered early, and usually within one interval of the schedule.

**Running it again.** A message is delivered once. A run that finds nothing due commits nothing and starts no JVM.

**When not to use it.** To retry a message before its delay is over: the delay is part of RocketMQ's rules.

Runs every minute (`$RMQ_DELIVER_SCHEDULE`). Triggering it manually is harmless.
"""

from __future__ import annotations

from airflow.sdk import task
from rmq_dags import rmq_dag, ticks
from rmq_deployment import Deployment
from rmq_store_tasks import deliver_due
from rmq_task import Answer


@rmq_dag(__doc__, "retry", schedule=ticks(Deployment.from_env().deliver_schedule))
def rmq_deliver_delayed() -> None:
    @task
    def deliver() -> list[Answer]:
        return deliver_due()

    deliver()


rmq_deliver_delayed()
