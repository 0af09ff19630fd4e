"""Reset a group's offsets of one topic: by time, to an offset, to the beginning or to the end.

**What it does.** The first task shows the new offset of every queue, and how many messages and bytes the group would read
again or skip. Unless `dry_run` is set, as it is by default, the second task sets the offsets that were shown, in one commit
per shard that records who did it and why. A window that was planned before the reset cannot commit after it. Waiting retries
do not change. With `approve` it first waits until a person approves what was shown; if it is rejected, nothing moves.

**Running it again.** A cleared run that has moved the offsets answers `already_committed` and moves nothing.

**When not to use it.** To consume old messages again while the group goes on: use `rmq_replay`.

Never scheduled: a person triggers it.
"""

from __future__ import annotations

from airflow.sdk import Param

from rmq_store.airflow.dags import Suggestions, approve, moment, needed, optional, rmq_dag, skip_if_dry_run, switch
from rmq_store.airflow.operators.approve import RmqApprovalOperator
from rmq_store.airflow.operators.reset import RmqResetOffsetOperator

suggested = Suggestions.of_settings()

PARAMS = {
    "group": needed("Group", suggested=suggested.groups),
    "topic": needed("Topic", suggested=suggested.topics),
    "to": Param("time", type="string", enum=["time", "offset", "min", "max"], title="To"),
    "time": moment("Time", "For 'time': the group continues with the first message stored at or after it."),
    "offset": optional("Offset", "For 'offset': the new offset of every queue.", kind="integer", minimum=0),
    "queues": optional(
        "Queues",
        "BROKER:QUEUE, such as broker-a:0. Default: all queues of the topic.",
        kind="array",
        items={"type": "string", "pattern": "^.+:[0-9]+$"},
        minItems=1,
    ),
    "reason": needed("Reason", "Recorded permanently in the offset history."),
    "dry_run": switch("Dry run", "Only show what would move.", default=True),
    "approve": approve(),
}


@rmq_dag(__doc__, "admin", params=PARAMS, one_at_a_time=False)
def rmq_reset_offset() -> None:
    preview = RmqResetOffsetOperator(task_id="preview", dry_run=True, use_run_params=True)
    move = RmqResetOffsetOperator(task_id="move", dry_run=False, preview="preview", use_run_params=True)
    approval = RmqApprovalOperator(task_id="approve", preview="preview", use_run_params=True)
    preview >> skip_if_dry_run() >> approval >> move


rmq_reset_offset()
