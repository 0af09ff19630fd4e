"""Consume for one group, window by window.

**What it does.** Looks in every shard for messages that the group has not consumed yet, up to the window's upper bound,
and consumes them: allocate, pull, filter, the group's listener, retries and dead letters, all committed together with
the offsets. If there is nothing to consume, the run succeeds after its first task and starts no JVM; the XCom
`nothing_to_do` says why. A scheduled run also succeeds when the topic does not exist yet; a run that a person triggered
fails and names the topic.

**The window.** It always begins at the committed offset. It ends before the first message that was stored at or after a
time: the parameter `until`; if it is empty, the run's partition key; if there is none, the end of a scheduled run's data
interval. A run that you trigger has no upper bound unless you set `until`, also with a logical date. The log of the first
task says which bound holds and why.

**Running it again.** A run is one request: if you retry it, clear it or run it twice, its messages are committed once.
A cleared run that was complete answers `already_committed`.

**Backfill.** A run of Airflow's backfill is a replay: it consumes what was stored in its data interval again, under a replay
group of its own, whose name is in the answer. The group's own offsets never move. Runs may go in parallel and backwards, and
beside the live one. An interval is replayed once: a cleared run, or one that a later backfill takes over, answers
`already_committed`, unless `reprocess` in the backfill's configuration gives a new reason, which is the next attempt of
the interval. Its retries wait under the replay group, for `rmq_replay` with that group.

**Retries.** With `consume_retries = true` in the group's settings, `rmq_deliver_delayed` starts a run whenever it has delivered
retries of the group. Such a run reads only these; messages that are new wait for the schedule. While a backfill of this DAG
is active, no such run starts, and the scheduled ones read the retries.

**When not to use it.** To replay a span that is not made of intervals: use `rmq_replay`. To move the group's own offsets:
`rmq_reset_offset`.

**Warnings.** A DAG whose group has a listener that is not on this machine has the tag `warning`, and says so above. The first
task of a run logs it.

There is one such DAG for each group in `$RMQ_SETTINGS`. You may trigger it manually at any time. It has no schedule if the
group is planned: `rmq_plan_windows` then consumes for it.
"""

from __future__ import annotations

from airflow.sdk import get_parsing_context

from rmq_store.admin.dag_params import dag_id_of
from rmq_store.airflow.consume_group import consume_group
from rmq_store.airflow.dags import max_messages, moment, optional, refused_groups, rmq_dag, windows_of
from rmq_store.airflow.deployment import Deployment
from rmq_store.settings.settings import GroupSettings


def consume_dag(group: GroupSettings, warning: str) -> None:
    """The DAG of one group."""
    params = {
        "until": moment("Until", "Only messages stored before this time."),
        "max_messages": max_messages(),
        "client": optional("Client", "This run's client id, if several clients share the group's queues."),
        "clients": optional("Clients", "The ids of all clients of the group that run now, separated by commas."),
        "reprocess": optional("Reprocess", "Only in a backfill: reason to replay intervals once more."),
    }

    @rmq_dag(
        __doc__,
        "consume",
        dag_id=dag_id_of(group.name),
        schedule=windows_of(group),
        params=params,
        backfill=group.own_schedule is not None,
        warning=warning,
    )
    def consume() -> None:
        consume_group(group.name, use_run_params=True)

    consume()


parsed_dag_id = get_parsing_context().dag_id
"""The DAG whose task this process runs; None when Airflow reads all DAGs."""

deployment = Deployment.from_env()
groups = [group for group in deployment.settings().groups if parsed_dag_id in (None, dag_id_of(group.name))]
refused = refused_groups(groups)  # rmq_wrong_groups.py reports them
for settings in groups:
    if settings.name not in refused:
        consume_dag(settings, deployment.listener_warning(settings.listener))
