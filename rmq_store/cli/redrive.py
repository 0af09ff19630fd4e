"""``rmq redrive``: send dead letters again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import check_group, new_request, open_store, optional_settings
from rmq_store.cli.options import TIME, GroupChangeOptions, GroupOption, count_from
from rmq_store.cli.output import Output
from rmq_store.commit.request import Status, actor_of, overall, reason_of
from rmq_store.errors import WrongUse
from rmq_store.utils.host import Host
from rmq_store.utils.times import format_time

if TYPE_CHECKING:
    from rmq_store.admin.dead_letters import DeadLetter, DeadLetterFilter, Place
    from rmq_store.admin.redrive import RedriveReport

PANEL = "Messages"


def add_to(app: typer.Typer) -> None:
    add_command(
        app,
        redrive,
        [
            "rmq redrive --group orders --all --dry-run",
            "rmq redrive --group orders --from 2026-11-19T00:00:00Z --original-topic OrderEvents --reason 'fixed'",
            "rmq redrive --group orders --where \"_error_type = 'ValueError' AND price > 100\" --dry-run",
            "rmq redrive --group orders --letter lake-broker-a:0:17 --to-topic OrderEvents --reason 'for all groups'",
        ],
        panel=PANEL,
    )


def _place(text: str) -> Place:
    from rmq_store.admin.dag_params import dead_letter_place

    try:
        return dead_letter_place(text)
    except WrongUse as error:
        raise typer.BadParameter(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOptions:
    """Which dead letters; the options narrow each other."""

    every: Annotated[bool, typer.Option("--all", help="All dead letters of the group.")] = False
    since: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="TIME", parser=TIME, help="Only messages that became dead letters at or after this time."
        ),
    ] = None
    until: Annotated[
        int | None,
        typer.Option(
            "--until", metavar="TIME", parser=TIME, help="Only messages that became dead letters before this time."
        ),
    ] = None
    original_topic: Annotated[
        str | None, typer.Option("--original-topic", metavar="TOPIC", help="Only messages first read from this topic.")
    ] = None
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="KEY", help="Only messages with this key or unique key. Repeatable."),
    ] = None
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="SQL92",
            help="Only messages for which this expression of RocketMQ's SQL92 filter is true, over their properties and, with "
            "an underscore before them, columns of the view dead_letters: \"region = 'eu' AND _cause = 'timeout'\".",
        ),
    ] = None
    letter: Annotated[
        list[Any] | None,
        typer.Option(
            "--letter",
            metavar="BROKER:QUEUE:OFFSET",
            parser=_place,
            help="Only the dead letter at this place (see the view dead_letters). Repeatable.",
        ),
    ] = None

    def dead_letters(self) -> DeadLetterFilter:
        """Raises WrongUse for a selection that contradicts itself."""
        from rmq_store.admin.dead_letters import DeadLetterFilter

        return DeadLetterFilter(
            from_ms=self.since,
            until_ms=self.until,
            original_topic=self.original_topic,
            keys=frozenset(self.key or ()),
            places=tuple(self.letter or ()),
            where=self.where,
            all=self.every,
        )


def redrive(
    *,
    group: GroupOption,
    selection: SelectionOptions,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", metavar="N", parser=count_from(1), help="At most N dead letters per shard, oldest first."
        ),
    ] = None,
    to_topic: Annotated[
        str | None,
        typer.Option(
            "--to-topic",
            metavar="TOPIC",
            help="Send to this topic, for all its consumer groups. Default: to this group only.",
        ),
    ] = None,
    options: GroupChangeOptions,
) -> None:
    """Send dead letters of a group again, each once.

    They go to the group's retry topic, which only this group reads, and their retry count restarts at 0. If several
    options select dead letters, a dead letter must match all of them. A dead letter that another request has already
    sent again is not sent a second time.
    """
    output, host = Output(options.as_json), Host()
    store = open_store(options.root)
    from rmq_store.admin.redrive import NO_MATCH, RedriveRequest, no_dead_letters, of_settings
    from rmq_store.lake.admin.redrive import redrive_all, shards_with_dead_letters

    dry_run = options.dry_run
    request = RedriveRequest(
        group=group,
        dead_letters=selection.dead_letters(),
        to_topic=to_topic,
        limit=limit,
        request_id=new_request("redrive", options.request, host),
        actor=actor_of(options.actor),
        reason=reason_of(options.reason, dry_run),
        dry_run=dry_run,
    )
    readers: set[str] = set()
    settings = optional_settings(options.settings)
    if settings is not None:
        request, subscribed = of_settings(request, settings)
        readers.update(subscribed)
    requests = shards_with_dead_letters(store.shards(options.shard), request)
    if not requests:
        check_group(store, group, settings)
    reports = [redrive_all(shard, of_shard, host) for shard, of_shard in requests]
    readers.update(name for report in reports for name in report.readers)
    count = sum(report.letters for report in reports)
    answer: dict[str, Any] = {
        "status": Status.DRY_RUN if dry_run else overall(report.status for report in reports),
        "group": group,
        "request_id": request.request_id,
        "topic": request.target_topic,
        "readers": sorted(readers),
        "letters": count,
        "shards": [_shard(report) for report in reports],
        "warnings": [warning for report in reports for warning in report.warnings],
    }
    if dry_run:
        rows = [_row(report.shard, letter) for report in reports for letter in report.listed]
        answer["listed"] = rows
        output.table([row | {"died_at": format_time(row["died_at"])} for row in rows], list(_LISTED))
    else:
        for report in reports:
            output.line(f"shard {report.shard}: {report.status}, {report.letters:,} dead letters")
    groups = ", ".join(sorted(readers)) or "no group of this store"
    lines = [
        f"dead letters: {count:,}",
        f"topic: {request.target_topic}, read by {groups}",
        f"request: {request.request_id}",
    ]
    if not count:
        answer["nothing_to_do"] = NO_MATCH if requests else no_dead_letters(group)
        lines.append(f"nothing to do: {answer['nothing_to_do']}")
    elif not dry_run and to_topic is None:
        lines.append(f"to consume them: rmq consume --group {group}")
    output.answer(answer, *lines)


def _shard(report: RedriveReport) -> dict[str, Any]:
    values = asdict(report)
    return {name: values[name] for name in ("status", "shard", "letters", "complete", "commit_id")}


_LISTED = (
    "shard", "broker_name", "queue_id", "queue_offset", "died_at", "original_topic", "unique_key", "keys", "attempt",
)  # fmt: skip


def _row(shard: str, letter: DeadLetter) -> dict[str, Any]:
    queue = letter.queue
    values = (
        shard, queue.broker_name, queue.queue_id, letter.offset, letter.store_timestamp, letter.original_topic,
        letter.unique_key, letter.keys, letter.reconsume_times,
    )  # fmt: skip
    return dict(zip(_LISTED, values, strict=True))
