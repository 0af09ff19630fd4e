"""Persist offsets: RocketMQ's `persistAll`, for tables and for brokers.

**What it does.** Brings the tables `consumequeue` and `offsets` up to the newest commit, and writes for every imported
broker a `consumerOffset.json` in RocketMQ's format below `$RMQ_EXPORT_FOLDER`; the previous file is kept as `.bak`. It
holds the offsets that were committed here, and the broker's own offsets, as of the last import, where none were. It is
merged into the existing file: keys that are unknown here stay, and an offset of the broker's own never lowers the
file's. The file `delayOffset.json` beside it says in the same way how far each delay level has been delivered: here
after a cut-over, by the broker before it. The answer counts the messages that still wait here: a broker that takes
these offsets over would not see them.

**Running it again.** It derives and copies, so a second run changes nothing.

**When not to use it.** To commit offsets: each window commits its own, together with its results.

Runs every five minutes (`$RMQ_PERSIST_SCHEDULE`). Triggering it by hand is harmless.
"""

from __future__ import annotations

from airflow.sdk import task
from rmq_dags import rmq_dag, ticks
from rmq_deployment import Deployment
from rmq_operators import Answer, dispatch_all, export_all


@rmq_dag(__doc__, "offsets", schedule=ticks(Deployment.from_env().persist_schedule))
def rmq_persist_offsets() -> None:
    @task
    def dispatch() -> Answer:
        return dispatch_all()

    @task
    def export() -> list[Answer]:
        return export_all()

    dispatch() >> export()


rmq_persist_offsets()
