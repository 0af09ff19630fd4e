"""What every task has: the run's facts, the translation of errors, and a small logged answer."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from rmq_store.admin.dag_params import Run
from rmq_store.airflow.deployment import SettingsUnusable
from rmq_store.errors import ClockSkew, HeldByAnother, ListenerNotStarted, RmqError, StaleAttempt, StoreUnusable
from rmq_store.settings.private_files import apply_umask
from rmq_store.utils.redaction import cleaned, cleaned_value, one_line, secret_values

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import DagRunProtocol

    from rmq_store.airflow.hooks.rmq import RmqHook

log = logging.getLogger(__name__)

Answer = dict[str, Any]

WORTH_A_RETRY = (StoreUnusable, SettingsUnusable, ClockSkew, HeldByAnother, StaleAttempt, ListenerNotStarted)
"""The errors that waiting can fix."""


@contextmanager
def translated(hook: RmqHook | None = None) -> Iterator[None]:
    """Turn errors into Airflow's, without the secrets of the environment and the connection.

    An RmqError becomes AirflowException, which is retried, where waiting can help, and AirflowFailException, which is
    not, where the call or the data must be fixed. A SystemExit, which a listener may raise, is a failure, even with
    exit code 0.
    """
    try:
        apply_umask()
        yield
    except WORTH_A_RETRY as error:
        raise AirflowException(logged_error(error, hook)) from None
    except RmqError as error:
        raise AirflowFailException(logged_error(error, hook)) from None
    except SystemExit as error:
        text = f"a listener or a library tried to end the process: {logged_error(error, hook)}"
        raise AirflowException(text) from None


def logged_error(error: BaseException, hook: RmqHook | None = None) -> str:
    """Log the traceback and return the message, both without secrets: Airflow would log the causes of an error as they
    are."""
    log_line("".join(traceback.format_exception(error)), hook)
    return cleaned(f"{type(error).__name__}: {error}", _secrets(hook))


def log_line(text: str, hook: RmqHook | None = None) -> None:
    """Write to the task's log, without secrets and with control characters escaped."""
    log.info("%s", cleaned(text, _secrets(hook), 1 << 20))


def run_of(dag_run: DagRunProtocol) -> Run:
    """The facts of a run, as the rules read them."""
    return Run(
        dag_id=dag_run.dag_id,
        run_id=dag_run.run_id,
        run_type=str(getattr(dag_run.run_type, "value", dag_run.run_type)),
        run_after=dag_run.run_after,
        user=dag_run.triggering_user_name,
        partition_key=dag_run.partition_key,
        data_interval_start=dag_run.data_interval_start,
        data_interval_end=dag_run.data_interval_end,
    )


NOTE = "rmq_note"
"""The XCom that ``rmq_store/airflow/run_notes.py`` copies to the note of the run: in Airflow 3.3 a task cannot write a note."""


NOTHING_TO_DO = "nothing_to_do"
"""The XCom that says why a task had nothing to do."""


def nothing_to_do(context: Context, reason: str) -> str:
    """Log the reason and store it as the task's XCom ``nothing_to_do``, and in the run's note. Returns what is stored."""
    reason = cleaned(reason, _secrets(None))
    context["ti"].xcom_push(NOTHING_TO_DO, reason)
    note(context, f"nothing to do: {reason}")
    return reason


def note(context: Context, sentence: str, hook: RmqHook | None = None) -> None:
    """Log what the task did, and have it in the note of the run: in one line, without secrets."""
    sentence = one_line(cleaned(sentence, _secrets(hook)))
    log.info("%s", sentence)
    context["ti"].xcom_push(NOTE, sentence)


def logged(answer: Answer, hook: RmqHook | None = None) -> Answer:
    """The answer, for the log and as XCom, without secrets and control characters, once it and its ``warnings`` are in the
    task's log."""
    answer = cleaned_value(answer, _secrets(hook))
    log.info("%s", answer)
    for warning in answer.get("warnings", ()):
        log.warning("%s", warning)
    return answer


def _secrets(hook: RmqHook | None) -> Sequence[str]:
    return secret_values(os.environ) if hook is None else hook.secrets
