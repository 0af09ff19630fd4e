"""What every task of the DAGs has: the run's facts and parameters, the translation of errors, and a small logged answer."""

from __future__ import annotations

import functools
import logging
import os
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from rmq_store.admin.dag_params import Run, check_names
from rmq_store.errors import ClockSkew, HeldByAnother, RmqError, StaleAttempt, StoreUnusable
from rmq_store.settings.private_files import apply_umask
from rmq_store.utils.redaction import cleaned, cleaned_value, secret_values

if TYPE_CHECKING:
    from airflow.sdk.types import DagRunProtocol

log = logging.getLogger(__name__)

Answer = dict[str, Any]
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

WORTH_A_RETRY = (StoreUnusable, ClockSkew, HeldByAnother, StaleAttempt)
"""The errors that waiting can fix."""


def translated(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorator for the functions that tasks call: turns errors into Airflow's.

    An RmqError becomes AirflowException, which is retried, where waiting can help, and AirflowFailException, which is
    not, where the call or the data must be fixed. A SystemExit, which a listener may raise, is a failure, even with
    exit code 0.
    """

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            apply_umask()
            return function(*args, **kwargs)
        except WORTH_A_RETRY as error:
            raise AirflowException(logged_error(error)) from None
        except RmqError as error:
            raise AirflowFailException(logged_error(error)) from None
        except SystemExit as error:
            raise AirflowException(f"a listener or a library tried to end the process: {logged_error(error)}") from None

    return call


def logged_error(error: BaseException) -> str:
    """Log the traceback and return the message, both without secrets: Airflow would log the causes of an error as they
    are."""
    log_line("".join(traceback.format_exception(error)))
    return cleaned(f"{type(error).__name__}: {error}", secret_values(os.environ))


def log_line(text: str) -> None:
    """Write to the task's log, without secrets and with control characters escaped."""
    log.info("%s", cleaned(text, secret_values(os.environ), 1 << 20))


def current_run() -> tuple[Run, Mapping[str, Any]]:
    """The facts of the task's run, and its parameters. Raises WrongUse for parameters that its DAG does not have:
    Airflow accepts them."""
    context = get_current_context()
    check_names(context["dag_run"].conf or {}, context["dag"].params)
    return run_of(context["dag_run"]), context["params"]


def run_of(dag_run: DagRunProtocol) -> Run:
    """The facts of a run, as the rules read them."""
    return Run(
        dag_id=dag_run.dag_id,
        run_id=dag_run.run_id,
        run_type=str(getattr(dag_run.run_type, "value", dag_run.run_type)),
        run_after=dag_run.run_after,
        user=dag_run.triggering_user_name,
        partition_key=dag_run.partition_key,
        data_interval_end=dag_run.data_interval_end,
    )


def nothing_to_do(reason: str) -> None:
    """Log the reason and store it as the task's XCom ``nothing_to_do``: in Airflow 3.3 a task cannot write a note."""
    reason = cleaned(reason, secret_values(os.environ))
    log_line(f"nothing to do: {reason}")
    get_current_context()["ti"].xcom_push("nothing_to_do", reason)


def logged(answer: Answer) -> Answer:
    """The answer, for the log and as XCom, without secrets and control characters, once it and its ``warnings`` are in the
    task's log."""
    answer = cleaned_value(answer, secret_values(os.environ))
    log.info("%s", answer)
    for warning in answer.get("warnings", ()):
        log.warning("%s", warning)
    return answer
