"""The tasks that consume for one group: plan, a task per shard, and an asset event with the offsets."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from airflow.sdk import XComArg, get_current_context, task

from rmq_store.airflow import assets
from rmq_store.airflow.assets import REPORTED, sum_of
from rmq_store.airflow.dags import LONGEST_RUN
from rmq_store.airflow.hooks.rmq import RmqHook
from rmq_store.airflow.operators.consume import RmqConsumeWindowOperator, RmqPlanShardsOperator
from rmq_store.airflow.reporting import known_offsets
from rmq_store.airflow.task import Answer, logged, translated


def consume_group(
    group: str,
    *,
    until: str | datetime | None = None,
    max_messages: int | None = None,
    rmq_conn_id: str = RmqHook.default_conn_name,
    use_run_params: bool = False,
    request_name: str | None = None,
) -> XComArg:
    """
    Add the tasks ``plan``, ``consume`` and ``report_offsets`` to the current DAG or task group; return the last one's output.

    ``consume`` is mapped over the shards that have work; at most one of them runs at a time in a run. ``report_offsets``
    returns the sum, and is an event of the group's :func:`~rmq_store.airflow.assets.offsets_asset`, unless the windows had
    nothing to consume. A run with nothing to consume skips both. A run of Airflow's backfill is a replay of its data
    interval, and its event has ``replay_of``: the group's offsets did not move. A run that only the group's
    :func:`~rmq_store.airflow.assets.retries_asset` has started consumes its retries alone.

    :param group: The consumer group, a name in the settings.
    :param until: Only messages stored before this time; see :class:`~rmq_store.airflow.operators.consume.RmqConsumeOperator`.
    :param max_messages: At most this many messages from each shard.
    :param rmq_conn_id: The connection of the store.
    :param use_run_params: Take ``until``, ``max_messages``, ``client`` and ``clients`` from the run's parameters.
    :param request_name: A name of this request, where a run consumes for the group more than once.
    """
    arguments: dict[str, Any] = {
        "group": group,
        "until": until,
        "max_messages": max_messages,
        "rmq_conn_id": rmq_conn_id,
        "use_run_params": use_run_params,
        "request_name": request_name,
    }
    plan = RmqPlanShardsOperator(task_id="plan", **arguments)
    consume = RmqConsumeWindowOperator.partial(
        task_id="consume",
        max_active_tis_per_dagrun=1,
        map_index_template="{{ task.shard }}",
        execution_timeout=LONGEST_RUN,
        outlets=[],  # report_offsets has one event for all shards
        **arguments,
    ).expand(shard=plan.output)

    @task(outlets=REPORTED, inlets=known_offsets(group, REPORTED))
    def report_offsets(answers: list[Answer], shards: list[str]) -> Answer:
        of_run = list(answers)[: len(shards)]  # more are those of an earlier attempt, which Airflow keeps
        with translated():
            answer = logged(sum_of(of_run))
        assets.report_offsets(get_current_context(), REPORTED, group, of_run)
        return answer

    return report_offsets(consume.output, plan.output)  # type: ignore[arg-type]  # Airflow passes the answers
