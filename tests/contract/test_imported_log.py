"""A log that is in the store under one broker name is not imported under another one, by whatever part of it shows that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.errors import RmqError, WrongUse
from rmq_store.lake.broker import import_commit
from rmq_store.lake.commit import commit as commit_steps
from rmq_store.lake.maintain import compact
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.maintain.files_to_join import Limits
from rmq_store.utils.host import Host
from tests.contract.rmq import Rmq
from tests.contract.test_diverged_log import messages
from tests.contract.test_import_store import BROKER, FILE_BYTES, TESTS, Lake
from tests.contract.test_lost_ends import bodies, log_of, records, without_last

ALL = [messages(0, 5), messages(5, 9), messages(9, 12)]
"""The messages of a log of three files."""
OTHER = "broker-b"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def log(folder: Path, *removed: int) -> Path:
    """The store of the broker, without the files with these numbers."""
    log_of(folder, *ALL)
    for number in removed:
        (folder / "commitlog" / f"{number * FILE_BYTES:020}").unlink()
    return folder


def damaged_at(folder: Path, number: int) -> Path:
    """The store, with another body of the message with this number."""
    for file in (folder / "commitlog").iterdir():
        file.write_bytes(file.read_bytes().replace(b"o%03d" % number, b"xxxx"))
    return folder


def load_second(lake: Lake, folder: Path, first: str = BROKER, second: str = OTHER) -> None:
    """Refused, and nothing of the broker is in the store."""
    before = lake.positions()
    with pytest.raises(WrongUse, match=f"those of broker {first}: under another name .*--broker {first} --shard s1"):
        lake.load(folder, broker=second)
    assert lake.positions() == before


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda at: log(at), lambda at: log(at)),
        (lambda at: log(at, 0), lambda at: log(at)),
        (lambda at: log(at), lambda at: log(at, 0)),
        (lambda at: log(at, 0), lambda at: without_last(log(at))),
        (lambda at: log(at, 0), lambda at: without_last(damaged_at(log(at), 5))),
        (lambda at: log(at, 0), lambda at: log_of(at, *ALL[:2], messages(20, 30))),
        (lambda at: log(at), lambda at: log_of(at, *ALL[:2], messages(20, 30))),
        (lambda at: without_last(log(at, 0)), lambda at: log(at)),
    ],
    ids=[
        "the-same", "more-at-the-begin", "less-at-the-begin", "an-older-copy", "an-older-copy-with-damage",
        "a-log-that-was-cut", "less-at-the-begin-and-cut", "more-at-both-ends",
    ],
)  # fmt: skip
def test_a_copy_of_the_log_is_refused_under_a_new_name(
    lake: Lake, tmp_path: Path, first: Callable[[Path], Path], second: Callable[[Path], Path]
) -> None:
    lake.load(first(tmp_path / "first"))
    load_second(lake, second(tmp_path / "second"))


def test_a_salvage_that_left_out_the_begin_does_not_hide_the_log(lake: Lake, tmp_path: Path) -> None:
    lake.load(damaged_at(log(tmp_path / "first"), 0), salvage=True)
    load_second(lake, log(tmp_path / "second"))
    load_second(lake, without_last(log(tmp_path / "older")))


def test_files_that_came_in_under_a_wrong_name_are_refused_under_the_right_one(lake: Lake, tmp_path: Path) -> None:
    lake.load(log_of(tmp_path / "first", ALL[0], b""))  # up to the end of the first file
    lake.load(log(tmp_path / "wrong", 0), broker=OTHER)
    load_second(lake, log(tmp_path / "right"), OTHER, BROKER)
    assert bodies(lake) == [f"o{n:03}" for n in range(12)]
    assert lake.load(log(tmp_path / "right", 0), broker=OTHER).status == "unchanged"


def test_a_log_that_another_import_brought_in_meanwhile_is_refused(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the store, which had nothing then, and the claim."""

    def on_step(step: str) -> None:
        if step == "1.planned":
            monkeypatch.undo()
            lake.load(log(tmp_path / "first"))

    monkeypatch.setattr(commit_steps, "on_step", on_step)
    with pytest.raises(WrongUse, match=f"those of broker {BROKER}: under another name"):
        lake.load(log(tmp_path / "second"), broker=OTHER)
    assert f"import/{OTHER}" not in lake.positions()


def test_a_log_whose_last_record_fills_its_file_but_for_the_marker_is_refused(lake: Lake, tmp_path: Path) -> None:
    """Its last records end with the file. Nothing else shows the log, as after retention."""
    size = FILE_BYTES - 8 - len(records(ALL[0], 0)) - len(records(messages(5, 6), 0)) + 4
    last = messages(5, 6)[0] | {"stored_body": b"last".ljust(size, b".")}
    lake.load(log_of(tmp_path / "first", [*ALL[0], last], b""))
    second = log_of(tmp_path / "second", [*ALL[0], last], ALL[2])
    for number in range(5):
        damaged_at(second, number)
    load_second(lake, second)


def test_the_rest_of_a_file_shows_no_log(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is all that an import of an earlier version has recorded, and unwritten in the larger files of another broker."""
    with monkeypatch.context() as earlier:
        earlier.setattr(import_commit, "last_records", lambda *_: None)
        lake.load(log_of(tmp_path / "first", ALL[0], b""))
    other = log_of(tmp_path / "other", messages(0, 9, of="new"))
    file = other / "commitlog" / f"{0:020}"
    file.write_bytes(file.read_bytes().ljust(2 * FILE_BYTES, b"\0"))
    assert lake.load(other, broker=OTHER).messages == 9


def test_a_broker_is_imported_while_another_shard_is_damaged(lake: Lake, tmp_path: Path) -> None:
    """A first import looks into each shard, and says what is wrong there."""
    lake.load(without_last(log(tmp_path / "first")))
    lake.store.create_shard("s2")
    (entry,) = (tmp_path / "lake").rglob(f"s2/commitlog/_delta_log/{0:020}.json")
    entry.write_text("{")
    assert lake.load(log(tmp_path / "first")).messages == 3
    with pytest.raises(RmqError, match="s2"):
        lake.load(log_of(tmp_path / "other", messages(0, 5, of="new")), broker=OTHER)


def test_a_broker_is_imported_after_a_compaction_of_messages_that_were_sent_here(
    rmq: Rmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction gives them numbers in the place of physical offsets. They have no record in any log."""
    monkeypatch.setattr(compact, "SETTLED_MS", -1)
    rmq.json("init")
    rmq.json("import-store", str(log(tmp_path / "first")), "--broker", BROKER, "--shard", "s1")
    for number in range(3):
        rmq.json("send", "--topic", "here", "--create", "--queues", "1", "--shard", "s1", f"n{number}")
    (shard,) = LakeStore.open(Root.parse(str(rmq.root))).shards()
    request = compact.CompactRequest("2026-01-02-compact", TESTS, limits=Limits(least_files=2, target_rows=10_000))
    assert compact.compact(shard, request, Host()).replaced_files > 1
    second = str(log_of(tmp_path / "second", messages(0, 5, of="new")))
    assert rmq.json("import-store", second, "--broker", OTHER, "--shard", "s1")["messages"] == 5
    assert rmq.json("audit")["audit"] == []


def test_the_log_of_another_broker_with_messages_at_the_same_places_is_imported(lake: Lake, tmp_path: Path) -> None:
    """Also where both have only the rest of a file behind their last records, which is the same in every log."""
    lake.load(log_of(tmp_path / "first", ALL[0], b""))
    assert lake.load(log_of(tmp_path / "second", messages(0, 5, of="new"), b""), broker=OTHER).messages == 5
    assert lake.load(log_of(tmp_path / "second", messages(0, 5, of="new"), ALL[1]), broker=OTHER).messages == 4
    assert len(bodies(lake)) == 14
