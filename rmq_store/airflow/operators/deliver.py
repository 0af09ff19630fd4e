"""Deliver what is due."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from airflow.sdk import TaskInstanceState

from rmq_store.admin.sentences import deliver_sentence
from rmq_store.airflow.assets import report, retries_asset
from rmq_store.airflow.operators.base import RmqOperator
from rmq_store.airflow.task import WORTH_A_RETRY, Answer, logged_error, nothing_to_do
from rmq_store.commit.request import overall
from rmq_store.errors import WrongUse
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rmq_store.lake.table.shard import Shard
    from rmq_store.window.deliver import Delivery


class RmqDeliverDelayedOperator(RmqOperator):
    """
    Deliver the retries and delayed messages that are due, in all delay levels and shards. No Spark session starts.

    An error in one shard does not stop the others; the task fails once all were tried, and is retried where waiting can help
    one of them. A message that does not say where it goes stops its own queue, and the task fails once the rest is delivered.

    For each group with ``consume_retries`` whose retries were delivered, the task's success is an event of the group's
    :func:`~rmq_store.airflow.assets.retries_asset`. So is that of a run with a logical date, such as one of a schedule, for a
    group whose retries were delivered since the task's last success and are not read yet: by a run that failed, or by
    ``rmq deliver``.
    """

    def act(self, context: Context) -> list[Answer]:
        """Return an answer per shard; ``next_due_ms`` (UTC) is the next due time."""
        from rmq_store.lake.window.deliver import deliver
        from rmq_store.window.deliver import Delivery

        run, host = self.run_facts(context), Host()
        store = self.hook.deployment.open_store()
        delivery = Delivery(run.request_id)
        shards = store.shards()
        delivery.run(
            {shard.name: functools.partial(deliver, store, shard, actor=run.actor, host=host) for shard in shards}
        )
        answers = [self.logged(answer) for answer in _answers(delivery)]
        is_due = any(answer["delivered"] for answer in answers)
        if delivery.errors:
            for shard, error in delivery.errors.items():
                self.logged({"status": "failed", "shard": shard, "error": logged_error(error, self.hook)})
            if is_due:
                names = {shard: type(error).__name__ for shard, error in delivery.errors.items()}
                self.note(context, deliver_sentence(answers, failed=names))
            delivery.raise_error(WORTH_A_RETRY)
        try:
            started = self._start_retry_windows(
                context, shards, {group for one in delivery.reports for group in one.groups}
            )
        except WrongUse:
            if is_due:
                self.note(context, deliver_sentence(answers))
            raise
        if is_due or started:
            self.note(context, deliver_sentence(answers, started))
        else:
            nothing_to_do(context, "nothing is due")
        return answers

    def _start_retry_windows(self, context: Context, shards: Sequence[Shard], delivered: Collection[str]) -> list[str]:
        """Report the events, and return their groups. Raises WrongUse where the settings cannot be read and there may be
        something to report: a success would be the last word on it. The delivery is committed either way."""
        from rmq_store.window.deliver import groups_to_start, groups_with_retries, unread_retries

        error = None
        try:
            asking = self.hook.deployment.groups_that_consume_retries()
        except WrongUse as unusable:
            error, asking = (
                unusable,
                sorted({one for shard in shards for one in groups_with_retries(shard.positions())}),
            )
        unread: dict[str, int] = {}
        for shard in shards:
            for group, ms in unread_retries(shard.positions(), shard.local_broker, asking).items():
                unread[group] = max(unread.get(group, 0), ms)
        groups = groups_to_start(asking, delivered, unread, _last_success_ms(context) if unread else None)
        if error is not None:
            self.log_line(f"no retry window is started: {error}")
            if groups:
                raise error
            return []
        for group in groups:
            report(context, retries_asset(group))
        return groups


def _last_success_ms(context: Context) -> int | None:
    """When the task's last success began (UTC ms), by the order of logical dates; 0: there was none. It has read each shard
    after that. None: the run has no logical date, as one that an event has started, so that Airflow does not know which one was
    before it."""
    if context["dag_run"].logical_date is None:
        return None
    ti = context["ti"]
    last = ti.get_previous_ti(state=TaskInstanceState.SUCCESS, map_index=-1 if ti.map_index is None else ti.map_index)
    return 0 if last is None or last.start_date is None else int(last.start_date.timestamp() * 1000)


def _answers(delivery: Delivery) -> list[Answer]:
    """One of each shard that has committed something, or in which nothing was due."""
    answers = []
    for shard in dict.fromkeys(one.shard for one in delivery.reports):
        reports = [one for one in delivery.reports if one.shard == shard]
        answers.append(
            {
                "status": overall(one.status for one in reports),
                "shard": shard,
                "delivered": sum(one.delivered for one in reports),
                "next_due_ms": reports[-1].next_due_ms,
                "warnings": [warning for one in reports for warning in one.warnings],
            }
        )
    return answers
