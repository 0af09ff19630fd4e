"""Redrive: send dead letters of a group again, each once.

**What it does.** The first task lists the dead letters that match and the groups that would read them. Unless `dry_run`
is set, as it is by default, the second task sends them and records who did it and why: to the group's retry topic,
which only this group reads, or to `to_topic`, for all groups that read it. Their retry count restarts at 0. With `edits` the
copies are changed: the log of the first task shows the first ones before and after, and which dead letters cannot be edited.
In a group that absorbs duplicates, a copy whose key was acked meanwhile is absorbed.

**Running it again.** A dead letter that was already sent is left out, whichever run sent it. A cleared run that has
sent its dead letters answers `already_committed` and sends nothing. If the group has no dead letters, the run succeeds.

**When not to use it.** To consume messages again that did not fail: use `rmq_replay`.

Never scheduled: a person triggers it.
"""

from __future__ import annotations

from typing import Any

from rmq_store.airflow.dags import (
    LONG,
    LONGEST_RUN,
    Suggestions,
    moment,
    needed,
    optional,
    rmq_dag,
    skip_if_dry_run,
    switch,
)
from rmq_store.airflow.operators.redrive import RmqRedriveOperator

NAMES = {"type": "array", "items": {"type": "string", "minLength": 1}, "uniqueItems": True}
VALUE = {"$ref": "#/$defs/value"}
VALUES: dict[str, Any] = {"$defs": {"value": {**LONG, "items": VALUE, "additionalProperties": VALUE}}}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


def types(*names: str) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": {"enum": list(names)}}


suggested = Suggestions.of_settings()

PARAMS = {
    "group": needed("Group", suggested=suggested.groups),
    "all": switch("All", "All dead letters of the group. Otherwise select some with the fields below."),
    "from": moment("From", "Only messages that became dead letters at or after this time."),
    "until": moment("Until", "Only messages that became dead letters before this time."),
    "original_topic": optional(
        "Original topic", "Only messages that the group first read from this topic.", suggested=suggested.topics
    ),
    "keys": optional(
        "Keys",
        "Only messages with one of these keys or unique keys.",
        kind="array",
        items={"type": "string", "minLength": 1},
        minItems=1,
    ),
    "where": optional(
        "Where",
        "Only messages for which this expression of RocketMQ's SQL92 filter is true, over their properties and, with an "
        "underscore before them, columns of the view dead_letters: region = 'eu' AND _cause = 'timeout'.",
    ),
    "letters": optional(
        "Dead letters",
        "BROKER:QUEUE:OFFSET, such as lake-broker-a:0:17, from the view dead_letters.",
        kind="array",
        items={"type": "string", "pattern": "^.+:[0-9]+:[0-9]+$"},
        minItems=1,
    ),
    "limit": optional(
        "Limit", "Send at most this many dead letters from each shard, oldest first.", kind="integer", minimum=1
    ),
    "edits": optional(
        "Edits",
        "What is changed in the copies, by kind, as JSON: "
        '{"cast_json": {"/price": "number"}, "set_property": {"region": "eu"}}. '
        "A dead letter to which an edit does not apply is not sent; the view redrives says why. docs/retry-life.md explains "
        "the kinds.",
        kind=("string", "object"),  # of an object, which the form makes of it, Airflow reads the numbers, as floats
        format="multiline",
        pattern=r"^\s*(\{[\s\S]*\}\s*)?$",
        properties={
            "remove_property": NAMES,
            "cast_property": types("int", "number", "boolean"),
            "set_property": TEXTS,
            "replace_body_text": TEXTS,
            "remove_json": NAMES,
            "cast_json": types("int", "number", "boolean", "string"),
            "set_json": {"type": "object", "additionalProperties": VALUE},
        },
        **VALUES,
        additionalProperties=False,
    ),
    "all_or_nothing": switch(
        "All or nothing", "Send nothing if the edits do not apply to a dead letter. Otherwise the others are sent."
    ),
    "rate": optional(
        "Rate",
        "At most this many dead letters a second and shard, over a minute. The task runs until all are sent, at most 23 hours.",
        kind="integer",
        minimum=1,
    ),
    "to_topic": optional(
        "To topic",
        "Send to this topic, for all groups that read it. Default: the group's retry topic, for this group only.",
        suggested=suggested.topics,
    ),
    "reason": needed("Reason", "Recorded permanently in the commit log."),
    "dry_run": switch("Dry run", "Only list what would be sent.", default=True),
}


@rmq_dag(__doc__, "retry", params=PARAMS)
def rmq_redrive_dlq() -> None:
    preview = RmqRedriveOperator(task_id="preview", dry_run=True, use_run_params=True)
    send = RmqRedriveOperator(task_id="send", dry_run=False, use_run_params=True, execution_timeout=LONGEST_RUN)
    preview >> skip_if_dry_run() >> send


rmq_redrive_dlq()
