"""Consume for one group, window by window.

**What it does.** Looks in every shard for messages that the group has not consumed yet, up to the window's upper bound,
and consumes them: allocate, pull, filter, the group's listener, retries and dead letters, all committed together with
the offsets. If there is nothing to consume, the run succeeds after its first task and starts no JVM; the XCom
`nothing_to_do` says why. A scheduled run also succeeds when the topic does not exist yet; a run that a person triggered
fails and names the topic.

**The window.** It always begins at the committed offset. It ends before the first message that was stored at or after a
time: the parameter `until`; if it is empty, the run's partition key; if there is none, the end of its data interval.
Without any of these it has no upper bound. A run with a logical date has a data interval, the last complete one: to
consume everything, trigger without a logical date.

**Running it again.** A run is one request: if you retry it, clear it or run it twice, its messages are committed once.
A cleared run that was complete answers `already_committed`.

**When not to use it.** To consume messages a second time: `rmq_replay` does that under a replay group, and
`rmq_reset_offset` moves the group's own offsets. Airflow's backfill is refused: a window begins at the committed
offset, so a backfill would do nothing.

There is one such DAG for each group in `$RMQ_SETTINGS`. You may trigger it manually at any time. It has no schedule if the
group is planned: `rmq_plan_windows` then consumes for it.
"""

from __future__ import annotations

from airflow.sdk import get_parsing_context

from rmq_store.admin.dag_params import dag_id_of
from rmq_store.airflow.consume_group import consume_group
from rmq_store.airflow.dags import intervals, max_messages, moment, optional, rmq_dag
from rmq_store.airflow.deployment import Deployment
from rmq_store.settings.settings import GroupSettings


def consume_dag(group: GroupSettings) -> None:
    """The DAG of one group."""
    params = {
        "until": moment("Until", "Only messages stored before this time."),
        "max_messages": max_messages(),
        "client": optional("Client", "This run's client id, if several clients share the group's queues."),
        "clients": optional("Clients", "The ids of all clients of the group that run now, separated by commas."),
    }

    @rmq_dag(__doc__, "consume", dag_id=dag_id_of(group.name), schedule=intervals(group.own_schedule), params=params)
    def consume() -> None:
        consume_group(group.name, use_run_params=True)

    consume()


parsed_dag_id = get_parsing_context().dag_id
"""The DAG whose task this process runs; None when Airflow reads all DAGs."""

for settings in Deployment.from_env().settings().groups:
    if parsed_dag_id in (None, dag_id_of(settings.name)):
        consume_dag(settings)
