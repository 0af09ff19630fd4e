"""A record with several messages is taken apart as a consumer's client does it, or not at all."""

from __future__ import annotations

import struct

import pytest

from rmq_store.errors import BadData
from rmq_store.log.inner_batch import InnerMessage, is_inner_batch, unwrap

FLAGS = 0xC0


def encoded(body: bytes, properties: str = "", flag: int = 0) -> bytes:
    """As a producer encodes a message of a batch (``MessageDecoder#encodeMessage``)."""
    text = properties.encode()
    size = 20 + len(body) + 2 + len(text)
    return struct.pack(">iiiii", size, 0, 0, flag, len(body)) + body + struct.pack(">h", len(text)) + text


def test_each_message_has_its_own_body_flag_and_properties() -> None:
    record = encoded(b"one", "KEYS\x01a\x02TAGS\x01T\x02", flag=7) + encoded(b"", "n\x012\x02")
    assert unwrap(FLAGS, {"INNER_NUM": "2"}, record) == (
        InnerMessage(7, b"one", {"KEYS": "a", "TAGS": "T"}),
        InnerMessage(0, b"", {"n": "2"}),
    )


@pytest.mark.parametrize(("sys_flag", "properties"), [(0x40, {}), (0x80, {}), (0, {"INNER_NUM": "1"}), (FLAGS, {})])
def test_a_flag_or_the_property_is_enough_to_look_closer(sys_flag: int, properties: dict[str, str]) -> None:
    assert is_inner_batch(sys_flag, properties)
    assert not is_inner_batch(0x3F, {"KEYS": "a"})


ONE = encoded(b"one", "n\x011\x02")


@pytest.mark.parametrize(
    ("sys_flag", "number", "body", "text"),
    [
        (0x80, "1", ONE, "do not belong together"),
        (FLAGS, "2", ONE, "it has 1 messages, INNER_NUM is '2'"),
        (FLAGS, "", ONE, "INNER_NUM is ''"),
        (FLAGS, "0", b"", "it has 0 messages"),
        (FLAGS, "1", None, "it has 0 messages"),
        (FLAGS, "1", ONE[:-1], "not that of its parts"),
        (FLAGS, "1", ONE[:18], "message 0 in it is cut off"),
        (FLAGS, "2", ONE + ONE[:20], "message 1 in it is cut off"),
        (FLAGS, "1", struct.pack(">iiiii", 22, 0, 0, 0, -4) + bytes(2), "not that of its parts|cut off"),
        (FLAGS, "1", struct.pack(">i", 99) + ONE[4:], "has the size 99"),
    ],
)
def test_what_is_no_batch_is_named(sys_flag: int, number: str, body: bytes | None, text: str) -> None:
    with pytest.raises(BadData, match=text):
        unwrap(sys_flag, {"INNER_NUM": number}, body)
