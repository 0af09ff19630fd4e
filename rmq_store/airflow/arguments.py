"""The arguments of operators and sensors, checked where a DAG is read: a wrong one is an import error, not a run."""

from __future__ import annotations

from airflow.sdk import XComArg

from rmq_store.errors import WrongUse
from rmq_store.utils.arguments import check_types


def check_switches(**arguments: object) -> None:
    """Raise WrongUse for an argument that is neither True nor False nor, for one that is not given, None."""
    check_constants(**arguments)
    check_types(bool | None, **arguments)


def check_texts(**arguments: object) -> None:
    """Raise WrongUse for an argument that is no text."""
    check_constants(**arguments)
    check_types(str, **arguments)


def check_optional_texts(**arguments: object) -> None:
    """Raise WrongUse for an argument that is no text, nor None for one that is not given."""
    check_constants(**arguments)
    check_types(str | None, **arguments)


def check_constants(**arguments: object) -> None:
    """Raise WrongUse for an argument that is the result of another task: Airflow resolves those only in templates."""
    for name, value in arguments.items():
        if isinstance(value, XComArg):
            raise WrongUse(
                f"{name} is the result of another task, which only a template or expand() can be: give a value"
            )
