"""Replay a topic under a group of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from rmq_store.admin.dag_params import ReplayParams, switch_of
from rmq_store.admin.replay import as_replay, group_settings
from rmq_store.admin.sentences import blocked_warnings, finish_sentence, nothing_to_read, replay_preview_sentence
from rmq_store.airflow.arguments import check_constants, check_optional_texts, check_texts
from rmq_store.airflow.assets import REPORTED, sum_of
from rmq_store.airflow.links.console import RmqGroupLink, RmqNewDeadLettersLink, RmqWindowLink
from rmq_store.airflow.operators.base import RmqOperator
from rmq_store.airflow.preview import Preview, labelled, mapped_count, offsets_of, shards_mapped
from rmq_store.airflow.reporting import RecordsPreviews, ReportsOffsets
from rmq_store.airflow.task import Answer, run_of
from rmq_store.airflow.triggers.retries import RmqRetriesTrigger
from rmq_store.commit.ctl import Action
from rmq_store.commit.positions import QueueRange
from rmq_store.commit.request import Status
from rmq_store.consumer.replay_name import replayed_group
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import retry_topic
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.arguments import check_types
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest, Scope, identity_parameters

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from rmq_store.lake.table.shard import Shard
    from rmq_store.lake.table.store import LakeStore
    from rmq_store.window.dry_run import ConsumePlan


class Replay(NamedTuple):
    """A run's replay: the replay group, and the request and the scope of its windows."""

    group: GroupSettings
    request: ConsumeRequest
    scope: Scope
    is_new_attempt: bool

    @property
    def parameters(self) -> Answer:
        """What was asked, as JSON values: the topic and its limits, and whether it is another attempt."""
        return identity_parameters(self.request) | {"another_attempt": self.is_new_attempt}


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
        check_constants(max_messages=max_messages, reason=reason, reprocess=reprocess)
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

    def facts(self, context: Context, replay: Replay, store: LakeStore) -> Answer:
        """Return what decides what the tasks of the replay do, but for shards and offsets. Reads the group's commits."""
        from rmq_store.lake.admin.last_action import last_of_others

        others = last_of_others(store.shards(), replay.group.name, run_of(context["dag_run"]).request_id)
        return self.act_facts(store, "replay", replay.group.name, reason=replay.request.reason, other_requests=others)


class RmqPlanReplayOperator(RecordsPreviews, RmqReplayBaseOperator):
    """
    Return the names of the shards in which the replay has something to do, after a dry run of it. No Spark session starts.

    The log, the note of the run and the XCom ``preview`` have the messages and bytes of each queue, counted exactly, an
    estimate of the time from the last windows of the group, and what is unusual about the range. A time in the future is
    refused. Where a :class:`RmqFinishReplayOperator` with this task as ``preview`` follows, the retries that wait now are shown
    too. No shard, and none of these, is a success; the XCom ``nothing_to_do`` says why.
    """

    def act(self, context: Context) -> list[str]:
        """Return the shards' names."""
        replay, store = self.replay(context), self.hook.deployment.open_store()
        facts = self.facts(context, replay, store)  # before the plan: what comes in between counts as later
        plan = self._plan(replay, store)
        names = [shard.shard for shard in plan.shards if shard.has_work]
        retries = self._to_finish(replay, plan, store) if self._is_finished(context) else {}
        if not names and not retries:
            self.nothing_shown(context, nothing_to_read(plan))
            return names
        rows = plan.queue_rows()
        whole = plan.summary()
        answer = {name: value for name, value in whole.items() if name not in ("shards", "windows")}
        answer |= facts | replay.parameters
        answer |= {"windows": names, "shards": [*names, *retries], "to_finish": sum(retries.values())}
        answer |= {"time": plan.time, "queues": rows}
        if plan.error is None:
            starts, ends = (offsets_of(rows, column) for column in ("begin_offset", "end_offset"))
            answer |= {"starts": starts, "offsets": {name: ends.get(name, {}) for name in names}}
        text = replay_preview_sentence(answer)
        if plan.error is not None:
            text += f"; it ends with an error: {plan.error}"
        self.preview(context, f"{plan.group}: {text}", rows, _COLUMNS, answer)
        return names

    def _is_finished(self, context: Context) -> bool:
        """Whether a task after this one consumes the retries too, as what this task has shown."""
        finishes = (one for one in self.get_flat_relatives(upstream=False) if isinstance(one, RmqFinishReplayOperator))
        return any(one.preview_task == self.task_id and one.is_asked_for(context) for one in finishes)

    def _to_finish(self, replay: Replay, plan: ConsumePlan, store: LakeStore) -> dict[str, int]:
        """How many retries the replay group has beside those that the plan reads, by shard."""
        from rmq_store.lake.admin.replay import retries_left

        first = replay.request
        group, scope = group_settings(self.hook.deployment.settings(), replay.group.name)
        request = ConsumeRequest(f"{first.request_id}/retries", first.actor)
        retries = retries_left(store, group, request, Host(), scope)
        read = {} if replay.is_new_attempt else {shard.shard: shard.retries.read for shard in plan.shards}
        return {name: count - read.get(name, 0) for name, count in retries.items() if count > read.get(name, 0)}

    def _plan(self, replay: Replay, store: LakeStore) -> ConsumePlan:
        from rmq_store.lake.admin.replay import plan_attempt, replay_notes, shards_replayed
        from rmq_store.lake.window.consumption import shards_of
        from rmq_store.lake.window.dry_run import plan_request

        group, request, scope, is_new_attempt = replay
        host = Host()
        self.hook.deployment.find_listeners()
        if is_new_attempt:
            return plan_attempt(store, shards_replayed(store, group.name), group, request, host)
        shards = shards_of(store, group, scope)
        notes = replay_notes(shards, group, request, host, scope)
        return plan_request(store, shards, group, request, host, scope, notes=notes)


_COLUMNS = (
    "shard", "topic", "broker_name", "queue_id", "begin_offset", "end_offset", "messages", "bytes", "matched", "filtered",
    "lost",
)  # fmt: skip


class RmqReplayOperator(ReportsOffsets, RmqReplayBaseOperator):
    """
    Consume the messages of a topic that were stored in [``since``, ``until``) again, in one shard.

    They are consumed under a replay group, whose name is in the answer: the group's own offsets do not move. With a replay
    group as ``group``, and no topic and time, the replay's retries are consumed.

    :param shard: The shard; :class:`RmqPlanReplayOperator` returns those that the replay reads.
    :param engine: ``auto``, ``local`` or ``spark``: where the listener runs. By default as the connection says, else as the
        group says.
    :param preview: The id of the task that showed the replay: it begins and ends at the offsets that were shown, also if
        messages came or went since. After an approval all else must be as shown too.
    :param outlets: Assets whose events have the offsets. By default the :func:`~rmq_store.airflow.assets.offsets_asset` of the
        group that is replayed: the event has ``replay_of``, as the group's own offsets did not move.
    """

    operator_extra_links = (RmqGroupLink(), RmqWindowLink(), RmqNewDeadLettersLink())

    def __init__(
        self,
        *,
        shard: str,
        engine: str | None = None,
        preview: str | None = None,
        outlets: Any = REPORTED,
        **kwargs: Any,
    ) -> None:
        check_texts(shard=shard)
        check_optional_texts(engine=engine, preview=preview)
        super().__init__(outlets=outlets, **kwargs)
        self.shard = shard
        self.engine = engine
        self.preview_task = preview

    def act(self, context: Context) -> Answer:
        """Return the sum of the windows."""
        from rmq_store.lake.admin.replay import begin_attempt

        self.refuse_dry_run(context)
        shown = self.shown(context, self.preview_task)
        if shown.nothing_to_do is not None:
            raise WrongUse(f"nothing was shown to replay: {shown.nothing_to_do}. Nothing was done")
        replay, store = self.replay(context), self.hook.deployment.open_store()
        group, request, scope, is_new_attempt = replay
        shown.check_place(self.act_facts(store, "replay", group.name))
        (shard,) = store.shards(self.shard)
        topics = [*(subscription.topic for subscription in group.subscriptions), retry_topic(group.name)]
        starts, bounds = (shown.offsets(shard, topics, name) for name in ("starts", "offsets"))
        if shown.is_approved:
            self._check(context, shown, replay, store, shard, bounds)
        if is_new_attempt:
            group, request, scope = begin_attempt(shard, group, request, Host())
        if bounds is not None:
            scope = replace(scope, starts=starts, bounds=bounds)
        live = replayed_group(group.name)
        return self.consumed(context, store, shard, group, request, scope, self.engine, replay_of=live)

    def _check(
        self,
        context: Context,
        shown: Preview,
        replay: Replay,
        store: LakeStore,
        shard: Shard,
        bounds: Mapping[MessageQueue, int] | None,
    ) -> None:
        """Raise WrongUse unless this is what was approved. ``bounds``: those of the shard."""
        from rmq_store.lake.admin.last_action import is_committed

        ti, windows = context["ti"], shown.facts.get("windows", [])
        index = -1 if ti.map_index is None else ti.map_index
        now = self.facts(context, replay, store) | replay.parameters
        now["windows"] = shards_mapped(windows, index, self.shard, mapped_count(context, ti.task_id))
        now["offsets"] = shown.facts.get("offsets", {}) | {self.shard: labelled(bounds or {})}
        made = is_committed([shard], replay.request.request_id, replay.group.name, Action.CONSUME)
        shown.check(now, is_committed=made)


class RmqFinishReplayOperator(RmqReplayBaseOperator):
    """
    Consume the retries of a replay, round after round, until none is left.

    What fails again waits by RocketMQ's levels, and becomes a dead letter after ``max_reconsume_times``. Until the next retry
    is delivered, by ``rmq_deliver_delayed``, the task waits in the triggerer and takes no slot of a worker; give it
    ``retries``. Each round is a request of its own, the run's with ``/retries-1``, ``/retries-2``, and so on. With
    ``use_run_params`` the task is skipped unless the run's parameter ``finish`` is true.

    :param engine: ``auto``, ``local`` or ``spark``: where the listener runs. By default as the connection says, else as the
        group says.
    :param poll_interval: The fewest seconds between two looks at what is delivered.
    :param preview: The id of the task that showed the replay: where it showed nothing, or an approval of that is missing, no
        retry is consumed. After an approval it is none but those that were shown and those of the run.
    """

    operator_extra_links = (RmqGroupLink(), RmqNewDeadLettersLink())

    def __init__(
        self, *, engine: str | None = None, poll_interval: float = 15, preview: str | None = None, **kwargs: Any
    ) -> None:
        check_optional_texts(engine=engine, preview=preview)
        check_types(int | float, poll_interval=poll_interval)
        super().__init__(**kwargs)
        self.engine = engine
        self.poll_interval = poll_interval
        self.preview_task = preview

    def is_asked_for(self, context: Context) -> bool:
        """Return whether the run is to finish the retries."""
        return not self.use_run_params or switch_of(context["params"], "finish")

    def act(self, context: Context) -> Answer:
        """Return the sum of all rounds."""
        if not self.is_asked_for(context):
            self._check_windows(context, self.shown(context, self.preview_task))
            raise AirflowSkipException("the run does not ask to finish the retries")
        return self._finish(context)

    def _check_windows(self, context: Context, shown: Preview) -> None:
        """Raise WrongUse where tasks before this one have replayed fewer shards than were approved."""
        for one in self.get_flat_relatives(upstream=True):
            if (
                isinstance(one, MappedOperator)
                and issubclass(one.operator_class, RmqReplayOperator)
                and one.partial_kwargs.get("preview") == self.preview_task
            ):
                windows = shown.facts.get("windows", [])
                shown.check({"windows": windows[: mapped_count(context, one.task_id)]})

    def go_on(self, context: Context, event: Mapping[str, Any]) -> Answer:
        """Go on with what was delivered meanwhile."""
        if "error" in event:
            raise AirflowFailException(event["error"])
        with self.acting():
            return self._finish(context)

    def _finish(self, context: Context) -> Answer:
        """Consume all rounds that need not wait, or wait, if what was shown is a replay."""
        self.refuse_dry_run(context)
        shown, replay = self.shown(context, self.preview_task), self.replay(context)
        self._check_windows(context, shown)
        answers = self._rounds(context, shown, replay) if shown.nothing_to_do is None else []
        rounds = len({answer["request_id"] for answer in answers})
        answer = {"group": replay.group.name, "rounds": rounds, **sum_of(answers)}
        unread = self._unread(replay)
        answer["blocked_queues"] += len(unread)
        answer["not_consumed"] += sum(map(len, unread))
        answer["warnings"] += blocked_warnings(replay.group.name, unread)
        self.consumed_by_run = self.logged(answer)
        self.note(context, f"{replay.group.name}: {finish_sentence(self.consumed_by_run)}")
        return self.consumed_by_run

    def _unread(self, replay: Replay) -> list[QueueRange]:
        """What the replay's windows have left unread in blocked queues: no round of retries reads on there."""
        from rmq_store.lake.admin.replay import left_in_blocked

        shards = self.hook.deployment.open_store().shards()
        return [range_ for shard in shards for range_ in left_in_blocked(shard, replay.group.name)]

    def _rounds(self, context: Context, shown: Preview, replay: Replay) -> list[Answer]:
        """Consume all rounds that need not wait, or wait. Those that were committed before are read from the log.

        After an approval, raises WrongUse before the first round that comes after another request of the group, which may have
        written retries that were not approved.
        """
        from rmq_store.lake.admin.replay import plan_retries

        group, scope = group_settings(self.hook.deployment.settings(), replay.group.name)
        live = replayed_group(group.name)
        self.hook.deployment.find_listeners()
        store, answers = self.hook.deployment.open_store(), list[Answer]()
        shown.check_place(self.act_facts(store, "replay", group.name))
        for number in count(1):
            first = replay.request
            request = ConsumeRequest(f"{first.request_id}/retries-{number}", first.actor, first.reason)
            plan = plan_retries(store, group, request, Host(), scope)
            planned = [shard for shard in plan.shards if shard.has_work]
            if not planned:
                break
            if shown.is_approved:  # after the plan, which bounds the round: it has nothing that came since
                made = all(shard.status == Status.ALREADY_COMMITTED for shard in planned)
                shown.check(self.facts(context, replay, store), is_committed=made)
            for one in planned:
                (shard,) = store.shards(one.shard)
                if one.status == Status.ALREADY_COMMITTED:
                    answers.append(_committed(store, shard, group, request, scope))
                else:
                    of_round = replace(scope, bounds=one.ends()) if shown.is_approved else scope
                    answers.append(
                        self.consumed(context, store, shard, group, request, of_round, self.engine, replay_of=live)
                    )
        if plan.retries.left:
            self.log_line(f"before round {number}: {nothing_to_read(plan)}")
            trigger = RmqRetriesTrigger(group.name, request.request_id, self.poll_interval, self.rmq_conn_id)
            self.defer(trigger=trigger, method_name="go_on")
        return answers


def _committed(store: LakeStore, shard: Shard, group: GroupSettings, request: ConsumeRequest, scope: Scope) -> Answer:
    """What a request that is complete in a shard has consumed there."""
    from rmq_store.lake.window.consumption import Consumption
    from rmq_store.lake.window.engine import LocalEngine
    from rmq_store.lake.window.window import consume_window

    host = Host()
    return Consumption.of(
        partial(consume_window, store, shard, group, request, lambda _: LocalEngine(host), host, scope)
    ).summary()
