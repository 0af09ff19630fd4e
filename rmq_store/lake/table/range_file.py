"""An object of a known size, as a file that pyarrow reads."""

from __future__ import annotations

import io
from collections.abc import Callable


class RangeFile(io.RawIOBase):
    """Each read is one call of ``read_range(begin, end)``, for the bytes ``[begin, end)``; a read within ``tail``, the last
    bytes of the object, is none."""

    def __init__(self, read_range: Callable[[int, int], bytes], size: int, tail: bytes = b"") -> None:
        super().__init__()
        self._read_range = read_range
        self._size = size
        self._tail = tail
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        begin, end = self._at, self._size if size < 0 else min(self._at + size, self._size)
        if begin >= end:
            return b""
        in_tail = begin - (self._size - len(self._tail))
        content = self._tail[in_tail : in_tail + end - begin] if in_tail >= 0 else self._read_range(begin, end)
        self._at += len(content)
        return content
