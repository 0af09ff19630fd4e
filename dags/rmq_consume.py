"""Consume for one group, window by window.

**What it does.** Looks in every shard what the group has not consumed yet, up to the window's upper bound, and consumes
it: allocate, pull, filter, the group's listener, retries and dead letters, all committed together with the offsets.
Where nothing is waiting it ends after the first task and no JVM is started; the XCom `nothing_to_do` says why. A
scheduled run waits so for a topic that is not there yet; a run that a person asks for fails and names it.

**The window.** It always begins at the committed offset. It ends at the first message stored at or after: the parameter
`until`, else the run's partition key, else the end of its data interval, else it takes all there is. A run with a
logical date has a data interval, the last one that is over: to take all there is, trigger without a logical date.

**Again.** A run is one request: retry it, clear it, run it twice, its messages are committed once, and a finished run
answers `already_committed`.

**When not to use it.** To consume something once more: `rmq_replay` does it under a name of its own, `rmq_reset_offset`
moves the group itself. Airflow's backfill is refused: a window begins at the committed offset, so it would do nothing.

Made from the groups of `$RMQ_SETTINGS`, one DAG each. Manual triggering is intended.
"""

from __future__ import annotations

from airflow.sdk import Asset, get_current_context, get_parsing_context, task
from rmq_dags import LONGEST_RUN, intervals, moment, most_messages, optional, rmq_dag
from rmq_deployment import Deployment
from rmq_operators import Answer, consume_shard, plan_shards, report

from rmq_store.admin.dag_params import dag_id_of
from rmq_store.settings.settings import GroupSettings, read_settings


def consume_dag(group: GroupSettings) -> None:
    """The DAG of one group."""
    offsets = Asset(f"rmq_offsets__{group.name}", uri=f"x-rmq://offsets/{group.name}")
    params = {
        "until": moment("Until", "Only what was stored before it."),
        "max_messages": most_messages(),
        "client": optional("Client", "Which of the clients below this run is, if several share the group's queues."),
        "clients": optional("Clients", "The ids of all consumers of the group that run now, with commas between."),
    }

    @rmq_dag(__doc__, "consume", dag_id=dag_id_of(group.name), schedule=intervals(group.schedule), params=params)
    def consume_group() -> None:
        @task
        def plan() -> list[str]:
            return plan_shards(group.name)

        @task(max_active_tis_per_dag=1, map_index_template="{{ shard }}", execution_timeout=LONGEST_RUN)
        def consume(shard: str) -> Answer:
            get_current_context()["shard"] = shard
            return consume_shard(group.name, shard)

        @task(outlets=[offsets])
        def report_offsets(answers: list[Answer]) -> Answer:
            answer = report(list(answers))
            get_current_context()["outlet_events"][offsets].extra = answer
            return answer

        report_offsets(consume.expand(shard=plan()))

    consume_group()


asked_for = get_parsing_context().dag_id
"""The DAG whose task this process runs; None where all are read."""

for settings in read_settings(Deployment.from_env().settings).groups:
    if asked_for in (None, dag_id_of(settings.name)):
        consume_dag(settings)
