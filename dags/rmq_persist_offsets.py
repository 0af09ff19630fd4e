"""Persist offsets: RocketMQ's `persistAll`, for tables and for brokers.

**What it does.** Brings the tables `consumequeue` and `offsets` up to the newest commit, and writes for every imported
broker a `consumerOffset.json` in RocketMQ's own form below `$RMQ_EXPORT_FOLDER` (the one before stays as `.bak`). It
holds what was committed here and, where nothing was, the broker's own offsets as the last import saw them. It is merged into
the file that is there: keys that are not known here stay, and an offset that was only seen never lowers the file's. Beside it
`delayOffset.json` says by the same rules how far the broker's delay levels are delivered: here after a cut-over, before it
by the broker. The answer says what still waits here: a broker that took these offsets over would not see it.

**Again.** It derives and copies; doing it twice changes nothing.

**When not to use it.** To commit offsets: that is done by each window, together with what it did.

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
