"""``rmq redrive``: send dead letters again."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_store.cli.common import check_group, new_request, open_store, settings_if_there
from rmq_store.cli.options import (
    TIME,
    ActorOption,
    GroupOption,
    JsonOption,
    ReasonOption,
    RequestOption,
    RootOption,
    SettingsOption,
    ShardOption,
    count_from,
    example,
)
from rmq_store.cli.output import Output
from rmq_store.commit.request import actor_of, overall, reason_of
from rmq_store.errors import WrongUse
from rmq_store.utils.host import Host
from rmq_store.utils.times import format_time

if TYPE_CHECKING:
    from rmq_store.admin.dead_letters import Letter, Place
    from rmq_store.admin.redrive import RedriveReport

PANEL = "Messages"


def add_to(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=PANEL,
        epilog=example(
            "rmq redrive --group orders --all --dry-run",
            "rmq redrive --group orders --from 2026-11-19T00:00:00Z --original-topic OrderEvents --reason 'fixed'",
            "rmq redrive --group orders --letter lake-broker-a:0:17 --to-topic OrderEvents --reason 'for all groups'",
        ),
    )(redrive)


def _place(text: str) -> Place:
    from rmq_store.admin.dag_params import letter_place

    try:
        return letter_place(text)
    except WrongUse as error:
        raise typer.BadParameter(str(error)) from error


def redrive(
    group: GroupOption,
    every: Annotated[bool, typer.Option("--all", help="All dead letters of the group.")] = False,
    since: Annotated[
        int | None,
        typer.Option("--from", metavar="TIME", parser=TIME, help="Only messages dead-lettered at or after this time."),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option("--until", metavar="TIME", parser=TIME, help="Only messages dead-lettered before this time."),
    ] = None,
    original_topic: Annotated[
        str | None, typer.Option("--original-topic", metavar="TOPIC", help="Only messages first read from this topic.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="KEY", help="Only messages with this key or unique key. Repeatable."),
    ] = None,
    letter: Annotated[
        list[Any] | None,
        typer.Option(
            "--letter",
            metavar="BROKER:QUEUE:OFFSET",
            parser=_place,
            help="Only the dead letter at this place (see the view dead_letters). Repeatable.",
        ),
    ] = None,
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
    reason: ReasonOption = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent; send nothing.")] = False,
    shard: ShardOption = None,
    request: RequestOption = None,
    settings: SettingsOption = None,
    actor: ActorOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters of a group again, each once.

    They go to the group's retry topic, which only this group reads, and their retry count restarts at 0. Options that
    select dead letters narrow each other. A dead letter that any request has sent again before is not sent a second time.
    """
    output, host = Output(as_json), Host()
    store = open_store(root)
    from rmq_store.admin.dead_letters import Letters
    from rmq_store.admin.redrive import NO_SUCH_LETTER, RedriveRequest, no_letters, of_settings
    from rmq_store.lake.admin.redrive import redrive_all, shards_with_letters

    letters = Letters(since, until, original_topic, frozenset(key or ()), tuple(letter or ()), every)
    request_id, who = new_request("redrive", request, host), actor_of(actor)
    why = reason_of(reason, dry_run)
    asked = RedriveRequest(group, letters, request_id, who, why, to_topic, limit, dry_run=dry_run)
    readers: set[str] = set()
    if (there := settings_if_there(settings)) is not None:
        asked, known = of_settings(asked, there)
        readers.update(known)
    having = shards_with_letters(store.shards(shard), asked)
    if not having:
        check_group(store, group, settings)
    reports = [redrive_all(one, its, host) for one, its in having]
    readers.update(name for report in reports for name in report.readers)
    count = sum(report.letters for report in reports)
    found = {
        "status": "dry_run" if dry_run else overall(report.status for report in reports),
        "group": group,
        "request_id": request_id,
        "topic": asked.target_topic,
        "readers": sorted(readers),
        "letters": count,
        "shards": [_shard(report) for report in reports],
        "warnings": [warning for report in reports for warning in report.warnings],
    }
    if dry_run:
        listed = [_listed(report.shard, one) for report in reports for one in report.listed]
        found["listed"] = listed
        output.table([row | {"died_at": format_time(row["died_at"])} for row in listed], list(_LISTED))
    else:
        for report in reports:
            output.line(f"shard {report.shard}: {report.status}, {report.letters:,} dead letters")
    groups = ", ".join(sorted(readers)) or "no group of this store"
    lines = [f"dead letters: {count:,}", f"topic: {asked.target_topic}, read by {groups}", f"request: {request_id}"]
    if not count:
        found["nothing_to_do"] = NO_SUCH_LETTER if having else no_letters(group)
        lines.append(f"nothing to do: {found['nothing_to_do']}")
    elif not dry_run and to_topic is None:
        lines.append(f"to consume them: rmq consume --group {group}")
    output.answer(found, *lines)


def _shard(report: RedriveReport) -> dict[str, Any]:
    whole = asdict(report)
    return {name: whole[name] for name in ("status", "shard", "letters", "complete", "commit_id")}


_LISTED = (
    "shard", "broker_name", "queue_id", "queue_offset", "died_at", "original_topic", "unique_key", "keys", "attempt",
)  # fmt: skip


def _listed(shard: str, letter: Letter) -> dict[str, Any]:
    queue = letter.queue
    values = (
        shard, queue.broker_name, queue.queue_id, letter.offset, letter.store_timestamp, letter.original_topic,
        letter.unique_key, letter.keys, letter.reconsume_times,
    )  # fmt: skip
    return dict(zip(_LISTED, values, strict=True))
