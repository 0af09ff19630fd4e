"""Undo: take a group's offsets back to where they were before the last action of an operator.

**What it does.** The first task shows which action would be undone, who did it, when and why, the offset of every queue now and
then, and how many messages and bytes the group would read again or skip. Unless `dry_run` is set, as it is by default, the
second task undoes this action, in one commit per shard that records who did it and why. If another action came in between,
it fails and moves nothing. With `approve` it first waits until a person approves what was shown.

A reset, skip, clone or import of offsets can be undone, and so can an undo: that does the action again. It is refused when
windows have consumed in these queues since, unless `force` is set. A group without such an action is green.

**Running it again.** A cleared run that has moved the offsets answers `already_committed` and moves nothing. A new run
undoes the undo.

**When not to use it.** To take back an action before the last one: use `rmq_reset_offset` with the offsets that the page of
the group shows. A redrive or the delete of a group cannot be undone.

Never scheduled: a person triggers it.
"""

from __future__ import annotations

from rmq_store.airflow.dags import Suggestions, approve, needed, optional, rmq_dag, skip_if_dry_run, switch
from rmq_store.airflow.operators.approve import RmqApprovalOperator
from rmq_store.airflow.operators.undo import RmqUndoOperator

PARAMS = {
    "group": needed("Group", suggested=Suggestions.of_settings().groups),
    "shard": optional("Shard", "Default: all shards that have the action."),
    "force": switch(
        "Force", "Also when windows have consumed in its queues since: these messages are read again or skipped."
    ),
    "reason": needed("Reason", "Recorded permanently in the offset history."),
    "dry_run": switch("Dry run", "Only show what would move.", default=True),
    "approve": approve(),
}


@rmq_dag(__doc__, "admin", params=PARAMS, one_at_a_time=False)
def rmq_undo() -> None:
    preview = RmqUndoOperator(task_id="preview", dry_run=True, use_run_params=True)
    undo = RmqUndoOperator(task_id="undo", dry_run=False, preview="preview", use_run_params=True)
    approval = RmqApprovalOperator(task_id="approve", preview="preview", use_run_params=True)
    preview >> skip_if_dry_run() >> approval >> undo


rmq_undo()
