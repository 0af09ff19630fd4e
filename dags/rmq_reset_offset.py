"""Reset a group's offsets of one topic: by time, to an offset, to the beginning or to the end.

**What it does.** The first task shows where every queue would go. Unless `dry_run` is ticked, which it is at first, the
second one moves them, in one commit per shard that names who asked and why. The operator always wins: a window that was
planned before the reset cannot commit after it. Retries that wait are not dropped.

**Again.** A cleared run that has moved the offsets answers `already_committed` and moves nothing.

**When not to use it.** To look at old messages once more while the group goes on: that is `rmq_replay`.

Only ever triggered by a person.
"""

from __future__ import annotations

from airflow.sdk import Param, dag, task
from rmq_operators import DEFAULTS, FIRST_DAY, Answer, is_dry_run, reset_group, translated

PARAMS = {
    "group": Param("", type="string", minLength=1, title="Group"),
    "topic": Param("", type="string", minLength=1, title="Topic"),
    "to": Param("time", type="string", enum=["time", "offset", "min", "max"], title="To"),
    "time": Param(
        None,
        type=["null", "string", "integer"],
        title="Time",
        description="For 'time': to the first message stored then. ISO 8601 with a zone, or epoch milliseconds.",
        examples=["2026-01-31T12:00:00Z"],
    ),
    "offset": Param(None, type=["null", "integer"], minimum=0, title="Offset", description="For 'offset'."),
    "queues": Param(
        [],
        type="array",
        items={"type": "string", "pattern": "^.+:[0-9]+$"},
        title="Queues",
        description="BROKER:QUEUE, like broker-a:0; none is all queues of the topic.",
    ),
    "reason": Param("", type="string", minLength=1, title="Why", description="It stands in the history for good."),
    "dry_run": Param(True, type="boolean", title="Dry run", description="Only show what would move."),
}


@dag(
    dag_id="rmq_reset_offset",
    schedule=None,
    start_date=FIRST_DAY,
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
    params=PARAMS,
    doc_md=__doc__,
    tags=["rmq", "admin"],
)
def rmq_reset_offset() -> None:
    @task
    @translated
    def preview() -> list[Answer]:
        return reset_group(dry_run=True)

    @task.short_circuit
    @translated
    def is_meant() -> bool:
        return not is_dry_run()

    @task
    @translated
    def move() -> list[Answer]:
        return reset_group(dry_run=False)

    preview() >> is_meant() >> move()


rmq_reset_offset()
