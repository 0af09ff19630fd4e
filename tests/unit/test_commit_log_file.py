"""Walking commit logs that are made here; those of real stores are walked by tests/conformance."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import RecordBatch

from rmq_store.broker_files.commit_log_file import list_commit_log, read_log
from rmq_store.broker_files.consume_queue_file import list_consume_queues
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.broker_files.mapped_file_queue import MissingFiles, mapped_file_queue
from rmq_store.errors import BadData, WrongUse
from rmq_store.lake.broker.records import record_batches
from rmq_store.log.commit_log import Blank, Damage, FileEnd, MoreBytes, NothingWritten, walk
from rmq_store.log.record import Record
from rmq_store.log.record_encoder import encode, new_record

Extract = Callable[[str], Path]


# ------------------------------------------------------------------ the walk itself, on files made here

FILE_BYTES = 1000


def a_record(commit_log_offset: int, body: bytes = b"body") -> Record:
    return new_record(
        topic="T",
        queue_id=0,
        queue_offset=0,
        commit_log_offset=commit_log_offset,
        stored_body=body,
        properties={"k": "v"},
        born_timestamp=1,
        store_timestamp=2,
    )


def file_of(start_offset: int, count: int) -> tuple[bytes, list[Record]]:
    """A file of 1000 bytes with some records, the rest zero."""
    data, records = b"", []
    for _ in range(count):
        records.append(a_record(start_offset + len(data)))
        data += encode(records[-1])
    return data.ljust(FILE_BYTES, b"\0"), records


def test_a_slice_that_ends_inside_a_record_asks_for_the_rest_and_the_walk_goes_on_from_there() -> None:
    data, records = file_of(5000, 3)
    size = records[0].store_size
    for cut in range(len(data)):
        *seen, stop = walk(data[:cut], 5000, 6000)
        assert seen == records[: cut // size]
        if cut >= 3 * size + 8:
            assert stop == NothingWritten(5000 + 3 * size)
        else:
            assert isinstance(stop, MoreBytes)
            assert stop.commit_log_offset == 5000 + size * len(seen)
            begin = stop.commit_log_offset - 5000
            assert [*seen, *walk(data[begin:], 5000 + begin, 6000)][:-1] == records


def test_the_rest_of_a_file_behind_its_marker_is_skipped_whatever_it_holds() -> None:
    data, records = file_of(0, 2)
    end = 2 * records[0].store_size
    marked = data[:end] + (FILE_BYTES - end).to_bytes(4, "big") + bytes.fromhex("CBD43194") + b"\xff" * (1000 - end - 8)
    assert list(walk(marked, 0, FILE_BYTES)) == [*records, Blank(end, FILE_BYTES - end, FILE_BYTES - end)]


@pytest.mark.parametrize("marked_size", [-1, 0x7F, 5, 8])
def test_a_marker_that_does_not_say_what_is_left_is_damage_where_more_was_written(marked_size: int) -> None:
    data, records = file_of(0, 2)
    end = 2 * records[0].store_size
    marker = marked_size.to_bytes(4, "big", signed=True) + bytes.fromhex("CBD43194")
    bare = (data[:end] + marker).ljust(FILE_BYTES, b"\0")
    assert list(walk(bare, 0, FILE_BYTES)) == [*records, Blank(end, marked_size, FILE_BYTES - end)]
    assert list(walk(bare[:-10], 0, FILE_BYTES)) == [*records, MoreBytes(end, FILE_BYTES - end)]
    *seen, stop = walk(bare[:-1] + b"x", 0, FILE_BYTES)
    assert seen == records
    assert isinstance(stop, Damage)
    assert (stop.commit_log_offset, stop.torn) == (end, False)
    assert f"marker says that {marked_size} bytes are left, but {FILE_BYTES - end} are" in stop.reason


def test_a_file_that_is_full_to_the_last_byte_ends_there() -> None:
    record = a_record(700)
    assert list(walk(encode(record), 700, 700 + record.store_size)) == [record, FileEnd(700 + record.store_size)]


def test_damage_says_where_why_and_how_long_the_record_claims_to_be() -> None:
    data, records = file_of(5000, 3)
    size = records[0].store_size
    broken = bytearray(data)
    broken[size + 90] ^= 1
    *seen, stop = walk(broken, 5000, 6000)
    assert seen == records[:1]
    assert isinstance(stop, Damage)
    assert (stop.commit_log_offset, stop.size, stop.torn) == (5000 + size, size, False)
    assert stop.reason.startswith(f"BODYCRC is {records[1].body_crc}, the CRC of the stored body is")
    assert list(walk(broken, 5000, 6000, check_crc=False))[2] == records[2]


def test_the_last_record_is_called_torn_when_nothing_follows_it() -> None:
    data, records = file_of(5000, 3)
    size = records[0].store_size
    torn = data[: 2 * size + 80].ljust(FILE_BYTES, b"\0")
    *seen, stop = walk(torn, 5000, 6000)
    assert seen == records[:2]
    assert isinstance(stop, Damage)
    assert (stop.commit_log_offset, stop.size, stop.torn) == (5000 + 2 * size, size, True)


def test_a_last_record_that_ends_in_a_zero_is_torn_until_something_follows() -> None:
    """Its check passes: no checksum covers its properties, of which the last byte is not written."""
    data, records = file_of(5000, 3)
    size = records[0].store_size
    cut = records[1].properties_text[:-1] + "\0"
    for torn in (data[: 2 * size - 1].ljust(FILE_BYTES, b"\0"), data[: 2 * size - 1] + bytes(9)):
        *seen, stop = walk(torn, 5000, 6000)
        assert seen == records[:1]
        assert isinstance(stop, Damage)
        assert (stop.commit_log_offset, stop.size, stop.torn) == (5000 + size, size, True)
    followed = data[: 2 * size - 1] + b"\0" + data[2 * size :]
    assert list(walk(followed, 5000, 6000))[1] == replace(records[1], properties_text=cut)


@pytest.mark.parametrize("behind", range(8))
def test_a_record_that_ends_in_a_zero_is_whole_or_torn_only_when_what_follows_it_was_read(behind: int) -> None:
    """A chunk may end right behind it, and then the chunk does not tell."""
    data, records = file_of(5000, 3)
    end = 2 * records[0].store_size
    for followed in (False, True):
        log = data[: end - 1] + b"\0" + (data[end:] if followed else bytes(FILE_BYTES - end))
        part = log[: end + behind]
        size = records[0].store_size
        if followed and behind >= 4:  # its TOTALSIZE is there
            assert [type(item) for item in walk(part, 5000, 6000)] == [Record, Record, MoreBytes]
        else:
            assert list(walk(part, 5000, 6000)) == [records[0], MoreBytes(5000 + size, size + 8)]
        items = list(walk(log[: end + 8], 5000, 6000))
        assert isinstance(items[1], Record if followed else Damage)


def with_zeros(data: bytes, begin: int, end: int) -> bytes:
    return data[:begin] + bytes(end - begin) + data[end:]


PARTS = {
    "topic": lambda size: (size - len("T..k.v."), size - len("..k.v.")),
    "first property": lambda size: (size - len("k.v."), size - len("v.")),
    "all properties": lambda size: (size - len("k.v."), size),
    "last byte": lambda size: (size - 1, size),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_last_record_with_a_zero_in_its_topic_or_properties_is_torn_until_something_follows(part: str) -> None:
    """A page in the middle of it may be copied before the broker writes it, and the next page after."""
    data, records = file_of(5000, 3)
    size = records[0].store_size
    begin, end = PARTS[part](size)
    last = with_zeros(data[: 2 * size], size + begin, size + end).ljust(FILE_BYTES, b"\0")
    *seen, stop = walk(last, 5000, 6000)
    assert seen == records[:1]
    assert isinstance(stop, Damage)
    assert (stop.commit_log_offset, stop.size, stop.torn) == (5000 + size, size, True)
    *batches, in_columns = record_batches(last, 5000, 6000, delay_levels={})
    assert (sum(batch.num_rows for batch in batches if isinstance(batch, RecordBatch)), in_columns) == (1, stop)
    followed = with_zeros(data, size + begin, size + end)
    assert [item.store_size for item in walk(followed, 5000, 6000) if isinstance(item, Record)] == [size] * 3
    *batches, in_columns = record_batches(followed, 5000, 6000, delay_levels={})
    assert sum(batch.num_rows for batch in batches if isinstance(batch, RecordBatch)) == 3


def test_zeros_in_the_body_of_a_last_record_are_its_own() -> None:
    """The checksum of the body covers them."""
    record = a_record(5000, b"a\0b")
    data = encode(record).ljust(FILE_BYTES, b"\0")
    assert list(walk(data, 5000, 6000)) == [record, NothingWritten(5000 + record.store_size)]


def test_a_record_with_zeros_before_a_hole_is_damage() -> None:
    """What follows further on does not make it whole: a page may be missing that has its end and the next record's begin."""
    data, records = file_of(5000, 3)
    size = records[0].store_size
    holed = with_zeros(data, 2 * size - 3, 2 * size + 10)
    *seen, stop = walk(holed, 5000, 6000)
    assert seen == records[:1]
    assert isinstance(stop, Damage)
    assert (stop.commit_log_offset, stop.size, stop.torn) == (5000 + size, size, False)
    assert "nothing is written right behind it" in stop.reason
    *batches, in_columns = record_batches(holed, 5000, 6000, delay_levels={})
    assert (sum(batch.num_rows for batch in batches if isinstance(batch, RecordBatch)), in_columns) == (1, stop)


@pytest.mark.parametrize("behind", range(8))
def test_at_the_end_of_its_file_a_record_with_a_zero_is_whole(behind: int) -> None:
    """No broker writes one there: it leaves room for the end-of-file marker."""
    data, records = file_of(5000, 1)
    size = records[0].store_size
    log = data[: size - 1] + bytes(1 + behind)
    assert isinstance(next(walk(log, 5000, 5000 + len(log))), Record)


def test_an_unknown_magic_or_an_impossible_size_leaves_no_way_on() -> None:
    data, records = file_of(5000, 2)
    size = records[0].store_size
    for position, value in ((size + 5, 0), (size + 1, 9), (size, 0x80)):
        broken = bytearray(data)
        broken[position] = value
        *seen, stop = walk(broken, 5000, 6000)
        assert seen == records[:1]
        assert isinstance(stop, Damage)
        assert (stop.commit_log_offset, stop.size, stop.torn) == (5000 + size, 0, False)


def test_a_record_must_stand_where_it_says() -> None:
    (stop,) = walk(encode(a_record(5000)), 6000, 7000)
    assert isinstance(stop, Damage)
    assert "its PHYSICALOFFSET is 5000" in stop.reason


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("queue_id", -1, "its QUEUEID"),
        ("queue_id", -(2**31), "its QUEUEID"),
        ("queue_offset", 2**63 - 1, "its QUEUEOFFSET"),
        ("queue_offset", 2**62, "its QUEUEOFFSET"),
        ("queue_offset", -1, "its QUEUEOFFSET"),
        ("store_timestamp", 2**63 - 1, "is not from 1970"),
        ("store_timestamp", -(2**63), "is not from 1970"),
    ],
)
def test_a_number_that_no_queue_or_calendar_has_is_damage(field: str, value: int, reason: str) -> None:
    good = encode(a_record(0))
    changes: dict[str, Any] = {field: value}
    data = good + encode(replace(a_record(len(good)), **changes))
    *seen, stop = walk(data.ljust(FILE_BYTES, b"\0"), 0, FILE_BYTES)
    assert isinstance(stop, Damage)
    assert (len(seen), stop.commit_log_offset, stop.size) == (1, len(good), len(data) - len(good))
    assert reason in stop.reason
    *batches, in_columns = record_batches(data.ljust(FILE_BYTES, b"\0"), 0, FILE_BYTES, delay_levels={})
    assert (sum(batch.num_rows for batch in batches if isinstance(batch, RecordBatch)), in_columns) == (1, stop)


def test_a_port_that_is_none_is_damage_although_the_broker_does_not_look() -> None:
    data = bytearray(encode(a_record(0)))
    data[68] = 0x7F
    (stop,) = walk(data, 0, FILE_BYTES)
    assert isinstance(stop, Damage)
    assert "is not a port" in stop.reason


@pytest.mark.parametrize(
    ("store_timestamp", "good"), [(0, True), (253402300799999, True), (253402300800000, False), (-1, False)]
)
def test_a_store_time_is_one_of_the_years_1970_to_9999(store_timestamp: int, good: bool) -> None:
    record = replace(a_record(0), queue_id=3, queue_offset=7, store_timestamp=store_timestamp)
    item, *_ = walk(encode(record), 0, FILE_BYTES)
    assert isinstance(item, Record if good else Damage)
    if isinstance(item, Damage):
        assert f"STORETIMESTAMP {store_timestamp} of topic T, queue 3, offset 7 is not from" in item.reason


def store_of(root: Path, files: dict[int, bytes]) -> LocalFileSource:
    (root / "commitlog").mkdir()
    for start_offset, data in files.items():
        (root / "commitlog" / f"{start_offset:020}").write_bytes(data)
    return LocalFileSource(root)


def test_a_hole_in_the_log_is_damage_and_not_its_end(tmp_path: Path) -> None:
    source = store_of(tmp_path, {0: file_of(0, 2)[0], 1000: file_of(1000, 1)[0]})
    *_, (file, stop) = read_log(source, list_commit_log(source))
    assert file.name == "commitlog/00000000000000000000"
    assert isinstance(stop, Damage)
    assert "continues in commitlog/00000000000000001000" in stop.reason


def test_a_torn_record_is_not_called_torn_when_a_later_file_holds_records(tmp_path: Path) -> None:
    first, records = file_of(0, 2)
    torn = first[: records[0].store_size + 80].ljust(FILE_BYTES, b"\0")
    for later, is_torn in ((file_of(1000, 1)[0], False), (bytes(FILE_BYTES), True)):
        folder = tmp_path / str(is_torn)
        folder.mkdir()
        source = store_of(folder, {0: torn, 1000: later})
        *_, (_, stop) = read_log(source, list_commit_log(source))
        assert isinstance(stop, Damage)
        assert stop.torn is is_torn


def test_missing_middle_files_are_named_as_ranges(tmp_path: Path) -> None:
    source = store_of(tmp_path, {0: bytes(1000), 3000: bytes(1000), 5000: bytes(1000)})
    two = MissingFiles("commitlog/00000000000000001000", "commitlog/00000000000000002000", 2, 3000)
    one = MissingFiles("commitlog/00000000000000004000", "commitlog/00000000000000004000", 1, 5000)
    assert list_commit_log(source, allow_missing=True).missing == (two, one)
    with pytest.raises(BadData, match=rf"{two.first} to {two.last} \(2 files\), {one.first}\. Restore"):
        list_commit_log(source)
    log = list_commit_log(source, allow_missing=True)
    with pytest.raises(BadData, match=rf"{two.first} to {two.last} \(2 files\), {one.first}\. Restore"):
        log.refuse_missing(2999)
    with pytest.raises(BadData, match=rf"of commitlog: {one.first}\. Restore"):
        log.refuse_missing(3000)
    log.refuse_missing(5000)


@pytest.mark.parametrize("folder", ["commitlog", "consumequeue/T/0"])
def test_a_file_whose_name_is_far_away_is_told_in_constant_memory(folder: str) -> None:
    listing = [(f"{folder}/{0:020}", 20), (f"{folder}/{9 * 10**18:020}", 20)]
    tracemalloc.start()
    with pytest.raises(BadData, match=rf"{20:020} to {folder}/{9 * 10**18 - 20:020} \(449999999999999999 files\)"):
        mapped_file_queue(folder, listing).refuse_missing()
    assert len(mapped_file_queue(folder, listing).missing) == 1
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 20


def test_a_name_beyond_64_bits_is_refused() -> None:
    with pytest.raises(BadData, match="64 bits"):
        mapped_file_queue("commitlog", [(f"commitlog/{2**63 - 20:020}", 20)])


def test_empty_files_before_others_are_refused_and_a_single_one_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=f"commitlog/{0:020} is empty"):
        mapped_file_queue("commitlog", [(f"commitlog/{offset:020}", 0) for offset in (0, 1000, 2000)])
    with pytest.raises(BadData, match="nothing to import yet"):
        list_commit_log(store_of(tmp_path, {0: b""}))


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([2000, 1000], "differ in size"),
        ([0, 2000], "is empty, and more files follow it"),
        ([3000, 3000], "do not fit together"),
    ],
)
def test_a_consume_queue_whose_files_were_cut_says_how_to_go_on_without_it(
    tmp_path: Path, sizes: list[int], says: str
) -> None:
    """A second copy of a file that is cut at the broker is cut as well."""
    folder = tmp_path / "consumequeue" / "T" / "0"
    folder.mkdir(parents=True)
    for number, size in enumerate(sizes):
        (folder / f"{number * 2000:020}").write_bytes(bytes(size))
    with pytest.raises(BadData, match=says) as raised:
        list_consume_queues(LocalFileSource(tmp_path))
    assert "opy the store again" in str(raised.value)
    assert "import a copy of the store without consumequeue/T/0: entries are then made from the log" in str(
        raised.value
    )


def test_an_empty_last_file_is_ignored_as_rocketmq_does(tmp_path: Path) -> None:
    source = store_of(tmp_path, {0: bytes(1000), 1000: b""})
    assert [file.start_offset for file in list_commit_log(source).files] == [0]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({0: bytes(1000), 1000: bytes(500)}, "differ in size"),
        ({0: bytes(1000), 900: bytes(1000)}, "do not fit together"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, files: dict[int, bytes], message: str) -> None:
    with pytest.raises(BadData, match=message):
        list_commit_log(store_of(tmp_path, files))


def test_a_foreign_file_in_the_log_is_named(tmp_path: Path) -> None:
    source = store_of(tmp_path, {0: bytes(1000)})
    (tmp_path / "commitlog" / "notes.txt").touch()
    with pytest.raises(BadData, match=r"commitlog/notes\.txt does not belong"):
        list_commit_log(source)


def test_a_folder_that_is_no_store_says_what_it_holds_instead(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="it has: nothing"):
        list_commit_log(LocalFileSource(tmp_path))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(BadData, match="it has: photos"):
        list_commit_log(LocalFileSource(tmp_path))


def test_a_missing_folder_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="is not a folder"):
        LocalFileSource(tmp_path / "nowhere")
    with pytest.raises(BadData, match="has no file nowhere"):
        LocalFileSource(tmp_path).read("nowhere", 0, 1)
