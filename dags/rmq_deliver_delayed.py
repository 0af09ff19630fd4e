"""Deliver retries and delayed messages that are due to their topics.

**What it does.** Copies the retries and delayed messages that are due by this host's clock to their topics, from all
delay levels and the timer, oldest first, in one commit per shard (in several if more than 100,000 messages are due).
Messages are never delivered early, and usually within one interval of the schedule.

**Running it again.** A message is delivered once. A run that finds nothing due commits nothing and starts no JVM.

**When not to use it.** To retry a message before its delay is over: the delay is part of RocketMQ's rules.

Runs every minute (`$RMQ_DELIVER_SCHEDULE`). Triggering it manually is harmless.
"""

from __future__ import annotations

from rmq_store.airflow.dags import rmq_dag, ticks
from rmq_store.airflow.operators.deliver import RmqDeliverDelayedOperator
from rmq_store.settings.environment import Environment


@rmq_dag(__doc__, "retry", schedule=ticks(Environment.read().deliver_schedule))
def rmq_deliver_delayed() -> None:
    RmqDeliverDelayedOperator(task_id="deliver", use_run_params=True)


rmq_deliver_delayed()
