"""The guards of the lake's own ``commit``, each with a commit that it refuses: through a real store in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store.commit.ctl import Action, Consumed, Ctl, Produced, Proposal
from rmq_store.commit.positions import Outcome, QueueRange, Tally, grp_id, max_id, off_id, tally
from rmq_store.errors import EvidenceMismatch, OtherFormat, StagedFileGone, StaleAttempt
from rmq_store.lake.commit.commit import Committed, Member, commit, commit_together
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window import window as windows
from rmq_store.message.message import MessageQueue
from tests.faults.stores import SHARD, TESTS, Lake

HOUR_MS = 3_600_000
QUEUE = MessageQueue("Orders", "broker-a", 0)
OURS = MessageQueue("Orders", "lake-s1", 0)
GRP, OFF = grp_id("g"), off_id("g", QUEUE)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "store")


@pytest.fixture
def shard(lake: Lake) -> Shard:
    """An empty one."""
    store, _ = LakeStore.init(Root.parse(str(lake.folder)))
    return store.create_shard(SHARD)


def window_of(lake: Lake, tallies: dict[Outcome, Tally], begin: int = 0, end: int = 5) -> Proposal:
    """A window that says that it answered ``[begin, end)`` so."""
    consumed = Consumed(QueueRange(QUEUE, begin, end), 0, tallies)
    ctl = Ctl(
        lake.host.new_commit_id(), Action.CONSUME, TESTS, request_id="2026-01-01-w", group="g", consumed=(consumed,)
    )
    return Proposal(ctl, {GRP: None, OFF: None}, {GRP: 0, OFF: end})


def sent(shard: Shard, lake: Lake, **changes: Any) -> Proposal:
    """A commit with one staged file of two messages; ``changes``: what is said of the file instead."""
    commit_id = lake.host.new_commit_id()
    row = {"commit_id": commit_id, "part": 0, "topic": "Orders", "broker_name": "lake-s1", "queue_id": 0, "body": b"1"}
    rows = pa.Table.from_pylist([row | {"rel": 0}, row | {"rel": 1}], schema=tables.MSG)
    path = shard.commitlog.path
    file = stage(shard.root, path, NewFile(kind="msg", name=f"{commit_id}-00000", rows=rows))
    ctl = Ctl(commit_id, Action.SEND, TESTS, request_id="2026-01-01-s", produced=(Produced(OURS, 0, 2, 0, file.path),))
    return Proposal(ctl, {}, {"snd/Orders": 1}, (replace(file, **changes),))


def assert_refused(shard: Shard, lake: Lake, proposal: Proposal, error: type[Exception], says: str) -> None:
    """Nothing of it is in the log, and what is there can be read."""
    version = shard.commitlog.version
    with pytest.raises(error, match=says):
        commit(shard, proposal, lake.host, started_ms=lake.host.now_ms())
    shard.commitlog.refresh()
    assert shard.commitlog.version == version
    assert shard.ctl_of(proposal.ctl.commit_id) is None
    assert dict(shard.positions().items()).keys().isdisjoint(proposal.advance)


# --- evidence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tallies",
    [
        {Outcome.ACKED: tally(range(4))},
        {Outcome.ACKED: tally(range(6))},
        {Outcome.ACKED: tally([0, 1, 2, 3, 3])},
        {Outcome.ACKED: tally(range(1, 6))},
        {Outcome.ACKED: tally(range(5)), Outcome.RETRIED: tally([2])},
        {},
    ],
    ids=["one is missing", "one too many", "one twice", "others", "two outcomes of one", "none"],
)
def test_a_commit_whose_outcomes_do_not_add_up_to_its_range_is_refused(
    shard: Shard, lake: Lake, tallies: dict[Outcome, Tally]
) -> None:
    assert_refused(shard, lake, window_of(lake, tallies), EvidenceMismatch, r"\[0, 5\) of .* does not add up")


def test_a_commit_whose_outcomes_add_up_is_made(shard: Shard, lake: Lake) -> None:
    proposal = window_of(lake, {Outcome.ACKED: tally([0, 2, 4]), Outcome.FILTERED: tally([1, 3])})
    committed = commit(shard, proposal, lake.host, started_ms=lake.host.now_ms())
    assert shard.positions().get(OFF) == 5
    assert shard.ctl_of(proposal.ctl.commit_id) == committed.ctl


def test_a_window_with_a_task_that_lost_a_message_is_refused_and_moves_nothing(
    new_lake: Callable[[str], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole street: only what the task tells of one queue is wrong."""
    lake = new_lake("imported")
    honest = windows._proposal

    def forgetful(*arguments: Any, **named: Any) -> Proposal:
        proposal = honest(*arguments, **named)
        first, *others = proposal.ctl.consumed
        acked = first.tallies[Outcome.ACKED]
        spoilt = replace(first, tallies={**first.tallies, Outcome.ACKED: replace(acked, count=acked.count - 1)})
        return replace(proposal, ctl=replace(proposal.ctl, consumed=(spoilt, *others)))

    monkeypatch.setattr(windows, "_proposal", forgetful)
    with pytest.raises(EvidenceMismatch, match="9 offsets answered of 10"):
        lake.consume()
    monkeypatch.undo()
    assert lake.commits("consume") == []
    assert lake.offsets() == {}
    assert lake.consume().status == "committed"
    assert lake.audit() == []


# --- staged files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"size": 1}, StagedFileGone, r"staged file kind=msg/\S+ has \d+ bytes, not 1\. Run"),
        ({"path": "kind=msg/none.parquet"}, StagedFileGone, "staged file kind=msg/none.parquet is gone"),
        ({"rows": 3}, ValueError, "do not have 3 rows"),
        ({"rows": 0, "stats": json.dumps({"numRecords": 0})}, ValueError, "do not have 0 rows"),
        ({"store_day": "2026-1-1"}, ValueError, "Invalid isoformat|not a day"),
        ({"store_day": "20260101"}, ValueError, "not a day: '20260101'"),
    ],
    ids=["cut", "gone", "rows", "no rows", "no day", "a day in another form"],
)
def test_a_commit_of_a_file_that_is_not_as_it_says_is_refused(
    shard: Shard, lake: Lake, changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    assert_refused(shard, lake, sent(shard, lake, **changes), error, says)


def test_a_commit_that_names_a_file_twice_is_refused(shard: Shard, lake: Lake) -> None:
    proposal = sent(shard, lake)
    twice = replace(proposal, files=proposal.files * 2)
    assert_refused(shard, lake, twice, ValueError, "staged twice")


def test_a_file_without_a_day_gets_that_of_its_commit(shard: Shard, lake: Lake) -> None:
    proposal = sent(shard, lake)
    assert proposal.files[0].store_day is None
    commit(shard, proposal, lake.host, started_ms=lake.host.now_ms())
    days = shard.commitlog.files().column("partition.store_day").to_pylist()
    assert len(days) == 2
    assert len(set(map(str, days))) == 1
    assert shard.positions().get(max_id(OURS)) == 2


# --- the run ---------------------------------------------------------------------------------------------------------


def test_a_run_that_began_more_than_a_day_ago_is_refused(shard: Shard, lake: Lake) -> None:
    """The derived tables no longer look for it, and what it staged may be gone."""
    proposal = window_of(lake, {Outcome.ACKED: tally(range(5))})
    with pytest.raises(StaleAttempt, match="began 25 h ago"):
        commit(shard, proposal, lake.host, started_ms=lake.host.now_ms() - 25 * HOUR_MS)
    assert shard.commitlog.version == 0


def test_a_commit_that_expects_what_it_does_not_write_is_a_defect(shard: Shard, lake: Lake) -> None:
    """Who moved it after the decision would not conflict."""
    proposal = window_of(lake, {Outcome.ACKED: tally(range(5))})
    loose = replace(proposal, expect={**proposal.expect, "off/other": None})
    assert_refused(shard, lake, loose, AssertionError, "what is expected is written too")


def test_a_table_in_another_format_is_not_written(shard: Shard, lake: Lake) -> None:
    shard.commitlog.log.view.protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    proposal = window_of(lake, {Outcome.ACKED: tally(range(5))})
    with pytest.raises(OtherFormat):
        commit(shard, proposal, lake.host, started_ms=lake.host.now_ms())


# --- others that were faster -----------------------------------------------------------------------------------------


def faster(shard: Shard, lake: Lake, proposal: Proposal) -> None:
    """A commit by another process, which the handle ``shard`` has not read."""
    commit(Shard(shard.root, shard.name), proposal, lake.host, started_ms=lake.host.now_ms())


def moves(lake: Lake, app_id: str, **changes: Any) -> Proposal:
    ctl = Ctl(lake.host.new_commit_id(), Action.SEND, TESTS, request_id="2026-01-01-m")
    return replace(Proposal(ctl, {app_id: None}, {app_id: 1}), **changes)


def test_who_is_overtaken_between_the_decision_and_the_entry_is_told_by_whom(shard: Shard, lake: Lake) -> None:
    mine, theirs = (window_of(lake, {Outcome.ACKED: tally(range(5))}) for _ in range(2))
    shard.commitlog.refresh()
    faster(shard, lake, theirs)
    with pytest.raises(
        StaleAttempt, match=r"was overtaken: off/.* was None and is 5\. Moved by consume 2026-01-01-w of"
    ):
        commit(shard, mine, lake.host, started_ms=lake.host.now_ms())
    shard.commitlog.refresh()
    assert shard.ctl_of(mine.ctl.commit_id) is None


def test_who_closes_a_prefix_is_overtaken_by_a_new_position_under_it(shard: Shard, lake: Lake) -> None:
    shard.commitlog.refresh()
    faster(shard, lake, moves(lake, off_id("g", OURS)))
    with pytest.raises(StaleAttempt, match="off/g/Orders/lake-s1/0 was None and is 1"):
        commit(shard, moves(lake, OFF, closed=("off/g/",)), lake.host, started_ms=lake.host.now_ms())


def test_a_file_is_taken_out_once(shard: Shard, lake: Lake) -> None:
    """And the one that was too late does not stop who shares its entry."""
    proposal = sent(shard, lake)
    commit(shard, proposal, lake.host, started_ms=lake.host.now_ms())
    (path,) = (file.path for file in proposal.files)
    first, second, third = (moves(lake, name, removed=(path,) if name != "c" else ()) for name in "abc")
    shard.commitlog.refresh()
    faster(shard, lake, first)
    started_ms = lake.host.now_ms()
    outcomes = commit_together(shard, [Member(second, started_ms), Member(third, started_ms)], lake.host)
    assert [type(outcome) for outcome in outcomes] == [StaleAttempt, Committed]
    shard.commitlog.refresh()
    assert not shard.commitlog.is_live(path)
    assert [shard.positions().get(name) for name in "abc"] == [1, None, 1]
