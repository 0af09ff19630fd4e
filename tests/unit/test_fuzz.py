"""Readers of what comes from outside, on good small inputs with some bytes changed: each answers, or raises one of the
project's own errors. A failure prints its seed; RMQ_FUZZ_SEED=n tries other changes, RMQ_FUZZ_CASES=n more of them.

``make fuzz`` makes the same changes to whole stores, settings, listeners and command lines (``tests/faults/fuzz``)."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pytest

from rmq_store.broker_files import config_files, offset_files
from rmq_store.broker_files.config_texts import parse_topic_line
from rmq_store.broker_files.consume_queue_file import list_consume_queues
from rmq_store.broker_files.local_offsets import local_offsets_text, parse_local_offsets
from rmq_store.broker_files.mapped_file_queue import mapped_file_queue
from rmq_store.cli.output import cell, to_json
from rmq_store.cli.views import _each_row
from rmq_store.commit.ctl import canonical_json
from rmq_store.errors import BadData, RmqError
from rmq_store.lake.broker.records import record_batches
from rmq_store.log.commit_log import Damage, walk
from rmq_store.log.consume_queue import FILLER, ConsumeQueueEntry
from rmq_store.log.record import Record, message_ext
from rmq_store.log.record_encoder import encode, new_record
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC
from rmq_store.settings.settings import load_settings
from tests.faults.fuzz.broker_files import CONFIGS
from tests.faults.fuzz.changes import changed

SEED = int(os.environ.get("RMQ_FUZZ_SEED", "20261122"))
CASES = int(os.environ.get("RMQ_FUZZ_CASES", "80"))
ENOUGH_S = 120
"""No reader takes that long for all of its cases, on any machine."""


# --- what is good -----------------------------------------------------------------------------------------------------


def records() -> bytes:
    data = b""
    for number, body in enumerate((b"body", b"", b"x" * 300)):
        record = new_record(
            topic=SCHEDULE_TOPIC if number == 2 else "T",
            queue_id=0,
            queue_offset=number,
            commit_log_offset=len(data),
            stored_body=body,
            properties={"KEYS": "k", "TAGS": "a", "DELAY": "3"},
            born_timestamp=1_700_000_000_000,
            store_timestamp=1_700_000_000_001,
            born_host="127.0.0.1|80" if number else "::1|80",
        )
        data += encode(record)
    return data.ljust(1000, b"\0")


LOCAL_OFFSETS = local_offsets_text({MessageQueue("T", "b", 0): 17, MessageQueue("T", "b", 1): 3}).encode()
SETTINGS = (Path(__file__).parents[2] / "demo" / "consumers.toml").read_bytes()
ENTRIES = b"".join([FILLER.encode(), *(ConsumeQueueEntry(100 * n, 90, n).encode() for n in range(1, 6))]).ljust(
    200, b"\0"
)


@dataclass(frozen=True, slots=True)
class Files:
    """A store in memory."""

    files: dict[str, bytes]

    def names(self) -> list[str]:
        return sorted(self.files)

    def list(self, prefix: str) -> list[tuple[str, int]]:
        return sorted((name, len(data)) for name, data in self.files.items() if name.startswith(f"{prefix}/"))

    def read(self, name: str, begin: int, end: int) -> bytes:
        if name not in self.files:
            raise BadData(f"no file {name}")
        return self.files[name][begin:end]

    def whole(self, name: str, most_bytes: int = 1 << 26) -> bytes | None:
        return self.files.get(name)


# --- the readers ------------------------------------------------------------------------------------------------------


def read_log(data: bytes) -> None:
    """The rule and the columns find the same, and a client's message can be made of each record."""
    *found, stop = walk(data, 0, len(data))
    *batches, in_columns = record_batches(data, 0, len(data), delay_levels={3: 1000})
    rows = sum(batch.num_rows for batch in batches if isinstance(batch, pa.RecordBatch))
    assert (rows, in_columns) == (len(found), stop) or (rows <= len(found) and isinstance(in_columns, Damage))
    for record in found:
        assert isinstance(record, Record)
        message_ext(record, "b")


def read_queue(data: bytes) -> None:
    for queue in list_consume_queues(Files({f"consumequeue/T/0/{400:020}": data})):
        queue.bounds(0, 10_000)
        queue.bounds(250, 400)


def read_names(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    files = Files({f"consumequeue/{name}": ENTRIES for name in text.split()})
    list_consume_queues(files)
    mapped_file_queue("consumequeue/T/0", files.list("consumequeue/T/0"))


def read_configs(name: str) -> Callable[[bytes], None]:
    """As an import does: what is read is said in the row of its commit."""

    def read(data: bytes) -> None:
        source = Files({f"config/{name}": data, f"config/{name}.bak": data})
        offsets = config_files.read_consumer_offsets(source).value
        list(offsets.commits())
        topics, groups = config_files.read_topics(source).value, config_files.read_subscription_groups(source).value
        canonical_json({key: asdict(value) for key, value in (topics | groups).items()})
        config_files.read_delay_offsets(source)
        config_files.read_consumer_filters(source)
        config_files.parse_forbidden_table(data.decode("utf-8", "replace"))

    return read


def read_local_offsets(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    local_offsets_text(parse_local_offsets(text))


def read_offsets_of(group: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        offset_files._offsets_of(data.decode("utf-8", "replace"), Path("a.json"), group, "b")

    return read


def read_topic_line(data: bytes) -> None:
    parse_topic_line(data.decode("utf-8", "replace"))


def read_settings(data: bytes) -> None:
    for group in load_settings(data.decode("utf-8", "replace"), "consumers.toml").groups:
        _ = group.consume_timestamp_ms, group.start_switches


READERS: dict[str, tuple[bytes, Callable[[bytes], None]]] = {
    "commit log": (records(), read_log),
    "consume queue": (ENTRIES, read_queue),
    "names of files": (f"T/0/{0:020} T/0/{400:020} T/0/{200:020} U/1/{0:020}".encode(), read_names),
    **{name: (good, read_configs(name)) for name, good in CONFIGS.items()},
    "offsets.json": (LOCAL_OFFSETS, read_local_offsets),
    "a file of offsets": (LOCAL_OFFSETS, read_offsets_of("g@c")),
    "a broker's file of offsets": (CONFIGS["consumerOffset.json"], read_offsets_of("g")),
    "a line of a topic": (b'T 8 8 6 SINGLE_TAG {"+message.type":"NORMAL"}', read_topic_line),
    "settings": (SETTINGS, read_settings),
}


@contextmanager
def ended_after(seconds: int) -> Iterator[None]:
    def too_long(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", READERS)
def test_a_reader_answers_or_says_what_is_wrong(name: str) -> None:
    good, read = READERS[name]
    read(good)
    with ended_after(ENOUGH_S):
        for case in range(CASES):
            data = changed(random.Random(f"{SEED} {name} {case}"), good)
            try:
                read(data)
            except RmqError:
                pass
            except BaseException as error:
                raise AssertionError(f"RMQ_FUZZ_SEED={SEED}, {name}, case {case}: {data[:2000]!r}") from error


# --- what SQL answers -------------------------------------------------------------------------------------------------

INTS: dict[pa.DataType, int] = {
    pa.date32(): 32,
    pa.timestamp("s"): 43,
    pa.timestamp("ms"): 53,
    pa.timestamp("us"): 63,
    pa.timestamp("us", "UTC"): 63,
    pa.timestamp("ns"): 63,
    pa.int64(): 63,
}
"""Types of DuckDB's answers that are made of a number: how many bits it has, without the sign."""


def values_of(chance: random.Random) -> pa.Array:
    """Three values of a type that DuckDB answers with."""
    some, edge = chance.choices([0, 1, -1, 2**31 - 1, -(2**31), 7], k=3), chance.choice([1, -1])
    match chance.randrange(6):
        case 0:
            return pa.array([(months, 5, -7_000) for months in some], pa.month_day_nano_interval())
        case 1:
            return pa.array(["".join(chance.choices("a\0\x1b\u202e\U0001f407,\"'\n", k=5)) for _ in some])
        case 2:
            return pa.array([chance.randbytes(4) for _ in some])
        case 3:
            return pa.array([float("nan"), float("-inf"), 1e308])
        case 4:
            return pa.array([Decimal(10) ** 30, Decimal("-0.5"), None], pa.decimal128(38, 1))
        case _:
            type_, bits = chance.choice(list(INTS.items()))
            most = edge * (2 ** min(bits, type_.bit_width - 1) - 1)
            return (
                pa.array([most, chance.randint(0, 2**31), None], pa.int64()).cast(f"int{type_.bit_width}").view(type_)
            )


def nested(chance: random.Random, values: pa.Array) -> pa.Array:
    match chance.randrange(4):
        case 0:
            return pa.ListArray.from_arrays(pa.array([0, 1, 1, 3], pa.int32()), values)
        case 1:
            return pa.StructArray.from_arrays([values, values], names=["a", "b"])
        case 2:
            return pa.MapArray.from_arrays(pa.array([0, 1, 1, 3], pa.int32()), pa.array(["k", "l", "m"]), values)
        case _:
            return values


def test_every_value_of_an_answer_is_printed() -> None:
    with ended_after(ENOUGH_S):
        for case in range(CASES // 4):  # each opens a DuckDB
            chance = random.Random(f"{SEED} answer {case}")
            columns = {name: nested(chance, values_of(chance)) for name in "ab"}
            try:
                for row in _each_row(pa.table(columns)):
                    to_json(row).encode()
                    assert all(isinstance(cell(value), str) for value in row.values())
            except BaseException as error:
                raise AssertionError(f"RMQ_FUZZ_SEED={SEED}, answer {case}: {columns}") from error
