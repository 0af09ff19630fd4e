"""Files ``consumers.toml``."""

from __future__ import annotations

import json
import random

from rmq_store.settings.settings_values import CHECKS
from tests.faults.fuzz.changes import as_bytes, changed, changed_values, nasty_int, one_of

SETTINGS = b"""
[planned]
schedule = "*/2 * * * *"

[[retention]]
topic = "Gone*"
max_age = "30d"

[[group]]
name = "g"
listener = "fuzz_listener:answer"
listener_process = false
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
consume_message_batch_max_size = 8
max_reconsume_times = 1
engine = "local"
[[group.subscription]]
topic = "T"
expression = "a || b"
[[group.subscription]]
topic = "Sent"

[[group]]
name = "h"
listener = "fuzz_listener:in_order"
listener_process = false
mode = "orderly"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"
[[group.subscription]]
topic = "T"

[[group]]
name = "b"
listener = "fuzz_listener:answer"
listener_process = false
message_model = "BROADCASTING"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"
[[group.subscription]]
topic = "T"

[[group]]
name = "d"
listener = "fuzz_listener:consume_batch"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"
absorb_duplicates = { by = "KEYS", horizon = "7d" }
[[group.subscription]]
topic = "T"
expression = "amount BETWEEN 1 AND 9"
type = "SQL92"
"""
_TABLES = (
    *(
        '{ type = "CUSTOMIZED", next = [1000] }',
        '{ type = "EXPONENTIAL", initial = 5000, max = 7200000, multiplier = 2 }',
    ),
    *(
        '{ by = "UNIQ_KEY", horizon = "7d" }',
        '{ by = "property:region", horizon = "1s" }',
        '{ by = "KEYS", horizon = "99999d" }',
    ),
    *(
        '{ name = "CONSISTENT_HASH", virtual_nodes = 20 }',
        '{ name = "CONFIG", queues = { c1 = ["broker-a:0"] } }',
        '"AVG_BY_CIRCLE"',
    ),
    *(
        '{ name = "MACHINE_ROOM", rooms = ["hz"] }',
        '"CONSISTENT_HASH"',
        '"AVG"',
        '"MACHINE_ROOM_NEARBY-AVG"',
        "{}",
        "[]",
        "[[]]",
    ),
    *(
        '"local"',
        '"auto"',
        '"orderly"',
        '"concurrently"',
        '"skip"',
        '"stop"',
        '"BROADCASTING"',
        '"CLUSTERING"',
        "true",
        "false",
    ),
    *(
        '"CONSUME_FROM_TIMESTAMP"',
        '"CONSUME_FROM_LAST_OFFSET"',
        '"20240229235959Z"',
        "2024-02-29T23:59:59+08:00",
        "1979-05-27",
        "07:32:00",
    ),
    *(
        '["broker-a"]',
        '["live", "live"]',
        '[""]',
        "[1]",
        "nan",
        "-inf",
        "1e5",
        "0x7fffffffffffffff",
        "-9223372036854775808",
        '"planned"',
    ),
    *(
        '"@hourly"',
        '"60 * * * *"',
        '"fuzz_listener:consume_batch"',
        '"fuzz_listener:missing"',
        '"os:_exit"',
        '"sys:exit"',
        '"time:sleep"',
    ),
    *(
        '"builtins:print"',
        '"fuzz_listener:answer.__class__"',
        '"antigravity.x:y"',
        '"7d"',
        '"0s"',
        '"T"',
        '"U"',
        '"SQL92"',
        '"TAG"',
    ),
)
_EXPRESSIONS = (
    *(
        "*",
        "",
        "a",
        "a || b",
        "||",
        "a||",
        "a > 5",
        "a IS NULL",
        "a BETWEEN 1 AND 2",
        "a IN ('1', '2')",
        "NOT a",
        "TRUE",
        "a = b",
    ),
    *(
        "amount > 1e308",
        "amount = 9223372036854775808",
        "amount / 0 = 1",
        "amount % 0 = 0",
        "-9223372036854775808 = amount",
        "a CONTAINS 'b'",
    ),
    *(
        "a STARTSWITH ''",
        "((((a))))",
        "(" * 500 + "a" + ")" * 500,
        "a " * 2000,
        " AND ".join(["a > 1"] * 900),
        "NOT " * 900 + "a",
        "'",
        "a = 'b''c'",
    ),
)


def settings(chance: random.Random) -> bytes:
    """A ``consumers.toml``: keys with other values, new keys, subscriptions and tables, or changed bytes."""
    if chance.random() < 0.2:
        return chance.choice((changed, changed_values))(chance, SETTINGS)
    blocks = SETTINGS.decode().split("\n\n")
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(blocks))
        lines = blocks[at].strip().split("\n")
        match chance.randrange(5):
            case 0 | 1 | 2 if lines[0] == "[[group]]":
                key = chance.choice(list(CHECKS))
                end = next((n for n, line in enumerate(lines) if "subscription" in line), len(lines))
                lines = [line for line in lines[:end] if not line.startswith(f"{key} =")] + lines[end:]
                lines.insert(1, f"{key} = {_toml(chance)}")
            case 3:
                lines += [
                    "[[group.subscription]]",
                    f"topic = {_toml(chance)}",
                    f"expression = {_toml_text(chance, _EXPRESSIONS)}",
                ]
                lines += [f"type = {_toml_text(chance, ('TAG', 'SQL92'))}"] if chance.random() < 0.6 else []
            case _:
                head = chance.choice(("[[retention]]", "[planned]", "[spark]", "[spark.conf]", "[other]", "[[group]]"))
                keys = (
                    "topic",
                    "max_age",
                    "max_bytes",
                    "max_unconsumed_age",
                    "archive",
                    "schedule",
                    "master",
                    "py_files",
                    "name",
                    "x.y",
                )
                lines += [head, *(f"{key} = {_toml(chance)}" for key in chance.sample(keys, 2))]
        blocks[at] = "\n".join(lines)
    return as_bytes("\n\n".join(blocks) + "\n")


def _toml(chance: random.Random) -> str:
    match chance.randrange(3):
        case 0:
            return str(nasty_int(chance))
        case 1:
            return _toml_text(chance, ())
        case _:
            return chance.choice(_TABLES)


def _toml_text(chance: random.Random, good: tuple[str, ...]) -> str:
    text = one_of(chance, good)
    return json.dumps(text, ensure_ascii=chance.random() < 0.5).replace("\x7f", "\\u007f")
