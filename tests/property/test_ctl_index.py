"""The index of ctl files names every file that a look through all of them would name, whatever came before or after."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.commit.ctl import Action, Actor, Ctl
from rmq_store.commit.decide import MAX_SKEW_MS
from rmq_store.lake.table import tables
from rmq_store.lake.table.ctl_index import CtlIndex
from rmq_store.lake.table.delta_entry import Entry, LiveFile
from rmq_store.lake.table.live_files import LiveFiles
from rmq_store.lake.table.stage import statistics
from rmq_store.utils.host import day_of, uuid7, uuid7_floor

NOW_MS = 1_790_000_000_000
REQUESTS = ["2026-11-20-a", "2026-11-20-ab", "x" * 40, "x" * 32 + "y", "2026-11-20-\N{GREEK SMALL LETTER ALPHA}"]

Commits = Sequence[Ctl]


@st.composite
def commits(draw: st.DrawFn) -> Commits:
    """The commits of one file: mostly one. Their ids are as old as a run may be. In a folder the clock of a host may be wrong
    by any time."""
    stored_ms = NOW_MS + draw(st.integers(0, 3_600_000)) + draw(st.sampled_from([0, 0, -90_000_000, 90_000_000]))
    count = draw(st.sampled_from([1, 1, 1, 2, 3]))
    return [
        Ctl(
            uuid7(stored_ms - draw(st.integers(-MAX_SKEW_MS, 86_000_000)), draw(st.binary(min_size=10, max_size=10))),
            draw(st.sampled_from([Action.CONSUME, Action.CLAIM, Action.IMPORT])),
            Actor("tests", "tests"),
            request_id=draw(st.sampled_from(REQUESTS)),
            group=draw(st.sampled_from([None, "a", "b"])),
            store_timestamp=stored_ms,
        )
        for _ in range(count)
    ]


def live_file(number: int, ctls: Commits, known: bool = True) -> LiveFile:
    stats = json.loads(statistics(tables.ctl_table(ctls), tables.COMMITLOG_LAYOUT.stats))
    stats = stats if known else {"minValues": {}, "maxValues": {}, "nullCount": {}}
    partition = {"kind": "ctl", "store_day": day_of(ctls[0].store_timestamp)}
    return LiveFile(f"kind=ctl/{number}.parquet", 1, partition, stats, number)


def index_of(files: Sequence[Commits], before: int, middle: int, unknown: Collection[int] = ()) -> CtlIndex:
    """``before`` files are there when the index is made; it catches up with the others in two steps.
    ``unknown``: the numbers of files without statistics."""
    live = LiveFiles(tables.COMMITLOG_LAYOUT, "log")
    index = None
    for number, ctls in enumerate(files):
        if number == before:
            index = CtlIndex(live)
        if number == max(before, middle) and index is not None:
            index.catch_up()
        live.apply(Entry(number, added=(live_file(number, ctls, number not in unknown),)))
    index = index or CtlIndex(live)
    index.catch_up()
    return index


def names(files: Sequence[Commits], chosen: Sequence[bool]) -> set[str]:
    return {f"kind=ctl/{number}.parquet" for number, choice in enumerate(chosen) if choice}


@given(st.lists(commits(), max_size=8), st.integers(0, 8), st.integers(0, 8), st.sets(st.integers(0, 7)), st.data())
def test_no_file_is_missed(
    files: list[Commits], before: int, middle: int, unknown: set[int], data: st.DataObject
) -> None:
    index = index_of(files, before, middle, unknown)
    assert index.rows == (sum(map(len, files)) if unknown.isdisjoint(range(len(files))) else None)
    request = data.draw(st.sampled_from(REQUESTS))
    having = [any(ctl.request_id == request for ctl in ctls) for ctls in files]
    assert names(files, having) <= set(index.with_request(request, ""))
    for ctls in files:
        for ctl in ctls:
            having = [any(one.commit_id == ctl.commit_id for one in other) for other in files]
            assert names(files, having) <= set(index.with_commit(ctl.commit_id, ctl.commit_id))
            assert names(files, having) <= set(index.with_commit(ctl.commit_id[:16], ctl.commit_id[:16] + "g"))
    for ctls in files:
        at_ms = ctls[0].store_timestamp
        having = [any(one.store_timestamp == at_ms for one in other) for other in files]
        assert names(files, having) <= set(itertools.chain(*index.at(at_ms)))
    ms = NOW_MS + data.draw(st.integers(-90_000_000, 3_700_000))
    group, action = data.draw(st.sampled_from([None, "a"])), data.draw(st.sampled_from([None, "consume"]))
    having = [
        any(
            ctl.commit_id >= uuid7_floor(ms) and group in (None, ctl.group) and action in (None, str(ctl.action))
            for ctl in ctls
        )
        for ctls in files
    ]
    assert names(files, having) <= set(index.since(ms, group_name=group, action=action))


@given(st.lists(commits(), min_size=1, max_size=6))
def test_an_index_of_files_that_were_removed_is_not_used(files: list[Commits]) -> None:
    live = LiveFiles(tables.COMMITLOG_LAYOUT, "log")
    for number, ctls in enumerate(files):
        live.apply(Entry(number, added=(live_file(number, ctls),)))
    index = CtlIndex(live)
    assert index.is_of(live)
    live.apply(Entry(len(files), removed=("kind=ctl/0.parquet",)))
    assert not index.is_of(live)
    assert CtlIndex(live).rows == sum(map(len, files[1:]))


def test_the_files_of_a_view_are_those_of_its_entries() -> None:
    """The columns that readers filter by have the types of the table."""
    ctl = Ctl("0" * 32, Action.SEND, Actor("tests", "tests"), request_id="r", store_timestamp=NOW_MS)
    live = LiveFiles(tables.COMMITLOG_LAYOUT, "log")
    live.apply(Entry(0, added=(live_file(0, [ctl]),)))
    (row,) = live.table.to_pylist()
    assert (row["min.request_id"], row["partition.kind"], row["num_records"]) == ("r", "ctl", 1)
    assert live.table.schema.field("partition.store_day").type == pa.date32()
