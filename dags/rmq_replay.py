"""Replay: the messages of a topic from a moment on, once more, to the listener of a group.

**What it does.** Consumes what was stored in [from, until) under a replay group, a name of its own that the answer
gives. The live group's offsets do not move. What fails is retried under the replay group; to consume these retries once
they have been delivered, trigger this DAG with the replay group and neither topic nor time.

**Again.** A run is one replay: clearing a finished one answers `already_committed`. Another run is another replay. To do
the same one once more, its messages up to the same bounds, trigger this DAG with the replay group and say under
`reprocess` why: that is its next attempt, and the view `windows` tells which is the newest.

**When not to use it.** To make a group itself go back: that is `rmq_reset_offset`.

Only ever triggered by a person. `group` must be in `$RMQ_SETTINGS` (or be a replay group of one that is).
"""

from __future__ import annotations

from airflow.sdk import get_current_context, task
from rmq_dags import LONGEST_RUN, moment, most_messages, needed, optional, rmq_dag
from rmq_operators import Answer, replay_plan, replay_shard

PARAMS = {
    "group": needed("Group"),
    "topic": optional("Topic"),
    "from": moment("From", "The first message stored then."),
    "until": moment("Until", "Only what was stored before it; empty: all there is."),
    "max_messages": most_messages(),
    "reason": optional("Why"),
    "reprocess": optional("Reprocess", "Why the replay whose group is given has to be done once more."),
}


@rmq_dag(__doc__, "replay", params=PARAMS, one_at_a_time=False)
def rmq_replay() -> None:
    @task
    def plan() -> list[str]:
        return replay_plan()

    @task(map_index_template="{{ shard }}", execution_timeout=LONGEST_RUN)
    def replay(shard: str) -> Answer:
        get_current_context()["shard"] = shard
        return replay_shard(shard)

    replay.expand(shard=plan())


rmq_replay()
