"""SYSFLAG bits of a message (``MessageSysFlag``, rules 1.3), and its body with the CRC (``UtilAll#crc32``, rules
1.6)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from rmq_store.errors import BadData, BodyTooLarge

MAX_BODY_BYTES: Final = 64 << 20
"""Default limit of a decompressed body. RocketMQ limits only the stored size (4 MiB)."""

MOST_BODY_BYTES: Final = 1 << 30
"""The highest such limit: the bodies of several messages together must fit into a column of 2 GiB."""

Decompressor = Callable[[bytes, int], bytes]
"""From stored bytes to at most so many plain bytes. To see whether there are more, ask for one more."""


class CompressionType(Enum):
    """The value is the code in bits 8 to 10. Code 0 means ZLIB too: old producers wrote no code."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


Decompressors = Mapping[CompressionType, Decompressor]


def inflate(stored_body: bytes, most: int) -> bytes:
    """The :data:`Decompressor` of ZLIB. Raises zlib.error."""
    stream = zlib.decompressobj()
    plain = stream.decompress(stored_body, most)
    if len(plain) < most and not stream.eof:
        raise zlib.error("incomplete or truncated stream")
    return plain


# The standard library has ZLIB only; LZ4 (frame format) and ZSTD come from the caller.
ZLIB_ONLY: Final[Decompressors] = {CompressionType.ZLIB: inflate}


class MessageSysFlag:
    """The bits, and functions over them, of RocketMQ's class of that name."""

    COMPRESSED_FLAG: Final = 0x1
    MULTI_TAGS_FLAG: Final = 0x2
    TRANSACTION_NOT_TYPE: Final = 0x0
    TRANSACTION_PREPARED_TYPE: Final = 0x4
    TRANSACTION_COMMIT_TYPE: Final = 0x8
    TRANSACTION_ROLLBACK_TYPE: Final = 0xC
    BORNHOST_V6_FLAG: Final = 0x10
    STOREHOSTADDRESS_V6_FLAG: Final = 0x20
    NEED_UNWRAP_FLAG: Final = 0x40
    INNER_BATCH_FLAG: Final = 0x80
    COMPRESSION_TYPE_SHIFT: Final = 8
    COMPRESSION_TYPE_MASK: Final = 0x700

    @staticmethod
    def transaction_type(sys_flag: int) -> int:
        """One of the four ``TRANSACTION_`` values."""
        return sys_flag & MessageSysFlag.TRANSACTION_ROLLBACK_TYPE

    @staticmethod
    def clear_compressed(sys_flag: int) -> int:
        """The flag of a decompressed body; the code of the compression type stays, as in RocketMQ."""
        return sys_flag & ~MessageSysFlag.COMPRESSED_FLAG

    @staticmethod
    def compression_type(sys_flag: int) -> CompressionType:
        """The compression type in bits 8 to 10, whether the body is compressed or not.

        :raises BadData: codes 4 to 7, for which RocketMQ throws too.
        """
        code = (sys_flag & MessageSysFlag.COMPRESSION_TYPE_MASK) >> MessageSysFlag.COMPRESSION_TYPE_SHIFT
        if code > 3:
            raise BadData(f"sysFlag {sys_flag} has compression type {code}; known are 0 to 3")
        return CompressionType(code or CompressionType.ZLIB.value)


def body_crc(stored_body: bytes | bytearray | memoryview | None) -> int:
    """BODYCRC of the stored bytes: CRC-32 without its sign bit; 0 for no body (``UtilAll#crc32``)."""
    return zlib.crc32(stored_body) & 0x7FFFFFFF if stored_body else 0


def plain_body(
    stored_body: bytes,
    sys_flag: int,
    decompressors: Decompressors = ZLIB_ONLY,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> bytes | None:
    """The payload of stored bytes; None when BODYLEN is 0, b"" when it decompresses to nothing.

    :param max_body_bytes: limit of a decompressed body, at least 1.
    :raises BadData: unknown compression type, no decompressor for it, or bytes that do not decompress.
    :raises BodyTooLarge: the body is larger than the limit; decompression stopped there.
    """
    if not stored_body:
        return None
    if not sys_flag & MessageSysFlag.COMPRESSED_FLAG:
        return stored_body
    compression = MessageSysFlag.compression_type(sys_flag)
    decompress = decompressors.get(compression)
    if decompress is None:
        raise BadData(f"a body is compressed with {compression.name}, for which there is no decompressor")
    try:
        plain = decompress(stored_body, max_body_bytes + 1)
    except MemoryError:
        raise
    except Exception as error:  # each library raises its own kind
        raise BadData(f"body of {len(stored_body)} bytes does not decompress as {compression.name}: {error}") from error
    if len(plain) > max_body_bytes:
        raise BodyTooLarge(
            f"body of {len(stored_body):,} bytes is larger than {max_body_bytes:,} bytes when it is decompressed"
        )
    return plain
