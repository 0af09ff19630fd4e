"""Links from a task to the pages of its group in the console, which ``plugins/rmq_console.py`` adds to Airflow's UI."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink, conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class RmqGroupLink(BaseOperatorLink):
    """The group's page: its queues with their lag, its windows and its offset history."""

    name = "RocketMQ group"
    page = "group"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the path of the page; "" where the group is not known. It is called when the task has run."""
        group = getattr(operator, "group_of_run", None) or getattr(operator, "group", None)
        if not group:
            return ""
        base_url = conf.get("api", "base_url", fallback="")
        return (
            f"{urlsplit(base_url or '').path.rstrip('/')}/plugin/rmq?{urlencode({'page': self.page, 'group': group})}"
        )


class RmqDeadLettersLink(RmqGroupLink):
    """The group's dead letters."""

    name = "RocketMQ dead letters"
    page = "dead"
