"""Which messages each file of the archive must hold, by records of commits, without a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from rmq_store.commit.ctl import canonical_json
from rmq_store.commit.positions import arc_id, min_id
from rmq_store.lake.audit.archive import Archive, archive
from rmq_store.lake.audit.finding import Problem
from rmq_store.message.message import MessageQueue

QUEUE = {"topic": "Orders", "broker_name": "broker-a", "queue_id": 0}
_QUEUE_FIELDS = [("topic", pa.string()), ("broker_name", pa.string()), ("queue_id", pa.int32())]
_RANGE = [("base_offset", pa.int64()), ("end_offset", pa.int64())]
_COMMIT = ("commit_id", pa.string())
_TIMES = [(name, pa.int64()) for name in ("deliver_at", "min_store_timestamp", "max_store_timestamp")]
_PLACE = [("first_row", pa.int64()), *_TIMES, _COMMIT, ("part", pa.int32())]
COMMITS = pa.schema([*_QUEUE_FIELDS, *_RANGE, *_PLACE])
REPLACED = pa.schema([*_QUEUE_FIELDS, _COMMIT, *_RANGE])
KEPT = pa.schema([*_QUEUE_FIELDS, _COMMIT, ("messages", pa.int64())])
COMPACTIONS = pa.schema([_COMMIT, ("read_version", pa.int64()), ("parameters", pa.string())])
JOINED = pa.schema([_COMMIT, ("file", pa.string())])
RETENTIONS = pa.schema([("read_version", pa.int64()), ("parameters", pa.string())])

Range = tuple[int, int]


def id_of(name: str) -> str:
    return name * 32


def file_of(name: str) -> str:
    return f"kind=archive/{id_of(name)}-00002.parquet"


def retention(version: int, begin: int, end: int, *, archived: bool) -> dict[str, object]:
    queue = MessageQueue("Orders", "broker-a", 0)
    parameters = {"removed": {min_id(queue): [begin, end]}, "archived": [arc_id(queue)] if archived else [], "lost": {}}
    return {"read_version": version, "parameters": canonical_json(parameters)}


def made(
    retentions: Sequence[Mapping[str, object]],
    compactions: Mapping[str, tuple[int, int, Sequence[Range], int]],
    joined: Mapping[str, str] | None = None,
    files: Sequence[str] = (),
) -> Archive:
    """The archive of a queue of three commits of ten messages. ``compactions``: by name the version that each was decided on,
    its archived rows, the messages of the files that it replaced, and how many of these it wrote again. ``joined``: the joined
    files. Both by the letter that their commit id is made of."""
    commits = [
        QUEUE | {"base_offset": base, "end_offset": base + 10, "first_row": 5, "commit_id": f"c{base}", "part": 0}
        for base in (0, 10, 20)
    ]
    records, replaced, kept = [], [], []
    for name, (version, archived_rows, ranges, written) in compactions.items():
        parameters = canonical_json({"archived_rows": archived_rows})
        records.append({"commit_id": id_of(name), "read_version": version, "parameters": parameters})
        bounds = ({"base_offset": begin, "end_offset": end} for begin, end in ranges)
        replaced += [QUEUE | {"commit_id": id_of(name)} | one for one in bounds]
        kept += [QUEUE | {"commit_id": id_of(name), "messages": written}] if written else []
    sources = [
        {"commit_id": id_of(name), "file": file_of(one)} for name, several in (joined or {}).items() for one in several
    ]
    pairs = (
        (commits, COMMITS), (replaced, REPLACED), (kept, KEPT), (records, COMPACTIONS), (sources, JOINED),
        (retentions, RETENTIONS),
    )  # fmt: skip
    answers = [pa.Table.from_pylist(rows, schema=schema) for rows, schema in pairs]
    return archive("s1", answers, [file_of(name) for name in files])


def rows(of: Archive, name: str) -> list[tuple[object, ...]]:
    """First row, offsets, commit and its row."""
    names = ("first_row", "base_offset", "end_offset", "commit_id", "rel")
    return [tuple(row[one] for one in names) for row in of.segments[file_of(name)].to_pylist()]


def test_a_file_of_the_archive_has_the_messages_at_the_places_of_their_commits() -> None:
    one = made([retention(3, 0, 14, archived=True)], {"a": (5, 14, [(0, 20)], 6)}, files="a")
    assert rows(one, "a") == [(0, 0, 10, "c0", 5), (10, 10, 14, "c10", 5)]
    assert one.missing == []


def test_what_a_rule_did_not_archive_is_there_where_it_was_still_stored() -> None:
    """A compaction archives what is before the end of what it knows to be archived, and not what was removed after that."""
    retentions = [
        retention(1, 0, 4, archived=True),
        retention(3, 4, 8, archived=False),
        retention(5, 8, 12, archived=True),
    ]
    one = made(retentions, {"a": (4, 4, [(0, 10)], 2), "b": (6, 4, [(8, 20)], 8)}, files="ab")
    assert (rows(one, "a"), rows(one, "b")) == ([(0, 0, 4, "c0", 5)], [(0, 8, 10, "c0", 13), (2, 10, 12, "c10", 5)])
    assert rows(made(retentions, {"a": (6, 12, [(0, 20)], 8)}, files="a"), "a")[-1] == (10, 10, 12, "c10", 5)


def test_a_compaction_has_used_the_positions_that_agree_with_its_record() -> None:
    """It may have been decided on newer ones. What it wrote again and what it archived must both agree."""
    retentions = [retention(1, 0, 4, archived=True), retention(3, 4, 14, archived=True)]
    assert rows(made(retentions, {"a": (9, 4, [(0, 20)], 16)}, files="a"), "a") == [(0, 0, 4, "c0", 5)]
    assert made(retentions, {"a": (9, 0, [(0, 20)], 20)}).missing == []
    retentions[1] = retention(3, 4, 14, archived=False)
    assert rows(made(retentions, {"a": (9, 4, [(0, 20)], 6)}, files="a"), "a") == [(0, 0, 4, "c0", 5)]
    retentions = [retention(1, 0, 10, archived=False), retention(3, 10, 20, archived=True)]
    assert made(retentions, {"a": (9, 0, [(0, 5)], 0)}).missing == []
    assert rows(made(retentions, {"a": (9, 5, [(0, 5)], 0)}, files="a"), "a") == [(0, 0, 5, "c0", 5)]


def test_a_record_that_says_that_nothing_was_archived_hides_no_file() -> None:
    (finding,) = made([retention(1, 0, 4, archived=True)], {"a": (9, 0, [(0, 20)], 16)}).missing
    assert (finding.problem, finding.begin_offset, finding.end_offset) == (Problem.MESSAGES_MISSING, 0, 4)


def test_a_joined_file_has_the_messages_of_all() -> None:
    retentions = [retention(1, 0, 30, archived=True)]
    compactions = {"a": (5, 10, [(20, 30)], 0), "b": (6, 15, [(0, 5), (10, 20)], 0), "c": (9, 0, [], 0)}
    one = made(retentions, compactions, {"c": "ab"}, files="c")
    assert rows(one, "c") == [(0, 0, 5, "c0", 5), (5, 10, 20, "c10", 5), (15, 20, 30, "c20", 5)]
    assert one.missing == []
    gone = made(retentions, compactions, {"c": "ab"}).missing
    assert [(one.begin_offset, one.end_offset) for one in gone] == [(0, 5), (10, 30)]


def test_a_file_of_another_tool_has_no_messages() -> None:
    assert rows(made([], {}, files="x"), "x") == []
