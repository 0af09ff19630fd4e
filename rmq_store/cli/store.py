"""``rmq init``, ``import-store``, ``cutover``, ``upgrade``, ``doctor``: create a store, fill it from a broker, check it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import new_request, open_store, root_of, shard_of_broker
from rmq_store.cli.engines import engines_of, spark_of
from rmq_store.cli.options import (
    BrokerOption,
    ChangeOptions,
    ImportEngineOption,
    LogOptions,
    RequestOptions,
    SettingsOptions,
    SparkOptions,
    StoreOptions,
    local_file,
)
from rmq_store.cli.output import Output
from rmq_store.cli.progress import progress_of
from rmq_store.commit.request import actor_of, reason_of
from rmq_store.errors import WrongUse
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    pass

PANEL = "Store"


def add_to(app: typer.Typer) -> None:
    add_command(
        app,
        init,
        ["rmq init --root s3://lake/orders", "rmq init --broker-conf /opt/rocketmq/conf/broker.conf"],
        panel=PANEL,
    )
    add_command(
        app,
        import_store,
        [
            "rmq import-store /data/rocketmq/store --broker broker-a",
            "rmq import-store s3://copies/broker-a --broker broker-a --salvage",
            "rmq import-store /data/store --broker broker-a --continue-as broker-a-2 --reason 'disk replaced'",
        ],
        panel=PANEL,
    )
    add_command(
        app,
        cutover,
        [
            "rmq cutover --broker broker-a --dry-run",
            "rmq cutover --broker broker-a --reason 'the broker is switched off'",
        ],
        panel=PANEL,
    )
    add_command(
        app,
        hand_back,
        [
            "rmq hand-back --broker broker-a --dry-run",
            "rmq hand-back --broker broker-a --reason 'the broker runs again'",
        ],
        panel=PANEL,
    )
    add_command(app, upgrade, ["rmq upgrade --dry-run", "rmq upgrade --root s3://lake/orders"], panel=PANEL)
    add_command(app, doctor, ["rmq doctor --root var/store", "rmq doctor --spark"], panel=PANEL)


def init(
    *,
    levels: Annotated[
        str | None,
        typer.Option(
            "--levels", metavar="TEXT", help="The delay levels, for example '1s 5s 10s 30s 1m'. Default: RocketMQ's 18."
        ),
    ] = None,
    broker_conf: Annotated[
        Path | None,
        typer.Option(
            "--broker-conf",
            metavar="FILE",
            parser=local_file,
            help="Take the delay levels from messageDelayLevel in this broker.conf.",
        ),
    ] = None,
    options: StoreOptions,
) -> None:
    """Create a store, unless it exists.

    Its delay levels say how long retries and delayed messages wait. They cannot be changed later: use those of the broker
    that you will import, if its broker.conf sets messageDelayLevel.
    """
    output = Output(options.as_json)
    root = root_of(options.root)
    from rmq_store.lake.table.store import LakeStore

    store, made = LakeStore.init(root, levels=_levels(levels, broker_conf, output))
    status = "created" if made else "already_there"
    answer = {"status": status, "root": root.location, "store_id": store.store_id, "levels": store.levels.text}
    output.answer(answer, f"store {store.store_id} at {root.location}", f"delay levels: {store.levels.text}")


def _levels(text: str | None, broker_conf: Path | None, output: Output) -> str | None:
    """The levels of the two options. Raises WrongUse when they differ."""
    from rmq_store.broker_files.broker_conf import message_delay_level
    from rmq_store.consumer.delay import MESSAGE_DELAY_LEVEL, parse_delay_level

    if broker_conf is None:
        return text
    of_broker = message_delay_level(broker_conf)
    if of_broker is None:
        output.note(f"{broker_conf} sets no messageDelayLevel: RocketMQ's default is used")
        of_broker = MESSAGE_DELAY_LEVEL
    if text is not None and parse_delay_level(text) != parse_delay_level(of_broker):
        raise WrongUse(f"--levels says {text!r} and {broker_conf} says {of_broker!r}: give one of the two")
    return of_broker


def import_store(
    *,
    source: Annotated[str, typer.Argument(metavar="SRC", help="The broker's store: a folder or s3://bucket/prefix.")],
    broker: BrokerOption,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="SHARD", help="Import into this shard. Default: the broker's name.")
    ] = None,
    engine: ImportEngineOption = None,
    options: RequestOptions,
    log_options: LogOptions,
    spark: SparkOptions,
) -> None:
    """Import new messages from a broker's store directory.

    Incremental: what was imported before is not read again. A large log is committed in parts of 1 to 4 GiB, each all or
    nothing: a damaged record stops the import before anything of its part is written. The broker may be running; it keeps
    its groups until a cutover.

    A broker that lost the end of its log gives queue offsets out again, and its import is refused. With --continue-as what it
    writes since then is imported under another name, whose queues begin at the cut. The groups continue there; what the
    broker lost stays in the queues of the old name, and they read it there. Further imports, exports and the cutover
    are for the new name.
    """
    output, host = Output(options.as_json), Host()
    log_options.check()
    store = open_store(options.root)
    from rmq_store.lake.broker.diverged_log import Continuation
    from rmq_store.lake.broker.import_request import ImportRequest
    from rmq_store.lake.broker.import_size import bytes_to_read
    from rmq_store.lake.broker.import_store import import_store as import_into
    from rmq_store.lake.table.object_store import Root

    request = ImportRequest(
        broker_name=log_options.continue_as or broker,
        shard_name=broker if shard is None else shard,
        request_id=new_request("import", options.request, host),
        actor=actor_of(options.actor),
        salvage=log_options.salvage,
        max_body_bytes=log_options.max_body_bytes,
        max_config_bytes=log_options.max_config_bytes,
        max_queues=log_options.max_queues,
        continues=Continuation(broker, reason_of(log_options.reason, log_options.dry_run))
        if log_options.continue_as
        else None,
        dry_run=log_options.dry_run,
    )
    files = Root.parse(source)
    target = spark_of(spark, None)
    with engines_of("import-store", engine or "auto", host, target) as engines, progress_of(output) as progress:
        engine_of_tasks = engines.for_import(bytes_to_read(store, files, request))
        report = import_into(store, files, request, host, engine_of_tasks, progress=progress)
    for note in report.notes:
        output.note(note)
    for skipped in report.salvaged:
        output.line(f"skipped: bytes [{skipped.begin}, {skipped.end}) of the log: {skipped.reason}")
    for gap in report.queue_gaps:
        output.line(f"gap: offsets [{gap.begin}, {gap.end}) of topic {gap.topic!r}, queue {gap.queue_id}: {gap.reason}")
    if report.other_levels:
        there = ", ".join(f"level {one.level} is {one.delay_ms / 1000:g} s" for one in report.other_levels)
        output.note(
            f"the broker has other delays: {there} ('rmq doctor' shows those of the store). Messages that fail here wait by "
            "the store's levels, which cannot be changed: 'rmq init --broker-conf' makes a store with the broker's"
        )
    for again in report.begun_again:
        output.line(
            f"topic {again.topic!r}, queue {again.queue_id} was deleted and made again at the broker: its offset 0 there is "
            f"offset {again.base} here"
        )
    if report.deleted:
        output.line(
            f"{report.deleted:,} of the messages are of topics that were deleted and made again before this import: they have "
            "no queue offset, and no group reads them"
        )
    if report.unlisted_queues:
        output.line(
            f"not listed: {report.unlisted_queues:,} queues without messages in {report.unlisted_topics} topics of the system, "
            "of retries, or that may not be read"
        )
    if log := report.continued:
        output.line(
            f"{report.broker_name} continues {log.broker_name} at byte {log.end} of its log, with {log.groups} groups: "
            f"{log.lost_messages:,} messages in {log.lost_queues} queues that the broker lost stay in {log.broker_name}"
        )
    output.answer(
        asdict(report),
        f"{report.messages:,} messages in {report.queues} queues of {report.broker_name}, bytes [{report.begin}, {report.end}) "
        f"of its log, are in shard {report.shard}",
        f"request: {request.request_id}",
    )


def cutover(
    *,
    broker: BrokerOption,
    leave_popped: Annotated[
        bool,
        typer.Option(
            "--leave-popped",
            help="Also when groups have popped messages and not acked them: these stay unread here.",
        ),
    ] = False,
    options: ChangeOptions,
) -> None:
    """Take over a broker's groups and delayed messages.

    The store takes over the offsets of the broker's groups and the retries in its delay levels. Messages in its timer are
    not taken over; the answer counts them. Messages that the broker's log shows as delivered are not delivered again,
    also when the broker was killed before it recorded that. First stop the broker and import once more: afterwards
    nothing can be imported from it, until 'rmq hand-back' ends the cut-over.

    A window of a group reads the queues of all brokers that were imported. Where the group has queues at several of them,
    cut all of these over before it consumes here: one that was not still gives it the same messages.

    Pop is not supported here. Where groups of the broker have popped messages and not acked them, the cut-over is refused
    unless --leave-popped is given.
    """
    output, host = Output(options.as_json), Host()
    store = open_store(options.root)
    from rmq_store.lake.broker.cutover import cutover as cut_over

    request_id = new_request("cutover", options.request, host)
    report = cut_over(
        store,
        shard_of_broker(store, broker, options.shard),
        broker,
        host,
        request_id=request_id,
        actor=actor_of(options.actor),
        reason=reason_of(options.reason, options.dry_run),
        leave_popped=leave_popped,
        dry_run=options.dry_run,
    )
    output.answer(
        asdict(report) | {"request_id": request_id},
        f"broker {broker} in shard {report.shard}: {report.groups} groups taken over; from now on 'rmq "
        f"deliver' delivers its {report.waiting} delayed messages",
        *(f"note: {note}" for note in (*report.notes, *report.left_out)),
        f"request: {request_id}",
    )


def hand_back(*, broker: BrokerOption, options: ChangeOptions) -> None:
    """Give a broker's groups and delay levels back to it after a cutover.

    First stop its groups here, and write their offsets into the broker's files ('rmq offsets export --merge'). Afterwards the
    broker owns them as before the cutover: its files are imported further from where the last import ended, and the next
    cutover takes over what it has done by then. Retries that wait in this store stay here: 'rmq consume --retries-only'
    consumes them.
    """
    output, host = Output(options.as_json), Host()
    store = open_store(options.root)
    from rmq_store.lake.broker.hand_back import hand_back as give_back

    request_id = new_request("hand-back", options.request, host)
    report = give_back(
        shard_of_broker(store, broker, options.shard),
        broker,
        host,
        request_id=request_id,
        actor=actor_of(options.actor),
        reason=reason_of(options.reason, options.dry_run),
        dry_run=options.dry_run,
    )
    for group in report.kept:
        output.note(
            f"group {group} was deleted in this store: its offsets stay here, and do not follow those of the broker"
        )
    output.answer(
        asdict(report) | {"request_id": request_id},
        f"broker {broker} in shard {report.shard}: it owns {report.groups} groups and its delay levels again",
        f"request: {request_id}",
    )


def upgrade(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")] = False,
    options: StoreOptions,
) -> None:
    """Bring a store of an earlier version of rmq to the format and the table properties of this one.

    Takes seconds, whatever the size of the store: no data file is copied or changed. Running windows of the earlier version
    cannot commit afterwards; they have to be run again, with this version.
    """
    from rmq_store.lake.admin.upgrade import upgrade as upgrade_store

    output = Output(options.as_json)
    root = root_of(options.root)
    report = upgrade_store(root, Host(), dry_run=dry_run)
    is_newer = report.from_format != report.to_format
    changes = bool(report.tables) or is_newer
    status = ("dry_run" if dry_run else "upgraded") if changes else "already_there"
    answer = {"status": status, "root": root.location, **asdict(report)}
    what = f"format {report.from_format} to {report.to_format}" if is_newer else "the properties of its tables"
    text = f"{root.location}: {what}" if changes else "nothing to do"
    output.answer(answer, text, *(f"  {table}" for table in report.tables))


def doctor(
    *,
    spark: Annotated[bool, typer.Option("--spark", help="Also open a Spark session and run a query in it.")] = False,
    options: SettingsOptions,
    where: SparkOptions,
) -> None:
    """Check this machine, the store and the settings.

    Java, jars and package versions; the store, its exclusive create and its clock; the settings, and whether they agree with
    the subscriptions that the store has recorded. Each failed check says how to fix it. Exit code 1 when a check failed.
    """
    from rmq_store.cli.doctor import all_checks

    output = Output(options.as_json)
    rows = []
    for check in all_checks(options, spark_of(where, options.settings) if spark else None):
        finding = check.examine()
        rows.append(asdict(finding))
        output.line(f"{finding.status:8}{finding.check}: {finding.found}")
        if finding.mend:
            output.line(f"{'':8}fix: {finding.mend}")
    failed = [row["check"] for row in rows if row["status"] == "failed"]
    output.document({"status": "failed" if failed else "ok", "checks": rows})
    if failed:
        raise typer.Exit(1)
