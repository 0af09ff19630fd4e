"""``rmq send``: send messages from the command line or from a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import new_request, open_store
from rmq_store.cli.input import read_input
from rmq_store.cli.options import (
    DURATION,
    TIME,
    DryRunOption,
    PropertiesOption,
    QueueName,
    RequestOptions,
    SendQueueOption,
    count_from,
)
from rmq_store.cli.output import Output
from rmq_store.commit.ctl import local_broker
from rmq_store.commit.request import Status, actor_of
from rmq_store.errors import WrongUse
from rmq_store.producer.json_messages import read_lines
from rmq_store.producer.producer import DEFAULT_TOPIC_QUEUE_NUMS, Message, problems_of
from rmq_store.producer.send import SendReport, queue_count
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from rmq_store.lake.window.send_request import SendRequest

PANEL = "Messages"
MOST_PROBLEMS = 100
_MOST_FILE_MIB = 1024
"""The longest file. It is in memory as a whole, with its messages."""


def add_to(app: typer.Typer) -> None:
    add_command(
        app,
        send,
        [
            "rmq send --topic Orders --create --tag new --key o-1 --property region=eu 'the first order'",
            "rmq send --topic Orders --delay 90s 'in a minute and a half'",
            "rmq send --topic Orders --deliver-at 2026-11-21T08:00:00Z 'good morning'",
            "rmq send --topic Orders --file orders.jsonl --request 2026-11-20-orders --dry-run",
        ],
        panel=PANEL,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOptions:
    """Of one message; with ``--file`` each line has its own."""

    tag: Annotated[str | None, typer.Option("--tag", metavar="TAG", help="The tag.")] = None
    key: Annotated[list[str] | None, typer.Option("--key", metavar="KEY", help="A key. Repeatable.")] = None
    property_: PropertiesOption = None
    delay_level: Annotated[
        int | None,
        typer.Option(
            "--delay-level",
            metavar="N",
            parser=count_from(0),
            help="Deliver after the delay of this level. By default the levels are 1 (1 s) to 18 (2 h).",
        ),
    ] = None
    delay: Annotated[
        int | None,
        typer.Option(
            "--delay",
            metavar="SPAN",
            parser=DURATION,
            help="Deliver after a delay of at most 3d, for example 90s or 1h30m.",
        ),
    ] = None
    deliver_at: Annotated[
        int | None,
        typer.Option(
            "--deliver-at",
            metavar="TIME",
            parser=TIME,
            help="Deliver at this time: ISO 8601 with a zone, or epoch ms.",
        ),
    ] = None
    queue: SendQueueOption = None
    sharding_key: Annotated[
        str | None,
        typer.Option(
            "--sharding-key", metavar="KEY", help="Send to the queue of this key: keeps the order of its messages."
        ),
    ] = None

    def fields(self) -> dict[str, Any]:
        """As fields of ``Message``; options that were not given are omitted."""
        values = {
            "tags": self.tag,
            "keys": tuple(self.key or ()),
            "properties": dict(self.property_ or ()),
            "delay_level": self.delay_level,
            "delay_ms": self.delay,
            "deliver_at": self.deliver_at,
            "queue_id": None if self.queue is None else self.queue.queue_id,
            "sharding_key": self.sharding_key,
        }
        return {name: value for name, value in values.items() if value not in (None, (), {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationOptions:
    """Where the messages go, and whether they do."""

    create: Annotated[bool, typer.Option("--create", help="Create the topic if it does not exist.")] = False
    queues: Annotated[
        int | None,
        typer.Option(
            "--queues",
            metavar="N",
            parser=count_from(1),
            help=f"The number of queues of a new topic. Default: {DEFAULT_TOPIC_QUEUE_NUMS}.",
        ),
    ] = None
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="SHARD", help="Send to this shard. Default: the shard with the topic."),
    ] = None
    dry_run: DryRunOption = False

    def create_queues(self) -> int | None:
        """How many queues a new topic gets; None: no topic is created. Raises WrongUse."""
        if self.queues is not None and not self.create:
            raise WrongUse("--queues is the number of queues of a new topic: add --create")
        return (self.queues or DEFAULT_TOPIC_QUEUE_NUMS) if self.create else None


def send(
    *,
    body: Annotated[str | None, typer.Argument(metavar="BODY", help="The body, as text.")] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="The topic; with --file, of the lines without one."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help='Send many messages: a JSON object per line, like {"body": "text", "tags": "new", "keys": ["o-1"]}. '
            "- reads standard input.",
        ),
    ] = None,
    message: MessageOptions,
    destination: DestinationOptions,
    options: RequestOptions,
) -> None:
    """Send messages, checked as RocketMQ's client and broker check them.

    They go to the lake's own queues (broker name lake-SHARD), never to those of an imported broker. All messages
    are checked before any is written. More than 10,000 messages are sent in several commits; after a failure, run the
    same request with the same messages to send the rest.
    """
    output, host = Output(options.as_json), Host()
    create_queues = destination.create_queues()
    now_ms, dry_run = host.now_ms(), destination.dry_run
    if file is None:
        messages = [_single(body, topic, message, now_ms)]
    else:
        messages = _from_file(file, topic, body, message, now_ms)
    store = open_store(options.root)
    request_id, actor = new_request("send", options.request, host), actor_of(options.actor)
    from rmq_store.lake.window.send_request import placed_request, send_parts

    request = placed_request(
        store,
        messages,
        request_id,
        destination.shard,
        is_new=options.request is None,
        create=destination.create,
    )
    _check_queue(message.queue, request.by_shard)
    notes = _notes(request, destination.queues)
    for note in notes:
        output.note(note)
    reports: list[SendReport] = []
    for report in send_parts(store, request, actor, host, create_queues=create_queues, dry_run=dry_run):
        reports.append(report)
        if len(messages) > report.messages:
            count = sum(one.messages for one in reports)
            line = f"shard {report.shard}: {report.status}, {count:,} of {len(messages):,} messages"
            output.line(line, ended=False)
    _answer(output, request_id, reports, notes)


# --- what to send ----------------------------------------------------------------------------------------------------


def _single(body: str | None, topic: str | None, options: MessageOptions, now_ms: int) -> Message:
    if topic is None or body is None:
        missing = "topic" if topic is None else "body"
        raise WrongUse(f"the {missing} is missing: rmq send --topic TOPIC BODY, or --file FILE")
    message = Message(topic=topic, body=_bytes(body), **options.fields())
    if problems := problems_of(message, now_ms):
        raise WrongUse(f"{'; '.join(problems)}. Nothing was sent.")
    return message


def _bytes(body: str) -> bytes:
    """The bytes that the user typed, also where they are not UTF-8."""
    return body.encode("utf-8", "surrogateescape")


def _from_file(file: str, topic: str | None, body: str | None, options: MessageOptions, now_ms: int) -> list[Message]:
    others = sorted([*options.fields(), *(["body"] if body is not None else [])])
    if others:
        raise WrongUse(
            f"with --file each line has its own {others[0].removesuffix('_id')}; only --topic applies to all lines"
        )
    lines = read_lines(read_input("--file", file, _MOST_FILE_MIB), now_ms, topic)
    name = "standard input" if file == "-" else file
    if lines.problems:
        problems = [f"line {number}: {problem}" for number, problem in lines.problems]
        more = f"; and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else ""
        raise WrongUse(
            f"nothing was sent, {name} has {len(problems)} problems: {'; '.join(problems[:MOST_PROBLEMS])}{more}"
        )
    if not lines.messages:
        raise WrongUse(f"no message in {name}")
    return lines.messages


def _check_queue(queue: QueueName | None, shards: Iterable[str]) -> None:
    """Raise WrongUse unless the queue of ``--queue`` is one of the lake's own in these shards."""
    for shard in shards:
        broker = local_broker(shard)
        if queue is not None and queue.broker_name != broker:
            raise WrongUse(
                f"{queue.broker_name}:{queue.queue_id} is not a queue of the lake: messages to shard {shard} go to the "
                f"queues of {broker}, for example {broker}:0"
            )


# --- the answer --------------------------------------------------------------------------------------------------------


def _notes(request: SendRequest, queues: int | None) -> list[str]:
    """On the topics that are there, to which ``--queues`` does not apply, where they have another number of queues."""
    if queues is None:
        return []
    counts = {
        topic: queue_count(request.shards[name].positions(), topic)
        for name, messages in request.by_shard.items()
        if name in request.shards
        for topic in sorted({message.topic for message in messages})
    }
    return [
        f"topic {topic} is there, with {count} queues: --queues {queues} is only for a new topic"
        for topic, count in counts.items()
        if count not in (0, queues)
    ]


def _answer(output: Output, request_id: str, reports: Sequence[SendReport], notes: Sequence[str]) -> None:
    statuses = {report.status for report in reports}
    status = Status.COMMITTED if Status.COMMITTED in statuses else reports[0].status
    rows = [
        {
            "shard": report.shard,
            "topic": one.queue.topic,
            "broker_name": one.queue.broker_name,
            "queue_id": one.queue.queue_id,
            "first_offset": one.first_offset,
            "messages": one.count,
        }
        for report in reports
        for one in report.sent
    ]
    delayed = sum(report.delayed for report in reports)
    created = {topic: queues for report in reports for topic, queues in report.created.items()}
    answer = {
        "status": status,
        "request_id": request_id,
        "messages": sum(report.messages for report in reports),
        "delayed": delayed,
        "created": created,
        "commits": [
            {
                "status": report.status,
                "shard": report.shard,
                "request_id": report.request_id,
                "messages": report.messages,
                "commit_id": report.commit_id,
            }
            for report in reports
        ],
        "queues": rows,
        "notes": notes,
        "warnings": [warning for report in reports for warning in report.warnings],
    }
    lines = [f"new topic: {topic}, {queues} queues" for topic, queues in created.items()]
    lines += [f"delayed: {delayed:,}, delivered by rmq deliver when they are due"] if delayed else []
    output.table(rows, ["shard", "topic", "broker_name", "queue_id", "first_offset", "messages"])
    output.answer(answer, *lines, f"request: {request_id}")
