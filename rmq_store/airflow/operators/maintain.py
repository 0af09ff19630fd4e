"""Maintain the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmq_store.admin.sentences import maintain_sentence
from rmq_store.airflow.operators.base import RmqOperator
from rmq_store.airflow.task import Answer
from rmq_store.errors import WrongUse
from rmq_store.maintain.request import PARTLY_RECORDED, MaintainRequest, Step
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from airflow.sdk import Context


class RmqMaintainOperator(RmqOperator):
    """
    Do one step of the maintenance in every shard.

    :param step: ``retention``, ``messages``, ``derived``, ``checkpoint`` or ``vacuum``.
    """

    def __init__(self, *, step: str, **kwargs: Any) -> None:
        if step not in list(Step):
            raise WrongUse(f"invalid value of step, {step!r}: expected one of {', '.join(Step)}")
        super().__init__(**kwargs)
        self.step = Step(step)

    def act(self, context: Context) -> list[Answer]:
        """Return an answer per shard and table; its ``before`` is what earlier tries of the run have committed."""
        from rmq_store.lake.maintain.maintain import maintain

        run, deployment, host = self.run_facts(context), self.hook.deployment, Host()
        rules = deployment.retention() if self.step is Step.RETENTION else ()
        request = MaintainRequest(request_id=run.request_id, actor=run.actor, steps=frozenset({self.step}), rules=rules)
        answers = [
            self.logged(report.answer())
            for shard in deployment.open_store().shards()
            for report in maintain(shard, request, host)
        ]
        is_partly_recorded = self.step in PARTLY_RECORDED and context["ti"].try_number > 1
        self.note(context, maintain_sentence(answers, is_partly_recorded=is_partly_recorded))
        return answers
