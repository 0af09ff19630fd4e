"""A broker's store directory to import: commit log and consume queue files with the same messages in every run.

One record is made by ``record.encode``; all others are copies of its bytes in which the fields that differ are
replaced, column by column. All records have the same size, so their positions are known.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rmq_store.lake.broker.record_columns import HEAD
from rmq_store.log.consume_queue import UNIT_BYTES
from rmq_store.log.record import BLANK_MAGIC
from rmq_store.log.record_encoder import encode, new_record
from rmq_store.message.properties import tags_code
from rmq_store.message.sys_flag import body_crc

TOPIC = "Orders"
QUEUES = 8
RECORD_BYTES = 366
FIRST_STORE_TIMESTAMP = 1_732_089_600_000  # 2024-11-20T08:00Z
MESSAGES_A_MS = 16  # so neighbours in a queue share their store time
_SEED = 366
_PRODUCERS = 16
_BLANK_BYTES = 8
_QUEUE_FILE_ENTRIES = 300_000
_BATCH_ROWS = 1 << 18

_TAGS = ("TagA", "TagB", "TagC", "TagD")
_STATES = np.array([b"open", b"paid", b"sent", b"done"], dtype="S4")
_UNIQUE_KEY_START = "7F0000012A9F18B4AAC2"
_WORD_BYTES = 8

# A field that differs is in the template as a text that occurs once.
_ORDER, _CUSTOMER, _AMOUNT, _STATE, _NOTE = "#ORDER####", "#BUYER##", "#AMT.00", "#ST#", "#NOTE"
_KEYS, _UNIQUE_KEY, _TAG = "#KEYS#####", "#UNIQUE##KEY", "#TAG"


def _template() -> bytes:
    """A record of RECORD_BYTES with the properties that a client of RocketMQ 5 sends."""
    properties = {
        "KEYS": _KEYS,
        "UNIQ_KEY": _UNIQUE_KEY_START + _UNIQUE_KEY,
        "CLUSTER": "DefaultCluster",
        "WAIT": "true",
        "TAGS": _TAG,
    }

    def record(note: str) -> bytes:
        body = f'{{"order":{_ORDER},"customer":"{_CUSTOMER}","amount":{_AMOUNT},"state":"{_STATE}","note":"{note}"}}'.encode()
        return encode(
            new_record(
                topic=TOPIC,
                queue_id=0,
                queue_offset=0,
                commit_log_offset=0,
                stored_body=body,
                properties=properties,
                born_timestamp=0,
                store_timestamp=0,
                born_host="10.0.0.7|50312",
                store_host="10.0.0.1|10911",
            )
        )

    return record(_NOTE.ljust(len(_NOTE) + RECORD_BYTES - len(record(_NOTE)), "-"))


_TEMPLATE = _template()
_BODY_BEGIN = HEAD.itemsize
_BODY_END = _TEMPLATE.index(b'-"}') + 3


def _layout() -> np.dtype[np.void]:
    """A record as a structured type over its bytes: the numbers of its head, and the texts that differ."""
    heads = ("body_crc", "queue_id", "queue_offset", "commit_log_offset", "born_timestamp", "store_timestamp")
    fields = {name: (HEAD[name], HEAD.fields[name][1]) for name in heads}  # type: ignore[index]
    for mark in (_ORDER, _CUSTOMER, _AMOUNT, _STATE, _KEYS, _UNIQUE_KEY, _TAG):
        fields[mark] = (np.dtype(f"S{len(mark)}"), _TEMPLATE.index(mark.encode()))
    note = _TEMPLATE.index(_NOTE.encode())
    fields[_NOTE] = (np.dtype(f"S{_BODY_END - 2 - note}"), note)
    return np.dtype(
        {
            "names": list(fields),
            "formats": [kind for kind, _ in fields.values()],
            "offsets": [at for _, at in fields.values()],
            "itemsize": RECORD_BYTES,
        }
    )


_LAYOUT = _layout()


def queue_ends(messages: int) -> list[int]:
    """The number of messages in each queue of a log of ``messages`` messages."""
    return [(messages - queue_id + QUEUES - 1) // QUEUES for queue_id in range(QUEUES)]


@dataclass(frozen=True, slots=True)
class BrokerLog:
    """The files of a broker. Message ``i`` is in queue ``i % QUEUES``."""

    messages: int
    file_bytes: int
    """The size of a commit log file."""

    @property
    def per_file(self) -> int:
        return (self.file_bytes - _BLANK_BYTES) // RECORD_BYTES

    @property
    def stored_bytes(self) -> int:
        """The bytes that a reader reads: whole files, and the last one up to its last record."""
        full, last_records = divmod(self.messages, self.per_file)
        return full * self.file_bytes + last_records * RECORD_BYTES

    def commit_log_offsets(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The commit log offsets of the messages with these numbers."""
        return numbers // self.per_file * self.file_bytes + numbers % self.per_file * RECORD_BYTES

    def write(self, folder: Path) -> None:
        """Write the directories ``commitlog`` and ``consumequeue``."""
        (folder / "commitlog").mkdir(parents=True)
        tags = np.concatenate([self._write_file(folder, begin) for begin in range(0, self.messages, self.per_file)])
        codes = np.array([tags_code(tag) for tag in _TAGS], dtype=np.int64)
        for queue_id in range(QUEUES):
            self._write_queue(folder, queue_id, codes[tags[queue_id::QUEUES]])

    def _write_file(self, folder: Path, first: int) -> npt.NDArray[np.uint8]:
        """Write the file that begins with message ``first``; returns the tag index of each of its messages."""
        last = min(first + self.per_file, self.messages)
        rng = np.random.default_rng([_SEED, first])
        tags = rng.integers(0, len(_TAGS), last - first, dtype=np.uint8)
        start = first // self.per_file * self.file_bytes
        with (folder / "commitlog" / f"{start:020}").open("wb") as file:
            for begin, end in pairwise([*range(first, last, _BATCH_ROWS), last]):
                file.write(self._records(np.arange(begin, end), tags[begin - first : end - first], rng).data)
            if last - first == self.per_file:
                blank = self.file_bytes - file.tell()
                file.write(blank.to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big", signed=True))
            file.truncate(self.file_bytes)
        return tags

    def _records(
        self, numbers: npt.NDArray[np.int64], tags: npt.NDArray[np.uint8], rng: np.random.Generator
    ) -> npt.NDArray[np.uint8]:
        n = len(numbers)
        chars = np.tile(np.frombuffer(_TEMPLATE, dtype=np.uint8), (n, 1))
        records = chars.view(_LAYOUT)[:, 0]
        records["queue_id"] = numbers % QUEUES
        records["queue_offset"] = numbers // QUEUES
        records["commit_log_offset"] = self.commit_log_offsets(numbers)
        records["store_timestamp"] = store_timestamps(numbers)
        records["born_timestamp"] = records["store_timestamp"] - 1
        records[_ORDER] = records[_KEYS] = _orders(numbers)
        records[_CUSTOMER] = _digits(rng.integers(10_000_000, 10_200_000, n), 8)
        cents = chars[:, _TEMPLATE.index(_AMOUNT.encode()) :][:, : len(_AMOUNT)]
        cents[:] = _digits(rng.integers(1_000_000, 9_999_999, n), 7).view(np.uint8).reshape(n, 7)
        cents[:, 4] = ord(".")
        records[_STATE] = _STATES[rng.integers(0, len(_STATES), n)]
        records[_UNIQUE_KEY] = _unique_digits(numbers)
        records[_TAG] = np.array(_TAGS, dtype="S4")[tags]
        records[_NOTE] = _notes(rng, n, _LAYOUT[_NOTE].itemsize)
        bodies = np.ascontiguousarray(chars[:, _BODY_BEGIN:_BODY_END]).reshape(-1).data
        size = _BODY_END - _BODY_BEGIN
        records["body_crc"] = [body_crc(bodies[at : at + size]) for at in range(0, n * size, size)]
        return chars

    def _write_queue(self, folder: Path, queue_id: int, codes: npt.NDArray[np.int64]) -> None:
        path = folder / "consumequeue" / TOPIC / str(queue_id)
        path.mkdir(parents=True)
        entries = np.zeros(len(codes), dtype=[("offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
        entries["offset"] = self.commit_log_offsets(np.arange(queue_id, self.messages, QUEUES))
        entries["size"], entries["code"] = RECORD_BYTES, codes
        for begin in range(0, len(codes), _QUEUE_FILE_ENTRIES):
            with (path / f"{begin * UNIT_BYTES:020}").open("wb") as file:
                file.write(entries[begin : begin + _QUEUE_FILE_ENTRIES].tobytes())
                file.truncate(_QUEUE_FILE_ENTRIES * UNIT_BYTES)

    def sums(self) -> dict[str, int]:
        """The sums of the imported rows, by column."""
        numbers = np.arange(self.messages)
        return {
            "queue_offset": int((numbers // QUEUES).sum()),
            "commit_log_offset": int(self.commit_log_offsets(numbers).sum()),
            "store_timestamp": int(store_timestamps(numbers).sum()),
            "store_size": self.messages * RECORD_BYTES,
        }


def store_timestamps(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return FIRST_STORE_TIMESTAMP + numbers // MESSAGES_A_MS


def keys(numbers: npt.NDArray[np.int64]) -> list[str]:
    """The KEYS of the messages with these numbers."""
    return [digits.decode() for digits in _orders(numbers).tolist()]


def _orders(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bytes_]:
    return _digits(numbers + 1_000_000_000, len(_KEYS))


def unique_keys(numbers: npt.NDArray[np.int64]) -> list[str]:
    """The unique keys of the messages with these numbers."""
    return [_UNIQUE_KEY_START + digits.decode() for digits in _unique_digits(numbers).tolist()]


def _unique_digits(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bytes_]:
    """Those of many producers that send to each queue in turn, so the bounds of a file's unique keys rule out none."""
    return _digits(numbers // QUEUES % _PRODUCERS * 10**10 + numbers, len(_UNIQUE_KEY))


def _digits(numbers: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.bytes_]:
    """Decimal texts, padded with zeros to ``width``."""
    chars = (numbers[:, None] // 10 ** np.arange(width - 1, -1, -1) % 10 + ord("0")).astype(np.uint8)
    return chars.view(f"S{width}")[:, 0]


def _words() -> Iterator[bytes]:
    """A small language: enough words that texts do not repeat, few enough that they compress as texts do."""
    letters = np.frombuffer(string.ascii_lowercase.encode(), dtype=np.uint8)
    rng = np.random.default_rng(_SEED)
    for _ in range(1024):
        yield rng.choice(letters, _WORD_BYTES - 1).tobytes() + b" "


_WORDS = np.array(list(_words()), dtype=f"S{_WORD_BYTES}")


def _notes(rng: np.random.Generator, n: int, size: int) -> npt.NDArray[np.bytes_]:
    many = -(-size // _WORD_BYTES)
    chars = _WORDS[rng.integers(0, len(_WORDS), (n, many))].view(np.uint8).reshape(n, many * _WORD_BYTES)
    return np.ascontiguousarray(chars[:, :size]).view(f"S{size}")[:, 0]
