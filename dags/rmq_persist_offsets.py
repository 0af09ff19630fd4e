"""Persist offsets: RocketMQ's `persistAll`, for the derived tables and for brokers.

**What it does.** Brings the tables `consumequeue` and `offsets` up to the newest commit, and writes for every imported
broker a `consumerOffset.json` in RocketMQ's format below `$RMQ_EXPORT_FOLDER`; the previous file is kept as `.bak`. It
has the offsets that were committed here and, where there are none, the broker's own offsets as of the last import. It
is merged into the existing file: keys that are unknown here stay, and an imported offset never lowers the file's. The
file `delayOffset.json` in the same folder has how far each delay level has been delivered: before a cut-over by the
broker, after it by this store. The answer counts the messages that still wait here: a broker that takes over these
offsets would not see them. The note of the run says which brokers' files changed, and how many offsets were lowered.

**Running it again.** Everything is derived from the commit log, so a second run changes nothing. While another export to a
broker's files runs, also one of `rmq offsets export`, the task fails and is tried again.

**When not to use it.** To commit offsets: each window commits its own, together with its results.

Runs every five minutes (`$RMQ_PERSIST_SCHEDULE`). Triggering it manually is harmless.
"""

from __future__ import annotations

from rmq_store.airflow.dags import rmq_dag, ticks
from rmq_store.airflow.operators.export import RmqDispatchOperator, RmqExportOffsetsOperator
from rmq_store.settings.environment import Environment


@rmq_dag(__doc__, "offsets", schedule=ticks(Environment.read().persist_schedule))
def rmq_persist_offsets() -> None:
    dispatch = RmqDispatchOperator(task_id="dispatch", use_run_params=True)
    export = RmqExportOffsetsOperator(task_id="export", use_run_params=True)
    dispatch >> export


rmq_persist_offsets()
