"""Deliver retries and delayed messages that are due to their topics.

**What it does.** Copies the retries and delayed messages that are due by this host's clock to their topics, from all
delay levels and the timer, oldest first, in one commit per shard (in several if more than 100,000 messages are due).
Messages are never delivered early. A watcher in the triggerer starts a run when something becomes due, so that an idle
Airflow delivers it within ten seconds. It sees new messages after `$RMQ_DELIVER_POLL` (`5s`) at the latest.

A shard that fails does not stop the others: the run fails once all were tried, and its note says what was delivered.
The next run of the schedule that succeeds starts the retry windows that a failed one could not.

**Running it again.** A message is delivered once. A run that finds nothing due commits nothing and starts no JVM.

**When not to use it.** To retry a message before its delay is over: the delay is part of RocketMQ's rules.

It also runs every minute (`$RMQ_DELIVER_SCHEDULE`), in case the triggerer does not run or a delivery fails; empty, it has
neither schedule nor watcher. One run at a time: what becomes due during a run is delivered by it or by the next one.
Triggering it manually is harmless.
"""

from __future__ import annotations

from rmq_store.airflow.dags import rmq_dag, when_due
from rmq_store.airflow.operators.deliver import RmqDeliverDelayedOperator
from rmq_store.settings.environment import Environment
from rmq_store.utils.times import parse_duration

environment = Environment.read()


@rmq_dag(
    __doc__, "retry", schedule=when_due(environment.deliver_schedule, parse_duration(environment.deliver_poll) / 1000)
)
def rmq_deliver_delayed() -> None:
    RmqDeliverDelayedOperator(task_id="deliver", use_run_params=True)


rmq_deliver_delayed()
