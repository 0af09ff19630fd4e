"""Topics and messages, delayed messages, dead letters: lists, and a message with its body decoded.

Keys, tags and places are shown to every reader; a body and the properties only to who may edit.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rmq_store.console.listing import Listing, filters_of
from rmq_store.console.pages.groups import dag_of
from rmq_store.message.message_const import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX

REPLAY_DAG = "rmq_replay"
"""Who may trigger it may have a listener read any message of any topic."""
SHOWN_BYTES = 256 << 10
"""Of a body, in each form."""
MASKED = ("body", "properties", "born_host", "store_host")

TOPICS = Listing(
    title="Topics",
    source="""(
        SELECT
            topic, min(type) AS type, CAST(sum(queues) AS BIGINT) AS queues, CAST(sum(messages) AS BIGINT) AS messages,
            count(*) AS shards, max(newest_store_timestamp) AS newest_store_timestamp
        FROM topics GROUP BY topic
    )""",
    columns=("topic", "type", "queues", "messages", "shards", "newest_store_timestamp"),
    order="topic",
    filters=filters_of("topic", "type", name="contains(lower(topic), lower($name))"),
)

TOPIC_QUEUES = Listing(
    title="Queues of the topic",
    source="queues",
    columns=("shard", "topic", "broker_name", "queue_id", "min_offset", "max_offset", "newest_store_timestamp"),
    order="broker_name, queue_id, shard",
    filters=filters_of("topic"),
    needs=("topic",),
)

TOPIC_GROUPS = Listing(
    title="Groups of the topic",
    source="""(
        SELECT
            topic, group_name, CAST(sum(lag) AS BIGINT) AS lag, CAST(sum(readable_lag) AS BIGINT) AS readable_lag,
            count(*) AS queues
        FROM lag WHERE has_offset AND group_name <> 'CID_RMQ_SYS_SCHEDULE' GROUP BY topic, group_name
    )""",
    columns=("topic", "group_name", "lag", "readable_lag", "queues"),
    order="group_name, topic",
    filters=filters_of("topic"),
    needs=("topic",),
)

DELAY_LEVELS = Listing(
    title="Delayed messages by level",
    source="""(
        SELECT
            d.delay_level, d.real_topic, count(*) AS messages, min(d.deliver_at) AS next_due, max(d.deliver_at) AS last_due,
            CAST(count(*) FILTER (WHERE d.deliver_at <= c.now_ms) AS BIGINT) AS due_now
        FROM delayed d CROSS JOIN clock c GROUP BY d.delay_level, d.real_topic
    )""",
    columns=("delay_level", "real_topic", "messages", "due_now", "next_due", "last_due"),
    order="delay_level NULLS LAST, real_topic",
    filters=filters_of(topic="real_topic = $topic"),
)

DELAYED = Listing(
    title="Delayed messages",
    source="delayed",
    columns=(
        "deliver_at", "delay_level", "real_topic", "real_queue_id", "keys", "tags", "reconsume_times", "unique_key",
        "store_timestamp", "shard", "topic", "broker_name", "queue_id", "queue_offset",
    ),
    order="deliver_at, shard, topic, broker_name, queue_id, queue_offset",
    filters=filters_of(
        "delay_level", topic="real_topic = $topic", since="deliver_at >= $since", until="deliver_at < $until"
    ),
)  # fmt: skip

DEAD_LETTER_CAUSES = Listing(
    title="Dead letters by cause",
    source="""(
        SELECT
            group_name, original_topic, cause, error_type, count(*) AS messages, count(redriven_at) AS redriven,
            min(store_timestamp) AS first_at, max(store_timestamp) AS last_at
        FROM dead_letters GROUP BY group_name, original_topic, cause, error_type
    )""",
    columns=("group_name", "original_topic", "cause", "error_type", "messages", "redriven", "first_at", "last_at"),
    order="group_name, messages DESC, original_topic, cause, error_type",
    filters=filters_of("group"),
)

DEAD_LETTERS = Listing(
    title="Dead letters",
    source="dead_letters",
    columns=(
        "store_timestamp", "group_name", "original_topic", "cause", "attempt", "error_type", "error_text", "keys", "tags",
        "unique_key", "redriven_at", "redriven_to", "shard", "topic", "broker_name", "queue_id", "queue_offset",
        "origin_topic", "origin_broker_name", "origin_queue_id", "origin_queue_offset", "window_id",
    ),
    order="store_timestamp DESC, shard, topic, broker_name, queue_id, queue_offset",
    filters=filters_of(
        "group", "cause", "error_type",
        original_topic="original_topic = $original_topic",
        key="(unique_key = $key OR list_contains(string_split(keys, ' '), $key))",
        text="contains(lower(coalesce(error_text, '')), lower($text))",
        request="window_id IN (SELECT window_id FROM consumed_ranges WHERE request_id = $request)",
        since="store_timestamp >= $since",
        until="store_timestamp < $until",
    ),
    needs=("group",),
)  # fmt: skip

LISTINGS: Mapping[str, Listing] = {
    "topics": TOPICS,
    "topic-queues": TOPIC_QUEUES,
    "topic-groups": TOPIC_GROUPS,
    "delay-levels": DELAY_LEVELS,
    "delayed": DELAYED,
    "dead-letter-causes": DEAD_LETTER_CAUSES,
    "dead-letters": DEAD_LETTERS,
}


# --- one message -----------------------------------------------------------------------------------------------------


def dag_of_topic(topic: str) -> str:
    """The DAG whose permission to trigger runs shows the bodies of a topic."""
    for prefix in (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX):
        if topic.startswith(prefix):
            return dag_of(topic.removeprefix(prefix))
    return REPLAY_DAG


def masked(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without what its users wrote into it; ``body_bytes`` is the size of the body."""
    body = message.get("body")
    shown = {name: value for name, value in message.items() if name not in MASKED}
    return shown | {"masked": True, "body_bytes": None if body is None else len(body)}


def unmasked(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its body in the forms that it has: ``body_text``, ``body_json`` (indented), ``body_hex`` and
    ``body_base64``, each of at most the first ``SHOWN_BYTES`` bytes."""
    shown = {name: value for name, value in message.items() if name != "body"} | {"masked": False}
    return shown | decoded(message["body"]) if "body" in message else shown


def decoded(body: bytes | None) -> dict[str, Any]:
    """The forms of a body. ``body_text`` is None where it is no UTF-8, ``body_json`` where it is no JSON."""
    if body is None:
        return {"body_bytes": None, "body_text": None, "body_json": None, "body_hex": None, "body_base64": None}
    part = body[:SHOWN_BYTES]
    text = _text(part, whole=len(part) == len(body))
    return {
        "body_bytes": len(body),
        "body_text": text,
        "body_json": _json(text) if len(part) == len(body) else None,
        "body_hex": part[: SHOWN_BYTES // 4].hex(" ", 2),
        "body_base64": base64.b64encode(part).decode(),
    }


def _text(part: bytes, whole: bool) -> str | None:
    for cut in range(1 if whole else 4):  # a character of up to four bytes may be cut
        try:
            return part[: len(part) - cut].decode()
        except UnicodeDecodeError:
            continue
    return None


def _json(text: str | None) -> str | None:
    try:
        return None if text is None else json.dumps(json.loads(text), ensure_ascii=False, indent=2)
    except (ValueError, RecursionError):
        return None


def shown(messages: Sequence[Mapping[str, Any]], may_see: Mapping[str, bool]) -> list[dict[str, Any]]:
    """Messages as their reader may see them. ``may_see``: by topic."""
    return [(unmasked if may_see[message["topic"]] else masked)(message) for message in messages]
