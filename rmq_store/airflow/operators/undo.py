"""Undo an operator's action on a group's offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rmq_store.admin.dag_params import UndoParams
from rmq_store.admin.undo import ActionName, nothing_to_undo, undone_sentence
from rmq_store.airflow.arguments import check_constants, check_optional_texts, check_switches
from rmq_store.airflow.links.console import RmqGroupLink
from rmq_store.airflow.operators.base import RmqOperator
from rmq_store.airflow.preview import Preview
from rmq_store.airflow.reporting import RecordsPreviews
from rmq_store.airflow.task import Answer, nothing_to_do
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from airflow.sdk import Context


class RmqUndoOperator(RecordsPreviews, RmqOperator):
    """
    Take a group's offsets back to where they were before its last reset, skip, clone, import of offsets or undo, or show it.

    The undo is recorded as an action of its own, so an undo of it does the action again. A dry run has the action, and the
    messages and bytes of each queue that the group would read again or skip, in its log and its XCom ``preview``. Nothing to
    undo is a success; the XCom ``nothing_to_do`` says so.

    :param group: The consumer group. (templated)
    :param shard: Only in this shard; by default in all that have the action.
    :param force: Also when windows were committed in its queues since.
    :param reason: Recorded in the offset history.
    :param dry_run: Only show the moves. By default the offsets do not move.
    :param preview: The id of the task that showed the undo. Only the action that it showed is undone: if another one came
        after it, the task fails, and if there was none, it does nothing.
    """

    template_fields: Sequence[str] = ("group",)
    operator_extra_links = (RmqGroupLink(),)

    def __init__(
        self,
        *,
        group: str | None = None,
        shard: str | None = None,
        force: bool | None = None,
        reason: str | None = None,
        dry_run: bool | None = None,
        preview: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_switches(force=force, dry_run=dry_run)
        check_optional_texts(preview=preview)
        check_constants(shard=shard, reason=reason)
        super().__init__(**kwargs)
        self.group = group
        self.shard = shard
        self.force = force
        self.reason = reason
        self.is_dry_run = dry_run  # BaseOperator has a method dry_run
        self.preview_task = preview

    def act(self, context: Context) -> list[Answer]:
        """Return an answer per shard; none where there is nothing to undo."""
        from rmq_store.cli.common import check_group, known_group
        from rmq_store.lake.admin.undo import actions_to_undo, undo
        from rmq_store.lake.window.consumption import shards_named

        shown = self.shown(context, self.preview_task)
        if shown.nothing_to_do is not None:
            nothing_to_do(context, shown.nothing_to_do)
            return []
        params = UndoParams.of(
            self.values(
                context,
                group=self.group,
                shard=self.shard,
                force=self.force,
                reason=self.reason,
                dry_run=self.is_dry_run,
            )
        )
        run, deployment, host = self.run_facts(context), self.hook.deployment, Host()
        store, settings = deployment.open_store(), deployment.optional_settings()
        shown.check_place(self.act_facts(store, "undo", params.group))
        check_group(store, params.group, settings)
        every = store.shards()
        shards = every if params.shard is None else shards_named(store, params.shard, every)
        undone = actions_to_undo(shards, params.group, run.request_id, _undoes(shown), every=every)
        if not undone:
            self.nothing_shown(context, nothing_to_undo(params.group))
            return []
        _, first = undone[0]
        facts = self.act_facts(
            store,
            "undo",
            params.group,
            reason=params.reason,
            undoes=first.request_id,
            undoes_action=str(first.action),
            shards=[shard.name for shard, _ in undone],
            force=params.force,
        )
        shown.check(facts)
        action = f"{params.group}, undo of {undone_sentence(first)}"
        with self.moving(context, params.group, action):
            reports = undo(
                undone,
                params.group,
                host,
                request_id=run.request_id,
                actor=run.actor,
                reason=params.reason,
                force=params.force,
                dry_run=params.dry_run,
                settings=known_group(params.group, settings),
                among=shards,
                every=every,
            )
        return self.moved(
            context,
            [shard for shard, _ in undone],
            params.group,
            reports,
            action,
            dry_run=params.dry_run,
            facts=facts,
        )


def _undoes(shown: Preview) -> ActionName | None:
    """The action that was shown; None: none was. A preview of an earlier version, which has no kind of action, is of no action
    that could be undone."""
    facts = shown.facts
    return ActionName(facts.get("undoes_action", "action"), facts.get("undoes", "that was shown")) if facts else None
