"""Bloom filters of Parquet files (split block Bloom filters): whether a text may be among the values of a column chunk.

Source: https://parquet.apache.org/docs/file-format/bloomfilter/, and the description of XXH64 in the xxHash repository.
"""

from __future__ import annotations

from collections.abc import Iterator

_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip
_64, _32 = (1 << 64) - 1, (1 << 32) - 1
_SALTS = (
    0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
)  # fmt: skip
_BLOCK_BYTES = 32

_SIZE_FIELD = 0x15
_SPLIT_BLOCK_XXH64_PLAIN = bytes.fromhex("1c1c0000 1c1c0000 1c1c0000 00")
"""The rest of a header in Thrift's compact protocol: algorithm, hash and compression, of which the format has one each."""


def bitset(filter_: bytes) -> bytes | None:
    """The bits of a filter as it is in a file, its header first. None: its form is not the known one, or it is not whole."""
    if not filter_ or filter_[0] != _SIZE_FIELD:
        return None
    value = at = 0
    for at, byte in enumerate(filter_[1:6], 1):
        value |= (byte & 0x7F) << 7 * (at - 1)
        if byte < 0x80:
            break
    size, begin = value >> 1, at + 1 + len(_SPLIT_BLOCK_XXH64_PLAIN)
    whole = value % 2 == 0 and size > 0 and size % _BLOCK_BYTES == 0 and len(filter_) == begin + size
    return filter_[begin:] if whole and filter_[at + 1 : begin] == _SPLIT_BLOCK_XXH64_PLAIN else None


def may_contain(bits: bytes, hash_: int) -> bool:
    """Whether a value with this hash (``xxh64``) may be in the filter; False is certain."""
    begin = ((hash_ >> 32) * (len(bits) // _BLOCK_BYTES) >> 32) * _BLOCK_BYTES
    block = int.from_bytes(bits[begin : begin + _BLOCK_BYTES], "little")
    return all(block >> (32 * word + (((hash_ & _32) * salt & _32) >> 27)) & 1 for word, salt in enumerate(_SALTS))


def xxh64(content: bytes) -> int:
    """XXH64 with the seed 0, an unsigned number of 64 bits."""
    size = len(content)
    tail = size - size % 32
    if tail:
        lanes = [_P1 + _P2 & _64, _P2, 0, -_P1 & _64]
        for at in range(0, tail, 32):
            lanes = [_round(lane, word) for lane, word in zip(lanes, _words(content[at : at + 32], 8), strict=True)]
        hash_ = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _64
        for lane in lanes:
            hash_ = ((hash_ ^ _round(0, lane)) * _P1 + _P4) & _64
    else:
        hash_ = _P5
    hash_ = hash_ + size & _64
    eights = tail + (size - tail) // 8 * 8
    fours = eights + (size - eights) // 4 * 4
    for word in _words(content[tail:eights], 8):
        hash_ = (_rotated(hash_ ^ _round(0, word), 27) * _P1 + _P4) & _64
    for word in _words(content[eights:fours], 4):
        hash_ = (_rotated(hash_ ^ word * _P1 & _64, 23) * _P2 + _P3) & _64
    for byte in content[fours:]:
        hash_ = _rotated(hash_ ^ byte * _P5 & _64, 11) * _P1 & _64
    hash_ = (hash_ ^ hash_ >> 33) * _P2 & _64
    hash_ = (hash_ ^ hash_ >> 29) * _P3 & _64
    return hash_ ^ hash_ >> 32


def _words(content: bytes, size: int) -> Iterator[int]:
    return (int.from_bytes(content[at : at + size], "little") for at in range(0, len(content), size))


def _round(lane: int, word: int) -> int:
    return _rotated(lane + word * _P2 & _64, 31) * _P1 & _64


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _64
