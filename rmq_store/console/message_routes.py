"""The routes that show messages: by place, time, key and id, their tracks, and the dry run of a redrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response

from rmq_store.admin.dag_params import Run, check_names, redrive_request
from rmq_store.console.access import Access
from rmq_store.console.answers import answer
from rmq_store.console.listing import Page
from rmq_store.console.pages.groups import dag_of
from rmq_store.console.pages.messages import dag_of_topic, shown
from rmq_store.console.reader import StoreReader
from rmq_store.errors import WrongUse
from rmq_store.lake.admin.redrive import redrive_all, shards_with_dead_letters
from rmq_store.lake.admin.track import track
from rmq_store.lake.read.browse import first_messages
from rmq_store.lake.read.message_search import message_by_id, messages_by_key, messages_by_unique_key
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.consumption import shards_with_queues, shards_with_topic
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, TIMER_TOPIC
from rmq_store.utils.host import Host
from rmq_store.utils.numbers import whole_number
from rmq_store.utils.times import parse_time

MOST_MESSAGES = 100
_REDRIVE_FILTERS = ("group", "all", "from", "until", "original_topic", "keys", "letters", "limit", "to_topic")


def add_messages(app: FastAPI, reader: StoreReader, access: Access) -> None:
    """Add the routes."""

    def visible(request: Request, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        topics = {message["topic"] for message in messages}
        return shown(messages, {topic: access.may_edit(request, dag_of_topic(topic)) for topic in topics})

    @app.get("/api/messages")
    def messages(topic: str, request: Request) -> Response:
        """A topic's messages from a place or a time, oldest first, or those with a key. Bodies are in ``/api/message``."""
        query = dict(request.query_params)
        page = Page.of({name: query.pop(name) for name in ("limit",) if name in query}, MOST_MESSAGES)
        with reader.current() as store:
            if key := query.get("key"):
                shards_with_topic(store.shards(), [topic])
                begin_ms, end_ms = _time(query, "since"), _time(query, "until")
                rows = messages_by_key(store, topic, key, begin_ms=begin_ms, end_ms=end_ms, most=page.limit)
            else:
                rows = _from_place(store, topic, query, page.limit)
        return answer({"topic": topic, "rows": visible(request, rows)})

    @app.get("/api/message")
    def message(id: str, request: Request, topic: str | None = None) -> Response:
        """A message with this offset message id, or the messages with this unique key, with their bodies."""
        with reader.current() as store:
            matches = _matches(store, id, topic or None)
        return answer({"id": id, "rows": visible(request, matches)})

    @app.get("/api/track")
    def tracks(id: str, topic: str | None = None) -> Response:
        """What became of a message in each group."""
        with reader.current() as store:
            matches = _matches(store, id, topic or None)
            delayed = (SCHEDULE_TOPIC, TIMER_TOPIC)
            tracked = next((one for one in matches if one["topic"] not in delayed), matches[0])
            place = {name: tracked[name] for name in ("shard", "topic", "broker_name", "queue_id", "queue_offset")}
            return answer({"id": id, "message": place, "tracks": [asdict(one) for one in track(store, tracked)]})

    @app.get("/api/redrive")
    def dry_run(group: str, request: Request) -> Response:
        """Which dead letters a redrive would send, for who may send them."""
        if not access.may_edit(request, dag_of(group)):
            raise HTTPException(403, f"this needs the permission to trigger {dag_of(group)}")
        return answer(_dry_run(reader.open_store(), dict(request.query_params)))


def _from_place(store: LakeStore, topic: str, query: Mapping[str, str], most: int) -> list[Mapping[str, Any]]:
    queues = [_queue(topic, query["queue"])] if query.get("queue") else []
    from_offset = _number(query, "offset")
    chosen = shards_with_queues(store.shards(), topic, queues)
    begin_ms, end_ms = _time(query, "since"), _time(query, "until")
    return first_messages(topic, chosen, most, from_offset=from_offset, begin_ms=begin_ms, end_ms=end_ms, body=False)


def _queue(topic: str, text: str) -> MessageQueue:
    broker_name, _, digits = text.rpartition(":")
    queue_id = whole_number(digits)
    if not broker_name or queue_id is None:
        raise WrongUse(f"invalid queue {text[:200]!r}: expected BROKER:QUEUE, like broker-a:0")
    return MessageQueue(topic, broker_name, queue_id)


def _number(query: Mapping[str, str], name: str) -> int | None:
    if not query.get(name):
        return None
    number = whole_number(query[name])
    if number is None:
        raise WrongUse(f"invalid {name} {query[name][:40]!r}: expected a whole number from 0")
    return number


def _time(query: Mapping[str, str], name: str) -> int | None:
    return parse_time(query[name]) if query.get(name) else None


def _matches(store: LakeStore, message_id: str, topic: str | None) -> Sequence[Mapping[str, Any]]:
    matches = message_by_id(store, message_id) or messages_by_unique_key(store, message_id, topic=topic)
    if not matches:
        raise WrongUse(f"no message has the offset message id or the unique key {message_id[:200]}")
    return matches


def _dry_run(store: LakeStore, query: dict[str, str]) -> dict[str, Any]:
    """The report of each shard. Nothing is written: a dry run claims nothing and commits nothing."""
    check_names(query, _REDRIVE_FILTERS)
    host = Host()
    params: dict[str, Any] = {name: text for name, text in query.items() if text != ""}
    params["all"] = params.get("all") == "true"
    for name in {"keys", "letters"} & params.keys():
        params[name] = [text for text in params[name].split(",") if text]
    params["limit"] = _number(query, "limit")
    run = Run("rmq_redrive_dlq", "console", "manual", datetime.fromtimestamp(host.now_ms() / 1000, UTC))
    request = redrive_request(run, params | {"reason": "dry run", "dry_run": True})
    of_shards = shards_with_dead_letters(store.shards(), request)
    reports = [redrive_all(shard, request_of_shard, host) for shard, request_of_shard in of_shards]
    return {
        "group": request.group,
        "letters": sum(report.letters for report in reports),
        "shards": [
            {
                "shard": report.shard,
                "letters": report.letters,
                "topic": report.topic,
                "readers": sorted(report.readers),
                "listed": [asdict(one) for one in report.listed[:MOST_MESSAGES]],
            }
            for report in reports
        ],
    }
