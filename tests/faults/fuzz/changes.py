"""Changes of good inputs, and values that are trouble. Everything is chosen by the ``Random`` that is given."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

NUMBERS = ("0 -1 1e999 -1e400 .5e-9999999 NaN Infinity", "9" * 19, "9" * 30, "9" * 5000, "0x" + "f" * 4000)
SIGNS = ("{ [ } ] \" ' : , @ = . /* // \\ \\ud800 \\x null true {} [] {{1:[]}:1}", "{" * 3000, "[" * 3000, "a." * 3000)
LONGS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
PIECES = [
    *(piece.encode() for text in (*NUMBERS, *SIGNS) for piece in text.split()),
    *(number.to_bytes(8, "big") for number in LONGS),
    *(b"\n", b"\0", b"\xff", b"\xed\xa0\x80", "\u202eé\U0001f407".encode()),
]
INTS = (0, 1, 2, 3, 7, 17, 18, 19, 127, 128, 255, 32_767, 32_768, 65_535, *LONGS, *(-number for number in LONGS[1:-2]))
"""Numbers at the ends of the types of Java, and of what the levels and flags of a message mean."""
TEXTS = (
    *("", " ", "0", "-0", "+1", "1_0", "1e3", "0x10", "9" * 19, "9" * 400, "null", "true", "NaN", "١", "²"),
    *("*", "%", "%RETRY%g", "%DLQ%g", "%RETRY%", "%DLQ%", "%RETRY%%RETRY%g", "SCHEDULE_TOPIC_XXXX", "TBW102"),
    *("rmq_sys_wheel_timer", "rmq_sys_x", "RMQ_SYS_TRANS_HALF_TOPIC", "SELF_TEST_TOPIC", "CID_RMQ_SYS_g"),
    *("a b", "a||b", "a || || b", "||", "a\tb", "a\nb", "a\rb", "a\x01b\x02c", "a\x1b]0;b\x07", "\x7f", "\u202eab"),
    *("é", "e\u0301", "\U0001f407", "ﬀ", "İ", "\ufeff", "\u2028", "𝟙", "a" * 127, "a" * 128, "a" * 256, "é" * 300),
    *(
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "a:b",
        ":",
        "a:",
        ":0",
        "a:-1",
        "a:0:0",
        "a@b",
        "@",
        "a=b",
        "=",
        "--",
        "-",
        "-x",
    ),
    *(
        "'",
        '"',
        "';--",
        "a'b",
        "$x",
        "${x}",
        "{x}",
        "%s",
        "%(x)s",
        "\\",
        "\\N",
        "[bold]x[/]",
        "[/]",
        "#",
        ";",
        ",",
        "a,,b",
    ),
)
TIMES = (
    *(
        "0",
        "-1",
        "1",
        "1700000000000",
        "9223372036854775807",
        "9223372036854775808",
        "253402300800000",
        "1e3",
        " 1",
        "١",
    ),
    *("1970-01-01T00:00:00Z", "2026-11-20T00:00:00+14:00", "2026-11-20T00:00:00", "2026-11-20", "9999-12-31T23:59:59Z"),
    *(
        "0001-01-01T00:00:00Z",
        "2026-02-30T00:00:00Z",
        "2026-11-20T24:00:00Z",
        "2026-11-20T00:00:60Z",
        "now",
        "20261120",
    ),
    *(
        "2026-W47-5T00:00:00Z",
        "2026-11-20T00:00:00.123456789Z",
        "2026-11-20T00:00:00-00:00:01",
        "9999-12-31T23:59:59-23:59",
    ),
)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null')


def changed(chance: random.Random, good: bytes) -> bytes:
    """Some bytes flipped, cut, doubled or replaced by a piece that is trouble."""
    data = bytearray(good)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        end = min(at + chance.choice([0, 1, 1, 4, 8, 40]), len(data))
        match chance.randrange(4):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                data[at:end] = data[at:end] * 2
            case 2:
                data[at:end] = chance.randbytes(end - at)
            case _:
                data[at:end] = chance.choice(PIECES)
    return bytes(data)


def nasty_text(chance: random.Random) -> str:
    """A text that is trouble: often valid, sometimes not even as Unicode."""
    match chance.randrange(8):
        case 0:
            return "".join(chance.choices("a0.%-_:@=|*' \"\\/\n\0\x1b\ud800\u202e\U0001f407", k=chance.randint(1, 12)))
        case 1:
            return chance.choice(PIECES).decode("utf-8", "surrogateescape")
        case 2:
            return str(nasty_int(chance))
        case 3:
            return chance.choice(TIMES)
        case _:
            return chance.choice(TEXTS)


def nasty_int(chance: random.Random) -> int:
    """A number at the end of a type, or beside it."""
    return chance.choice(INTS) + chance.choice((0, 0, 0, 1, -1))


def nasty_json(chance: random.Random) -> str:
    """A JSON value of any type, or nearly one."""
    values = ("null", "true", "[]", "{}", '""', "-0", "1.5", "1e400", "NaN", '"\\ud800"', '[[["a"]]]', '{"a":{"a":1}}')
    match chance.randrange(4):
        case 0:
            return str(nasty_int(chance))
        case 1:
            return '"' + nasty_text(chance).replace("\\", "\\\\").replace('"', '\\"') + '"'
        case 2:
            return chance.choice(PIECES).decode("utf-8", "surrogateescape")
        case _:
            return chance.choice(values)


def changed_values(chance: random.Random, good: bytes) -> bytes:
    """A JSON or TOML text with one to three of its names, texts and numbers replaced, so that it often still parses."""
    data = good
    for _ in range(chance.randint(1, 3)):
        tokens = list(_TOKEN.finditer(data))
        if not tokens:
            break
        at = chance.choice(tokens)
        value = chance.choice(tokens)[0] if chance.random() < 0.2 else as_bytes(nasty_json(chance))
        data = data[: at.start()] + value + data[at.end() :]
    return data


def as_bytes(text: str) -> bytes:
    """UTF-8, also of a text that has none: its surrogates become bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogatepass")


def one_of(chance: random.Random, good: Sequence[str], share_of_good: float = 0.7) -> str:
    """One of the good values, or a text that is trouble."""
    return chance.choice(good) if good and chance.random() < share_of_good else nasty_text(chance)
