"""The tasks that consume: the windows of one group, of all planned groups, and of a replay.

This module translates and makes no decisions. Heavy imports are inside the functions, so that parsing a DAG is fast.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from rmq_deployment import Deployment
from rmq_task import WORTH_A_RETRY, Answer, current_run, log_line, logged, logged_error, nothing_to_do, translated

from rmq_store.admin.dag_params import ReplayParams, consume_request
from rmq_store.admin.replay import as_replay, group_settings
from rmq_store.commit.request import Status, overall
from rmq_store.errors import HeldByAnother, NothingThere, RmqError, WrongUse
from rmq_store.settings.settings import GroupSettings, read_settings
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import listed
from rmq_store.window.consume_request import ConsumeRequest, Scope

if TYPE_CHECKING:
    from rmq_store.lake.window.group_course import GroupReport


@translated
def plan_shards(group_name: str) -> list[str]:
    """The shards in which the run has something to consume, or has committed before; none is a success. Starts no JVM.

    A topic that does not exist yet, and a first start in the middle of an import, is nothing to do for a scheduled run. For
    a run that a person triggered it is an error, as the name may be wrong.
    """
    from rmq_store.lake.window.consumption import has_work, shards_of

    run, params = current_run()
    deployment = Deployment.from_env()
    request = consume_request(run, params)
    group = read_settings(deployment.settings).group(group_name)
    log_line(f"request {request.request_id}: until {request.until_ms} ({request.parameters['until_rule']})")
    try:
        shards = shards_of(deployment.open_store(), group)
        names = [shard.name for shard in shards if has_work(shard, group, request, Host())]
    except NothingThere as missing:
        if not run.on_its_own:
            raise
        nothing_to_do(str(missing))
        return []
    log_line(f"shards with work: {', '.join(names) or 'none'}")
    if not names:
        nothing_to_do(f"group {group.name} has consumed everything up to the window's upper bound")
    return names


@translated
def consume_shard(group_name: str, shard_name: str) -> Answer:
    """All windows of the run's request in one shard."""
    from rmq_store.lake.window.consumption import Consumption
    from rmq_store.lake.window.window import consume_window

    run, params = current_run()
    deployment = Deployment.from_env()
    group = read_settings(deployment.settings).group(group_name)
    store, request = deployment.open_store(), consume_request(run, params)
    (shard,) = store.shards(shard_name)
    with deployment.engines(group.engine, [group.listener]) as engines:
        window = functools.partial(
            consume_window, store, shard, group, request, engine_of=engines.for_window, host=Host()
        )
        return logged(Consumption.of(window).summary())


@translated
def report(answers: list[Answer]) -> Answer:
    """The sum of the shards' answers, for the run's asset event."""
    outcomes: dict[str, int] = {}
    for answer in answers:
        for outcome, count in answer["outcomes"].items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    return logged(
        {
            "status": overall(answer["status"] for answer in answers),
            "messages": sum(outcomes.values()),
            "outcomes": outcomes,
            "offsets": {answer["shard"]: answer["offsets"] for answer in answers},
            "warnings": [warning for answer in answers for warning in answer["warnings"]],
        }
    )


# --- the planned groups -----------------------------------------------------------------------------------------------


@translated
def consume_planned() -> Answer:
    """All windows of the run's request for every planned group. The XCom ``groups`` has the rows of those that had work.

    Raises AirflowException, once the work of all groups is over, when some have failed; it is retried where waiting can help
    one of them.
    """
    from rmq_store.lake.window.consume_all import consume_all

    run, params = current_run()
    deployment = Deployment.from_env()
    request = consume_request(run, params)
    groups = read_settings(deployment.settings).planned_groups
    store, rows = deployment.open_store(), list[Answer]()
    log_line(f"request {request.request_id}: until {request.until_ms} ({request.parameters['until_rule']})")

    def finished(report: GroupReport) -> None:
        if report.error is not None or report.status != Status.EMPTY:
            rows.append(logged(_group_row(report)))

    with deployment.engines(None, [group.listener for group in groups]) as engines:
        report = consume_all(store, groups, request, engines.for_window, Host(), finished=finished)
    get_current_context()["ti"].xcom_push("groups", rows)  # also where the task fails, which returns nothing
    _raise_failed(report.groups)
    if not rows:
        nothing_to_do(f"{len(groups)} planned groups have consumed everything up to the window's upper bound")
    return logged(
        {
            "status": overall(group.status for group in report.groups),
            "request_id": request.request_id,
            "planned_groups": len(groups),
            "groups_with_work": len(rows),
            "messages": sum(group.messages for group in report.groups),
            "warnings": list(report.warnings),
        }
    )


def _group_row(report: GroupReport) -> Answer:
    row = {
        "group": report.group,
        "status": str(report.status),
        "messages": report.messages,
        "outcomes": {str(outcome): count for outcome, count in report.outcomes.items()},
    }
    if report.error is None:
        return row
    status = "skipped, in use" if isinstance(report.error, HeldByAnother) else "failed"
    return row | {"status": status, "error": logged_error(report.error)}


def _raise_failed(reports: Sequence[GroupReport]) -> None:
    """Raise what names the groups with errors. A group that another run holds has none: a later run consumes for it."""
    errors = {one.group: one.error for one in reports if one.error and not isinstance(one.error, HeldByAnother)}
    if errors:
        names = listed([f"{group} ({type(error).__name__})" for group, error in errors.items()])
        text = f"{len(errors)} of {len(reports)} planned groups failed, the others are committed: {names}"
        can_wait = any(isinstance(one, WORTH_A_RETRY) or not isinstance(one, RmqError) for one in errors.values())
        raise AirflowException(text) if can_wait else AirflowFailException(text)


# --- replay -----------------------------------------------------------------------------------------------------------


@translated
def replay_plan() -> list[str]:
    """The shards that the replay, or the follow-up of one, reads. Checks all parameters; starts no JVM."""
    from rmq_store.lake.admin.replay import shards_replayed
    from rmq_store.lake.window.consumption import shards_of

    deployment = Deployment.from_env()
    replay = _replay_of_run(deployment)
    store = deployment.open_store()
    if replay.is_new_attempt:
        return [shard.name for shard in shards_replayed(store, replay.group.name)]
    return [shard.name for shard in shards_of(store, replay.group, replay.scope)]


@translated
def replay_shard(shard_name: str) -> Answer:
    """All windows of the replay, or of its next attempt, in one shard, under the replay's own group."""
    from rmq_store.lake.admin.replay import begin_attempt
    from rmq_store.lake.window.consumption import Consumption
    from rmq_store.lake.window.window import consume_window

    deployment = Deployment.from_env()
    replay = _replay_of_run(deployment)
    group, request, scope = replay.group, replay.request, replay.scope
    store = deployment.open_store()
    (shard,) = store.shards(shard_name)
    if replay.is_new_attempt:
        group, request, scope = begin_attempt(shard, group, request, Host())
    with deployment.engines(group.engine, [group.listener]) as engines:
        window = functools.partial(
            consume_window, store, shard, group, request, engine_of=engines.for_window, host=Host(), scope=scope
        )
        return logged(Consumption.of(window).summary())


class Replay(NamedTuple):
    """A run of ``rmq_replay``: the replay group, and the request and the scope of its windows."""

    group: GroupSettings
    request: ConsumeRequest
    scope: Scope
    is_new_attempt: bool


def _replay_of_run(deployment: Deployment) -> Replay:
    """Raises WrongUse for parameters that are wrong or do not fit together."""
    run, params = current_run()
    replay = ReplayParams.of(params)
    group, scope = group_settings(read_settings(deployment.settings), replay.group)
    is_new_attempt = replay.reprocess is not None
    if replay.topic is not None and replay.from_ms is not None:
        return Replay(*as_replay(group, replay.topic, replay.from_ms, replay.request(run)), is_new_attempt)
    if not scope.retries_only:
        raise WrongUse(f"{replay.group} is not a replay group: set 'topic' and 'from'")
    return Replay(group, replay.request(run), scope, is_new_attempt)
