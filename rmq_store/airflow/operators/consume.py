"""Consume: the windows of one group, and of all planned groups."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from rmq_store.admin.dag_params import Until, consume_request, interval_replay
from rmq_store.admin.interval_replay import IntervalReplay
from rmq_store.admin.sentences import late_sentence, planned_sentence
from rmq_store.airflow.arguments import check_constants, check_optional_texts, check_texts
from rmq_store.airflow.assets import OFFSETS_COMMITTED, REPORTED, report_offsets, retries_asset
from rmq_store.airflow.links.console import RmqGroupLink, RmqNewDeadLettersLink, RmqWindowLink
from rmq_store.airflow.operators.base import RmqOperator
from rmq_store.airflow.reporting import ReportsOffsets
from rmq_store.airflow.task import WORTH_A_RETRY, Answer, logged_error, nothing_to_do
from rmq_store.commit.request import Status, overall
from rmq_store.errors import HeldByAnother, NothingThere, RmqError
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import listed
from rmq_store.window.consume_request import LIVE, ConsumeRequest, Scope, only_retries

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from rmq_store.lake.window.group_course import GroupReport


class RmqConsumeOperator(RmqOperator):
    """
    Have the arguments of a window, which begins at the committed offset.

    In a run of Airflow's backfill it is a replay instead: of what was stored in the run's data interval, under a replay
    group of the run. The group's own offsets do not move.

    :param group: The consumer group, a name in the settings. (templated)
    :param until: Only messages stored before this time, ISO 8601 with a zone or a ``datetime``. By default the run's
        partition key; without one the end of a scheduled run's data interval; without that there is no bound. (templated)
    :param max_messages: At most this many messages from each shard.
    :param client: This run's client id, if several clients share the group's queues.
    :param clients: The ids of all clients of the group that run now, separated by commas.
    """

    template_fields: Sequence[str] = ("group", "until")
    operator_extra_links: Collection[BaseOperatorLink] = (RmqGroupLink(),)

    def __init__(
        self,
        *,
        group: str,
        until: str | datetime | None = None,
        max_messages: int | None = None,
        client: str | None = None,
        clients: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_constants(max_messages=max_messages, client=client, clients=clients)
        super().__init__(**kwargs)
        self.group = group
        self.until = until
        self.max_messages = max_messages
        self.client = client
        self.clients = clients

    def request(self, context: Context) -> ConsumeRequest:
        """Return the request of the run's windows."""
        return consume_request(self.run_facts(context), self._values(context))

    def scoped(self, context: Context) -> tuple[ConsumeRequest, Scope]:
        """Return the request of the run's windows and what they read: only retries where nothing but their delivery has started
        the run."""
        request = self.request(context)
        causes = {cause.name for cause in context["triggering_asset_events"] if isinstance(cause, Asset)}
        if causes == {retries_asset(self.group).name}:
            return only_retries(request)
        return request, LIVE

    def interval(self, context: Context) -> IntervalReplay | None:
        """Return the replay of a backfill's run; None for any other run."""
        run = self.run_facts(context)
        return interval_replay(run, self._values(context)) if run.is_backfill else None

    def _values(self, context: Context) -> Mapping[str, Any]:
        return self.values(
            context,
            until=self.until,
            max_messages=self.max_messages,
            client=self.client,
            clients=self.clients,
            reprocess=None,
        )


class RmqPlanShardsOperator(RmqConsumeOperator):
    """
    Return the names of the shards in which the group has something to consume, or has committed for this run before.

    No shard is a success; the XCom ``nothing_to_do`` says why. No Spark session starts. A topic that does not exist yet, and a
    first start in the middle of an import, is nothing to do for a scheduled run. For a run that a person triggered it is an
    error, as the name may be wrong.
    """

    def act(self, context: Context) -> list[str]:
        """Return the shards' names."""
        from rmq_store.lake.window.consumption import reason_for_nothing, shards_of

        interval = self.interval(context)
        if interval is not None:
            return self._shards_to_replay(context, interval)
        deployment, (request, scope) = self.hook.deployment, self.scoped(context)
        group = deployment.settings().group(self.group)
        self.log_line(f"request {request.request_id}: {Until(request.until_ms, request.parameters['until_rule'])}")
        if scope.retries_only:
            self.log_line("only retries: they were delivered, which has started the run")
        if warning := deployment.listener_warning(group.listener):
            self.log.warning("%s", warning)
        try:
            shards = shards_of(deployment.open_store(), group, scope)
            reasons = {shard.name: reason_for_nothing(shard, group, request, Host(), scope) for shard in shards}
        except NothingThere as missing:
            if not self.run_facts(context).on_its_own:
                raise
            nothing_to_do(context, str(missing))
            return []
        names = [name for name, reason in reasons.items() if reason is None]
        self.log_line(f"shards with work: {', '.join(names) or 'none'}")
        if not names:
            nothing_to_do(
                context, joined_reasons({name: reason for name, reason in reasons.items() if reason is not None})
            )
        return names

    def _shards_to_replay(self, context: Context, interval: IntervalReplay) -> list[str]:
        from rmq_store.lake.admin.interval_replay import check_interval
        from rmq_store.lake.admin.replay import has_messages, replay_notes
        from rmq_store.lake.window.consumption import shards_of

        deployment, host = self.hook.deployment, Host()
        group = deployment.settings().group(self.group)
        shards = shards_of(deployment.open_store(), group)
        replaying, request, scope = interval.arguments(group)
        check_interval(shards, group, interval, host)
        names = [shard.name for shard in shards if has_messages(shard, replaying, request, host, scope)]
        self.log_line(f"backfill: replay under {replaying.name}; shards with messages: {', '.join(names) or 'none'}")
        notes = replay_notes(shards, replaying, request, host, scope)
        if not names:
            nothing_to_do(context, "; ".join(notes) or "the interval has no messages")
        elif notes:
            self.note(context, "; ".join(notes))
        return names


def joined_reasons(reasons: Mapping[str, str]) -> str:
    """The reason of all shards, or where they differ that of each."""
    same, *others = dict.fromkeys(reasons.values())
    return same if not others else "; ".join(f"shard {name}: {reason}" for name, reason in reasons.items())


class RmqConsumeWindowOperator(ReportsOffsets, RmqConsumeOperator):
    """
    Consume what the group has not consumed yet in one shard, in one window or more; each window is one commit.

    Its success is an event of the group's :func:`~rmq_store.airflow.assets.offsets_asset` with the offsets, unless there was
    nothing to consume. Of a replay the event has ``replay_of``: the group's offsets did not move.

    :param shard: The shard; :class:`RmqPlanShardsOperator` returns those with work.
    :param engine: ``auto``, ``local`` or ``spark``: where the listener runs. By default as the connection says, else as the
        group says.
    :param outlets: Assets whose events have the offsets instead, or none.
    """

    operator_extra_links = (RmqGroupLink(), RmqWindowLink(), RmqNewDeadLettersLink())

    def __init__(self, *, shard: str, engine: str | None = None, outlets: Any = REPORTED, **kwargs: Any) -> None:
        check_texts(shard=shard)
        check_optional_texts(engine=engine)
        super().__init__(outlets=outlets, **kwargs)
        self.shard = shard
        self.engine = engine

    def act(self, context: Context) -> Answer:
        """Return the sum of the windows."""
        from rmq_store.lake.admin.interval_replay import begin_interval, late_messages

        deployment, interval = self.hook.deployment, self.interval(context)
        live = deployment.settings().group(self.group)
        store = deployment.open_store()
        (shard,) = store.shards(self.shard)
        if interval is None:
            return self.consumed(context, store, shard, live, *self.scoped(context), self.engine)
        group, request, scope = begin_interval(shard, live, interval, Host())
        late = late_messages(shard, live, interval)
        warnings = [late_sentence(late)] if late else []
        return self.consumed(
            context, store, shard, group, request, scope, self.engine, replay_of=live.name, warnings=warnings
        )


class RmqConsumePlannedOperator(RmqOperator):
    """
    Consume for each group of the settings with ``schedule = "planned"``; groups share commits.

    The XCom ``groups`` has a row for each group that had work, also where the task fails. Once the work of all groups is
    over, the task fails when some have failed; it is retried where waiting can help one of them. Its success is an event of the
    :func:`~rmq_store.airflow.assets.offsets_asset` of each group that had work.

    :param until: Only messages stored before this time; as in :class:`RmqConsumeOperator`. (templated)
    :param max_messages: At most this many messages of each group and shard.
    :param outlets: Other assets, whose events have no offsets, or none.
    """

    template_fields: Sequence[str] = ("until",)

    def __init__(
        self,
        *,
        until: str | datetime | None = None,
        max_messages: int | None = None,
        outlets: Any = REPORTED,
        **kwargs: Any,
    ) -> None:
        check_constants(max_messages=max_messages)
        super().__init__(outlets=outlets, **kwargs)
        self.until = until
        self.max_messages = max_messages

    def act(self, context: Context) -> Answer:
        """Return the sum of the groups."""
        from rmq_store.lake.window.consume_all import consume_all

        deployment = self.hook.deployment
        request = consume_request(
            self.run_facts(context), self.values(context, until=self.until, max_messages=self.max_messages)
        )
        groups = deployment.settings().planned_groups
        store, rows = deployment.open_store(), list[Answer]()
        self.log_line(f"request {request.request_id}: {Until(request.until_ms, request.parameters['until_rule'])}")

        def finished(report: GroupReport) -> None:
            if report.error is not None or report.status != Status.EMPTY:
                rows.append(self.logged(self._row(report)))

        with deployment.engines(None, [group.listener for group in groups]) as engines:
            report = consume_all(store, groups, request, engines.for_window, Host(), finished=finished)
        context["ti"].xcom_push("groups", rows)  # also where the task fails, which returns nothing
        if not rows:
            nothing_to_do(
                context, f"planned groups: {len(groups)}; all messages up to the window's upper bound are consumed"
            )
        answer = self.logged(
            {
                "status": overall(group.status for group in report.groups),
                "request_id": request.request_id,
                "planned_groups": len(groups),
                "groups_with_work": len(rows),
                "messages": sum(group.messages for group in report.groups),
                "blocked_queues": sum(len(group.unread) for group in report.groups),
                "not_consumed": sum(len(range_) for group in report.groups for range_ in group.unread),
                "warnings": list(report.warnings),
            }
        )
        failed = failed_groups(report.groups)
        if rows:
            names = {group: type(error).__name__ for group, error in failed.items()}
            self.note(context, planned_sentence(answer, names))
        if failed:
            raise_failed(failed, len(groups))
        for group in report.groups if OFFSETS_COMMITTED in self.outlets else ():
            summaries = [shard.summary() for shard in group.shards]
            report_offsets(context, REPORTED, group.group, summaries, self.hook.secrets)
        return answer

    def _row(self, report: GroupReport) -> Answer:
        row = {
            "group": report.group,
            "status": str(report.status),
            "messages": report.messages,
            "outcomes": {str(outcome): count for outcome, count in report.outcomes.items()},
            "blocked_queues": len(report.unread),
        }
        if report.error is None:
            return row
        status = "skipped, in use" if isinstance(report.error, HeldByAnother) else "failed"
        return row | {"status": status, "error": logged_error(report.error, self.hook)}


def failed_groups(reports: Sequence[GroupReport]) -> dict[str, Exception]:
    """The errors by group. A group that another run holds has none: a later run consumes for it."""
    return {one.group: one.error for one in reports if one.error and not isinstance(one.error, HeldByAnother)}


def raise_failed(errors: Mapping[str, Exception], planned_groups: int) -> NoReturn:
    """Raise what names the groups with errors."""
    names = listed([f"{group} ({type(error).__name__})" for group, error in errors.items()])
    text = f"{len(errors)} of {planned_groups} planned groups failed, the others are committed: {names}"
    can_wait = any(isinstance(one, WORTH_A_RETRY) or not isinstance(one, RmqError) for one in errors.values())
    raise AirflowException(text) if can_wait else AirflowFailException(text)
