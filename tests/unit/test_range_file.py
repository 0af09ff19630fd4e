"""An object as a file that pyarrow reads: which ranges are read, and what becomes of an error."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmq_store.errors import RmqError, StoreUnusable
from rmq_store.lake.table.range_file import RangeFile

CONTENT = bytes(range(100))


@pytest.fixture
def ranges() -> list[tuple[int, int]]:
    return []


def opened(ranges: list[tuple[int, int]], tail: bytes = b"") -> RangeFile:
    def read_range(begin: int, end: int) -> bytes:
        ranges.append((begin, end))
        return CONTENT[begin:end]

    return RangeFile(read_range, len(CONTENT), tail)


def test_each_read_is_one_range_and_none_is_empty_or_beyond_the_end(ranges: list[tuple[int, int]]) -> None:
    file = opened(ranges)
    assert (file.read(3), file.tell(), file.read(0)) == (CONTENT[:3], 3, b"")
    assert (file.seek(-5, io.SEEK_END), file.read(50), file.read(1)) == (95, CONTENT[95:], b"")
    assert (file.seek(10), file.seek(2, io.SEEK_CUR), file.read()) == (10, 12, CONTENT[12:])
    assert ranges == [(0, 3), (95, 100), (12, 100)]


def test_a_read_within_the_tail_needs_no_range(ranges: list[tuple[int, int]]) -> None:
    file = opened(ranges, tail=CONTENT[80:])
    for begin, size, expected in ((80, 20, []), (85, 3, []), (79, 2, [(79, 81)])):
        file.seek(begin)
        assert file.read(size) == CONTENT[begin : begin + size]
        assert ranges == expected


@pytest.mark.parametrize("error", [StoreUnusable("S3 does not answer"), FileNotFoundError("it is not there")])
@pytest.mark.parametrize("pre_buffer", [False, True])
def test_an_error_of_the_store_arrives_as_it_is(error: RmqError | FileNotFoundError, pre_buffer: bool) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": list(range(1000))}), sink)
    content = sink.getvalue().to_pybytes()

    def read_range(begin: int, end: int) -> bytes:
        raise error

    source = pa.PythonFile(RangeFile(read_range, len(content), tail=content[-500:]), mode="r")
    with pytest.raises(type(error), match=str(error)):
        pq.ParquetFile(source, pre_buffer=pre_buffer).read(use_threads=False)
