"""What the tasks of the DAGs do: a run's facts and parameters in, one call of the lake, a small answer out.

This module translates and makes no decisions. Heavy imports are inside the functions, so that parsing a DAG is fast.
Locations come from the environment of the Airflow processes, never from a run's parameters (``Deployment``).
"""

from __future__ import annotations

import functools
import logging
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar
from urllib.parse import quote

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from rmq_deployment import Deployment

from rmq_store.admin.dag_params import (
    ImportParams,
    ReplayParams,
    Run,
    check_names,
    consume_request,
    redrive_request,
    reset_request,
)
from rmq_store.admin.replay import as_replay, group_settings
from rmq_store.commit.ctl import Moved
from rmq_store.commit.request import Status, overall
from rmq_store.errors import ClockSkew, HeldByAnother, NothingThere, RmqError, StaleAttempt, StoreUnusable, WrongUse
from rmq_store.maintain.request import MaintainRequest, Step
from rmq_store.settings.settings import GroupSettings, read_settings
from rmq_store.utils.host import Host
from rmq_store.utils.redaction import cleaned, secret_values
from rmq_store.utils.suggestions import listed
from rmq_store.window.consume_request import ConsumeRequest, Scope

if TYPE_CHECKING:
    from airflow.sdk.types import DagRunProtocol

    from rmq_store.lake.window.group_course import GroupReport

log = logging.getLogger(__name__)

Answer = dict[str, Any]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_WORTH_A_RETRY = (StoreUnusable, ClockSkew, HeldByAnother, StaleAttempt)


def translated(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorator for the functions that tasks call: turns errors into Airflow's.

    An RmqError becomes AirflowException, which is retried, where waiting can help, and AirflowFailException, which is
    not, where the call or the data must be fixed. A SystemExit, which a listener may raise, is a failure, even with
    exit code 0.
    """

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except _WORTH_A_RETRY as error:
            raise AirflowException(_logged_error(error)) from None
        except RmqError as error:
            raise AirflowFailException(_logged_error(error)) from None
        except SystemExit as error:
            raise AirflowException(
                f"a listener or a library tried to end the process: {_logged_error(error)}"
            ) from None

    return call


def _logged_error(error: BaseException) -> str:
    """Log the traceback and return the message, both without secrets: Airflow would log the causes of an error as they
    are."""
    secrets = secret_values(os.environ)
    log.info("%s", cleaned("".join(traceback.format_exception(error)), secrets, 1 << 20))
    return cleaned(f"{type(error).__name__}: {error}", secrets)


# --- the run ---------------------------------------------------------------------------------------------------------


def current_run() -> tuple[Run, Mapping[str, Any]]:
    """The facts of the task's run, and its parameters. Raises WrongUse for parameters that its DAG does not have:
    Airflow accepts them."""
    context = get_current_context()
    check_names(context["dag_run"].conf or {}, context["dag"].params)
    return run_of(context["dag_run"]), context["params"]


def run_of(dag_run: DagRunProtocol) -> Run:
    return Run(
        dag_id=dag_run.dag_id,
        run_id=dag_run.run_id,
        run_type=str(getattr(dag_run.run_type, "value", dag_run.run_type)),
        run_after=dag_run.run_after,
        user=dag_run.triggering_user_name,
        partition_key=dag_run.partition_key,
        data_interval_end=dag_run.data_interval_end,
    )


def _nothing_to_do(reason: str) -> None:
    """Log the reason and store it as the task's XCom ``nothing_to_do``: in Airflow 3.3 a task cannot write a note."""
    log.info("nothing to do: %s", reason)
    get_current_context()["ti"].xcom_push("nothing_to_do", reason)


def _settings_of(deployment: Deployment, group: str) -> GroupSettings:
    return read_settings(deployment.settings).group(group)


# --- consume ---------------------------------------------------------------------------------------------------------


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
    group = _settings_of(deployment, group_name)
    log.info("request %s: until %s (%s)", request.request_id, request.until_ms, request.parameters["until_rule"])
    try:
        shards = shards_of(deployment.open_store(), group)
        names = [shard.name for shard in shards if has_work(shard, group, request, Host())]
    except NothingThere as missing:
        if not run.on_its_own:
            raise
        _nothing_to_do(str(missing))
        return []
    log.info("shards with work: %s", ", ".join(names) or "none")
    if not names:
        _nothing_to_do(f"group {group.name} has consumed everything up to the window's upper bound")
    return names


@translated
def consume_shard(group_name: str, shard_name: str) -> Answer:
    """All windows of the run's request in one shard."""
    from rmq_store.lake.window.consumption import Consumption
    from rmq_store.lake.window.window import consume_window

    run, params = current_run()
    deployment = Deployment.from_env()
    group = _settings_of(deployment, group_name)
    store, request = deployment.open_store(), consume_request(run, params)
    (shard,) = store.shards(shard_name)
    with deployment.engines(group.engine, [group.listener]) as engines:
        window = functools.partial(
            consume_window, store, shard, group, request, engine_of=engines.for_window, host=Host()
        )
        return _logged(Consumption.of(window).summary())


@translated
def report(answers: list[Answer]) -> Answer:
    """The sum of the shards' answers, for the run's asset event."""
    outcomes: dict[str, int] = {}
    for answer in answers:
        for outcome, count in answer["outcomes"].items():
            outcomes[outcome] = outcomes.get(outcome, 0) + count
    return _logged(
        {
            "status": overall(answer["status"] for answer in answers),
            "messages": sum(outcomes.values()),
            "outcomes": outcomes,
            "offsets": {answer["shard"]: answer["offsets"] for answer in answers},
            "warnings": [warning for answer in answers for warning in answer["warnings"]],
        }
    )


# --- the planned groups ----------------------------------------------------------------------------------------------


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
    log.info("request %s: until %s (%s)", request.request_id, request.until_ms, request.parameters["until_rule"])

    def finished(report: GroupReport) -> None:
        if report.error is not None or report.status != Status.EMPTY:
            rows.append(_logged(_group_row(report)))

    with deployment.engines(None, [group.listener for group in groups]) as engines:
        report = consume_all(store, groups, request, engines.for_window, Host(), finished=finished)
    get_current_context()["ti"].xcom_push("groups", rows)  # also where the task fails, which returns nothing
    _raise_failed(report.groups)
    if not rows:
        _nothing_to_do(f"{len(groups)} planned groups have consumed everything up to the window's upper bound")
    return _logged(
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
    return row | {"status": status, "error": _logged_error(report.error)}


def _raise_failed(reports: Sequence[GroupReport]) -> None:
    """Raise what names the groups with errors. A group that another run holds has none: a later run consumes for it."""
    errors = {one.group: one.error for one in reports if one.error and not isinstance(one.error, HeldByAnother)}
    if errors:
        names = listed([f"{group} ({type(error).__name__})" for group, error in errors.items()])
        text = f"{len(errors)} of {len(reports)} planned groups failed, the others are committed: {names}"
        can_wait = any(isinstance(one, _WORTH_A_RETRY) or not isinstance(one, RmqError) for one in errors.values())
        raise AirflowException(text) if can_wait else AirflowFailException(text)


# --- replay ----------------------------------------------------------------------------------------------------------


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
        return _logged(Consumption.of(window).summary())


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


# --- deliver, persist, maintain, reset, import -----------------------------------------------------------------------


@translated
def deliver_due() -> list[Answer]:
    """Deliver everything that is due, in all delay levels and shards; ``next_due_ms`` (UTC) is the next due time."""
    from rmq_store.lake.window.deliver import deliver
    from rmq_store.window.deliver import deliver_all

    run, _ = current_run()
    store, host = Deployment.from_env().open_store(), Host()
    answers = []
    for shard in store.shards():
        reports = deliver_all(run.request_id, functools.partial(deliver, store, shard, actor=run.actor, host=host))
        answer = {
            "shard": shard.name,
            "delivered": sum(report.delivered for report in reports),
            "next_due_ms": reports[-1].next_due_ms,
            "warnings": [warning for report in reports for warning in report.warnings],
        }
        answers.append(_logged(answer))
    if not any(answer["delivered"] for answer in answers):
        _nothing_to_do("nothing is due")
    return answers


@translated
def dispatch_all() -> Answer:
    """Bring the derived tables up to the newest commit."""
    from rmq_store.lake.commit.dispatch import dispatch

    current_run()
    host = Host()
    return _logged({shard.name: dispatch(shard, host) for shard in Deployment.from_env().open_store().shards()})


@translated
def export_all() -> list[Answer]:
    """Merge ``consumerOffset.json`` and ``delayOffset.json`` of every imported broker into the existing files, and
    write those that change."""
    from rmq_store.broker_files.offsets_to_broker import CONSUMER_OFFSETS, How, planned_writes, write_both
    from rmq_store.commit.positions import split_id
    from rmq_store.lake.broker.export import export_offsets

    deployment = Deployment.from_env()
    answers = []
    for shard in deployment.open_store().shards():
        for app_id, _ in shard.positions().prefixed("import/"):
            broker_name = split_id(app_id)[1]
            export = export_offsets(shard, broker_name)
            file = deployment.export_folder / shard.name / quote(broker_name, safe="") / CONSUMER_OFFSETS.name
            try:
                writes = planned_writes(file, export.offsets, export.delays, export.version, How.MERGE)
                changed = write_both(writes)
            except WrongUse as error:
                raise WrongUse(
                    f"{error}. Set RMQ_EXPORT_FOLDER to a folder that the user of Airflow's processes can write to"
                ) from error
            answers.append(
                _logged(
                    {
                        "broker_name": broker_name,
                        "file": str(file),
                        "changed": any(changed),
                        "lowered": sum(len(write.lowered) for write in writes),
                        "notes": [note for write in writes for note in write.notes],
                        "groups": export.groups,
                        "waiting_retries": dict(export.waiting_retries),
                        "waiting_messages": dict(export.waiting_messages),
                        "waiting_levels": export.waiting_levels,
                    }
                )
            )
    return answers


@translated
def maintain_all(step: Step) -> list[Answer]:
    """One step of the maintenance of every shard: what was done to each table."""
    from rmq_store.lake.maintain.maintain import maintain

    run, _ = current_run()
    host, rules = Host(), Deployment.from_env().retention() if step is Step.RETENTION else ()
    request = MaintainRequest(request_id=run.request_id, actor=run.actor, steps=frozenset({step}), rules=rules)
    return [
        _logged(report.answer())
        for shard in Deployment.from_env().open_store().shards()
        for report in maintain(shard, request, host)
    ]


@translated
def reset_group(*, dry_run: bool) -> list[Answer]:
    """Show the new offsets of the group, or move the offsets, in all shards that have the topic."""
    from dataclasses import replace

    from rmq_store.lake.admin.offset_moves import move_in_all
    from rmq_store.lake.window.consumption import shards_with_queues

    run, params = current_run()
    request = replace(reset_request(run, params), dry_run=dry_run)
    shards = shards_with_queues(Deployment.from_env().open_store().shards(), request.topic, request.queues)
    answers = []
    for report in move_in_all([(shard, replace(request, queues=queues)) for shard, queues in shards], Host()):
        for move in report.moves:
            log.info("%s: %s -> %s", move.queue, move.from_offset, move.to_offset)
        answer = {
            "status": report.status,
            "shard": report.shard,
            "moves": [_move_values(move) for move in report.moves],
            "warnings": list(report.warnings),
        }
        answers.append(_logged(answer))
    return answers


def _move_values(move: Moved) -> list[str | int | None]:
    """``[broker:queue, from, to]``."""
    return [f"{move.queue.broker_name}:{move.queue.queue_id}", move.from_offset, move.to_offset]


@translated
def is_dry_run() -> bool:
    run, params = current_run()
    return reset_request(run, params).dry_run


@translated
def redrive_dead_letters(*, dry_run: bool) -> list[Answer]:
    """List the dead letters that would be sent again, or send them, in all shards that have some of the group."""
    from dataclasses import replace

    from rmq_store.admin.redrive import NO_MATCH, no_dead_letters, of_settings
    from rmq_store.lake.admin.groups import need_group
    from rmq_store.lake.admin.redrive import redrive_all, shards_with_dead_letters

    run, params = current_run()
    deployment = Deployment.from_env()
    settings, store = read_settings(deployment.settings), deployment.open_store()
    request, readers = of_settings(redrive_request(run, params), settings)
    shards = shards_with_dead_letters(store.shards(), replace(request, dry_run=dry_run))
    if not shards:
        need_group(store, request.group, [group.name for group in settings.groups])
    answers = []
    for shard, request_of_shard in shards:
        report = redrive_all(shard, request_of_shard, Host())
        for letter in report.listed:
            log.info("%s offset %s: %s %s", letter.queue, letter.offset, letter.unique_key, letter.original_topic)
        answer = {
            "status": report.status,
            "shard": shard.name,
            "letters": report.letters,
            "topic": report.topic,
            "readers": sorted({*readers, *report.readers}),
            "warnings": list(report.warnings),
        }
        answers.append(_logged(answer))
    if not any(answer["letters"] for answer in answers):
        _nothing_to_do(NO_MATCH if shards else no_dead_letters(request.group))
    return answers


@translated
def is_redrive_dry_run() -> bool:
    run, params = current_run()
    return redrive_request(run, params).dry_run


@translated
def check_import() -> str:
    """Check the parameters, and that the source may be read; nothing of it is opened. Returns the source."""
    _, params = current_run()
    return Deployment.from_env().allowed_source(ImportParams.of(params).source)


@translated
def import_files() -> Answer:
    """Import what is new in the broker's files into the commit log."""
    from rmq_store.lake.broker.import_store import ImportRequest, import_store
    from rmq_store.lake.table.object_store import Root

    run, params = current_run()
    import_params, deployment = ImportParams.of(params), Deployment.from_env()
    source = Root.parse(deployment.allowed_source(import_params.source))
    request = ImportRequest(
        broker_name=import_params.broker_name,
        shard_name=import_params.shard,
        request_id=run.request_id,
        actor=run.actor,
        salvage=import_params.salvage,
        max_body_bytes=import_params.max_body_bytes,
    )
    with deployment.engines(import_params.engine) as engines:
        report = import_store(
            deployment.open_store(),
            source,
            request,
            Host(),
            engines.for_import(),
            progress=lambda read, total: log.info("%s of %s bytes", f"{read:,}", f"{total:,}"),
        )
    return _logged(
        asdict(report)
        | {"salvaged": len(report.salvaged), "queue_gaps": len(report.queue_gaps)}
        | {"notes": list(report.notes), "warnings": list(report.warnings)}
    )


def _logged(answer: Answer) -> Answer:
    log.info("%s", answer)
    for warning in answer.get("warnings", ()):
        log.warning("%s", warning)
    return answer
