"""``rmq redrive``: send dead letters again."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import check_group, new_request, open_store, optional_settings
from rmq_store.cli.options import GroupChangeOptions, GroupOption, count_from
from rmq_store.cli.output import Output
from rmq_store.cli.redrive_options import EditOptions, SelectionOptions
from rmq_store.commit.request import Status, actor_of, overall, reason_of
from rmq_store.utils.host import Host
from rmq_store.utils.times import format_time

if TYPE_CHECKING:
    from rmq_store.admin.dead_letters import DeadLetter
    from rmq_store.admin.redrive import Failure, RedriveReport
    from rmq_store.admin.redrive_edits import Preview

PANEL = "Messages"


def add_to(app: typer.Typer) -> None:
    add_command(
        app,
        redrive,
        [
            "rmq redrive --group orders --all --dry-run",
            "rmq redrive --group orders --from 2026-11-19T00:00:00Z --original-topic OrderEvents --reason 'fixed'",
            "rmq redrive --group orders --where \"_error_type = 'ValueError' AND price > 100\" --dry-run",
            "rmq redrive --group orders --all --cast-json /price=number --remove-property debug --rate 50 --reason 'price'",
            "rmq redrive --group orders --letter lake-broker-a:0:17 --to-topic OrderEvents --reason 'for all groups'",
        ],
        panel=PANEL,
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
    edit: EditOptions,
    rate: Annotated[
        int | None,
        typer.Option(
            "--rate",
            metavar="N",
            parser=count_from(1),
            help="At most N dead letters a second and shard, over a minute. The command runs until all are sent.",
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
    sent again is not sent a second time. With edits the copies are changed; one to which they do not apply is not sent,
    and the view redrives says why. In a group that absorbs duplicates, a copy whose key was acked meanwhile is absorbed.
    """
    output, host = Output(options.as_json), Host()
    store = open_store(options.root)
    from rmq_store.admin.redrive import NO_MATCH, RedriveRequest, no_dead_letters, of_settings, readers_of
    from rmq_store.lake.admin.redrive import redrive_all, shards_with_dead_letters

    dry_run = options.dry_run
    request = RedriveRequest(
        group=group,
        dead_letters=selection.dead_letters(),
        to_topic=to_topic,
        limit=limit,
        edits=edit.edits(),
        all_or_nothing=edit.all_or_nothing,
        rate=rate,
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
    reports = [redrive_all(shard, of_shard, host, output.note) for shard, of_shard in requests]
    readers_of_shards = [report.readers for report in reports] or [
        readers_of(shard.positions(), request) for shard in store.shards(options.shard)
    ]
    readers.update(*readers_of_shards)
    count = sum(report.letters for report in reports)
    failed = sum(report.failed for report in reports)
    failures = [_failure(report.shard, failure) for report in reports for failure in report.failures]
    answer: dict[str, Any] = {
        "status": Status.DRY_RUN if dry_run else overall(report.status for report in reports),
        "group": group,
        "request_id": request.request_id,
        "topic": request.target_topic,
        "readers": sorted(readers),
        "letters": count,
        "failed": failed,
        "failures": failures,
        "shards": [_shard(report) for report in reports],
        "warnings": [warning for report in reports for warning in report.warnings],
    }
    if dry_run:
        rows = [_row(report.shard, letter) for report in reports for letter in report.listed]
        answer["listed"] = rows
        answer["previews"] = [_preview(report.shard, preview) for report in reports for preview in report.previews]
        output.table([row | {"died_at": format_time(row["died_at"])} for row in rows], list(_LISTED))
        for preview in answer["previews"]:
            for line in _changes(preview):
                output.line(line)
    else:
        for report in reports:
            output.line(f"shard {report.shard}: {report.status}, {report.letters:,} dead letters")
    groups = ", ".join(sorted(readers)) or "no group of this store"
    lines = [
        f"dead letters: {count:,}",
        f"topic: {request.target_topic}, read by {groups}",
        f"request: {request.request_id}",
    ]
    if failed:
        lines.insert(1, f"not sent, as the edits do not apply: {failed:,}{_reasons(failures)}")
    if not count and not failed:
        answer["nothing_to_do"] = NO_MATCH if requests else no_dead_letters(group)
        lines.append(f"nothing to do: {answer['nothing_to_do']}")
    elif count and not dry_run and to_topic is None:
        lines.append(f"to consume them: rmq consume --group {quote(group)}")
    output.answer(answer, *lines)


def _shard(report: RedriveReport) -> dict[str, Any]:
    values = asdict(report)
    return {name: values[name] for name in ("status", "shard", "letters", "failed", "complete", "commit_id")}


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


_REASONS = 5


def _failure(shard: str, failure: Failure) -> dict[str, Any]:
    return _place(shard, failure) | {"unique_key": failure.unique_key, "reason": failure.reason}


def _preview(shard: str, preview: Preview) -> dict[str, Any]:
    return _place(shard, preview) | {"changes": [asdict(change) for change in preview.changes]}


def _place(shard: str, of: Failure | Preview) -> dict[str, Any]:
    queue = of.queue
    return {
        "shard": shard, "broker_name": queue.broker_name, "queue_id": queue.queue_id, "queue_offset": of.offset,
    }  # fmt: skip


def _changes(preview: dict[str, Any]) -> list[str]:
    """Lines that show what is changed in a dead letter."""
    place = f"{preview['broker_name']}:{preview['queue_id']}:{preview['queue_offset']}"
    changes = [
        f"  {change['name'] or 'body'}: {_shown(change['before'])} -> {_shown(change['after'])}"
        for change in preview["changes"]
    ]
    return [f"{place} with the edits:", *(changes or ["  no change"])]


def _shown(value: str | None) -> str:
    return "nothing" if value is None else repr(value)


def _reasons(failures: list[dict[str, Any]]) -> str:
    """How often each reason occurs, the most frequent first."""
    counts = Counter(failure["reason"] for failure in failures).most_common(_REASONS + 1)
    texts = [f"{reason} ({count:,})" for reason, count in counts[:_REASONS]]
    return f": {'; '.join(texts)}{'; ...' if len(counts) > _REASONS else ''}" if texts else ""
