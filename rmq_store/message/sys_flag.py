"""SYSFLAG bits of a message (``MessageSysFlag``, rules 1.3), and its body with the CRC (``UtilAll#crc32``, rules 1.6)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from rmq_store.errors import BadData, BodyTooLarge

MAX_BODY_BYTES: Final = 64 << 20
"""How large a body may be when it is decompressed, unless told otherwise. RocketMQ limits the stored size only (4 MiB)."""

MOST_BODY_BYTES: Final = 1 << 30
"""The highest such limit: the bodies of some messages together have to fit into a column of 2 GiB."""

Decompressor = Callable[[bytes, int], bytes]
"""The plain bytes of stored ones, and no more than so many of them: a caller that wants to know whether there are more
asks for one more."""


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
    """Bits and questions of ``MessageSysFlag``."""

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
        """The flag of a body that has been decompressed; the type's code stays, as in RocketMQ."""
        return sys_flag & ~MessageSysFlag.COMPRESSED_FLAG

    @staticmethod
    def compression_type(sys_flag: int) -> CompressionType:
        """The type whose code the flag carries, compressed or not.

        :raises BadData: codes 4 to 7, which RocketMQ does not know either.
        """
        code = (sys_flag & MessageSysFlag.COMPRESSION_TYPE_MASK) >> MessageSysFlag.COMPRESSION_TYPE_SHIFT
        if code > 3:
            raise BadData(f"sysFlag {sys_flag} carries compression type {code}; known are 0 to 3")
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
    """The payload behind the stored bytes; None when BODYLEN is 0, b"" when it decompresses to nothing.

    :param max_body_bytes: how large a compressed body may become, at least 1.
    :raises BadData: unknown compression type, no decompressor for it, or bytes that it cannot read.
    :raises BodyTooLarge: it would become larger; no more than that was decompressed.
    """
    if not stored_body:
        return None
    if not sys_flag & MessageSysFlag.COMPRESSED_FLAG:
        return stored_body
    compression = MessageSysFlag.compression_type(sys_flag)
    decompress = decompressors.get(compression)
    if decompress is None:
        raise BadData(f"a body is compressed with {compression.name} and no decompressor for it was given")
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
