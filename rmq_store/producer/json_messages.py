"""Messages to send as lines of JSON, one object each.

``{"topic": "Orders", "body": "text", "tags": "new", "keys": ["o-1"], "properties": {"region": "eu"}, "delay_level": 3,
"queue": 2}``; ``body_base64`` in place of ``body`` for bytes, ``sharding_key`` in place of ``queue``, ``delay_ms`` or
``deliver_at`` (epoch ms) in place of ``delay_level``. Only a topic, unless there is a default, and a body are needed.
Nothing is converted: a property is text.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rmq_store.errors import WrongUse
from rmq_store.message.message_const import KEY_SEPARATOR
from rmq_store.producer.producer import Message, problems_of
from rmq_store.utils.arguments import check_characters


class Lines(NamedTuple):
    """The content of a file."""

    messages: list[Message]
    problems: list[tuple[int, str]]
    """(line number from 1, what is wrong)."""


def read_lines(data: bytes, now_ms: int, topic: str | None = None) -> Lines:
    """The messages of a file, to be sent at ``now_ms`` (UTC ms). ``topic``: of lines without one. Blank lines are
    skipped."""
    lines = Lines([], [])
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            message = message_of(_object(line), topic)
        except WrongUse as error:
            lines.problems.append((number, str(error)))
            continue
        lines.messages.append(message)
        lines.problems.extend((number, problem) for problem in problems_of(message, now_ms))
    return lines


def message_of(fields: Mapping[str, Any], topic: str | None = None) -> Message:
    """The message of a JSON object. Raises WrongUse for a field that is unknown, missing or of another type."""
    unknown = sorted(fields.keys() - _FIELDS.keys())
    if unknown:
        raise WrongUse(f"unknown field {unknown[0]!r}; known: {', '.join(_FIELDS)}")
    values = {name: _FIELDS[name](name, value) for name, value in fields.items() if value is not None}
    bodies = [values.pop(name) for name in ("body", "body_base64") if name in values]
    if len(bodies) != 1:
        raise WrongUse("a message needs one body: give either 'body' (text) or 'body_base64'")
    topic = values.pop("topic", topic)
    if topic is None:
        raise WrongUse("the topic is missing: name it in the line, or for all lines with --topic")
    if "queue" in values:
        values["queue_id"] = values.pop("queue")
    return Message(topic, bodies[0], **values)


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(line.decode())
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deeply
        raise WrongUse(f"not a line of JSON: {error}") from error
    if not isinstance(fields, dict):
        raise WrongUse(f"not a JSON object: {line[:40]!r}")
    return fields


# --- fields ----------------------------------------------------------------------------------------------------------


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise WrongUse(f"{name} must be text, it is {value!r:.80}")
    return value


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongUse(f"{name} must be a whole number, it is {value!r:.80}")
    return value


def _body(name: str, value: Any) -> bytes:
    text = _text(name, value)
    check_characters(name, text)
    return text.encode()


def _base64(name: str, value: Any) -> bytes:
    try:
        return base64.b64decode(_text(name, value), validate=True)
    except ValueError as error:
        raise WrongUse(f"{name} is not base64: {error}") from error


def _keys(name: str, value: Any) -> tuple[str, ...]:
    """A list of keys; text is one key, or several with spaces between, as in RocketMQ."""
    if isinstance(value, str):
        return tuple(key for key in value.split(KEY_SEPARATOR) if key)
    if not isinstance(value, list):
        raise WrongUse(f"{name} must be a list of texts, it is {value!r:.80}")
    return tuple(_text(name, key) for key in value)


def _properties(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise WrongUse(f"{name} must be an object, it is {value!r:.80}")
    return {key: _text(f"the property {key}", text) for key, text in value.items()}


_FIELDS: dict[str, Callable[[str, Any], Any]] = {
    "topic": _text,
    "body": _body,
    "body_base64": _base64,
    "tags": _text,
    "keys": _keys,
    "properties": _properties,
    "delay_level": _number,
    "delay_ms": _number,
    "deliver_at": _number,
    "queue": _number,
    "sharding_key": _text,
}
