"""``rmq reset``, ``skip``, ``clone``, ``undo``, ``search-offset``, ``offsets import``: find and move the offsets of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import (
    check_group,
    known_group,
    new_request,
    open_store,
    optional_settings,
    queues_by_shard,
    shards_of_request,
)
from rmq_store.cli.export import export
from rmq_store.cli.offset_moves import Moves, states_before
from rmq_store.cli.options import (
    AtOption,
    GroupChangeOptions,
    GroupOption,
    QueueName,
    QueueOption,
    QueuesOption,
    StoreOptions,
    TopicOption,
    ToTimeOption,
    count_from,
    local_file,
)
from rmq_store.cli.output import Output
from rmq_store.commit.request import actor_of, reason_of
from rmq_store.errors import WrongUse
from rmq_store.message.message_const import retry_topic
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import listed

if TYPE_CHECKING:
    from rmq_store.admin.reset import ResetRequest, ResetTo
    from rmq_store.lake.table.store import LakeStore

offsets = typer.Typer(
    no_args_is_help=True, help="Export and import offsets as RocketMQ's own files.", rich_markup_mode="rich"
)

PANEL = "Offsets"


def add_to(app: typer.Typer) -> None:
    add_command(
        app,
        reset,
        [
            "rmq reset --group orders --topic OrderEvents --to-time 2026-11-19T00:00:00Z --dry-run",
            "rmq reset --group orders --topic OrderEvents --queue broker-a:3 --to-offset 120 --reason 'bad deploy'",
        ],
        panel=PANEL,
    )
    add_command(app, skip, ["rmq skip --group orders --topic OrderEvents --reason 'test data'"], panel=PANEL)
    add_command(
        app,
        clone,
        ["rmq clone --from orders --to orders-v2 --reason 'a second consumer continues from here'"],
        panel=PANEL,
    )
    add_command(
        app,
        undo,
        [
            "rmq undo --group orders --dry-run",
            "rmq undo --group orders --reason 'the reset was for another group'",
        ],
        panel=PANEL,
    )
    add_command(
        app,
        search_offset,
        ["rmq search-offset --topic OrderEvents --queue broker-a:3 --time 2026-11-19T00:00:00Z"],
        panel=PANEL,
    )
    add_command(
        offsets,
        export,
        [
            "rmq offsets export --broker broker-a",
            "rmq offsets export --broker broker-a --merge /data/rocketmq/store/config/consumerOffset.json --dry-run",
        ],
    )
    add_command(
        offsets,
        import_offsets,
        [
            "rmq offsets import ~/.rocketmq_offsets/10.0.0.7@DEFAULT/audit/offsets.json --group audit@host-1 --dry-run",
            "rmq offsets import consumerOffset.json --broker broker-a --group orders --reason 'the group moved here'",
        ],
        name="import",
    )
    app.add_typer(offsets, name="offsets", rich_help_panel=PANEL)


# --- reset and skip --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """Where a reset moves the offsets to: exactly one of these."""

    to_time: ToTimeOption = None
    to_offset: Annotated[
        int | None,
        typer.Option(
            "--to-offset", metavar="OFFSET", parser=count_from(0), help="To this offset, the next one to read."
        ),
    ] = None
    to_min: Annotated[bool, typer.Option("--to-min", help="To the first readable message.")] = False
    to_max: Annotated[bool, typer.Option("--to-max", help="To the end: skip all unread messages.")] = False

    def target(self) -> tuple[ResetTo, int | None]:
        """The kind of target, and its time (UTC ms) or offset. Raises WrongUse."""
        from rmq_store.admin.reset import ResetTo

        targets: list[tuple[ResetTo, int | None]] = []
        targets += [(ResetTo.TIME, self.to_time)] if self.to_time is not None else []
        targets += [(ResetTo.OFFSET, self.to_offset)] if self.to_offset is not None else []
        targets += [(ResetTo.MIN, None)] if self.to_min else []
        targets += [(ResetTo.MAX, None)] if self.to_max else []
        if len(targets) != 1:
            raise WrongUse("give exactly one of --to-time TIME, --to-offset OFFSET, --to-min or --to-max")
        return targets[0]


def reset(
    *,
    group: GroupOption,
    topic: TopicOption,
    queue: QueuesOption = None,
    target: TargetOptions,
    options: GroupChangeOptions,
) -> None:
    """Move a group's offsets of one topic.

    Give one of --to-time, --to-offset, --to-min and --to-max. The actor and the reason are recorded in the history. A reset
    wins over a running window, which then cannot commit. Waiting retries do not change. The group CID_RMQ_SYS_SCHEDULE passes
    over delayed messages that 'rmq deliver' cannot deliver.
    """
    from rmq_store.admin.reset import ResetRequest

    to, value = target.target()
    store, host = open_store(options.root), Host()
    request = ResetRequest(
        group=group,
        topic=topic,
        to=to,
        value=value,
        request_id=new_request("reset", options.request, host),
        actor=actor_of(options.actor),
        reason=reason_of(options.reason, options.dry_run),
        dry_run=options.dry_run,
    )
    _reset(store, request, queue or (), options, host)


def skip(*, group: GroupOption, topic: TopicOption, queue: QueuesOption = None, options: GroupChangeOptions) -> None:
    """Skip all unread messages of a topic for a group.

    The same as 'rmq reset --to-max': later messages are read. Waiting retries do not change; they have a topic of their
    own, %RETRY%GROUP.
    """
    from rmq_store.admin.reset import ResetRequest, ResetTo

    store, host = open_store(options.root), Host()
    request = ResetRequest(
        group=group,
        topic=topic,
        to=ResetTo.MAX,
        request_id=new_request("skip", options.request, host),
        actor=actor_of(options.actor),
        reason=reason_of(options.reason, options.dry_run),
        dry_run=options.dry_run,
    )
    _reset(store, request, queue or (), options, host)


def _reset(
    store: LakeStore, request: ResetRequest, queues: Sequence[QueueName], options: GroupChangeOptions, host: Host
) -> None:
    """Do the request in each shard that has the topic; ``queues``: only these, empty: all."""
    from rmq_store.lake.admin.offset_moves import move_in_all

    output, settings = Output(options.as_json), optional_settings(options.settings)
    group, topic = request.group, request.topic
    if not request.passes_delayed:
        check_group(store, group, settings)
    chosen, every = shards_of_request(store, options)
    shards = queues_by_shard(chosen, topic, queues, store if options.shard else None)
    known = known_group(group, settings)
    if known is not None and topic not in {retry_topic(group), *(one.topic for one in known.subscriptions)}:
        output.note(
            f"group {group} does not subscribe to {topic} in the settings: it will not read from the new offsets"
        )
    before = states_before([shard for shard, _ in shards], group, known)
    requests = [(shard, replace(request, queues=of_shard)) for shard, of_shard in shards]
    moves = Moves(output, before, {"group": group, "topic": topic})
    with moves.running() as finished:
        reports = move_in_all(requests, host, known, every=every, finished=finished)
    moves.show(reports)


# --- clone, search, import -------------------------------------------------------------------------------------------


def clone(
    *,
    source: Annotated[str, typer.Option("--from", metavar="GROUP", help="The group to copy offsets from.")],
    target: Annotated[str, typer.Option("--to", metavar="GROUP", help="The group to copy offsets to.")],
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="Only this topic. Default: all topics of the source group."
        ),
    ] = None,
    options: GroupChangeOptions,
) -> None:
    """Copy one group's offsets to another group.

    Queues without an offset of the source group do not change. Retries that wait for the source group are not copied.
    """
    store, host = open_store(options.root), Host()
    from rmq_store.admin.clone import CloneRequest
    from rmq_store.lake.admin.clone import clone as clone_in
    from rmq_store.lake.window.consumption import empty_store

    request = CloneRequest(
        group=target,
        source=source,
        topic=topic,
        request_id=new_request("clone", options.request, host),
        actor=actor_of(options.actor),
        reason=reason_of(options.reason, options.dry_run),
        dry_run=options.dry_run,
    )
    settings = optional_settings(options.settings)
    for group in (source, target):
        check_group(store, group, settings)
    shards, every = shards_of_request(store, options)
    if not shards:
        raise empty_store(store)
    known = known_group(target, settings)
    before = states_before(shards, target, known)
    moves = Moves(Output(options.as_json), before, {"group": target, "source": source, "topic": topic})
    with moves.running() as finished:
        reports = clone_in(shards, request, host, known, every=every, finished=finished)
    moves.show(reports)


def undo(
    *,
    group: GroupOption,
    force: Annotated[
        bool, typer.Option("--force", help="Also when windows were committed in its queues since the action.")
    ] = False,
    options: GroupChangeOptions,
) -> None:
    """Undo the last action of an operator on a group's offsets.

    A reset, skip, clone or import of offsets can be undone, and so can an undo: that does the action again. The undo is
    recorded with the actor, the reason, and the action that it undoes. It is refused when windows were committed in these
    queues since, unless --force is given. What sent or dropped messages cannot be undone: a redrive, a delete.
    """
    from rmq_store.admin.undo import undone_sentence
    from rmq_store.lake.admin.undo import actions_to_undo
    from rmq_store.lake.admin.undo import undo as undo_in

    store, host = open_store(options.root), Host()
    output, settings = Output(options.as_json), optional_settings(options.settings)
    request_id = new_request("undo", options.request, host)
    check_group(store, group, settings)
    known, (shards, every) = known_group(group, settings), shards_of_request(store, options)
    before = states_before(shards, group, known)
    undone = actions_to_undo(shards, group, request_id, every=every)
    of_undone = [{"undoes": ctl.request_id, "undoes_action": str(ctl.action)} for _, ctl in undone] or [{}]
    moves = Moves(output, before, {"group": group} | of_undone[0])
    with moves.running() as finished:
        reports = undo_in(
            undone,
            group,
            host,
            request_id=request_id,
            actor=actor_of(options.actor),
            reason=reason_of(options.reason, options.dry_run),
            force=force,
            dry_run=options.dry_run,
            settings=known,
            among=shards,
            every=every,
            finished=finished,
        )
    output.line(f"undoes: {undone_sentence(undone[0][1])}")
    moves.show(reports)


def search_offset(
    *,
    topic: TopicOption,
    queue: QueueOption,
    time: AtOption,
    boundary: Annotated[
        Literal["lower", "upper"],
        typer.Option(help="lower: the first message stored at or after the time; upper: the last at or before it."),
    ] = "lower",
    options: StoreOptions,
) -> None:
    """Find an offset of a queue by time, as a broker does."""
    output = Output(options.as_json)
    store = open_store(options.root)
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
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", parser=local_file, help="offsets.json or consumerOffset.json.")
    ],
    group: Annotated[
        str,
        typer.Option("--group", "-g", metavar="GROUP", help="The group to set the offsets of, or GROUP@CLIENT."),
    ],
    broker: Annotated[
        str | None, typer.Option("--broker", "-b", metavar="NAME", help="The broker of a consumerOffset.json.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic. Default: all topics in the file."),
    ] = None,
    options: GroupChangeOptions,
) -> None:
    """Set a group's offsets from one of RocketMQ's files.

    FILE is the offsets.json of a broadcasting client, for one client of this store (GROUP@CLIENT), or a broker's
    consumerOffset.json. The store must have all of its queues, and the offsets must be in their range; other queues do not
    change. The actor and the reason are recorded in the history, as for a reset.
    """
    output, host = Output(options.as_json), Host()
    store = open_store(options.root)
    from rmq_store.admin.set_offsets import SetOffsetsRequest, unknown_queues
    from rmq_store.broker_files.offset_files import read_offsets
    from rmq_store.lake.admin.offset_moves import move_in_all
    from rmq_store.lake.table.imports import offsets_here

    settings = optional_settings(options.settings)
    request_id = new_request("offsets-import", options.request, host)
    check_group(store, group, settings)
    read = read_offsets(file, group, broker)
    if read.note:
        output.note(read.note)
    chosen, every = shards_of_request(store, options)
    shards = [(shard, shard.positions()) for shard in chosen]
    unknown = unknown_queues(read.offsets, [positions for _, positions in shards])
    # Offset 0 of a queue that the store does not have says nothing: most retry topics are empty.
    empty = {queue for queue in unknown if read.offsets[queue] == 0}
    here = offsets_here([shard for shard, _ in shards], group, read.offsets)
    new_offsets = {q: offset for q, offset in here.items() if topic in (None, q.topic) and q not in empty}
    begun = [q.label for q in read.offsets if topic in (None, q.topic) and q not in here]
    if begun:
        output.note(
            f"at its last import the broker had no entry of {listed(begun)}: the topic was deleted or made again, or the copy "
            "was not whole. The offsets of these queues stay; 'rmq reset' moves them"
        )
    if not new_offsets and begun:
        raise WrongUse(f"{read.used} has no other offset of {group}. Nothing was changed.")
    if not new_offsets:
        raise WrongUse(f"{read.used} has no offset of {group}" + ("" if topic is None else f" in topic {topic}"))
    if missing := [q.label for q in unknown if q in new_offsets]:
        raise WrongUse(
            f"{read.used} names queues that are not in this store: {listed(missing)}. Import their broker, or choose "
            "one topic with --topic"
        )
    requests = []
    for shard, positions in shards:
        of_shard = {queue: new_offsets[queue] for queue in positions.all_queues() if queue in new_offsets}
        if of_shard:
            request = SetOffsetsRequest(
                group=group,
                offsets=of_shard,
                source=file.name,
                request_id=request_id,
                actor=actor_of(options.actor),
                reason=reason_of(options.reason, options.dry_run),
                dry_run=options.dry_run,
            )
            requests.append((shard, request))
    known = known_group(group, settings)
    before = states_before([shard for shard, _ in shards], group, known)
    moves = Moves(output, before, {"group": group, "file": str(read.used)})
    with moves.running() as finished:
        reports = move_in_all(requests, host, known, every=every, finished=finished)
    moves.show(reports)
