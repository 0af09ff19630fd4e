"""``rmq message``, ``messages``, ``print``, ``track``: find and show messages. Read only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from rmq_store.cli.command import add_command
from rmq_store.cli.common import open_store, queues_by_shard
from rmq_store.cli.options import QueuesOption, SinceOption, StoreOptions, TopicOption, UntilOption, count_from
from rmq_store.cli.output import Output, cell
from rmq_store.errors import WrongUse
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC, MessageConst
from rmq_store.utils.redaction import one_line
from rmq_store.utils.times import format_time

PANEL = "Messages"

IdArgument = Annotated[
    str, typer.Argument(metavar="ID", help="An offset message id, or the producer's id (the unique key).")
]
OfTopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="Search a unique key in this topic only, which is faster."),
]


def add_to(app: typer.Typer) -> None:
    add_command(app, message, ["rmq message 7F0000010000272100000000000003AD"], panel=PANEL)
    add_command(
        app, messages, ["rmq messages --topic OrderEvents --key order-16 --from 2026-11-19T00:00:00Z"], panel=PANEL
    )
    add_command(
        app,
        print_messages,
        [
            "rmq print --topic OrderEvents --max 5 --body",
            "rmq print --topic OrderEvents --queue broker-a:3 --from-offset 120",
            "rmq print --topic OrderEvents --from 2026-11-19T00:00:00Z --until 2026-11-19T00:05:00Z",
        ],
        panel=PANEL,
        name="print",
    )
    add_command(app, track, ["rmq track 7F0000010000272100000000000003AD"], panel=PANEL)


def message(
    *, message_id: IdArgument, topic: OfTopicOption = None, since: SinceOption = None, options: StoreOptions
) -> None:
    """Show a message by its id.

    With a unique key, also the copies that retries made of it, oldest first.
    """
    output = Output(options.as_json)
    matches = _matches(open_store(options.root), message_id, topic, since)
    for number, row in enumerate(matches):
        output.line(
            ("\n" if number else "") + "\n".join(f"{name}: {_in_a_line(name, row[name])}".rstrip() for name in row)
        )
    output.document({"status": "done", "messages": [_plain(row) for row in matches]})


def messages(
    *,
    topic: TopicOption,
    key: Annotated[str, typer.Option("--key", "-k", metavar="KEY", help="One of its KEYS, or its unique key.")],
    since: SinceOption = None,
    until: UntilOption = None,
    most: Annotated[
        int, typer.Option("--max", metavar="N", parser=count_from(1), help="At most N messages, the newest.")
    ] = 64,
    options: StoreOptions,
) -> None:
    """Find a topic's messages by key and time, oldest first."""
    if not key.strip():
        raise WrongUse("the key (--key) is empty")
    output = Output(options.as_json)
    store = open_store(options.root)
    from rmq_store.lake.read.message_search import messages_by_key
    from rmq_store.lake.window.consumption import shards_with_topic

    shards_with_topic(store.shards(), [topic])  # an unknown topic is an error, not an empty answer
    matches = messages_by_key(store, topic, key, begin_ms=since, end_ms=until, most=most)
    columns = ("offset_msg_id", "broker_name", "queue_id", "queue_offset", "store_timestamp", "keys", "tags")
    output.table(_as_texts(matches), columns, empty=f"no message of topic {topic} has the key {key}")
    output.document({"status": "done", "topic": topic, "key": key, "messages": matches})


def print_messages(
    *,
    topic: TopicOption,
    queue: QueuesOption = None,
    from_offset: Annotated[
        int | None,
        typer.Option("--from-offset", metavar="OFFSET", parser=count_from(0), help="From this offset in each queue."),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    most: Annotated[
        int, typer.Option("--max", metavar="N", parser=count_from(1), help="At most N messages, the oldest.")
    ] = 20,
    body: Annotated[bool, typer.Option("--body", help="Also show the bodies.")] = False,
    options: StoreOptions,
) -> None:
    """Print a topic's messages in the order in which they were stored.

    Starts at the first readable message, an offset or a time. Does not move the offset of any group.
    """
    output = Output(options.as_json)
    store = open_store(options.root)
    if from_offset is not None and since is not None:
        raise WrongUse("give --from-offset or --from, not both")
    from rmq_store.lake.read.browse import first_messages

    chosen = queues_by_shard(store.shards(), topic, queue or ())
    oldest = first_messages(topic, chosen, most, from_offset=from_offset, begin_ms=since, end_ms=until, body=body)
    columns = ("store_timestamp", "broker_name", "queue_id", "queue_offset", "keys", "tags", "unique_key")
    output.table(
        _as_texts(oldest), (*columns, "body") if body else columns, empty=f"no messages of {topic} in this range"
    )
    output.document({"status": "done", "topic": topic, "messages": [_plain(row) for row in oldest]})


def track(
    *, message_id: IdArgument, topic: OfTopicOption = None, since: SinceOption = None, options: StoreOptions
) -> None:
    """Show which groups have consumed a message, with the outcome, each retry and each redrive.

    The types are RocketMQ's CONSUMED, CONSUMED_BUT_FILTERED and NOT_CONSUME_YET; and RETRYING, DEAD, DROPPED, LOST,
    SKIPPED and DUPLICATE, all of which RocketMQ shows as CONSUMED. With a unique key, the first message that has it
    is shown.
    """
    output = Output(options.as_json)
    store = open_store(options.root)
    matches = _matches(store, message_id, topic, since)
    from rmq_store.lake.admin.track import track as tracks_of

    # A delayed message has two places: groups consume it in its own topic, not in the delay topic.
    tracked = next((one for one in matches if one["topic"] not in _DELAYED), matches[0])
    tracks = tracks_of(store, tracked)
    place = {name: tracked[name] for name in ("shard", "topic", "broker_name", "queue_id", "queue_offset")}
    output.line(" ".join(f"{name}={value}" for name, value in place.items()))
    rows = [
        {"group": one.group, "type": one.type, "next_offset": one.next_offset} | _hop(hop)
        for one in tracks
        for hop in (one.hops or (None,))
    ]
    empty = "no group has an offset of its queue"
    if tracked["topic"] in _DELAYED:
        goes_to = tracked["properties"].get(MessageConst.REAL_TOPIC)
        empty = f"it is delayed: rmq deliver writes it to {goes_to} when it is due (see the view delayed)"
    output.table(rows, list(rows[0]) if rows else [], empty=empty)
    output.document(
        {
            "status": "done",
            "message": place | {"offset_msg_id": tracked["offset_msg_id"]},
            "tracks": [asdict(one) for one in tracks],
        }
    )


_DELAYED = (SCHEDULE_TOPIC, TIMER_TOPIC)
_HOP = ("attempt", "outcome", "at", "place", "window_id", "error")


def _hop(hop: Any) -> dict[str, Any]:
    if hop is None:
        return dict.fromkeys(_HOP)
    at = hop.committed_at if hop.due_at is None else hop.due_at
    place = f"{hop.topic} {hop.broker_name}:{hop.queue_id} {hop.queue_offset}"
    when = None if at is None else ("due " if hop.due_at is not None else "") + format_time(at)
    error = None if hop.error_type is None else f"{hop.error_type}: {hop.error_text}"
    return dict(zip(_HOP, (hop.attempt, hop.outcome, when, place, hop.window_id, error), strict=True))


def _matches(store: Any, message_id: str, topic: str | None, since: int | None) -> Sequence[Mapping[str, Any]]:
    """The messages with this offset message id, else with this unique key. Raises WrongUse when there is none."""
    from rmq_store.lake.read.message_search import message_by_id, messages_by_unique_key

    matches = message_by_id(store, message_id) or messages_by_unique_key(store, message_id, topic=topic, since_ms=since)
    if not matches:
        where = f" of topic {topic}" if topic else ""
        raise WrongUse(
            f"no message{where} has the offset message id or the unique key {message_id}; to search by one of its KEYS, use "
            "'rmq messages --topic TOPIC --key KEY'"
        )
    return matches


# --- how messages look -----------------------------------------------------------------------------------------------

_HEX_SHOWN = 32


def _as_texts(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: _text(name, value) for name, value in row.items()} for row in rows]


def _text(name: str, value: Any) -> Any:
    if name.endswith("_timestamp") and value is not None:
        return format_time(value)
    if isinstance(value, bytes):
        return body_text(value)
    return value if isinstance(value, int | str | None) else cell(value)


def _in_a_line(name: str, value: Any) -> str:
    """The value on one line; only a body keeps its line breaks."""
    text = cell(_text(name, value))
    return text if name == "body" else one_line(text)


def body_text(body: bytes) -> str:
    """A body as text when it is UTF-8 without control characters, else its size and first bytes in hex."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    if all(character.isprintable() or character in "\t\r\n" for character in text):
        return text
    more = "..." if len(body) > _HEX_SHOWN else ""
    return f"({len(body):,} bytes: {body[:_HEX_SHOWN].hex()}{more})"


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """For JSON: ``body`` becomes base64; ``body_text`` beside it is its text, None when it is not UTF-8."""
    answer = dict(row)
    if isinstance(body := row.get("body"), bytes):
        try:
            answer["body_text"] = body.decode()
        except UnicodeDecodeError:
            answer["body_text"] = None
    return answer
