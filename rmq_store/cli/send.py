"""``rmq send``: messages into queues of the lake, from the command line or from a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmq_store.cli.common import new_request, open_store
from rmq_store.cli.options import (
    DURATION,
    TIME,
    ActorOption,
    JsonOption,
    PropertiesOption,
    PropertyText,
    QueueName,
    RequestOption,
    RootOption,
    SendQueueOption,
    count_from,
    example,
)
from rmq_store.cli.output import Output
from rmq_store.commit.ctl import local_broker
from rmq_store.commit.positions import Positions
from rmq_store.commit.request import actor_of, part_id
from rmq_store.errors import WrongUse
from rmq_store.producer.json_messages import read_lines
from rmq_store.producer.producer import DEFAULT_TOPIC_QUEUE_NUMS, Message, problems_of
from rmq_store.producer.send import SendReport, plan_send, queue_count, user_topics, would_send
from rmq_store.utils.host import Host
from rmq_store.utils.known_names import did_you_mean, listed

if TYPE_CHECKING:
    from rmq_store.commit.ctl import Actor
    from rmq_store.lake.table.store import LakeStore

PANEL = "Messages"
NEW_SHARD = "local"
"""The shard that a store without any gets."""

PART_MESSAGES = 10_000
PART_BYTES = 64 * 1024 * 1024
"""One commit sends no more than this."""

MOST_PROBLEMS = 100


def add_to(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=PANEL,
        epilog=example(
            "rmq send --topic Orders --create --tag new --key o-1 --property region=eu 'the first order'",
            "rmq send --topic Orders --delay 90s 'in a minute and a half'",
            "rmq send --topic Orders --deliver-at 2026-11-21T08:00:00Z 'good morning'",
            "rmq send --topic Orders --file orders.jsonl --request 2026-11-20-orders --dry-run",
        ),
    )(send)


def send(
    body: Annotated[str | None, typer.Argument(metavar="BODY", help="The message's text.")] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="The topic. With --file: of the lines that name none."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help='Many messages, one JSON object a line, like {"body": "text", "tags": "new", "keys": ["o-1"]}. '
            "-: standard input.",
        ),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Its tag.")] = None,
    key: Annotated[list[str] | None, typer.Option("--key", metavar="KEY", help="A key. Repeatable.")] = None,
    property_: PropertiesOption = None,
    delay_level: Annotated[
        int | None,
        typer.Option(
            "--delay-level", metavar="N", parser=count_from(0), help="Readable after a delay: 1 (1 s) to 18 (2 h)."
        ),
    ] = None,
    delay: Annotated[
        int | None,
        typer.Option(
            "--delay", metavar="SPAN", parser=DURATION, help="Readable after any delay up to 3d, like 90s or 1h30m."
        ),
    ] = None,
    deliver_at: Annotated[
        int | None,
        typer.Option(
            "--deliver-at",
            metavar="TIME",
            parser=TIME,
            help="Readable from then on: ISO 8601 with a zone, or epoch ms.",
        ),
    ] = None,
    queue: SendQueueOption = None,
    sharding_key: Annotated[
        str | None,
        typer.Option("--sharding-key", metavar="KEY", help="Into the queue of this key, where its order is kept."),
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the topic if it is not there.")] = False,
    queues: Annotated[
        int | None,
        typer.Option(
            "--queues",
            metavar="N",
            parser=count_from(1),
            help=f"Queues of a topic that is made. Default {DEFAULT_TOPIC_QUEUE_NUMS}.",
        ),
    ] = None,
    shard: Annotated[
        str | None, typer.Option("--shard", metavar="SHARD", help="Into this shard. Default: the one with the topic.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and say where it would go; write nothing.")] = False,
    request: RequestOption = None,
    actor: ActorOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send messages into queues of the lake, checked as RocketMQ's client and broker check them.

    They go into queues of the lake's own (lake-SHARD), never into those of an imported broker. All are checked before
    anything is written. Many go in parts of 10,000 a commit; after a failure the same request with the same messages
    goes on where it stopped.
    """
    output, host = Output(as_json), Host()
    if queues is not None and not create:
        raise WrongUse("--queues says how many queues a new topic gets: add --create")
    given = _given(body, topic, tag, key, property_, delay_level, delay, deliver_at, queue, sharding_key)
    now_ms = host.now_ms()
    messages = [_single(given, now_ms)] if file is None else _from_file(file, given, now_ms)
    create_queues = (queues or DEFAULT_TOPIC_QUEUE_NUMS) if create else None
    store = open_store(root)
    request_id, who = new_request("send", request, host), actor_of(actor)
    by_shard = _by_shard(store, messages, shard, create, dry_run)
    for name in by_shard:
        broker = local_broker(name)
        if queue is not None and queue.broker_name != broker:
            raise WrongUse(
                f"{queue.broker_name}:{queue.queue_id} is no queue of the lake: what is sent to shard {name} goes to "
                f"queues of {broker}, like {broker}:0"
            )
    reports = list(_sent(output, store, by_shard, request_id, who, host, create_queues, dry_run))
    _answer(output, request_id, reports)


# --- what to send ----------------------------------------------------------------------------------------------------


def _given(
    body: str | None,
    topic: str | None,
    tag: str | None,
    keys: Sequence[str] | None,
    properties: Sequence[PropertyText] | None,
    delay_level: int | None,
    delay_ms: int | None,
    deliver_at: int | None,
    queue: QueueName | None,
    sharding_key: str | None,
) -> dict[str, Any]:
    """What was said of the message, in its own words; what was not said is left out."""
    said = {
        "body": body,
        "topic": topic,
        "tags": tag,
        "keys": tuple(keys or ()),
        "properties": dict(properties or ()),
        "delay_level": delay_level,
        "delay_ms": delay_ms,
        "deliver_at": deliver_at,
        "queue_id": None if queue is None else queue.queue_id,
        "sharding_key": sharding_key,
    }
    return {name: value for name, value in said.items() if value not in (None, (), {})}


def _single(given: Mapping[str, Any], now_ms: int) -> Message:
    missing = [name for name in ("topic", "body") if name not in given]
    if missing:
        raise WrongUse(f"the {missing[0]} is missing: rmq send --topic TOPIC BODY, or --file FILE")
    message = Message(**{**given, "body": _bytes(given["body"])})
    if problems := problems_of(message, now_ms):
        raise WrongUse(f"{'; '.join(problems)}. Nothing was sent.")
    return message


def _bytes(body: str) -> bytes:
    """The bytes that were typed, whatever they are."""
    return body.encode("utf-8", "surrogateescape")


def _from_file(file: str, given: Mapping[str, Any], now_ms: int) -> list[Message]:
    others = sorted(given.keys() - {"topic"})
    if others:
        raise WrongUse(f"with --file each line says its own {others[0].removesuffix('_id')}; only --topic is for all")
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise WrongUse(f"{file} cannot be read: {error.strerror or error}") from error
    found = read_lines(data, now_ms, given.get("topic"))
    name = "standard input" if file == "-" else file
    if found.problems:
        told = [f"line {number}: {problem}" for number, problem in found.problems]
        more = f"; and {len(told) - MOST_PROBLEMS} more" if len(told) > MOST_PROBLEMS else ""
        raise WrongUse(f"nothing was sent, {name} has {len(told)} problems: {'; '.join(told[:MOST_PROBLEMS])}{more}")
    if not found.messages:
        raise WrongUse(f"{name} holds no message")
    return found.messages


# --- where to --------------------------------------------------------------------------------------------------------


def _by_shard(
    store: LakeStore, messages: Sequence[Message], chosen: str | None, create: bool, dry_run: bool
) -> dict[str, list[Message]]:
    """The messages of each shard; a shard that is needed is made. Raises WrongUse for a topic that is nowhere."""
    topics = dict.fromkeys(message.topic for message in messages)
    known = store.shard_names()
    positions = {shard.name: shard.positions() for shard in store.shards() if chosen in (None, shard.name)}
    names = {topic: _shard_of(positions, known, topic, chosen, create) for topic in topics}
    if not dry_run:
        for name in sorted(set(names.values()) - set(known)):
            store.create_shard(name)
    found: dict[str, list[Message]] = {name: [] for name in names.values()}
    for message in messages:
        found[names[message.topic]].append(message)
    return found


def _shard_of(
    positions: Mapping[str, Positions], known: Sequence[str], topic: str, chosen: str | None, create: bool
) -> str:
    """The shard's name. ``positions``: of the shards that may be chosen; ``known``: all shards."""
    having = [name for name, there in positions.items() if queue_count(there, topic)]
    if len(having) > 1:
        raise WrongUse(f"topic {topic} is in shards {', '.join(having)}: choose with --shard")
    if having:
        return having[0]
    if chosen is not None and chosen not in known and not create:
        raise WrongUse(
            f"no shard {chosen}{did_you_mean(chosen, known)}; there are: {listed(known)} (--create makes it)"
        )
    if not create:
        topics = sorted({name for there in positions.values() for name in user_topics(there)})
        raise WrongUse(
            f"there is no topic {topic}{did_you_mean(topic, topics)}; known: {listed(topics)}. --create makes it"
        )
    if chosen is None and len(known) > 1:
        raise WrongUse(f"choose the shard of the new topic {topic} with --shard; there are: {listed(known)}")
    return chosen or (known[0] if known else NEW_SHARD)


# --- sending ---------------------------------------------------------------------------------------------------------


def _sent(
    output: Output,
    store: LakeStore,
    by_shard: Mapping[str, Sequence[Message]],
    request_id: str,
    who: Actor,
    host: Host,
    create_queues: int | None,
    dry_run: bool,
) -> Iterator[SendReport]:
    """Part after part; each has an id of its own, so that a request can go on where it stopped."""
    from rmq_store.lake.window.send import send as send_in

    done, in_all = 0, sum(map(len, by_shard.values()))
    for name, messages in by_shard.items():
        if dry_run and name not in store.shard_names():
            yield _in_a_new_shard(store, name, messages, request_id, host, create_queues)
            continue
        (shard,) = store.shards(name)
        for number, part in enumerate(_parts(messages), 1):
            its_id = part_id(request_id, number)
            report = send_in(store, shard, part, its_id, who, host, create_queues=create_queues, dry_run=dry_run)
            done += len(part)
            if in_all > len(part):
                output.line(f"shard {name}: {report.status}, {done:,} of {in_all:,} messages")
            yield report


def _in_a_new_shard(
    store: LakeStore, name: str, messages: Sequence[Message], request_id: str, host: Host, create_queues: int | None
) -> SendReport:
    """A dry run for a shard that is not there."""
    from rmq_store.lake.table.shard import Shard

    there = Shard(store.root, name)
    empty = Positions(0, {})
    plan = plan_send(empty, there.local_broker, there.lane(""), messages, request_id, store.levels, create_queues, host)
    return would_send(name, request_id, plan)


def _parts(messages: Sequence[Message]) -> Iterator[list[Message]]:
    part: list[Message] = []
    size = 0
    for message in messages:
        if part and (len(part) == PART_MESSAGES or size + len(message.body) > PART_BYTES):
            yield part
            part, size = [], 0
        part.append(message)
        size += len(message.body)
    yield part


def _answer(output: Output, request_id: str, reports: Sequence[SendReport]) -> None:
    statuses = {report.status for report in reports}
    status = "committed" if "committed" in statuses else reports[0].status
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
        "warnings": [warning for report in reports for warning in report.warnings],
    }
    lines = [f"new topic: {topic}, {queues} queues" for topic, queues in created.items()]
    lines += [f"delayed: {delayed:,}, readable when rmq deliver finds them due"] if delayed else []
    output.table(rows, ["shard", "topic", "broker_name", "queue_id", "first_offset", "messages"])
    output.answer(answer, *lines, f"request: {request_id}")
