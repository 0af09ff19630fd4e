"""A folder of files that together are one long sequence of bytes (``MappedFileQueue``): commit log, consume queues.

- a file's name is the offset of its first byte, 20 digits; all files of a folder have one size
- the files follow one another without a gap; retention removes only whole files, at the beginning
- an empty last file is left over when a broker is killed while it creates it; it is ignored, as RocketMQ does
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rmq_store.errors import BadData

_NAME: Final = re.compile(r"[0-9]{20}")
_LONG_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class MappedFile:
    """One file: its name in the source and the half-open range of offsets it holds."""

    name: str
    start_offset: int
    size_bytes: int

    @property
    def end_offset(self) -> int:
        """Where the next file begins."""
        return self.start_offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """A gap between two files: the names of the first and of the last file that are missing there, their number, and the
    offset at which the files go on."""

    first: str
    last: str
    count: int
    end_offset: int

    def __str__(self) -> str:
        return self.first if self.count == 1 else f"{self.first} to {self.last} ({self.count} files)"


@dataclass(frozen=True, slots=True)
class MappedFileQueue:
    """The files of one folder in order. ``missing``: the gaps between them."""

    files: tuple[MappedFile, ...]
    missing: tuple[MissingFiles, ...] = ()

    def file_at(self, offset: int) -> MappedFile:
        """The file that holds an offset (``findMappedFileByOffset``). Raises BadData when there is none."""
        file = next((file for file in self.files if file.start_offset <= offset < file.end_offset), None)
        if file is None:
            raise BadData(f"no file holds offset {offset}")
        return file

    def refuse_missing(self, begin: int = 0, *, advice: str = "Restore them") -> None:
        """Raises BadData where a file is missing that would have offsets from ``begin`` on."""
        gaps = [gap for gap in self.missing if gap.end_offset > begin]
        if gaps:
            folder = self.files[0].name.rpartition("/")[0]
            raise BadData(
                f"files are missing in the middle of {folder}: {', '.join(map(str, gaps[:5]))}"
                f"{', ...' if len(gaps) > 5 else ''}. {advice}"
            )


def mapped_file_queue(
    folder: str, listing: Sequence[tuple[str, int]], *, advice: str = "Copy the store again"
) -> MappedFileQueue:
    """Check the files of a folder. Missing middle files are reported; RocketMQ starts with them too.

    :param listing: name and size of every file below the folder.
    :param advice: what to do about files that do not fit together, a sentence without its full stop.
    :raises BadData: foreign names, different sizes (there RocketMQ's load answers false), or offsets beyond Java's long.
    """
    files = [_mapped_file(folder, name, size) for name, size in sorted(listing)]
    if files and files[-1].size_bytes == 0:
        files.pop()
    if empty := next((file.name for file in files if not file.size_bytes), None):
        raise BadData(f"{empty} is empty, and more files follow it: it was cut, or the copy is incomplete. {advice}")
    sizes = sorted({file.size_bytes for file in files})
    if len(sizes) > 1:
        listed = ", ".join(f"{file.name}: {file.size_bytes}" for file in files)
        raise BadData(
            f"the files of {folder} differ in size (bytes: {listed}). One was cut, or its copy is incomplete. {advice}"
        )
    return MappedFileQueue(tuple(files), tuple(_missing(folder, files, advice)))


def _mapped_file(folder: str, name: str, size: int) -> MappedFile:
    stem = name.removeprefix(f"{folder}/")
    if not _NAME.fullmatch(stem):
        raise BadData(
            f"{name} does not belong in {folder}, whose file names are 20 digits. Import a copy of the store without it"
        )
    if int(stem) + size > _LONG_MAX:
        raise BadData(f"{name} cannot be a file of a broker: its offsets do not fit into 64 bits. Check its name")
    return MappedFile(name, int(stem), size)


def _missing(folder: str, files: Sequence[MappedFile], advice: str) -> Iterator[MissingFiles]:
    for before, after in pairwise(files):
        count, rest = divmod(after.start_offset - before.end_offset, before.size_bytes)
        if count < 0 or rest:
            raise BadData(f"{before.name} of {before.size_bytes} bytes and {after.name} do not fit together. {advice}")
        if count:
            last = after.start_offset - before.size_bytes
            yield MissingFiles(f"{folder}/{before.end_offset:020}", f"{folder}/{last:020}", count, after.start_offset)
