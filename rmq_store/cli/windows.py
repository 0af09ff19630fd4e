"""``rmq consume``, ``replay``: consume messages, for the first time or again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_store.admin.sentences import window_line
from rmq_store.cli.command import add_command
from rmq_store.cli.common import COMMITTED, group_and_scope, new_request, open_store
from rmq_store.cli.consume_all import AllOptions, consume_all
from rmq_store.cli.dry_run import show_plan
from rmq_store.cli.engines import engines_of, listener_folders, spark_of
from rmq_store.cli.options import (
    DryRunOption,
    FromOption,
    GroupOption,
    GroupsOption,
    SparkOptions,
    UntilOption,
    WindowOptions,
    count_from,
)
from rmq_store.cli.output import Output
from rmq_store.commit.positions import Outcome
from rmq_store.commit.request import actor_of, client_ids_of, reason_of
from rmq_store.errors import WrongUse
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from rmq_store.lake.table.shard import Shard
    from rmq_store.lake.table.store import LakeStore
    from rmq_store.lake.window.consumption import Consumption
    from rmq_store.lake.window.engine import Engine
    from rmq_store.settings.settings import GroupSettings
    from rmq_store.window.consume import WindowReport
    from rmq_store.window.consume_request import ConsumeRequest, Scope
    from rmq_store.window.plan import Plan

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


RetriesOnlyOption = Annotated[
    bool,
    typer.Option(
        "--retries-only", help="Read only the group's retries that 'rmq deliver' has delivered, no new messages."
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OneGroupOptions:
    """Of a command for one group: which of its messages this consumer reads."""

    retries_only: RetriesOnlyOption = False
    client: ClientOption = None
    clients: ClientsOption = None


def add_to(app: typer.Typer) -> None:
    add_command(
        app,
        consume,
        [
            "rmq consume --group orders",
            "rmq consume --group orders --until 2026-11-20T12:00:00Z --engine local --request 2026-11-20-noon",
            "rmq consume --group orders --client c1 --clients c1,c2,c3",
            "rmq consume --group orders --retries-only",
            "rmq consume --group orders --dry-run",
            "rmq consume --all",
            "rmq consume --all --group 'orders-*' --group audit --engine local",
            "rmq consume --all --exclude 'test-*' --json",
        ],
        panel=PANEL,
    )
    add_command(
        app,
        replay,
        [
            "rmq replay --group orders --topic OrderEvents --from 2026-11-19T00:00:00Z --dry-run",
            "rmq replay --group orders --topic OrderEvents --from 2026-11-19T00:00:00Z",
            "rmq replay --group orders-replay-0123456789 --reprocess 'the listener is fixed'",
        ],
        panel=PANEL,
    )


def consume(
    *,
    group: GroupsOption = None,
    together: AllOptions,
    until: UntilOption = None,
    max_messages: MaxMessagesOption = None,
    alone: OneGroupOptions,
    dry_run: DryRunOption = False,
    options: WindowOptions,
    spark: SparkOptions,
) -> None:
    """Consume the unread messages of a group.

    It reads from the committed offsets to the end of each queue, or to the given bounds, usually in one window per shard.
    A window is one commit: its offsets, retries and dead letters become visible together. If the group's settings limit
    a window, more windows follow until everything is read. When there is nothing to read, nothing is written and Spark
    is not started.

    Several consumers may share a group's queues, each with its own id: the group's allocate strategy distributes the
    queues, as in RocketMQ. A queue that another request holds is skipped; when all are held, the command ends with exit
    code 3 and names the holder.

    With --retries-only the group's offsets in its topics do not move: run it after 'rmq deliver', again and again, to empty a
    group's retries before it goes back to a broker.

    With --dry-run nothing is written; the listener is loaded, and not called. The answer has, per window and queue, the
    offsets, messages and bytes that would be read, exact while the data stays as it is; the retries that are due or wait; and
    an estimate of the time from the group's last windows.

    With --all every group does the same under one request id, and what is ready is committed together. Groups run side by
    side in threads, so a listener that groups share must allow that. The error of a group ends its own work only. The exit
    code is the greatest of the groups that failed; 3 if all errors are groups in use by another request, or moved by one.
    """
    if together.all_groups:
        if alone.client is not None or alone.clients is not None:
            raise WrongUse("--all cannot be combined with --client and --clients, which are for one group")
        if alone.retries_only:
            raise WrongUse("--all cannot be combined with --retries-only, which is for one group")
        consume_all(
            group or [],
            until_ms=until,
            max_messages=max_messages,
            together=together,
            dry_run=dry_run,
            options=options,
            spark=spark,
        )
        return
    if group is None or len(group) != 1 or together != AllOptions():
        raise WrongUse("give one group with --group; several groups, --exclude and --threads need --all")
    (name,) = group
    output, host = Output(options.as_json), Host()
    store = open_store(options.root)
    from rmq_store.lake.window.consumption import shards_of, unowned_queues
    from rmq_store.lake.window.dry_run import plan_request
    from rmq_store.window.consume_request import ConsumeRequest, only_retries
    from rmq_store.window.range_notes import until_notes

    settings, scope = group_and_scope(name, options.settings, output)
    request = ConsumeRequest(
        request_id=new_request("consume", options.request, host),
        actor=actor_of(options.actor),
        until_ms=until,
        max_messages=max_messages,
        client_id=alone.client,
        client_ids=client_ids_of(alone.clients),
    )
    if alone.retries_only and not scope.retries_only:  # a replay reads only retries in any case
        request, scope = only_retries(request)
    shards = shards_of(store, settings, scope, chosen=options.shard)
    notes = until_notes(until, host.now_ms()) if until is not None else []
    folders = listener_folders(options.listener_path or ())
    if dry_run:
        with output.kept_clean():
            plan = plan_request(store, shards, settings, request, host, scope, notes=notes)
        show_plan(output, plan)
        return
    for text in notes:
        output.note(text)
    unowned = [] if scope.retries_only else unowned_queues(store, settings, request.client_ids, host)
    target = spark_of(spark, options.settings)
    printer = _Printer.of(output, name, request.request_id)
    choice, code = options.engine or settings.engine, [settings.listener]
    with output.kept_clean(), engines_of("consume", choice, host, target, folders, code) as engines:
        run = _Run(store, engines.for_window, host, printer)
        consumptions = run.windows(shards, settings, request, scope)
    if unowned:
        names = listed([queue.label for queue in unowned])
        output.note(
            f"{settings.allocate_strategy} allocates to none of {alone.clients}, so that no consumer reads: {names}"
        )
    printer.answer(consumptions)


def replay(
    *,
    group: GroupOption,
    topic: ReplayTopicOption = None,
    since: FromOption = None,
    until: UntilOption = None,
    reprocess: ReprocessOption = None,
    dry_run: DryRunOption = False,
    options: WindowOptions,
    spark: SparkOptions,
) -> None:
    """Consume a topic again from a given time.

    A replay runs under its own group name, which the answer shows, so the group's offsets do not move. Failed messages are
    retried under that name: run 'rmq deliver' and 'rmq consume' with that group to finish. To run the same replay again,
    give that name as --group, with --reprocess.

    With --dry-run the answer has the messages and bytes that would be read per window and queue, and nothing is changed. A time
    in the future is refused; a range without messages, or one that begins before the messages that are kept, is a note.
    """
    output, host = Output(options.as_json), Host()
    if reprocess is None and (topic is None or since is None):
        raise WrongUse("a replay needs --topic and --from; another attempt of a replay needs --reprocess")
    if reprocess is not None and (topic is not None or since is not None or until is not None):
        raise WrongUse("another attempt of a replay reads what the first one read: omit --topic, --from and --until")
    store = open_store(options.root)
    from rmq_store.admin.replay import as_replay
    from rmq_store.lake.admin.replay import begin_attempt, check_attempt, plan_attempt, replay_notes, shards_replayed
    from rmq_store.lake.window.consumption import shards_of
    from rmq_store.lake.window.dry_run import plan_request
    from rmq_store.window.consume_request import ConsumeRequest

    request = ConsumeRequest(
        request_id=new_request("replay", options.request, host),
        actor=actor_of(options.actor),
        reason=reason_of(reprocess or "", dry_run=False),
        until_ms=until,
    )
    settings, scope = group_and_scope(group, options.settings, output)
    notes: list[str] = []
    if reprocess is not None:
        shards = shards_replayed(store, group, options.shard)
    elif topic is not None and since is not None:
        settings, request, scope = as_replay(settings, topic, since, request)
        shards = shards_of(store, settings, scope, chosen=options.shard)
        notes = replay_notes(shards, settings, request, host, scope)
    folders = listener_folders(options.listener_path or ())
    if dry_run:
        with output.kept_clean():
            if reprocess is not None:
                plan = plan_attempt(store, shards, settings, request, host)
            else:
                plan = plan_request(store, shards, settings, request, host, scope, notes=notes)
        show_plan(output, plan)
        return
    for text in notes:
        output.note(text)
    target = spark_of(spark, options.settings)
    printer = _Printer.of(output, settings.name, request.request_id)
    choice, code = options.engine or settings.engine, [settings.listener]
    with output.kept_clean(), engines_of("replay", choice, host, target, folders, code) as engines:
        run = _Run(store, engines.for_window, host, printer)
        if reprocess is None:
            consumptions = run.windows(shards, settings, request, scope)
        else:
            consumptions = []
            check_attempt(shards, settings, request, host)
            for shard in shards:
                consumptions += run.windows([shard], *begin_attempt(shard, settings, request, host))
    hints = []
    if any(Outcome.RETRIED in consumption.outcomes for consumption in consumptions):
        hints.append(f"to finish its retries: rmq deliver, then rmq consume --group {quote(settings.name)}")
    if reprocess is not None:
        hints.append(f"to compare with the previous attempt: rmq diff --group {quote(settings.name)}")
    printer.answer(consumptions, *hints)


# --- the windows of a request ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Printer:
    """Prints the windows of a request as they are committed, and its answer."""

    output: Output
    group: str
    request_id: str
    windows: list[WindowReport]
    """Those that were printed; the JSON answer of a later error has them too."""

    @classmethod
    def of(cls, output: Output, group: str, request_id: str) -> _Printer:
        from rmq_store.lake.window.consumption import answer_so_far

        windows: list[WindowReport] = []
        COMMITTED.set(lambda: answer_so_far(group, request_id, windows))
        return cls(output, group, request_id, windows)

    def window(self, report: WindowReport) -> None:
        self.windows.append(report)
        self.output.line(window_line(report), ended=False)

    def answer(self, consumptions: Sequence[Consumption], *hints: str) -> None:
        from rmq_store.lake.window.consumption import answer, queue_rows

        rows, columns = queue_rows(consumptions)
        if rows:
            self.output.table(rows, columns)
        whole = answer(self.group, self.request_id, consumptions)
        self.output.answer(whole, f"group: {self.group}", f"request: {self.request_id}", *hints)


@dataclass(frozen=True, slots=True)
class _Run:
    """Where the windows of a request run."""

    store: LakeStore
    engine_of: Callable[[Plan], Engine]
    host: Host
    printer: _Printer

    def windows(
        self, shards: Sequence[Shard], group: GroupSettings, request: ConsumeRequest, scope: Scope
    ) -> list[Consumption]:
        """All windows of the request in these shards, one shard after the other."""
        from rmq_store.lake.window.consumption import Consumption
        from rmq_store.lake.window.window import consume_window

        window = partial(
            consume_window, group=group, request=request, engine_of=self.engine_of, host=self.host, scope=scope
        )
        return [Consumption.of(partial(window, self.store, shard), self.printer.window) for shard in shards]
