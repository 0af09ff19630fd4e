"""Lines of messages for ``rmq send --file``."""

from __future__ import annotations

import json
import random

from tests.faults.fuzz.changes import as_bytes, changed, changed_values, nasty_json, nasty_text

MESSAGES = b"""{"topic": "Sent", "body": "one", "tags": "a", "keys": ["o-1"], "properties": {"region": "eu"}}
{"topic": "Sent", "body_base64": "AAE=", "keys": "o-2 o-3", "delay_level": 3}
{"topic": "Sent", "body": "two", "sharding_key": "s", "delay_ms": 90000}
{"topic": "Sent", "body": "three", "queue": 0, "tags": "b"}
"""
_FIELDS = (
    *("topic", "body", "body_base64", "tags", "keys", "properties", "delay_level", "delay_ms", "deliver_at", "queue"),
    *("sharding_key", "unknown", ""),
)


def messages(chance: random.Random) -> bytes:
    """Lines for ``rmq send --file``."""
    if chance.random() < 0.3:
        return chance.choice((changed, changed_values))(chance, MESSAGES)
    lines = [_message(chance) for _ in range(chance.randint(1, 6))]
    return as_bytes("\n".join([*lines, *chance.sample(MESSAGES.decode().split("\n"), 2)]))


def _message(chance: random.Random) -> str:
    """A line with a body of text; texts are valid often enough that the whole file is sent now and then."""
    fields = {"topic": '"Sent"', "body": json.dumps(nasty_text(chance))}
    for _ in range(chance.randint(0, 2)):
        match chance.randrange(4):
            case 0:
                fields[chance.choice(_FIELDS)] = nasty_json(chance)
            case 1:
                properties = {nasty_text(chance): nasty_text(chance) for _ in range(chance.randint(1, 3))}
                fields["properties"] = json.dumps(properties)
            case 2:
                fields[chance.choice(("tags", "sharding_key"))] = json.dumps(nasty_text(chance))
            case _:
                fields["keys"] = json.dumps([nasty_text(chance), nasty_text(chance)])
    return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in fields.items()) + "}"
