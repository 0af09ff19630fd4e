"""Send dead letters again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rmq_store.admin.dag_params import redrive_request
from rmq_store.admin.sentences import redrive_sentence
from rmq_store.airflow.arguments import check_constants, check_switches
from rmq_store.airflow.links.console import RmqDeadLettersLink
from rmq_store.airflow.operators.base import RmqOperator
from rmq_store.airflow.task import Answer, nothing_to_do
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rmq_store.admin.redrive import RedriveReport


class RmqRedriveOperator(RmqOperator):
    """
    Send dead letters of a group again, each once, or list them, in all shards that have some.

    :param group: The consumer group. (templated)
    :param all_letters: All dead letters of the group, instead of a choice by the next arguments. The run's parameter is
        ``all``.
    :param since: Only messages that became dead letters at or after this time, ISO 8601 with a zone or a ``datetime``. The
        run's parameter is ``from``. (templated)
    :param until: Only messages that became dead letters before this time. (templated)
    :param original_topic: Only messages that the group first read from this topic.
    :param keys: Only messages with one of these keys or unique keys.
    :param where: Only messages for which this expression of RocketMQ's SQL92 filter is true.
    :param places: Only these: ``BROKER:QUEUE:OFFSET``, from the view ``dead_letters``.
    :param limit: Send at most this many dead letters from each shard, oldest first.
    :param edits: What is changed in the copies, by kind, as a dict or as a text of JSON, in which numbers keep their
        digits; see ``docs/retry-life.md``.
    :param all_or_nothing: Send nothing if the edits do not apply to a dead letter.
    :param rate: At most this many dead letters a second and shard, over a minute; the task runs until all are sent.
    :param to_topic: Send to this topic, for all groups that read it. By default to the group's retry topic.
    :param reason: Recorded in the commit log.
    :param dry_run: Only list what would be sent. By default nothing is sent.
    """

    template_fields: Sequence[str] = ("group", "since", "until")
    operator_extra_links = (RmqDeadLettersLink(),)

    def __init__(
        self,
        *,
        group: str | None = None,
        all_letters: bool | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        original_topic: str | None = None,
        keys: Sequence[str] | None = None,
        where: str | None = None,
        places: Sequence[str] | None = None,
        limit: int | None = None,
        edits: Mapping[str, Any] | str | None = None,
        all_or_nothing: bool | None = None,
        rate: int | None = None,
        to_topic: str | None = None,
        reason: str | None = None,
        dry_run: bool | None = None,
        **kwargs: Any,
    ) -> None:
        check_switches(all_letters=all_letters, all_or_nothing=all_or_nothing, dry_run=dry_run)
        check_constants(original_topic=original_topic, keys=keys, where=where, places=places, limit=limit)
        check_constants(edits=edits, rate=rate, to_topic=to_topic, reason=reason)
        super().__init__(**kwargs)
        self.group = group
        self.since = since
        self.until = until
        self.choice = {
            "all": all_letters,
            "original_topic": original_topic,
            "keys": keys,
            "where": where,
            "letters": places,
            "limit": limit,
        }
        self.sending = {
            "edits": edits,
            "all_or_nothing": all_or_nothing,
            "rate": rate,
            "to_topic": to_topic,
            "reason": reason,
            "dry_run": dry_run,
        }

    def act(self, context: Context) -> list[Answer]:
        """Return an answer per shard."""
        from rmq_store.admin.redrive import NO_MATCH, no_dead_letters, of_settings
        from rmq_store.lake.admin.groups import need_group
        from rmq_store.lake.admin.redrive import redrive_all, shards_with_dead_letters

        values = self.values(
            context, group=self.group, from_=self.since, until=self.until, **self.choice, **self.sending
        )
        settings, store = self.hook.deployment.settings(), self.hook.deployment.open_store()
        request, readers = of_settings(redrive_request(self.run_facts(context), values), settings)
        shards = shards_with_dead_letters(store.shards(), request)
        if not shards:
            need_group(store, request.group, [group.name for group in settings.groups])
        answers = []
        for shard, request_of_shard in shards:
            report = redrive_all(shard, request_of_shard, Host(), self.log_line)
            self._log(report)
            answer = {
                "status": report.status,
                "shard": shard.name,
                "letters": report.letters,
                "failed": report.failed,
                "topic": report.topic,
                "readers": sorted({*readers, *report.readers}),
                "warnings": list(report.warnings),
            }
            answers.append(self.logged(answer))
        if not any(answer["letters"] or answer["failed"] for answer in answers):
            nothing_to_do(context, NO_MATCH if shards else no_dead_letters(request.group))
        else:
            self.note(context, f"{request.group}: {redrive_sentence(answers)}")
        return answers

    def _log(self, report: RedriveReport) -> None:
        """Write the dead letters, the first edited ones before and after, and those that were not sent."""
        for place in report.listed:
            self.log_line(f"{place.queue} offset {place.offset}: {place.unique_key} {place.original_topic}")
        for preview in report.previews:
            for change in preview.changes:
                name = change.name or "body"
                self.log_line(f"{preview.queue} offset {preview.offset}: {name} {change.before!r} -> {change.after!r}")
        for failure in report.failures:
            self.log_line(f"{failure.queue} offset {failure.offset}: not sent, {failure.reason}")
