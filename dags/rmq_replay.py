"""Replay: consume a topic again from a given time, with the listener of a group.

**What it does.** The first task shows what the replay would read: messages and bytes of each queue, about how long it takes,
and what is unusual, in its log and in the note of the run. A time in the future is refused; a range without messages is
green. With `dry_run` this is all. With `approve` the run waits until a person approves it; if it is rejected, nothing is
consumed. With `finish` it also shows the retries that wait.

Then the messages that were stored in [from, until), up to the offsets that were shown, are consumed under a replay group of
its own, whose name is in the answer. The live group's offsets do not move. Messages that fail are retried under the replay
group. With `finish` the last task consumes these retries as `rmq_deliver_delayed` delivers them, until none is left: each is
acked or a dead letter. To do it later, trigger this DAG with the replay group as `group`, without topic and time.

**Running it again.** A run is one replay: a cleared run that was complete answers `already_committed`. A new run is a
new replay. To repeat a replay over the same messages, trigger this DAG with the replay group as `group` and a reason in
`reprocess`: that is the replay's next attempt. In the view `windows`, the newest attempt has `attempt = attempts`.

**When not to use it.** To move the group's own offsets back: use `rmq_reset_offset`.

Never scheduled: a person triggers it. `group` must be in `$RMQ_SETTINGS`, or be a replay group of one that is.
"""

from __future__ import annotations

from rmq_store.airflow.dags import (
    LONGEST_RUN,
    Suggestions,
    approve,
    max_messages,
    moment,
    needed,
    optional,
    rmq_dag,
    skip_if_dry_run,
    switch,
)
from rmq_store.airflow.operators.approve import RmqApprovalOperator
from rmq_store.airflow.operators.replay import RmqFinishReplayOperator, RmqPlanReplayOperator, RmqReplayOperator

suggested = Suggestions.of_settings()

PARAMS = {
    "group": needed("Group", "The group whose listener runs, or a replay group.", suggested=suggested.groups),
    "topic": optional("Topic", "Leave it empty for a replay group.", suggested=suggested.topics),
    "from": moment("From", "Only messages stored at or after this time."),
    "until": moment("Until", "Only messages stored before this time. Default: no upper bound."),
    "max_messages": max_messages(),
    "reason": optional("Reason", "Recorded permanently with the windows of the replay."),
    "reprocess": optional("Reprocess", "Reason to repeat the replay of the replay group given above."),
    "finish": switch("Finish", "Then consume its retries until none is left, as they become due."),
    "dry_run": switch("Dry run", "Only show what would be read."),
    "approve": approve(),
}


@rmq_dag(__doc__, "replay", params=PARAMS, one_at_a_time=False)
def rmq_replay() -> None:
    plan = RmqPlanReplayOperator(task_id="plan", use_run_params=True)
    approval = RmqApprovalOperator(
        task_id="approve", preview="plan", use_run_params=True, ignore_downstream_trigger_rules=True
    )
    replay = RmqReplayOperator.partial(
        task_id="replay",
        preview="plan",
        use_run_params=True,
        map_index_template="{{ task.shard }}",
        execution_timeout=LONGEST_RUN,
    ).expand(shard=plan.output)
    finish = RmqFinishReplayOperator(
        task_id="finish",
        preview="plan",
        use_run_params=True,
        trigger_rule="none_failed",  # the follow-up of a replay may have nothing to read yet
        execution_timeout=LONGEST_RUN,
    )
    plan >> skip_if_dry_run() >> approval >> replay >> finish


rmq_replay()
