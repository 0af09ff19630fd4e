"""Reset a group's offsets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rmq_store.admin.dag_params import reset_request
from rmq_store.admin.undo import MOVES
from rmq_store.airflow.arguments import check_constants, check_optional_texts, check_switches
from rmq_store.airflow.links.console import RmqGroupLink
from rmq_store.airflow.operators.base import RmqOperator
from rmq_store.airflow.preview import labelled
from rmq_store.airflow.reporting import RecordsPreviews
from rmq_store.airflow.task import Answer, run_of
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from airflow.sdk import Context


class RmqResetOffsetOperator(RecordsPreviews, RmqOperator):
    """
    Move a group's offsets of one topic, or show the new ones, in all shards that have the topic.

    A window that was running cannot commit after it. A dry run has the messages and bytes of each queue that the group would
    read again or skip, counted exactly, and an estimate of the time, in its log and its XCom ``preview``.

    :param group: The consumer group. (templated)
    :param topic: The topic. (templated)
    :param to: ``time``, ``offset``, ``min`` or ``max``.
    :param time: For ``time``: the group continues with the first message stored at or after it. (templated)
    :param offset: For ``offset``: the new offset of every queue.
    :param queues: ``BROKER:QUEUE``, such as ``broker-a:0``; by default all queues of the topic. An empty list is refused.
    :param reason: Recorded in the offset history.
    :param dry_run: Only show the new offsets. By default the offsets do not move.
    :param preview: The id of the task that showed the new offsets: these are set, also if messages came or went since.
    """

    template_fields: Sequence[str] = ("group", "topic", "time")
    operator_extra_links = (RmqGroupLink(),)

    def __init__(
        self,
        *,
        group: str | None = None,
        topic: str | None = None,
        to: str | None = None,
        time: str | datetime | None = None,
        offset: int | None = None,
        queues: Sequence[str] | None = None,
        reason: str | None = None,
        dry_run: bool | None = None,
        preview: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_switches(dry_run=dry_run)
        check_optional_texts(preview=preview)
        check_constants(to=to, offset=offset, queues=queues, reason=reason)
        super().__init__(**kwargs)
        self.group = group
        self.topic = topic
        self.to = to
        self.time = time
        self.offset = offset
        self.queues = queues
        self.reason = reason
        self.is_dry_run = dry_run  # BaseOperator has a method dry_run
        self.preview_task = preview

    def act(self, context: Context) -> list[Answer]:
        """Return an answer per shard."""
        from rmq_store.cli.common import check_group, known_group
        from rmq_store.lake.admin.last_action import is_committed, last_of_others
        from rmq_store.lake.admin.offset_moves import move_in_all
        from rmq_store.lake.window.consumption import shards_with_queues

        values = self.values(
            context,
            group=self.group,
            topic=self.topic,
            to=self.to,
            time=self.time,
            offset=self.offset,
            queues=self.queues,
            reason=self.reason,
            dry_run=self.is_dry_run,
        )
        request = reset_request(self.run_facts(context), values)
        deployment, host = self.hook.deployment, Host()
        store, settings = deployment.open_store(), deployment.optional_settings()
        preview = self.shown(context, self.preview_task)
        preview.check_place(self.act_facts(store, "reset", request.group))
        if not request.passes_delayed:
            check_group(store, request.group, settings)
        every = store.shards()
        shards = shards_with_queues(every, request.topic, request.queues)
        shown = {shard.name: preview.offsets(shard, [request.topic]) for shard, _ in shards}
        facts = self.act_facts(
            store,
            "reset",
            request.group,
            reason=request.reason,
            parameters=request.parameters,
            other_requests=last_of_others(every, request.group, run_of(context["dag_run"]).request_id, MOVES),
        )
        if preview.facts:
            # A chosen queue that a shard has only since then is not set there: its commit does not name it.
            shards = [
                (shard, tuple(queue for queue in queues if queue in of_shard))
                for shard, queues in shards
                if (of_shard := shown[shard.name])
            ]
            offsets = {shard.name: labelled(shown[shard.name] or {}) for shard, _ in shards}
            of_shards = (shard for shard, _ in shards)
            made = is_committed(of_shards, request.request_id, request.group, request.action)
            preview.check(facts | {"offsets": offsets}, is_committed=made)
        action = f"{request.group}, topic {request.topic}"
        with self.moving(context, request.group, action):
            reports = move_in_all(
                [(shard, replace(request, queues=queues, shown=shown[shard.name])) for shard, queues in shards],
                host,
                known_group(request.group, settings),
                every=every,
            )
        return self.moved(
            context,
            [shard for shard, _ in shards],
            request.group,
            reports,
            action,
            dry_run=request.dry_run,
            facts=facts,
        )
