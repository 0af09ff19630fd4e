"""``rmq consume``, ``replay``, ``deliver``: consume messages and deliver retries and delayed messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_store.cli.common import DONE, asked_group, new_request, open_store
from rmq_store.cli.engines import engines_of, for_windows, listener_folders
from rmq_store.cli.options import (
    ActorOption,
    EngineOption,
    FromOption,
    GroupOption,
    JsonOption,
    ListenerPathOption,
    NowOption,
    RequestOption,
    RootOption,
    SettingsOption,
    ShardOption,
    UntilOption,
    count_from,
    example,
)
from rmq_store.cli.output import Output
from rmq_store.commit.positions import Outcome
from rmq_store.commit.request import actor_of, client_ids_of, overall
from rmq_store.errors import WrongUse
from rmq_store.utils.host import Host
from rmq_store.utils.known_names import listed
from rmq_store.utils.times import format_time

if TYPE_CHECKING:
    from rmq_store.commit.claim import Held
    from rmq_store.lake.table.shard import Shard
    from rmq_store.lake.table.store import LakeStore
    from rmq_store.lake.window.consumption import Consumption
    from rmq_store.lake.window.engine import Engine
    from rmq_store.settings.settings import GroupSettings
    from rmq_store.window.consume import WindowReport
    from rmq_store.window.deliver import DeliverReport, WaitingRetries
    from rmq_store.window.plan import ConsumeRequest, Plan, Scope

MaxMessagesOption = Annotated[
    int | None,
    typer.Option("--max-messages", metavar="N", parser=count_from(1), help="At most N messages per shard."),
]
ClientOption = Annotated[
    str | None,
    typer.Option(
        "--client", metavar="ID", help="The id of this consumer, one of --clients: it reads its share of the queues."
    ),
]
ClientsOption = Annotated[
    str | None,
    typer.Option(
        "--clients", metavar="ID,ID", help="The ids of all running consumers of the group, which share its queues."
    ),
]
ReplayTopicOption = Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic.")]
ReprocessOption = Annotated[
    str | None,
    typer.Option(
        "--reprocess",
        metavar="REASON",
        help="Run the replay of the given group again, as its next attempt, for this reason.",
    ),
]

PANEL = "Messages"


def add_to(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=PANEL,
        epilog=example(
            "rmq consume --group orders",
            "rmq consume --group orders --until 2026-11-20T12:00:00Z --engine local --request 2026-11-20-noon",
            "rmq consume --group orders --client c1 --clients c1,c2,c3",
        ),
    )(consume)
    app.command(
        rich_help_panel=PANEL,
        epilog=example(
            "rmq replay --group orders --topic OrderEvents --from 2026-11-19T00:00:00Z",
            "rmq replay --group orders-replay-0123456789 --reprocess 'the listener is fixed'",
        ),
    )(replay)
    app.command(rich_help_panel=PANEL, epilog=example("rmq deliver", "rmq deliver --now 2026-11-20T12:00:00Z"))(deliver)


def consume(
    group: GroupOption,
    shard: ShardOption = None,
    until: UntilOption = None,
    max_messages: MaxMessagesOption = None,
    client: ClientOption = None,
    clients: ClientsOption = None,
    request: RequestOption = None,
    engine: EngineOption = None,
    listener_path: ListenerPathOption = None,
    settings: SettingsOption = None,
    actor: ActorOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Consume one window of a group.

    It reads from the committed offsets to the end of each queue, or to the given bounds. A window is one commit per
    shard: its offsets, retries and dead letters become visible together. Where the group's settings limit a window,
    windows follow each other until all is read. When there is nothing to read, nothing is written and Spark is not
    started.

    Several consumers may share a group's queues, each with its own id: the group's allocate strategy distributes the
    queues, as in RocketMQ. A queue that another request holds is skipped; when all are held, the command ends with exit
    code 3 and names the holder.
    """
    output, host = Output(as_json), Host()
    store = open_store(root)
    from rmq_store.lake.window.consumption import shards_of, unowned_queues
    from rmq_store.window.plan import ConsumeRequest

    found, scope = asked_group(group, settings, output)
    request_id = new_request("consume", request, host)
    asked = ConsumeRequest(
        request_id,
        actor_of(actor),
        until_ms=until,
        max_messages=max_messages,
        client_id=client,
        client_ids=client_ids_of(clients),
    )
    shards = shards_of(store, found, scope, chosen=shard)
    unowned = [] if scope.retries_only else unowned_queues(store, found, asked.client_ids, host)
    folders = listener_folders(listener_path or ())
    with output.kept_clean(), engines_of("consume", engine or found.engine, host, folders) as engines:
        told = _teller(output, group, request_id)
        done = _all_windows(told, store, shards, found, asked, for_windows(engines), host, scope)
    if unowned:
        named = listed([f"{queue.topic} {queue.broker_name}:{queue.queue_id}" for queue in unowned])
        output.note(f"{found.allocate_strategy} allocates to none of {clients}, so that no consumer reads: {named}")
    _answer(output, group, request_id, done)


def replay(
    group: GroupOption,
    topic: ReplayTopicOption = None,
    since: FromOption = None,
    until: UntilOption = None,
    reprocess: ReprocessOption = None,
    shard: ShardOption = None,
    request: RequestOption = None,
    engine: EngineOption = None,
    listener_path: ListenerPathOption = None,
    settings: SettingsOption = None,
    actor: ActorOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Consume a topic again from a given time.

    A replay runs under its own group name, which the answer shows, so the group's offsets do not move. Failed messages are
    retried under that name: run 'rmq deliver' and 'rmq consume' with that group to finish. To run the same replay again,
    give that name as --group, with --reprocess.
    """
    output, host = Output(as_json), Host()
    if reprocess is None and (topic is None or since is None):
        raise WrongUse("a replay needs --topic and --from; another attempt of a replay needs --reprocess")
    if reprocess is not None and (topic is not None or since is not None or until is not None):
        raise WrongUse("another attempt of a replay reads what the first one read: omit --topic, --from and --until")
    store = open_store(root)
    from rmq_store.admin.replay import as_replay
    from rmq_store.lake.admin.replay import begin_attempt, shards_replayed
    from rmq_store.lake.window.consumption import shards_of
    from rmq_store.window.plan import ConsumeRequest

    request_id = new_request("replay", request, host)
    live = ConsumeRequest(request_id, actor_of(actor), reprocess or "", until_ms=until)
    replaying, scope = asked_group(group, settings, output)
    if reprocess is not None:
        shards = shards_replayed(store, group, shard)
    elif topic is not None and since is not None:
        replaying, live, scope = as_replay(replaying, topic, since, live)
        shards = shards_of(store, replaying, scope, chosen=shard)
    folders = listener_folders(listener_path or ())
    with output.kept_clean(), engines_of("replay", engine or replaying.engine, host, folders) as engines:
        engine_of, told, done = for_windows(engines), _teller(output, replaying.name, request_id), []
        for one in shards:
            doing = (replaying, live, scope) if reprocess is None else begin_attempt(one, replaying, live, host)
            done += _all_windows(told, store, [one], doing[0], doing[1], engine_of, host, doing[2])
    hint = f"to finish its retries: rmq deliver, then rmq consume --group {replaying.name}"
    compare = f"to compare with the previous attempt: rmq diff --group {replaying.name}"
    _answer(output, replaying.name, request_id, done, hint, () if reprocess is None else (compare,))


def _teller(output: Output, group: str, request_id: str) -> Callable[[WindowReport], None]:
    """Prints a line per window, and keeps its report for the JSON answer of a later error."""
    from rmq_store.lake.window.consumption import answer_so_far

    windows: list[WindowReport] = []
    DONE.set(lambda: answer_so_far(group, request_id, windows))

    def told(report: WindowReport) -> None:
        windows.append(report)
        output.line(_window_line(report))

    return told


def _all_windows(
    told: Callable[[WindowReport], None],
    store: LakeStore,
    shards: Sequence[Shard],
    group: GroupSettings,
    request: ConsumeRequest,
    engine_of: Callable[[Plan], Engine],
    host: Host,
    scope: Scope,
) -> list[Consumption]:
    """Run the request in all shards; ``told`` is called with the report of each window."""
    from rmq_store.lake.window.consumption import Consumption
    from rmq_store.lake.window.window import consume_window

    windows = [partial(consume_window, store, shard, group, request, engine_of, host, scope) for shard in shards]
    return [Consumption.of(window, told) for window in windows]


def _window_line(report: WindowReport) -> str:
    counts = [f"{count:,} {outcome}" for outcome, count in report.counts().items() if count]
    done = f"{report.messages():,} messages" + (f" ({', '.join(counts)})" if counts else "")
    more = "" if report.complete else ", more to come"
    held_up = len({blocked.range.queue for blocked in report.blocked})
    waits = f", {held_up} queues wait at a failed message (see the view blocked)" if held_up else ""
    held = "".join(f", {_held_text(one)}" for one in report.held)
    idle = f", {report.idle}" if report.idle else ""
    waiting = f", {_waiting_text(report.waiting)}" if report.waiting else ""
    return f"shard {report.shard}: {report.status}, {done}, engine {report.engine}{more}{waits}{held}{idle}{waiting}"


def _held_text(held: Held) -> str:
    return f"{held.queue} is held by {held.holder or 'another run'} for {held.remaining_s} s more"


def _waiting_text(waiting: WaitingRetries) -> str:
    return f"{waiting.retries:,} retries wait for rmq deliver, the first is due at {format_time(waiting.next_due_ms)}"


def _answer(
    output: Output,
    group: str,
    request_id: str,
    done: Sequence[Consumption],
    hint: str = "",
    more: Sequence[str] = (),
) -> None:
    from rmq_store.lake.window.consumption import answer

    retried = any(Outcome.RETRIED in of_shard.outcomes for of_shard in done)
    lines = [f"group: {group}", f"request: {request_id}"]
    output.answer(answer(group, request_id, done), *lines, *([hint] if hint and retried else []), *more)


def deliver(
    now: NowOption = None,
    shard: ShardOption = None,
    request: RequestOption = None,
    actor: ActorOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver the retries and delayed messages that are due.

    Retries become readable for their groups, and delayed messages are written to their topics. Nothing is delivered by
    itself: run this command every minute, or switch on the DAG rmq_deliver_delayed.
    """
    output, host = Output(as_json), Host()
    store = open_store(root)
    from rmq_store.lake.window.deliver import deliver as deliver_due
    from rmq_store.window.deliver import deliver_all

    request_id, who = new_request("deliver", request, host), actor_of(actor)
    reports = [
        report
        for one in store.shards(shard)
        for report in deliver_all(
            request_id,
            partial(deliver_due, store, one, actor=who, host=host, now_ms=now),
            lambda report: output.line(_delivery_line(report)),
        )
    ]
    found = {
        "status": overall(report.status for report in reports),
        "request_id": request_id,
        "delivered": sum(report.delivered for report in reports),
        "next_due_ms": min((r.next_due_ms for r in reports if r.next_due_ms is not None), default=None),
        "deliveries": [
            {
                "status": report.status,
                "shard": report.shard,
                "request_id": report.request_id,
                "delivered": report.delivered,
                "commit_id": report.commit_id,
            }
            for report in reports
        ],
        "warnings": [warning for report in reports for warning in report.warnings],
    }
    output.answer(found, f"request: {request_id}")


def _delivery_line(report: DeliverReport) -> str:
    due = f", next due {format_time(report.next_due_ms)}" if report.next_due_ms is not None else ""
    return f"shard {report.shard}: {report.status}, {report.delivered:,} delivered{due}"
