"""Links from a task to the pages of its group in the console, which ``plugins/rmq_console.py`` adds to Airflow's UI."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from rmq_store.airflow.task import Answer


class RmqGroupLink(BaseOperatorLink):
    """The group's page: its queues with their lag, its windows and its offset history."""

    name = "RocketMQ group"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the path of the page; "" where the group is not known. It is called when the task has run."""
        return _page("group", group=_group_of(operator))


class RmqDeadLettersLink(BaseOperatorLink):
    """The group's dead letters."""

    name = "RocketMQ dead letters"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the path of the page; "" where the group is not known."""
        return _page("dead", group=_group_of(operator))


class RmqWindowLink(BaseOperatorLink):
    """What the task consumed: its windows, the runs that read its retries since then, its dead letters, and the SQL for it."""

    name = "RocketMQ window"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the path of the page; "" where no window was committed."""
        answer = _consumed(operator)
        return _page("window", group=answer["group"], request=answer["request_id"]) if answer.get("commit_id") else ""


class RmqNewDeadLettersLink(BaseOperatorLink):
    """The dead letters of the group that the task consumed for, if it made some."""

    name = "RocketMQ dead letters"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the path of the page; "" where the task made none."""
        answer = _consumed(operator)
        return _page("dead", group=answer["group"]) if answer.get("outcomes", {}).get("dead") else ""


def _consumed(operator: BaseOperator) -> Answer:
    answer: Answer = getattr(operator, "consumed_by_run", None) or {}
    return answer


def _group_of(operator: BaseOperator) -> str | None:
    return getattr(operator, "group_of_run", None) or getattr(operator, "group", None)


def _page(page: str, **names: str | None) -> str:
    """The path of a page of the console; "" where a name is not known."""
    if not all(names.values()):
        return ""
    base_url = conf.get("api", "base_url", fallback="")
    return f"{urlsplit(base_url or '').path.rstrip('/')}/plugin/rmq?{urlencode({'page': page, **names})}"
