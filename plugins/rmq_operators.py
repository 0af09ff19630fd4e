"""What the tasks of the DAGs do: a run's facts and parameters in, a call of the lake or of a job, a small answer out.

It translates and decides nothing. Heavy imports are inside the functions, so that parsing a DAG stays light. Where
things are is said by the environment of the Airflow processes, never by a run's parameters (``Deployment``).
"""

from __future__ import annotations

import functools
import logging
import os
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar
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
from rmq_store.commit.request import overall
from rmq_store.errors import ClockSkew, HeldByAnother, NothingThere, RmqError, StaleAttempt, StoreUnusable, WrongUse
from rmq_store.settings.settings import GroupSettings, read_settings
from rmq_store.utils.host import Host
from rmq_store.utils.redaction import cleaned, secret_values
from rmq_store.window.plan import ConsumeRequest, Scope

if TYPE_CHECKING:
    from airflow.sdk.types import DagRunProtocol

log = logging.getLogger(__name__)

Answer = dict[str, Any]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_WORTH_A_RETRY = (StoreUnusable, ClockSkew, HeldByAnother, StaleAttempt)


def translated(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """For what a task calls. An RmqError becomes Airflow's error: retried where waiting helps, final where the call or the
    data must be mended. A SystemExit of foreign code is a failure, whatever its code."""

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except _WORTH_A_RETRY as error:
            raise AirflowException(_logged_error(error)) from None
        except RmqError as error:
            raise AirflowFailException(_logged_error(error)) from None
        except SystemExit as error:
            raise AirflowException(f"foreign code ends the process: {_logged_error(error)}") from None

    return call


def _logged_error(error: BaseException) -> str:
    """Where it comes from goes to the task's log; returned is what it says. Both are cleaned: Airflow would log its causes
    as they are."""
    secrets = secret_values(os.environ)
    log.info("%s", cleaned("".join(traceback.format_exception(error)), secrets, 1 << 20))
    return cleaned(f"{type(error).__name__}: {error}", secrets)


# --- the run ---------------------------------------------------------------------------------------------------------


def current_run() -> tuple[Run, Mapping[str, Any]]:
    """The facts of the task's run, and its parameters. Raises WrongUse for parameters that its DAG does not have, which
    Airflow takes."""
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
    """Say it in the log and as the task's XCom ``nothing_to_do``: in Airflow 3.3 no task can write a note."""
    log.info("nothing to do: %s", reason)
    get_current_context()["ti"].xcom_push("nothing_to_do", reason)


def _settings_of(here: Deployment, group: str) -> GroupSettings:
    return read_settings(here.settings).group(group)


# --- consume ---------------------------------------------------------------------------------------------------------


@translated
def plan_shards(group_name: str) -> list[str]:
    """The shards in which the run has something to do, or to say again; none is a success. Starts no JVM.

    What the store does not hold yet is nothing to do for a schedule; a person is told, who may have mistaken a name.
    """
    from rmq_store.lake.window.consumption import has_work, shards_of

    run, params = current_run()
    here = Deployment.from_env()
    request = consume_request(run, params)
    group = _settings_of(here, group_name)
    log.info("request %s: until %s (%s)", request.request_id, request.until_ms, request.parameters["until_rule"])
    try:
        shards = shards_of(here.open_store(), group)
    except NothingThere as missing:
        if not run.on_its_own:
            raise
        _nothing_to_do(str(missing))
        return []
    found = [shard.name for shard in shards if has_work(shard, group, request, Host())]
    log.info("shards with work: %s", ", ".join(found) or "none")
    if not found:
        _nothing_to_do(f"group {group.name} has consumed all that the window may read")
    return found


@translated
def consume_shard(group_name: str, shard_name: str) -> Answer:
    """All windows of the run's request in one shard."""
    from rmq_store.lake.window.consumption import Consumption
    from rmq_store.lake.window.window import consume_window

    run, params = current_run()
    here = Deployment.from_env()
    group = _settings_of(here, group_name)
    store, request = here.open_store(), consume_request(run, params)
    (shard,) = store.shards(shard_name)
    with here.engines(group.engine) as engines:
        window = functools.partial(consume_window, store, shard, group, request, engines.for_window, Host())
        return _logged(Consumption.of(window).summary())


@translated
def report(answers: list[Answer]) -> Answer:
    """What the shards' answers come to, for the run's asset event."""
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


# --- replay ----------------------------------------------------------------------------------------------------------


@translated
def replay_plan() -> list[str]:
    """The shards that the replay, or the follow-up of one, reads. Checks all parameters; starts no JVM."""
    from rmq_store.lake.admin.replay import shards_replayed
    from rmq_store.lake.window.consumption import shards_of

    here = Deployment.from_env()
    asked, group, _, scope = _replay_asked(here)
    if asked.reprocess is not None:
        return [shard.name for shard in shards_replayed(here.open_store(), group.name)]
    return [shard.name for shard in shards_of(here.open_store(), group, scope)]


@translated
def replay_shard(shard_name: str) -> Answer:
    """All windows of the replay, or of its next attempt, in one shard, under the replay's own group."""
    from rmq_store.lake.admin.replay import begin_attempt
    from rmq_store.lake.window.consumption import Consumption
    from rmq_store.lake.window.window import consume_window

    here = Deployment.from_env()
    asked, group, request, scope = _replay_asked(here)
    store = here.open_store()
    (shard,) = store.shards(shard_name)
    if asked.reprocess is not None:
        group, request, scope = begin_attempt(shard, group, request, Host())
    with here.engines(group.engine) as engines:
        window = functools.partial(consume_window, store, shard, group, request, engines.for_window, Host(), scope)
        return _logged(Consumption.of(window).summary())


def _replay_asked(here: Deployment) -> tuple[ReplayParams, GroupSettings, ConsumeRequest, Scope]:
    """What the run asks, and what of its windows."""
    run, params = current_run()
    asked = ReplayParams.of(params)
    group, scope = group_settings(read_settings(here.settings), asked.group)
    if asked.topic is not None and asked.from_ms is not None:
        return asked, *as_replay(group, asked.topic, asked.from_ms, asked.request(run))
    if not scope.retries_only:
        raise WrongUse(f"{asked.group} is no replay group: give a topic and a time to begin from")
    return asked, group, asked.request(run), scope


# --- deliver, persist, reset, import ---------------------------------------------------------------------------------


@translated
def deliver_due() -> list[Answer]:
    """Everything due, over all levels and shards; ``next_due_ms`` says when the next one is."""
    from rmq_store.lake.window.deliver import deliver
    from rmq_store.window.deliver import deliver_all

    run, _ = current_run()
    here, host = Deployment.from_env(), Host()
    store = here.open_store()
    answers = []
    for shard in store.shards():
        done = deliver_all(run.request_id, functools.partial(deliver, store, shard, actor=run.actor, host=host))
        delivered = sum(report.delivered for report in done)
        told = {"shard": shard.name, "delivered": delivered, "next_due_ms": done[-1].next_due_ms}
        answers.append(_logged(told | {"warnings": [warning for report in done for warning in report.warnings]}))
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
    """``consumerOffset.json`` and ``delayOffset.json`` of every imported broker, merged into the files that are there and
    written where they change."""
    from rmq_store.broker_files.offsets_back import CONSUMER_OFFSETS, How, planned_writes, write_both
    from rmq_store.commit.positions import split_id
    from rmq_store.lake.broker.export import export_offsets

    here = Deployment.from_env()
    answers = []
    for shard in here.open_store().shards():
        for app_id, _ in shard.positions().prefixed("import/"):
            broker_name = split_id(app_id)[1]
            known = export_offsets(shard, broker_name)
            file = here.export_folder / shard.name / quote(broker_name, safe="") / CONSUMER_OFFSETS.name
            try:
                planned = planned_writes(file, known.offsets, known.delays, known.version, How.MERGE)
                written = write_both(planned)
            except WrongUse as error:
                raise WrongUse(
                    f"{error}. RMQ_EXPORT_FOLDER names the folder; the user of Airflow's processes must be able to write there"
                ) from error
            answers.append(
                _logged(
                    {
                        "broker_name": broker_name,
                        "file": str(file),
                        "changed": any(written),
                        "lowered": sum(len(one.lowered) for one in planned),
                        "notes": [note for one in planned for note in one.notes],
                        "groups": known.groups,
                        "waiting_retries": dict(known.waiting_retries),
                        "waiting_messages": dict(known.waiting_messages),
                        "waiting_levels": known.waiting_levels,
                    }
                )
            )
    return answers


@translated
def reset_group(*, dry_run: bool) -> list[Answer]:
    """Where the group's offsets would go, or go. All shards that have the topic."""
    from dataclasses import replace

    from rmq_store.lake.admin.moves import move_in_all
    from rmq_store.lake.window.consumption import shards_with_queues

    run, params = current_run()
    asked = reset_request(run, params)
    having = shards_with_queues(Deployment.from_env().open_store().shards(), asked.topic, asked.queues)
    answers = []
    for done in move_in_all([(shard, replace(asked, queues=its, dry_run=dry_run)) for shard, its in having], Host()):
        for move in done.moves:
            log.info("%s: %s -> %s", move.queue, move.from_offset, move.to_offset)
        told = {"status": done.status, "shard": done.shard, "moves": [_moved(m) for m in done.moves]}
        answers.append(_logged(told | {"warnings": list(done.warnings)}))
    return answers


def _moved(move: Any) -> list[Any]:
    return [f"{move.queue.broker_name}:{move.queue.queue_id}", move.from_offset, move.to_offset]


@translated
def is_dry_run() -> bool:
    run, params = current_run()
    return reset_request(run, params).dry_run


@translated
def redrive_letters(*, dry_run: bool) -> list[Answer]:
    """Which dead letters would be sent again, or send them. All shards that have dead letters of the group."""
    from dataclasses import replace

    from rmq_store.admin.redrive import NO_SUCH_LETTER, no_letters, of_settings
    from rmq_store.lake.admin.groups import need_group
    from rmq_store.lake.admin.redrive import redrive_all, shards_with_letters

    run, params = current_run()
    here = Deployment.from_env()
    settings, store = read_settings(here.settings), here.open_store()
    asked, readers = of_settings(redrive_request(run, params), settings)
    having = shards_with_letters(store.shards(), replace(asked, dry_run=dry_run))
    if not having:
        need_group(store, asked.group, [group.name for group in settings.groups])
    answers = []
    for shard, its in having:
        done = redrive_all(shard, its, Host())
        for letter in done.listed:
            log.info("%s offset %s: %s %s", letter.queue, letter.offset, letter.unique_key, letter.original_topic)
        told = {"status": done.status, "shard": shard.name, "letters": done.letters, "topic": done.topic}
        told |= {"readers": sorted({*readers, *done.readers}), "warnings": list(done.warnings)}
        answers.append(_logged(told))
    if not any(answer["letters"] for answer in answers):
        _nothing_to_do(NO_SUCH_LETTER if having else no_letters(asked.group))
    return answers


@translated
def is_redrive_dry_run() -> bool:
    run, params = current_run()
    return redrive_request(run, params).dry_run


@translated
def check_import() -> str:
    """Checks the parameters and that the source may be read. Opens nothing of it."""
    _, params = current_run()
    return Deployment.from_env().allowed_source(ImportParams.of(params).source)


@translated
def import_files() -> Answer:
    """What is new in the broker's files, into the commit log."""
    from rmq_store.lake.broker.import_store import ImportRequest, import_store
    from rmq_store.lake.table.object_store import Root

    run, params = current_run()
    asked, here = ImportParams.of(params), Deployment.from_env()
    source = Root.parse(here.allowed_source(asked.source))
    request = ImportRequest(
        broker_name=asked.broker_name,
        shard_name=asked.shard,
        request_id=run.request_id,
        actor=run.actor,
        salvage=asked.salvage,
        max_body_bytes=asked.max_body_bytes,
    )
    with here.engines(asked.engine) as engines:
        done = import_store(
            here.open_store(),
            source,
            request,
            Host(),
            engines.for_import(),
            progress=lambda read_bytes, all_bytes: log.info("%s of %s bytes", f"{read_bytes:,}", f"{all_bytes:,}"),
        )
    return _logged(
        asdict(done)
        | {"salvaged": len(done.salvaged), "queue_gaps": len(done.queue_gaps)}
        | {"notes": list(done.notes), "warnings": list(done.warnings)}
    )


def _logged(answer: Answer) -> Answer:
    log.info("%s", answer)
    for warning in answer.get("warnings", ()):
        log.warning("%s", warning)
    return answer
