"""The two ids of a message (rules 1.8). Both have 32 hex characters on IPv4 and 56 on IPv6, so their shape does not
tell which is which.

Bytes before they are written as hex::

    offset message id   store host address, port (4), commit log offset (8)
    UNIQ_KEY            client address, low bits of the pid (2), class loader hash (4), ms in the month (4), counter (2)
"""

from __future__ import annotations

import ipaddress
import re
import struct
from typing import NamedTuple

from rmq_store.errors import BadData
from rmq_store.utils.numbers import whole_number

_HEX_LENGTHS = (32, 56)
_IPV4_IN_IPV6 = bytes(10) + b"\xff\xff"
_HEX = re.compile(r"[0-9A-Fa-f]*")


class OffsetMessageId(NamedTuple):
    """Where a message is stored: host as ``address|port``, physical offset in that broker's commit log."""

    store_host: str
    commit_log_offset: int


class UniqueKey(NamedTuple):
    """The parts of a UNIQ_KEY that the Java client made (``MessageClientIDSetter``)."""

    ip: str
    pid_low_16: int
    class_loader_hash: int
    ms_in_month: int
    counter: int


def address_text(address: bytes) -> str:
    """4 or 16 address bytes as Java prints them: IPv6 groups without leading zeros and never shortened to ``::``."""
    if len(address) == 4:
        return ".".join(map(str, address))
    return ":".join(f"{group:x}" for group in struct.unpack(">8H", address))


def host_text(address: bytes, port: int) -> str:
    """``address|port``, the form of every host in this project."""
    return f"{address_text(address)}|{port}"


def host_bytes(host: str) -> tuple[bytes, int]:
    """Address bytes (4 or 16) and port of ``address|port``.

    :raises BadData: it does not have that form.
    """
    address, _, port_text = host.rpartition("|")
    port = whole_number(port_text, signed=True)
    try:
        packed = ipaddress.ip_address(address).packed
    except ValueError:
        port = None
    if port is None:
        raise BadData(f"host {host!r} is not of the form address|port")
    return packed, port


def offset_message_id(store_host: str, commit_log_offset: int) -> str:
    """``MessageDecoder#createMessageId``: upper-case hex of address, port and offset."""
    address, port = host_bytes(store_host)
    return (address.removeprefix(_IPV4_IN_IPV6) + struct.pack(">iq", port, commit_log_offset)).hex().upper()


def decode_offset_message_id(message_id: str) -> OffsetMessageId:
    """``MessageDecoder#decodeMessageId``. As in RocketMQ, the length alone chooses between IPv4 and IPv6, and an IPv4
    address inside an IPv6 one is IPv4.

    :raises BadData: not 32 or 56 hex digits, or a port above 65535. RocketMQ reads other characters as some digit and
        ignores what follows 56 digits.
    """
    raw = _hex_bytes(message_id, "an offset message id")
    address, tail = raw[:-12], raw[-12:]
    port, offset = struct.unpack(">iq", tail)
    if not 0 <= port <= 65535:
        raise BadData(f"{message_id!r} is not an offset message id: its port {port} is not in [0, 65535]")
    return OffsetMessageId(host_text(address.removeprefix(_IPV4_IN_IPV6), port), offset)


def decode_unique_key(unique_key: str) -> UniqueKey:
    """The parts of a UNIQ_KEY; an IPv6 address has four digits per group here, as ``UtilAll#ipToIPv6Str`` prints it.

    :raises BadData: not 32 or 56 hex digits (gRPC clients make 34 in another form).
    """
    raw = _hex_bytes(unique_key, "a UNIQ_KEY of the Java client")
    address, tail = raw[:-12], raw[-12:]
    pid, loader, ms_in_month, counter = struct.unpack(">HiiH", tail)
    ip = address_text(address) if len(address) == 4 else ipaddress.IPv6Address(address).exploded
    return UniqueKey(ip, pid, loader, ms_in_month, counter)


def _hex_bytes(text: str, what: str) -> bytes:
    if len(text) in _HEX_LENGTHS and _HEX.fullmatch(text):
        return bytes.fromhex(text)
    raise BadData(f"{text!r} is not {what}: it must have 32 or 56 hex digits, it has {len(text)} characters")
