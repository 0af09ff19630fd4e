"""``rmq consume``, ``replay``, ``deliver``: what moves messages along the street."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_store.cli.common import (
    actor_of,
    new_request,
    open_store,
    settings_of,
    shards_of_group,
    shards_with_topic,
)
from rmq_store.cli.engines import Engines, listener_folders
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
    TopicOption,
    UntilOption,
    example,
)
from rmq_store.cli.output import Output
from rmq_store.host import Host
from rmq_store.offsets import Outcome
from rmq_store.times import format_time

if TYPE_CHECKING:
    from rmq_store.lake.deliver import DeliverReport
    from rmq_store.lake.shard import Shard
    from rmq_store.lake.window import WindowReport

MaxMessagesOption = Annotated[
    int | None, typer.Option("--max-messages", metavar="N", min=1, help="At most so many messages of each shard.")
]

PANEL = "Messages"


def add_to(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=PANEL,
        epilog=example(
            "rmq consume --group orders",
            "rmq consume --group orders --until 2026-11-20T12:00:00Z --engine local --request 2026-11-20-noon",
        ),
    )(consume)
    app.command(
        rich_help_panel=PANEL,
        epilog=example("rmq replay --group orders --topic OrderEvents --from 2026-11-19T00:00:00Z"),
    )(replay)
    app.command(rich_help_panel=PANEL, epilog=example("rmq deliver"))(deliver)


def consume(
    group: GroupOption,
    shard: ShardOption = None,
    until: UntilOption = None,
    max_messages: MaxMessagesOption = None,
    request: RequestOption = None,
    engine: EngineOption = None,
    listener_path: ListenerPathOption = None,
    settings: SettingsOption = None,
    actor: ActorOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Consume one window of a group.

    It begins at the committed offsets and ends at the end, or at the bounds given. A window is one commit per shard:
    its offsets, retries and dead letters become visible together. The group's caps cut it into parts, which are all
    done here. Nothing to do writes nothing and starts no Spark.
    """
    output, host = Output(as_json), Host()
    store = open_store(root)
    from rmq_store.lake.window import consume_window
    from rmq_store.plan import ConsumeRequest
    from rmq_store.replay import group_settings

    found, scope = group_settings(settings_of(settings), group)
    request_id = new_request("consume", request, host)
    shards = shards_of_group(store, shard, found.shards, group)
    if shard is None and not scope.retries_only:
        shards = shards_with_topic(shards, [subscription.topic for subscription in found.subscriptions])
    asked = ConsumeRequest(request_id, actor_of(actor), until_ms=until, max_messages=max_messages)
    folders = listener_folders(listener_path or ())
    with Engines("consume", engine, host, folders) as engines:
        engine_of = engines.for_window(found.engine)
        reports = _windows(output, shards, lambda one: consume_window(store, one, found, asked, engine_of, host, scope))
    _answer(output, group, request_id, reports)


def replay(
    group: GroupOption,
    topic: TopicOption,
    since: FromOption,
    until: UntilOption = None,
    shard: ShardOption = None,
    request: RequestOption = None,
    engine: EngineOption = None,
    listener_path: ListenerPathOption = None,
    settings: SettingsOption = None,
    actor: ActorOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Consume a topic once more from a moment on.

    It runs under a group name of its own, so the group's offsets do not move. What fails is retried under that name,
    which the answer tells: consume that group to finish.
    """
    output, host = Output(as_json), Host()
    store = open_store(root)
    from rmq_store.lake.replay import replay as replay_window
    from rmq_store.plan import ConsumeRequest
    from rmq_store.replay import replay_group

    found = settings_of(settings).group(group)
    request_id = new_request("replay", request, host)
    shards = shards_of_group(store, shard, found.shards, group)
    if any(subscription.topic == topic for subscription in found.subscriptions):
        shards = shards_with_topic(shards, [topic])
    asked = ConsumeRequest(request_id, actor_of(actor), until_ms=until)
    folders = listener_folders(listener_path or ())
    with Engines("replay", engine, host, folders) as engines:
        engine_of = engines.for_window(found.engine)
        reports = _windows(
            output, shards, lambda one: replay_window(store, one, found, topic, since, asked, engine_of, host)
        )
    name = replay_group(group, request_id)
    _answer(output, name, request_id, reports, f"its retries: rmq deliver, then rmq consume --group {name}")


def _windows(
    output: Output, shards: Sequence[Shard], one_window: Callable[[Shard], WindowReport]
) -> list[WindowReport]:
    """All parts of a request in all shards, a line for each."""
    reports = []
    for shard in shards:
        while True:
            report = one_window(shard)
            reports.append(report)
            output.line(_window_line(report))
            if report.complete or report.status != "committed":
                break
    return reports


def _window_line(report: WindowReport) -> str:
    counts = [f"{count:,} {outcome}" for outcome, count in report.counts().items() if count]
    done = f"{report.messages():,} messages" + (f" ({', '.join(counts)})" if counts else "")
    more = "" if report.complete else ", more to come"
    return f"shard {report.shard}: {report.status}, {done}, engine {report.engine}{more}"


def _answer(output: Output, group: str, request_id: str, reports: Sequence[WindowReport], hint: str = "") -> None:
    retried = any(report.counts()[Outcome.RETRIED] for report in reports)
    found = {
        "status": _overall([report.status for report in reports]),
        "group": group,
        "request_id": request_id,
        "messages": sum(report.messages() for report in reports),
        "windows": [_window(report) for report in reports],
    }
    lines = [f"group: {group}", f"request: {request_id}"]
    output.answer(found, *lines, *([hint] if hint and retried else []))


def _overall(statuses: Sequence[str]) -> str:
    """One word for several windows: something was done, or had been done before, or there was nothing to do."""
    return next((status for status in ("committed", "already_committed") if status in statuses), "empty")


def _window(report: WindowReport) -> dict[str, Any]:
    return {
        "status": report.status,
        "shard": report.shard,
        "engine": report.engine,
        "window_id": report.window_id,
        "commit_id": report.commit_id,
        "version": report.version,
        "complete": report.complete,
        "counts": {str(outcome): count for outcome, count in report.counts().items()},
        "ranges": [
            {
                "topic": consumed.range.queue.topic,
                "broker_name": consumed.range.queue.broker_name,
                "queue_id": consumed.range.queue.queue_id,
                "begin_offset": consumed.range.begin,
                "end_offset": consumed.range.end,
                "start_rule": consumed.start_rule,
            }
            for consumed in report.consumed
        ],
    }


def deliver(
    now: NowOption = None,
    shard: ShardOption = None,
    request: RequestOption = None,
    actor: ActorOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Deliver what is due of the delay levels.

    Retries become readable for their groups, and delayed messages reach their topics.
    """
    output, host = Output(as_json), Host()
    store = open_store(root)
    from rmq_store.lake.deliver import deliver as deliver_due

    request_id, who = new_request("deliver", request, host), actor_of(actor)
    reports: list[DeliverReport] = []
    for one in store.shards(shard):
        part = 1
        while True:  # a commit is capped; the next one has an id of its own
            part_id = request_id if part == 1 else f"{request_id}~{part}"
            report = deliver_due(store, one, part_id, who, host, now_ms=now)
            reports.append(report)
            due = f", next due {format_time(report.next_due_ms)}" if report.next_due_ms is not None else ""
            output.line(f"shard {report.shard}: {report.status}, {report.delivered:,} delivered{due}")
            if not report.more:
                break
            part += 1
    found = {
        "status": _overall([report.status for report in reports]),
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
    }
    output.answer(found, f"request: {request_id}")
