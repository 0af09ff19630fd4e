"""``rmq reset``, ``skip``, ``clone``, ``search-offset``, ``offsets import``: find and move the offsets of groups."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from rmq_store.cli.common import check_group, known_group, new_request, open_store, queues_by_shard
from rmq_store.cli.export import export
from rmq_store.cli.move_tables import show_moves, stands_of
from rmq_store.cli.options import (
    ActorOption,
    AtOption,
    GroupOption,
    JsonOption,
    QueueName,
    QueueOption,
    QueuesOption,
    ReasonOption,
    RequestOption,
    RootOption,
    SettingsOption,
    ShardOption,
    TopicOption,
    ToTimeOption,
    count_from,
    example,
)
from rmq_store.cli.output import Output
from rmq_store.commit.request import actor_of, reason_of
from rmq_store.errors import WrongUse
from rmq_store.message.message import retry_topic
from rmq_store.utils.host import Host
from rmq_store.utils.known_names import listed

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would move; move nothing.")]

offsets = typer.Typer(
    no_args_is_help=True, help="Export and import offsets as RocketMQ's own files.", rich_markup_mode="rich"
)

PANEL = "Offsets"


def add_to(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=PANEL,
        epilog=example(
            "rmq reset --group orders --topic OrderEvents --to-time 2026-11-19T00:00:00Z --dry-run",
            "rmq reset --group orders --topic OrderEvents --queue broker-a:3 --to-offset 120 --reason 'bad deploy'",
        ),
    )(reset)
    app.command(
        rich_help_panel=PANEL,
        epilog=example("rmq skip --group orders --topic OrderEvents --reason 'test data'"),
    )(skip)
    app.command(
        rich_help_panel=PANEL,
        epilog=example("rmq clone --from orders --to orders-v2 --reason 'a second consumer continues from here'"),
    )(clone)
    app.command(
        rich_help_panel=PANEL,
        epilog=example("rmq search-offset --topic OrderEvents --queue broker-a:3 --time 2026-11-19T00:00:00Z"),
    )(search_offset)
    offsets.command(
        epilog=example(
            "rmq offsets export --broker broker-a",
            "rmq offsets export --broker broker-a --merge /data/rocketmq/store/config/consumerOffset.json --dry-run",
        )
    )(export)
    offsets.command(
        "import",
        epilog=example(
            "rmq offsets import ~/.rocketmq_offsets/10.0.0.7@DEFAULT/audit/offsets.json --group audit@host-1 --dry-run",
            "rmq offsets import consumerOffset.json --broker broker-a --group orders --reason 'the group moved here'",
        ),
    )(import_offsets)
    app.add_typer(offsets, name="offsets", rich_help_panel=PANEL)


def reset(
    group: GroupOption,
    topic: TopicOption,
    queue: QueuesOption = None,
    to_time: ToTimeOption = None,
    to_offset: Annotated[
        int | None,
        typer.Option(
            "--to-offset", metavar="OFFSET", parser=count_from(0), help="To this offset, the next one to read."
        ),
    ] = None,
    to_min: Annotated[bool, typer.Option("--to-min", help="To the first readable message.")] = False,
    to_max: Annotated[bool, typer.Option("--to-max", help="To the end: skip all unread messages.")] = False,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    shard: ShardOption = None,
    request: RequestOption = None,
    settings: SettingsOption = None,
    actor: ActorOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a group's offsets of one topic.

    Give one of --to-time, --to-offset, --to-min and --to-max. The actor and the reason are recorded in the history. A reset
    wins over a running window, which then cannot commit. Waiting retries do not change.
    """
    to, value = _target(to_time, to_offset, to_min, to_max)
    _reset("reset", group, topic, queue, to, value, reason, dry_run, shard, request, settings, actor, root, as_json)


def skip(
    group: GroupOption,
    topic: TopicOption,
    queue: QueuesOption = None,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    shard: ShardOption = None,
    request: RequestOption = None,
    settings: SettingsOption = None,
    actor: ActorOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Skip all unread messages of a topic for a group.

    The same as 'rmq reset --to-max': later messages are read. Waiting retries do not change; they have a topic of their
    own, %RETRY%GROUP.
    """
    _reset("skip", group, topic, queue, "max", None, reason, dry_run, shard, request, settings, actor, root, as_json)


def _reset(
    command: str,
    group: str,
    topic: str,
    queue: list[QueueName] | None,
    to: str,
    value: int | None,
    reason: str,
    dry_run: bool,
    shard: str | None,
    request: str | None,
    settings: str | None,
    actor: str | None,
    root: str | None,
    as_json: bool,
) -> None:
    output, host = Output(as_json), Host()
    store = open_store(root)
    from rmq_store.admin.reset import ResetRequest, ResetTo
    from rmq_store.lake.admin.moves import move_in_all

    request_id, who = new_request(command, request, host), actor_of(actor)
    why = reason_of(reason, dry_run)
    asked = ResetRequest(group, topic, ResetTo(to), request_id, who, why, value, dry_run=dry_run)
    check_group(store, group, settings)
    found = queues_by_shard(store.shards(shard), topic, queue or ())
    known = known_group(group, settings)
    if known is not None and topic not in {retry_topic(group), *(one.topic for one in known.subscriptions)}:
        output.note(
            f"group {group} does not subscribe to {topic} in the settings: it will not read from the new offsets"
        )
    stands = stands_of([one for one, _ in found], group, settings)
    reports = move_in_all([(one, replace(asked, queues=queues)) for one, queues in found], host)
    show_moves(output, reports, stands, {"group": group, "topic": topic})


def clone(
    source: Annotated[str, typer.Option("--from", metavar="GROUP", help="The group to copy offsets from.")],
    target: Annotated[str, typer.Option("--to", metavar="GROUP", help="The group to copy offsets to.")],
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="Only this topic. Default: all topics of the source group."
        ),
    ] = None,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    shard: ShardOption = None,
    request: RequestOption = None,
    settings: SettingsOption = None,
    actor: ActorOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy one group's offsets to another group.

    Queues without an offset of the source group do not change. Retries that wait for the source group are not copied.
    """
    output, host = Output(as_json), Host()
    store = open_store(root)
    from rmq_store.admin.clone import CloneRequest
    from rmq_store.lake.admin.moves import move_in_all
    from rmq_store.lake.window.plan import ShardLookup

    request_id, who = new_request("clone", request, host), actor_of(actor)
    why = reason_of(reason, dry_run)
    asked = CloneRequest(target, source, request_id, who, why, topic, dry_run)
    for group in (source, target):
        check_group(store, group, settings)
    shards = store.shards(shard)
    # Shards without offsets of the source have nothing to clone; if none has any, the first one raises the error.
    having = [one for one in shards if asked.wanted(ShardLookup(one), one.positions())] or shards[:1]
    stands = stands_of(having, target, settings)
    reports = move_in_all([(one, asked) for one in having], host)
    show_moves(output, reports, stands, {"group": target, "source": source, "topic": topic})


def _target(to_time: int | None, to_offset: int | None, to_min: bool, to_max: bool) -> tuple[str, int | None]:
    """The name of the ResetTo and its value."""
    given: list[tuple[str, int | None]] = []
    given += [("time", to_time)] if to_time is not None else []
    given += [("offset", to_offset)] if to_offset is not None else []
    given += [("min", None)] if to_min else []
    given += [("max", None)] if to_max else []
    if len(given) != 1:
        raise WrongUse("give exactly one of --to-time TIME, --to-offset OFFSET, --to-min or --to-max")
    return given[0]


def search_offset(
    topic: TopicOption,
    queue: QueueOption,
    time: AtOption,
    boundary: Annotated[
        Literal["lower", "upper"],
        typer.Option(help="lower: the first message stored at or after the time; upper: the last at or before it."),
    ] = "lower",
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find an offset of a queue by time, as a broker does."""
    output = Output(as_json)
    store = open_store(root)
    from rmq_store.lake.read.time_search import search_offsets

    ((shard, queues),) = queues_by_shard(store.shards(), topic, [queue])
    offset = search_offsets(shard, shard.positions(), queues, time, upper=boundary == "upper")[queues[0]]
    output.line(str(offset))
    output.document(
        {
            "status": "done",
            "shard": shard.name,
            "topic": topic,
            "broker_name": queue.broker_name,
            "queue_id": queue.queue_id,
            "time_ms": time,
            "boundary": boundary,
            "offset": offset,
        }
    )


def import_offsets(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="offsets.json or consumerOffset.json.")],
    group: Annotated[
        str, typer.Option("--group", "-g", metavar="GROUP", help="The group to set the offsets of, or GROUP@CLIENT.")
    ],
    broker: Annotated[
        str | None, typer.Option("--broker", "-b", metavar="NAME", help="The broker of a consumerOffset.json.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic. Default: all topics in the file."),
    ] = None,
    reason: ReasonOption = "",
    dry_run: DryRunOption = False,
    shard: ShardOption = None,
    request: RequestOption = None,
    settings: SettingsOption = None,
    actor: ActorOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set a group's offsets from one of RocketMQ's files.

    FILE is the offsets.json of a broadcasting client, for one client of this store (GROUP@CLIENT), or a broker's
    consumerOffset.json. The store must have all of its queues, and the offsets must be in their range; other queues do not
    change. The actor and the reason are recorded in the history, as for a reset.
    """
    output, host = Output(as_json), Host()
    store = open_store(root)
    from rmq_store.admin.set_offsets import SetOffsetsRequest, unknown_queues
    from rmq_store.broker_files.offset_files import read_offsets
    from rmq_store.lake.admin.moves import move_in_all

    request_id, who = new_request("offsets-import", request, host), actor_of(actor)
    check_group(store, group, settings)
    found = read_offsets(file.expanduser(), group, broker)
    if found.note:
        output.note(found.note)
    held = [(one, one.positions()) for one in store.shards(shard)]
    unknown = unknown_queues(found.offsets, [positions for _, positions in held])
    # Offset 0 of a queue that the store does not have says nothing: most retry topics are empty.
    empty = {queue for queue in unknown if found.offsets[queue] == 0}
    wanted = {q: offset for q, offset in found.offsets.items() if topic in (None, q.topic) and q not in empty}
    if not wanted:
        raise WrongUse(f"{found.used} has no offset of {group}" + ("" if topic is None else f" in topic {topic}"))
    if strange := [f"{q.topic} {q.broker_name}:{q.queue_id}" for q in unknown if q in wanted]:
        raise WrongUse(
            f"{found.used} names queues that are not in this store: {listed(strange)}. Import their broker, or choose "
            "one topic with --topic"
        )
    why = reason_of(reason, dry_run)
    asked = []
    for one, positions in held:
        its = {queue: wanted[queue] for queue in positions.all_queues() if queue in wanted}
        if its:
            asked.append((one, SetOffsetsRequest(group, its, file.name, request_id, who, why, dry_run)))
    stands = stands_of([one for one, _ in held], group, settings)
    reports = move_in_all(asked, host)
    show_moves(output, reports, stands, {"group": group, "file": str(found.used)})
