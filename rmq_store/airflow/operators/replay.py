"""Replay a topic under a group of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from rmq_store.admin.dag_params import ReplayParams
from rmq_store.admin.replay import as_replay, group_settings
from rmq_store.airflow.links.console import RmqGroupLink, RmqNewDeadLettersLink, RmqWindowLink
from rmq_store.airflow.operators.base import RmqOperator
from rmq_store.airflow.task import Answer
from rmq_store.errors import WrongUse
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest, Scope

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context


class Replay(NamedTuple):
    """A run's replay: the replay group, and the request and the scope of its windows."""

    group: GroupSettings
    request: ConsumeRequest
    scope: Scope
    is_new_attempt: bool


class RmqReplayBaseOperator(RmqOperator):
    """
    Have the arguments of a replay.

    :param group: The group whose listener runs, or a replay group. (templated)
    :param topic: The topic; none for a replay group. (templated)
    :param since: Only messages stored at or after this time, ISO 8601 with a zone or a ``datetime``. The run's parameter is
        ``from``. (templated)
    :param until: Only messages stored before this time; None is no upper bound. (templated)
    :param max_messages: At most this many messages from each shard.
    :param reason: Recorded with the windows of the replay.
    :param reprocess: Reason to repeat the replay of the replay group ``group``.
    """

    template_fields: Sequence[str] = ("group", "topic", "since", "until")
    operator_extra_links: Collection[BaseOperatorLink] = (RmqGroupLink(),)

    def __init__(
        self,
        *,
        group: str | None = None,
        topic: str | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        max_messages: int | None = None,
        reason: str | None = None,
        reprocess: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.group = group
        self.topic = topic
        self.since = since
        self.until = until
        self.max_messages = max_messages
        self.reason = reason
        self.reprocess = reprocess

    def replay(self, context: Context) -> Replay:
        """Return the replay. Raises WrongUse for arguments that are wrong or do not fit together."""
        replay = ReplayParams.of(
            self.values(
                context,
                group=self.group,
                topic=self.topic,
                from_=self.since,
                until=self.until,
                max_messages=self.max_messages,
                reason=self.reason,
                reprocess=self.reprocess,
            )
        )
        run = self.run_facts(context)
        group, scope = group_settings(self.hook.deployment.settings(), replay.group)
        is_new_attempt = replay.reprocess is not None
        if replay.topic is not None and replay.from_ms is not None:
            return Replay(*as_replay(group, replay.topic, replay.from_ms, replay.request(run)), is_new_attempt)
        if not scope.retries_only:
            raise WrongUse(f"{replay.group} is not a replay group: set 'topic' and 'from'")
        return Replay(group, replay.request(run), scope, is_new_attempt)


class RmqPlanReplayOperator(RmqReplayBaseOperator):
    """Return the names of the shards that the replay reads, after a check of all arguments. No Spark session starts."""

    def act(self, context: Context) -> list[str]:
        """Return the shards' names."""
        from rmq_store.lake.admin.replay import shards_replayed
        from rmq_store.lake.window.consumption import shards_of

        replay, store = self.replay(context), self.hook.deployment.open_store()
        if replay.is_new_attempt:
            return [shard.name for shard in shards_replayed(store, replay.group.name)]
        return [shard.name for shard in shards_of(store, replay.group, replay.scope)]


class RmqReplayOperator(RmqReplayBaseOperator):
    """
    Consume the messages of a topic that were stored in [``since``, ``until``) again, in one shard.

    They are consumed under a replay group, whose name is in the answer: the group's own offsets do not move. With a replay
    group as ``group``, and no topic and time, the replay's retries are consumed.

    :param shard: The shard; :class:`RmqPlanReplayOperator` returns those that the replay reads.
    :param engine: ``auto``, ``local`` or ``spark``: where the listener runs. By default as the connection says, else as the
        group says.
    """

    operator_extra_links = (RmqGroupLink(), RmqWindowLink(), RmqNewDeadLettersLink())

    def __init__(self, *, shard: str, engine: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shard = shard
        self.engine = engine

    def act(self, context: Context) -> Answer:
        """Return the sum of the windows."""
        from rmq_store.lake.admin.replay import begin_attempt

        group, request, scope, is_new_attempt = self.replay(context)
        store = self.hook.deployment.open_store()
        (shard,) = store.shards(self.shard)
        if is_new_attempt:
            group, request, scope = begin_attempt(shard, group, request, Host())
        return self.consumed(context, store, shard, group, request, scope, self.engine)
