"""Memory that a task shares with the process of its listener: the rows of a batch, and how far the calls have come.

Both are files in memory (``memfd_create``), so nothing stays on a disk and nothing needs a name. What the listener's process
writes is not trusted: the numbers are checked when they are read.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rmq_store.consumer.listener import Answer
from rmq_store.errors import ListenerError
from rmq_store.lake.listener.calls import Offsets, Rows, RowsToConsume
from rmq_store.message.message import MessageQueue

OFFSET_COLUMN: Final = "_offset_of_row"

# --- the board -------------------------------------------------------------------------------------------------------

MOST_ROWS: Final = 16_384
"""Of a request: one record batch (``SliceReader``)."""
_HEADER = struct.Struct("=qqq")
_ROWS_AT: Final = 64
_LOG_AT: Final = _ROWS_AT + 4 * MOST_ROWS
_LOG_BYTES: Final = 1 << 20
_ROOM: Final = 1 << 17
"""The answers of a call have at most a few different texts, each of at most 4 KiB; more room is left for them."""

BOARD_BYTES: Final = _LOG_AT + _LOG_BYTES


class BadBoard(Exception):
    """The listener's process has overwritten the board."""


class Board:
    """The answers of a request, which stay when the process that wrote them dies.

    For each row the number of its answer, 0 for acked; the texts of the answers; how many rows have an answer; and the number
    of the request, so that it is known whether it was begun.
    """

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, BOARD_BYTES)
        self._header = memoryview(self._memory)[: _HEADER.size].cast("q")
        self._rows = np.frombuffer(self._memory, np.uint32, MOST_ROWS, _ROWS_AT)
        self._numbers: dict[Answer, int] = {}

    # --- written by the listener's process ---

    def begin(self, request: int, begin: int, end: int) -> None:
        """A request for the rows ``[begin, end)``."""
        self._numbers.clear()
        self._rows[begin:end] = 0
        self._header[1] = begin
        self._header[2] = 0
        self._header[0] = request

    def add(self, rows: Rows, answers: Sequence[Answer]) -> None:
        """The answers of rows that failed. They count when ``judged`` says so."""
        if not len(rows):
            return
        same = len({id(answer) for answer in answers}) == 1
        numbers = self._number(answers[0]) if same else [self._number(answer) for answer in answers]
        self._rows[np.asarray(rows, dtype=np.int64)] = numbers

    def _number(self, answer: Answer) -> int:
        number = self._numbers.get(answer)
        if number is None:
            number = self._numbers[answer] = len(self._numbers) + 1
            fields = [answer.acked, answer.delay_level, answer.error_type, answer.error_text]
            line = json.dumps(fields, ensure_ascii=False).encode() + b"\n"
            begin = _LOG_AT + self._header[2]
            self._memory[begin : begin + len(line)] = line
            self._header[2] += len(line)
        return number

    def set_judged(self, end: int) -> None:
        """All rows before ``end`` have their answers."""
        self._header[1] = end

    @property
    def is_full(self) -> bool:
        """Whether the texts of another call might not fit."""
        return self._header[2] > _LOG_BYTES - _ROOM

    # --- read by the task ---

    @property
    def request(self) -> int:
        """The request that was begun last."""
        return self._header[0]

    @property
    def judged(self) -> int:
        """The end of the rows that have answers."""
        return self._header[1]

    def failures(self, begin: int, end: int, clean: Callable[[Answer], Answer]) -> tuple[Offsets, list[Answer]]:
        """The failed ones of the rows ``[begin, end)``, and their answers, each ``clean``. Raises BadBoard."""
        length = self._header[2]
        if not length:
            return NO_ROWS, []
        if not 0 <= length <= _LOG_BYTES:
            raise BadBoard
        numbers = self._rows[begin:end].copy()
        rows = np.flatnonzero(numbers)
        try:
            lines = self._memory[_LOG_AT : _LOG_AT + length].decode().splitlines()
            answers = [clean(_answer(json.loads(line))) for line in lines]
            return rows + begin, [answers[number - 1] for number in numbers[rows].tolist()]
        except (ValueError, TypeError, IndexError) as error:
            raise BadBoard from error


NO_ROWS: npt.NDArray[np.int64] = np.array([], dtype=np.int64)


def _answer(fields: object) -> Answer:
    match fields:
        case [bool(acked), int(level), str() | None as error_type, str() | None as error_text]:
            return Answer(acked, level, error_type, error_text)
    raise ValueError


# --- rows ------------------------------------------------------------------------------------------------------------

_LEAST_BYTES: Final = 1 << 20
_MOST_KEPT_BYTES: Final = 64 << 20
"""Larger memory is given back after its batch."""


def memory_file(name: str, size: int) -> int:
    """The descriptor of a file in memory. Raises ListenerError when the operating system refuses it: a limit of this process
    holds for such a file, too."""
    fd = -1
    try:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise ListenerError(
            f"{size:,} bytes of memory for the process of a listener are refused: {error.strerror}. Raise the limits of this "
            "process (ulimit -f: size of a file, ulimit -n: open files)"
        ) from error
    return fd


class SharedRows:
    """Memory that a task writes record batches to, one after the other."""

    def __init__(self) -> None:
        self.fd = -1
        self.size = 0
        """Bytes of the memory."""
        self.generation = 0
        """Grows with each new memory."""
        self._memory: mmap.mmap | None = None

    def write(self, rows: RowsToConsume) -> int:
        """Write the rows over those before, or to new memory if they do not fit. Returns how many bytes they take."""
        batch = rows.batch.append_column(OFFSET_COLUMN, pa.array(rows.offsets))
        most = pa.ipc.get_record_batch_size(batch) + batch.schema.serialize().size + 1024
        if most > self.size:
            self.close()
            self.size = max(_LEAST_BYTES, 1 << (most - 1).bit_length())
            self.generation += 1
            self.fd = memory_file("rmq-rows", self.size)
            self._memory = mmap.mmap(self.fd, self.size)
        with pa.FixedSizeBufferWriter(pa.py_buffer(self._memory)) as sink:
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            return int(sink.tell())

    def let_go(self, *, kept: bool) -> None:
        """After a batch. ``kept``: the listener has kept some of it, so that it must not be overwritten."""
        if kept or self.size > _MOST_KEPT_BYTES:
            self.close()

    def close(self) -> None:
        """Free the memory, if the listener's process does not need it."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self.size, self._memory = -1, 0, None


class MappedRows:
    """The memory of ``SharedRows`` in the listener's process, which may read it."""

    def __init__(self, fd: int, size: int) -> None:
        self._memory = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        os.close(fd)
        self._view: memoryview | None = None

    def read(self, size: int, queue: MessageQueue) -> RowsToConsume:
        """The rows in the first ``size`` bytes, without a copy."""
        self._view = memoryview(self._memory)[:size]
        with pa.ipc.open_stream(pa.py_buffer(self._view)) as reader:
            batch = reader.read_next_batch()
        offsets = batch.column(OFFSET_COLUMN).to_numpy()
        return RowsToConsume(queue, offsets, batch.drop_columns([OFFSET_COLUMN]))

    def is_kept(self) -> bool:
        """Whether something still refers to the rows that were read."""
        try:
            if self._view is not None:
                self._view.release()
        except BufferError:
            return True
        return False
