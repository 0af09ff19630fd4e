"""Redrive: dead letters of a group, sent again, each once.

**What it does.** The first task shows which letters are meant and who would read them. Unless `dry_run` is ticked, which
it is at first, the second one sends them, with who asked and why: to the group's retry topic, which only this group
reads, or to the topic that is named, for all its readers. Their retries begin anew.

**Again.** A letter that was sent before is left out, whichever run sent it. A cleared run that has sent its letters
answers `already_committed` and sends nothing. A group that has no dead letters has nothing to do, and the run is green.

**When not to use it.** To look at messages that were consumed well once more: that is `rmq_replay`.

Only ever triggered by a person.
"""

from __future__ import annotations

from airflow.sdk import Param, task
from rmq_dags import moment, needed, optional, rmq_dag
from rmq_operators import Answer, is_redrive_dry_run, redrive_letters

PARAMS = {
    "group": needed("Group"),
    "all": Param(False, type="boolean", title="All", description="All dead letters; else name some below."),
    "from": moment("Died from", "Who died then or later."),
    "until": moment("Died until", "Who died before it."),
    "original_topic": optional("Original topic", "Whose message was first read there."),
    "keys": Param(
        [],
        type="array",
        items={"type": "string", "minLength": 1},
        title="Keys",
        description="Who has one of them, also as its unique key.",
    ),
    "letters": Param(
        [],
        type="array",
        items={"type": "string", "pattern": "^.+:[0-9]+:[0-9]+$"},
        title="Letters",
        description="BROKER:QUEUE:OFFSET, like lake-broker-a:0:17, as the view dead_letters shows them.",
    ),
    "limit": optional("At most", "So many of each shard, oldest first.", kind="integer", minimum=1),
    "to_topic": optional("To topic", "For all its readers; empty: to the group's retry topic, for this group only."),
    "reason": needed("Why", "It stands in the log for good."),
    "dry_run": Param(True, type="boolean", title="Dry run", description="Only show what would be sent."),
}


@rmq_dag(__doc__, "retry", params=PARAMS)
def rmq_redrive_dlq() -> None:
    @task
    def preview() -> list[Answer]:
        return redrive_letters(dry_run=True)

    @task.short_circuit
    def is_meant() -> bool:
        return not is_redrive_dry_run()

    @task
    def send() -> list[Answer]:
        return redrive_letters(dry_run=False)

    preview() >> is_meant() >> send()


rmq_redrive_dlq()
