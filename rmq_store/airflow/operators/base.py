"""What the operators share: the hook, their parameters, the translation of errors."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator

from rmq_store.admin.dag_params import Run, check_names, switch_of
from rmq_store.admin.move_sizes import Direction
from rmq_store.admin.sentences import moves_sentence, window_line, window_sentence
from rmq_store.airflow import task
from rmq_store.airflow.arguments import check_optional_texts, check_switches, check_texts
from rmq_store.airflow.assets import report_offsets
from rmq_store.airflow.hooks.rmq import RmqHook
from rmq_store.airflow.lineage import Lineage, openlineage_of
from rmq_store.airflow.preview import PREVIEW, Preview, check_comes_before, check_ended, check_runs_once, offsets_of
from rmq_store.airflow.task import Answer, translated
from rmq_store.commit.request import Status, overall
from rmq_store.errors import STOPPED, RmqError, Terminated, WrongUse
from rmq_store.utils.host import Host
from rmq_store.utils.progress import by_tenths
from rmq_store.utils.redaction import cleaned_value, one_line, secret_values, without_secrets

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rmq_store.admin.offset_moves import MoveReport
    from rmq_store.airflow.operators.approve import RmqApprovalOperator
    from rmq_store.lake.table.shard import Shard
    from rmq_store.lake.table.store import LakeStore
    from rmq_store.lake.window.engine import Engine
    from rmq_store.settings.settings import GroupSettings
    from rmq_store.window.consume_request import ConsumeRequest, Scope
    from rmq_store.window.plan import Plan


class RmqOperator(BaseOperator):
    """
    Do one action on a store, as the request of the DAG run.

    The run is the request: a task that is retried, or cleared after it has finished, finds what was committed and commits
    nothing twice. The request's actor is the user who triggered the run.

    An error that waiting can fix fails the try, and Airflow retries it; any other one fails the task at once.

    :param rmq_conn_id: The connection of the store. Without one of the default id, the ``RMQ_*`` variables name the store.
    :param use_run_params: Take the arguments that are not given here from the run's parameters, such as those of a trigger
        form. Their names are those of the command line's options, with underscores. A parameter that the DAG does not have
        fails the run. The parameters are values: they are never rendered as templates.
    :param request_name: Tasks of one run that do the same action for the same group each need a name: the second one would
        otherwise find what the first has committed, and do nothing.
    """

    ui_color = "#fdebd8"

    def __init__(
        self,
        *,
        rmq_conn_id: str = RmqHook.default_conn_name,
        use_run_params: bool = False,
        request_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_texts(rmq_conn_id=rmq_conn_id)
        check_optional_texts(request_name=request_name)
        check_switches(use_run_params=use_run_params)
        super().__init__(**kwargs)
        self.rmq_conn_id = rmq_conn_id
        self.use_run_params = use_run_params
        self.request_name = request_name

    _is_acting = False
    group_of_run: str | None = None
    """The group that the run's parameters named, for the links, once the task has run."""
    consumed_by_run: Answer | None = None
    """What ``consumed`` returned, for the links."""
    lineage: Lineage | None = None
    """What the task has read and written, once it has run."""

    @cached_property
    def hook(self) -> RmqHook:
        """Return the hook, which has not read the connection yet."""
        return RmqHook(self.rmq_conn_id)

    def execute(self, context: Context) -> Any:
        """Do the action and return a small answer, which is also logged."""
        with self.acting():
            if self.use_run_params:  # Airflow accepts parameters that the DAG does not have
                check_names(context["dag_run"].conf or {}, context["dag"].params)
            return self.act(context)

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Around what the operator does: errors are Airflow's, and Airflow may end it."""
        self._is_acting = True
        try:
            with translated(self.hook):
                yield
        finally:
            self._is_acting = False

    def on_kill(self) -> None:
        """End what the operator does as a signal ends a command: its listeners are ended and its claims released.

        Airflow calls this in the handler of SIGTERM, where a person marks the task as failed, the run has its timeout, or the
        worker ends. It kills the process five seconds later.
        """
        if self._is_acting:
            self._is_acting = False  # a second signal does not stop the release
            STOPPED.set()
            raise Terminated("Airflow ends the task")

    def act(self, context: Context) -> Any:
        """Do the action. May raise RmqError."""
        raise NotImplementedError

    # --- for the actions ---------------------------------------------------------------------------------------------

    def run_facts(self, context: Context) -> Run:
        """Return the facts of the DAG run; its ``request_id`` ends with the request's name, if it has one."""
        run = task.run_of(context["dag_run"])
        return replace(run, run_id=f"{run.run_id}/{self.request_name}") if self.request_name else run

    def values(self, context: Context, **arguments: Any) -> Mapping[str, Any]:
        """
        Return the parameters of the action as the functions of ``rmq_store.admin.dag_params`` read them.

        :param arguments: the operator's own arguments by the parameter's name, None where one is not given; ``from_`` is
            ``from``
        """
        given = {name.rstrip("_"): _plain(value) for name, value in arguments.items()}
        if not self.use_run_params:
            return self._without_secrets(given)
        if given.get("dry_run") is False:
            self.refuse_dry_run(context)
        of_run = context["params"]
        values = {name: of_run.get(name) if value is None else value for name, value in given.items()}
        self.group_of_run = values.get("group")
        return self._without_secrets(values)

    def _without_secrets(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values with reasons as they may be recorded."""
        reasons = {name: values[name] for name in _REASONS if isinstance(values.get(name), str)}
        secrets = secret_values(self.hook.deployment.variables) if reasons else ()
        return {**values, **{name: without_secrets(text, secrets) for name, text in reasons.items()}}

    def refuse_dry_run(self, context: Context) -> None:
        """Raise WrongUse where the run's parameter ``dry_run`` is set, before an act: the tasks that act are skipped then, but
        a person can clear one of them alone, or mark the task that skips them as success."""
        if self.use_run_params and switch_of(context["params"], "dry_run"):
            raise WrongUse("the run is a dry run, which only shows what it would do. Nothing was done")

    def shown(self, context: Context, task_id: str | None) -> Preview:
        """
        Return what the task is to do: what the task with this id has shown, or, where approvals of that come before this task,
        what they let pass. None: no task has shown anything.

        Raises WrongUse where the tasks have shown and approved nothing since they were cleared, or not the same.
        """
        if task_id is None:
            return Preview({})
        before = {task.task_id: task for task in self.get_flat_relatives(upstream=True)}
        check_comes_before(task_id, before)
        approvals = _approvals(before, task_id)
        check_ended(context, [task_id, *approvals])
        preview = Preview.of_approvals(context, task_id, [*approvals])
        return preview._replace(is_approved=any(task.is_asked_for(context) for task in approvals.values()))

    def act_facts(self, store: LakeStore, action: str, group: str, **more: Any) -> Answer:
        """Return what decides what a task does, for its preview and for ``Preview.check``, without secrets.

        :param group: The group whose offsets move.
        :param more: What else decides it, as JSON values.
        """
        place = f"{store.root.location} ({store.store_id})"
        facts = {"action": action, "connection": self.rmq_conn_id, "store": place, "group": group, **more}
        answer: Answer = cleaned_value(facts, self.hook.secrets)
        return answer

    def consumed(
        self,
        context: Context,
        store: LakeStore,
        shard: Shard,
        group: GroupSettings,
        request: ConsumeRequest,
        scope: Scope,
        engine: str | None,
        *,
        replay_of: str | None = None,
        warnings: Sequence[str] = (),
    ) -> Answer:
        """Consume in the shard until the request is complete, and return the sum of the windows, which is also logged and
        in the note of the run, and whose offsets are in an event.

        :param replay_of: The group that the replay group ``group`` replays; it is in the answer.
        :param warnings: What else is to be in the answer's warnings, and in the note of the run.
        """
        from rmq_store.lake.window.consumption import Consumption, queue_rows
        from rmq_store.lake.window.window import consume_window

        topics = [subscription.topic for subscription in group.subscriptions]
        self.lineage = Lineage.of_windows(store.root.location, shard.name, topics)
        progress = by_tenths(lambda count, total: self.log_line(f"{count:,} of {total:,} tasks"))
        with self.hook.deployment.engines(engine, [group.listener], progress) as engines:

            def engine_of(plan: Plan) -> Engine:
                chosen = engines.for_window(plan)
                messages = sum(len(planned.range) for planned in plan.ranges)
                self.log_line(f"a window of {messages:,} offsets in {len(plan.ranges):,} queues, engine {chosen.name}")
                return chosen

            window = functools.partial(
                consume_window, store, shard, group, request, engine_of=engine_of, host=Host(), scope=scope
            )
            consumption = Consumption.of(window, lambda report: self.log_line(window_line(report)))
        replay = {"replay_of": replay_of} if replay_of else {}
        summary = consumption.summary()
        sentence = "; ".join([window_sentence(summary), *warnings])
        summary["warnings"] += warnings
        answer = self.consumed_by_run = self.logged(summary | replay)
        self.log_queues(*queue_rows([consumption]))
        self.note(context, f"{group.name} in {shard.name}: {sentence}")
        self.report_offsets(context, replay_of or group.name, [answer])
        return answer

    def report_offsets(self, context: Context, group: str, answers: Sequence[Answer]) -> None:
        """Have the offsets that the group has reached in the events of the task's outlets."""
        report_offsets(context, self.outlets, group, answers, self.hook.secrets)

    @contextmanager
    def moving(self, context: Context, group: str, action: str) -> Iterator[None]:
        """Around a move of a group's offsets: what was moved in some shards before an error is logged as by ``moved``, and the
        note of the run says so. ``action`` is as there."""
        try:
            yield
        except RmqError as error:
            if error.reports:
                names = ", ".join(report.shard for report in error.reports)
                self.moved(context, (), group, error.reports, f"{action}, ended by an error after shard {names}")
            raise

    def moved(
        self,
        context: Context,
        shards: Sequence[Shard],
        group: str,
        reports: Sequence[MoveReport],
        action: str,
        *,
        dry_run: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> list[Answer]:
        """Log the moves of a group's offsets as a table, and return an answer per shard. Of a dry run the sum is the preview.

        :param action: What moves them, for the note.
        :param facts: What else the preview has: the ``act_facts``, and more.
        """
        from rmq_store.lake.window.dry_run import last_windows
        from rmq_store.window.estimate import estimate_of, no_estimate, sample_of

        answers = [self.logged(_move_answer(report)) for report in reports]
        rows = [row for report in reports for row in report.rows()]
        notes = list(dict.fromkeys(note for report in reports for note in report.notes))
        text = "; ".join([f"{action}: {moves_sentence(answers)}", *notes])
        if not dry_run:
            self.log_queues(rows, _MOVE_COLUMNS)
            self.note(context, text)
            return answers
        again = sum(report.total(Direction.AGAIN)[0] for report in reports)
        if again:
            windows = last_windows(shards, group)
            text += f"; {estimate_of(again, sample_of(group, windows)) or no_estimate(again, len(windows))}"
        answer = {"status": overall(report.status for report in reports), **(facts or {})}
        answer |= {"notes": notes, "offsets": offsets_of(rows, "to_offset")}
        self.preview(context, text, rows, [*_MOVE_COLUMNS, "direction", "messages", "bytes"], answer)
        return answers

    def preview(
        self, context: Context, text: str, rows: Sequence[Answer], columns: Sequence[str], answer: Answer
    ) -> None:
        """Show what the run is going to do: as a table in the task's log, in the note of the run, and as the XCom ``preview``,
        which is ``answer`` with ``text``, ``queues``, at most 1,000 of them, the names of all ``shards`` that the rows or
        ``answer`` have, and ``by``, who asks for it."""
        from rmq_store.cli.output import MANY_ROWS

        self.log_queues(rows, columns)
        queues = [{name: row[name] for name in columns} for row in rows[:MANY_ROWS]]
        by = self.run_facts(context).actor.name
        shards = list(dict.fromkeys([*(row["shard"] for row in rows), *answer.get("shards", ())]))
        facts = answer | {"text": one_line(text), "queues": queues, "shards": shards, "by": by}
        shown = Preview(cleaned_value(facts, self.hook.secrets))
        context["ti"].xcom_push(PREVIEW, shown.facts)
        shown.record(context)
        self.note(context, text)

    def nothing_shown(self, context: Context, reason: str) -> None:
        """Show that nothing is to do: in the task's log, in the note of the run, and as the XCom ``nothing_to_do``."""
        Preview({}, task.nothing_to_do(context, reason)).record(context)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the inputs and outputs; None where OpenLineage's provider is not installed."""
        return openlineage_of(self.lineage)

    def logged(self, answer: Answer) -> Answer:
        """Return the answer without secrets, once it is in the log."""
        return task.logged(answer, self.hook)

    def note(self, context: Context, sentence: str) -> None:
        """Write what the task did to its log and to the note of the run, without secrets."""
        task.note(context, sentence, self.hook)

    def log_queues(self, rows: Sequence[Answer], columns: Sequence[str]) -> None:
        """Write a row per queue to the task's log, as the command line prints them."""
        from rmq_store.cli.output import MANY_ROWS, table_text

        if rows:
            more = f"\n({len(rows) - MANY_ROWS:,} more rows are not shown)" if len(rows) > MANY_ROWS else ""
            self.log_line(f"queues:\n{table_text(rows[:MANY_ROWS], columns, self.hook.secrets)}{more}")

    def log_line(self, text: str) -> None:
        """Write to the task's log, without secrets."""
        task.log_line(text, self.hook)


_REASONS = ("reason", "reprocess")
_MOVE_COLUMNS = ("shard", "topic", "broker_name", "queue_id", "from_offset", "to_offset")


def _move_answer(report: MoveReport) -> Answer:
    """``moves``: ``[broker:queue, from, to]`` for each queue; None is no offset. Of a dry run ``again`` and ``skipped``:
    ``[messages, bytes]``."""
    answer: Answer = {
        "status": report.status,
        "shard": report.shard,
        "moves": [
            [f"{row['broker_name']}:{row['queue_id']}", row["from_offset"], row["to_offset"]] for row in report.rows()
        ],
        "notes": list(report.notes),
        "warnings": list(report.warnings),
    }
    if report.status != Status.DRY_RUN:
        return answer
    return answer | {
        str(direction): list(report.total(direction)) for direction in (Direction.AGAIN, Direction.SKIPPED)
    }


def _approvals(before: Mapping[str, Any], shows: str) -> dict[str, RmqApprovalOperator]:
    """Of the tasks before another one those that approve what the task with the id ``shows`` has shown. Raises WrongUse for one
    that is mapped: it would have several answers."""
    from rmq_store.airflow.operators.approve import RmqApprovalOperator

    approvals = {}
    for name, one in sorted(before.items()):
        approves = isinstance(one, RmqApprovalOperator) and one.preview_task == shows
        if approves or (isinstance(one, MappedOperator) and issubclass(one.operator_class, RmqApprovalOperator)):
            check_runs_once(one)
            approvals[name] = one
    return approvals


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
