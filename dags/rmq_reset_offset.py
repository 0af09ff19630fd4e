"""Reset a group's offsets of one topic: by time, to an offset, to the beginning or to the end.

**What it does.** The first task shows where every queue would go. Unless `dry_run` is ticked, which it is at first, the
second one moves them, in one commit per shard that names who asked and why. The operator always wins: a window that was
planned before the reset cannot commit after it. Retries that wait are not dropped.

**Again.** A cleared run that has moved the offsets answers `already_committed` and moves nothing.

**When not to use it.** To look at old messages once more while the group goes on: that is `rmq_replay`.

Only ever triggered by a person.
"""

from __future__ import annotations

from airflow.sdk import Param, task
from rmq_dags import moment, needed, optional, rmq_dag
from rmq_operators import Answer, is_dry_run, reset_group

PARAMS = {
    "group": needed("Group"),
    "topic": needed("Topic"),
    "to": Param("time", type="string", enum=["time", "offset", "min", "max"], title="To"),
    "time": moment("Time", "For 'time': to the first message stored then."),
    "offset": optional("Offset", "For 'offset'.", kind="integer", minimum=0),
    "queues": Param(
        [],
        type="array",
        items={"type": "string", "pattern": "^.+:[0-9]+$"},
        title="Queues",
        description="BROKER:QUEUE, like broker-a:0; none is all queues of the topic.",
    ),
    "reason": needed("Why", "It stands in the history for good."),
    "dry_run": Param(True, type="boolean", title="Dry run", description="Only show what would move."),
}


@rmq_dag(__doc__, "admin", params=PARAMS)
def rmq_reset_offset() -> None:
    @task
    def preview() -> list[Answer]:
        return reset_group(dry_run=True)

    @task.short_circuit
    def is_meant() -> bool:
        return not is_dry_run()

    @task
    def move() -> list[Answer]:
        return reset_group(dry_run=False)

    preview() >> is_meant() >> move()


rmq_reset_offset()
