"""The commit log of a broker's store directory: its files, and its records in order (rules 1.7, 19.1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rmq_store.broker_files.file_source import FileSource
from rmq_store.broker_files.mapped_file_queue import MappedFile, MappedFileQueue, mapped_file_queue
from rmq_store.errors import BadData
from rmq_store.log.commit_log import Blank, Damage, FileEnd, NothingWritten, Stop, only_zeros, walk
from rmq_store.log.record import Record

FOLDER: Final = "commitlog"


def list_commit_log(source: FileSource, *, allow_missing: bool = False) -> MappedFileQueue:
    """The commit log's files, checked.

    :param allow_missing: whether files may be missing in the middle; they are reported then.
    :raises BadData: this is not a broker's store, or its files do not fit together.
    """
    listing = source.list(FOLDER)
    if not listing:
        raise BadData(
            f"{source} is not a broker's store: no files in {FOLDER}/ (it has: {', '.join(source.names()) or 'nothing'}). "
            "Give the folder that holds commitlog, consumequeue and config"
        )
    log = mapped_file_queue(FOLDER, listing)
    if not allow_missing:
        log.refuse_missing()
    if not log.files:
        raise BadData(f"{source}: its only file in {FOLDER}/ is empty. There is nothing to import yet")
    return log


def read_log(
    source: FileSource, log: MappedFileQueue, *, check_crc: bool = True
) -> Iterator[tuple[MappedFile, Record | Stop]]:
    """Every record of the log, file by file, and after each file the reason why its walk ended.

    The last item is the end of the log: RocketMQ's recovery would keep what lies before it. A hole is a file that ends
    early although a later one holds records; it is a :class:`Damage`.
    """
    for index, file in enumerate(log.files):
        data = source.read(file.name, 0, file.size_bytes)
        for item in walk(data, file.start_offset, file.end_offset, check_crc=check_crc):
            if isinstance(item, NothingWritten | Damage):
                yield file, _end_of_log(source, item, log.files[index + 1 :])
                return
            yield file, item
            if not isinstance(item, Record | Blank | FileEnd):
                raise BadData(
                    f"{file.name} is shorter than its listing: it changed while it was read. Import a copy that does not change"
                )


def _end_of_log(
    source: FileSource, item: NothingWritten | Damage, later: tuple[MappedFile, ...]
) -> NothingWritten | Damage:
    written = next((file.name for file in later if not only_zeros(source.read(file.name, 0, 8), 0)), None)
    if written is None:
        return item
    if isinstance(item, Damage):
        return replace(item, torn=False)
    return Damage(item.commit_log_offset, f"nothing is written here, but the log continues in {written}", 0, False)
