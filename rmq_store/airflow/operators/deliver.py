"""Deliver what is due."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import TYPE_CHECKING

from rmq_store.admin.sentences import deliver_sentence
from rmq_store.airflow.assets import report, retries_asset
from rmq_store.airflow.operators.base import RmqOperator
from rmq_store.airflow.task import Answer, nothing_to_do
from rmq_store.commit.request import overall
from rmq_store.errors import WrongUse
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from airflow.sdk import Context


class RmqDeliverDelayedOperator(RmqOperator):
    """
    Deliver the retries and delayed messages that are due, in all delay levels and shards. No Spark session starts.

    For each group with ``consume_retries`` whose retries were delivered, the task's success is an event of the group's
    :func:`~rmq_store.airflow.assets.retries_asset`.
    """

    def act(self, context: Context) -> list[Answer]:
        """Return an answer per shard; ``next_due_ms`` (UTC) is the next due time."""
        from rmq_store.lake.window.deliver import deliver
        from rmq_store.window.deliver import deliver_all

        run, host = self.run_facts(context), Host()
        store = self.hook.deployment.open_store()
        answers = []
        groups = set[str]()
        for shard in store.shards():
            reports = deliver_all(run.request_id, functools.partial(deliver, store, shard, actor=run.actor, host=host))
            groups.update(*[report.groups for report in reports])
            answer = {
                "status": overall(report.status for report in reports),
                "shard": shard.name,
                "delivered": sum(report.delivered for report in reports),
                "next_due_ms": reports[-1].next_due_ms,
                "warnings": [warning for report in reports for warning in report.warnings],
            }
            answers.append(self.logged(answer))
        if not any(answer["delivered"] for answer in answers):
            nothing_to_do(context, "nothing is due")
        else:
            started = self._start_retry_windows(context, groups)
            self.note(context, deliver_sentence(answers, started))
        return answers

    def _start_retry_windows(self, context: Context, delivered: Collection[str]) -> list[str]:
        """Report the events, and return their groups. What is wrong with the settings does not fail the delivery, which is
        committed."""
        try:
            asking = self.hook.deployment.groups_that_consume_retries()
        except WrongUse as error:
            self.log_line(f"no retry window is started: {error}")
            return []
        groups = [group for group in asking if group in delivered]
        for group in groups:
            report(context, retries_asset(group))
        return groups
