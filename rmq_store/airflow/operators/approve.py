"""Ask a person before a run does what it has shown."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import Param
from airflow.sdk.definitions.param import ParamsDict
from airflow.sdk.exceptions import AirflowFailException, TaskAwaitingInput

from rmq_store.admin.dag_params import switch_of
from rmq_store.airflow import task
from rmq_store.airflow.arguments import check_switches, check_texts
from rmq_store.airflow.preview import Preview, check_comes_before, check_runs_once, record_rejection
from rmq_store.airflow.reporting import RecordsPreviews
from rmq_store.airflow.task import translated
from rmq_store.errors import WrongUse
from rmq_store.utils.redaction import name_in_sentence, plain_markdown, reason_in_sentence, shortened
from rmq_store.utils.times import format_time

if TYPE_CHECKING:
    from airflow.sdk import Context


class RmqApprovalOperator(RecordsPreviews, ApprovalOperator):
    """
    Wait until a person approves what a dry run has shown. A rejection skips the next tasks, and the run is green.

    The question is among Airflow's required actions, with the preview in words, who asks and why, the group, the shards and a
    digest of the preview; it takes no slot while it waits. It does not ask where there is nothing to do, or where the request
    was committed before. The note of the run says who answered, and when. Without an answer within ``response_timeout`` the
    task fails at once.

    Airflow keeps the first question of a task for ever: where it was cleared with the task that shows, and that shows
    something else now, the task fails and asks nothing.

    Its XCom ``preview`` is what it lets pass: what it asked about, once that is approved, or what was shown where it did not
    ask. The tasks after it that name the same ``preview`` do this, and fail without it. The task that showed it takes it back
    when it runs again.

    :param preview: The id of the task that showed it.
    :param use_run_params: Ask only if the run's parameter ``approve`` is true. By default it is asked in every run.
    :param kwargs: Those of ``ApprovalOperator``, such as ``assigned_users``, ``notifiers`` and ``response_timeout``.
    """

    ui_color = "#fdebd8"

    def __init__(self, *, preview: str, use_run_params: bool = False, **kwargs: Any) -> None:
        check_texts(preview=preview)
        check_switches(use_run_params=use_run_params)
        if "retries" not in {**(kwargs.get("default_args") or {}), **kwargs}:
            kwargs |= {"retries": EARLY_ANSWERS, "retry_delay": EARLY_ANSWER_DELAY}
        super().__init__(subject="", **kwargs)  # what is asked is known once the dry run has run
        self.preview_task = preview
        self.use_run_params = use_run_params

    def execute(self, context: Context) -> Any:
        """Ask, unless there is no need."""
        with translated():
            check_runs_once(self)
            check_comes_before(
                self.preview_task, {task.task_id: task for task in self.get_flat_relatives(upstream=True)}
            )
            preview = Preview.of_task(context, self.preview_task)
            reason = self._reason_not_to_ask(context, preview)
        if reason:
            self.log.info("%s", reason)
            preview.let_pass(context)
            return None
        if self._was_rejected(context):
            record_rejection(context)
            task.note(context, _REJECTED_BEFORE)
            return None
        group = preview.facts["group"]
        shards = ", ".join(preview.facts["shards"])
        self.subject = f"{context['dag'].dag_id}: {group} in {shards}"
        self.body = _body(preview.facts)
        fields = {"group": ("Group", group), "shards": ("Shards", shards), "store": ("Store", preview.facts["store"])}
        fields["preview"] = ("Preview", preview.digest)
        self.params = ParamsDict({name: _shown(title, value) for name, (title, value) in fields.items()})
        with translated():
            if "offsets" not in preview.facts:
                raise WrongUse(
                    f"nothing can be approved, since the dry run ends with an error: {preview.facts['text']}. Nothing was done"
                )
            self._check_question(context)
        context["ti"].xcom_push(_ASKED, preview.facts)
        try:
            return super().execute(context)
        except TaskAwaitingInput as waiting:
            waiting.kwargs = {**(waiting.kwargs or {}), "seal": preview.seal(context)}
            raise

    def _check_question(self, context: Context) -> None:
        """Raise WrongUse unless the question that Airflow has for this task is the one to ask.

        There is one question for each task of a run. An earlier try has made it, and what the task asks now does not change
        it: a person would read the old text, and approve the new preview; or another person may answer than the DAG says now.
        """
        from airflow.sdk.execution_time import task_runner
        from airflow.sdk.execution_time.comms import CreateHITLDetailPayload, HITLDetailRequestResult

        question = {
            "subject": self.subject,
            "body": self.body,
            "params": self.serialized_params,
            "options": self.options,
            "defaults": self.defaults,
            "multiple": self.multiple,
            "assigned_users": self.assigned_users or [],
        }
        request = CreateHITLDetailPayload.model_validate({"ti_id": context["ti"].id} | question)
        kept = task_runner.SUPERVISOR_COMMS.send(request)
        is_the_same = isinstance(kept, HITLDetailRequestResult) and all(
            getattr(kept, name) == getattr(request, name) for name in question
        )
        if not is_the_same:
            raise WrongUse(_ANOTHER_QUESTION)

    def is_asked_for(self, context: Context) -> bool:
        """Return whether the run asks for an approval."""
        return not self.use_run_params or switch_of(context["params"], "approve")

    def _reason_not_to_ask(self, context: Context, preview: Preview) -> str:
        """Why the preview needs no approval; empty: it needs one."""
        if not self.is_asked_for(context):
            return "the run asks for no approval"
        if not preview.is_to_do:
            return f"there is nothing to approve: {preview.nothing_to_do or 'it was committed before'}"
        return ""

    def _was_rejected(self, context: Context) -> bool:
        """Whether an earlier try of this task has skipped the next ones, which no answer can change. Airflow tries a task again
        whose answer came before its scheduler knew that it waits."""
        skipped = self.get_flat_relatives if self.ignore_downstream_trigger_rules else self.get_direct_relatives
        next_tasks, run_id = sorted(task.task_id for task in skipped(upstream=False)), context["run_id"]
        states = (
            context["ti"].get_task_states(dag_id=self.dag_id, task_ids=next_tasks, run_ids=[run_id]).get(run_id, {})
        )
        return bool(states) and all(state == "skipped" for state in states.values())

    def execute_complete(self, context: Context, event: dict[str, Any], seal: str | None = None) -> Any:
        """Write the answer to the note of the run; let the next tasks run, or skip them.

        :param event: The answer, as Airflow has recorded it with the question.
        :param seal: That of the preview that the question is about. Airflow keeps it beside the state of the task, where no
            user can write.
        """
        if event.get("error_type") == "timeout":
            task.note(context, _NO_ANSWER)
            raise AirflowFailException(_NO_ANSWER)  # another try would only ask for as long again
        if "error" not in event:
            with translated():
                self._take(context, event, seal)
        return super().execute_complete(context, event)

    def _take(self, context: Context, event: dict[str, Any], seal: str | None) -> None:
        """Record the answer. Raises WrongUse where it is none, and where what was asked is no longer there as it was."""
        answer = event["chosen_options"]
        if answer not in ([self.APPROVE], [self.REJECT]):
            raise WrongUse(f"the answer is {answer!r}: expected {self.APPROVE} or {self.REJECT}. Nothing was done")
        is_approved = answer == [self.APPROVE]
        if is_approved:
            preview = Preview(context["ti"].xcom_pull(task_ids=self.task_id, key=_ASKED) or {})
            if seal is None or preview.seal(context) != seal:
                raise WrongUse(_ASKED_IS_ANOTHER)
            preview.let_pass(context)
        else:
            record_rejection(context)
        user, at_ms = event["responded_by_user"], int(event["responded_at"].timestamp() * 1000)
        who = f"by {name_in_sentence(user['name'])}" if user else "by default, since no answer came in time,"
        task.note(context, f"{'approved' if is_approved else 'rejected'} {who} at {format_time(at_ms)}")


LONGEST_TEXT = 4000
"""The most characters of the preview in a question."""
_ASKED = "asked"
"""The XCom with the preview that the question is about. It survives the wait; another try begins without it. Users may write
it: the seal of the preview survives beside the state of the task."""
_ASKED_IS_ANOTHER = (
    "what was approved is not there as it was asked: the XCom 'asked' of this task was changed meanwhile, or the question is "
    "of an earlier version of the package. Trigger a new run. Nothing was done"
)
_NO_ANSWER = "no answer came in time. Nothing was done: trigger a new run"
EARLY_ANSWERS = 2
"""The tries after the first one where the DAG says nothing of ``retries``: Airflow takes a task whose answer came in the first
seconds for one that was killed."""
EARLY_ANSWER_DELAY = timedelta(seconds=5)
_ANOTHER_QUESTION = (
    "the question of this task shows another preview: Airflow keeps the first question of a task for ever, and cannot show "
    "what the run would do now. Trigger a new run. Nothing was done"
)
_REJECTED_BEFORE = (
    "not asked again: an earlier try was rejected, its next tasks were skipped and nothing was done. To be asked again, clear "
    "this task with its downstream tasks"
)


def _body(facts: Mapping[str, Any]) -> str:
    """What a preview says, and who asks for it and why: two paragraphs of Markdown."""
    reason = reason_in_sentence(facts.get("reason") or "")
    why = f"Asked by {name_in_sentence(facts['by'])}." + (f" Reason: {reason}" if reason else "")
    return "\n\n".join(map(plain_markdown, (shortened(facts["text"], LONGEST_TEXT), why)))


def _shown(title: str, value: str) -> Param:
    """A field of the form that cannot be changed."""
    return Param(value, type="string", enum=[value], title=title)
