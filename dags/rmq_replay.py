"""Replay: the messages of a topic from a moment on, once more, to the listener of a group.

**What it does.** Consumes what was stored in [from, until) under a replay group, a name of its own that the answer
gives. The live group's offsets do not move. What fails is retried under the replay group; to consume these retries once
they have been delivered, trigger this DAG with the replay group and neither topic nor time.

**Again.** A run is one replay: clearing a finished one answers `already_committed`. Another run is another replay.

**When not to use it.** To make a group itself go back: that is `rmq_reset_offset`.

Only ever triggered by a person. `group` must be in `$RMQ_SETTINGS` (or be a replay group of one that is).
"""

from __future__ import annotations

from airflow.sdk import Param, dag, get_current_context, task
from rmq_operators import DEFAULTS, FIRST_DAY, LONGEST_RUN, Answer, replay_plan, replay_shard, translated

_TIME = ["null", "string", "integer"]
PARAMS = {
    "group": Param("", type="string", minLength=1, title="Group"),
    "topic": Param(None, type=["null", "string"], title="Topic"),
    "from": Param(
        None,
        type=_TIME,
        title="From",
        description="The first message stored then: ISO 8601 with a zone, or epoch milliseconds.",
        examples=["2026-01-31T12:00:00Z"],
    ),
    "until": Param(None, type=_TIME, title="Until", description="Only what was stored before it; empty: all there is."),
    "max_messages": Param(None, type=["null", "integer"], minimum=1, title="At most", description="Per shard."),
    "reason": Param("", type="string", title="Why"),
}


@dag(
    dag_id="rmq_replay",
    schedule=None,
    start_date=FIRST_DAY,
    catchup=False,
    default_args=DEFAULTS,
    params=PARAMS,
    doc_md=__doc__,
    tags=["rmq", "replay"],
)
def rmq_replay() -> None:
    @task
    @translated
    def plan() -> list[str]:
        return replay_plan()

    @task(map_index_template="{{ shard }}", execution_timeout=LONGEST_RUN)
    @translated
    def replay(shard: str) -> Answer:
        get_current_context()["shard"] = shard
        return replay_shard(shard)

    replay.expand(shard=plan())


rmq_replay()
