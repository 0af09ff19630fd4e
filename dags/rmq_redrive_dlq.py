"""Redrive: send dead letters of a group again, each once.

**What it does.** The first task lists the dead letters that match and the groups that would read them. Unless `dry_run`
is set, as it is by default, the second task sends them and records who did it and why: to the group's retry topic,
which only this group reads, or to `to_topic`, for all groups that read it. Their retry count restarts at 0.

**Running it again.** A dead letter that was already sent is left out, whichever run sent it. A cleared run that has
sent its dead letters answers `already_committed` and sends nothing. If the group has no dead letters, the run succeeds.

**When not to use it.** To consume messages again that did not fail: use `rmq_replay`.

Never scheduled: a person triggers it.
"""

from __future__ import annotations

from airflow.sdk import Param, task
from rmq_admin_tasks import is_redrive_dry_run, redrive_dead_letters
from rmq_dags import moment, needed, optional, rmq_dag
from rmq_task import Answer

PARAMS = {
    "group": needed("Group"),
    "all": Param(
        False,
        type="boolean",
        title="All",
        description="All dead letters of the group. Otherwise select some with the fields below.",
    ),
    "from": moment("From", "Only messages that became dead letters at or after this time."),
    "until": moment("Until", "Only messages that became dead letters before this time."),
    "original_topic": optional("Original topic", "Only messages that the group first read from this topic."),
    "keys": Param(
        [],
        type="array",
        items={"type": "string", "minLength": 1},
        title="Keys",
        description="Only messages with one of these keys or unique keys.",
    ),
    "where": optional(
        "Where",
        "Only messages for which this expression of RocketMQ's SQL92 filter is true, over their properties and, with an "
        "underscore before them, columns of the view dead_letters: region = 'eu' AND _cause = 'timeout'.",
    ),
    "letters": Param(
        [],
        type="array",
        items={"type": "string", "pattern": "^.+:[0-9]+:[0-9]+$"},
        title="Dead letters",
        description="BROKER:QUEUE:OFFSET, such as lake-broker-a:0:17, from the view dead_letters.",
    ),
    "limit": optional(
        "Limit", "At most this many dead letters from each shard, oldest first.", kind="integer", minimum=1
    ),
    "to_topic": optional(
        "To topic",
        "Send to this topic, for all groups that read it. Default: the group's retry topic, for this group only.",
    ),
    "reason": needed("Reason", "Recorded permanently in the commit log."),
    "dry_run": Param(True, type="boolean", title="Dry run", description="Only list what would be sent."),
}


@rmq_dag(__doc__, "retry", params=PARAMS)
def rmq_redrive_dlq() -> None:
    @task
    def preview() -> list[Answer]:
        return redrive_dead_letters(dry_run=True)

    @task.short_circuit
    def skip_if_dry_run() -> bool:
        return not is_redrive_dry_run()

    @task
    def send() -> list[Answer]:
        return redrive_dead_letters(dry_run=False)

    preview() >> skip_if_dry_run() >> send()


rmq_redrive_dlq()
