"""Which offsets a file of a broker holds after an export, and when it is left alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rmq_store.broker_files.config_files import (
    DataVersion,
    parse_consumer_offsets,
    parse_data_version,
    parse_delay_offsets,
)
from rmq_store.broker_files.config_texts import consumer_offsets_text, delay_offsets_text
from rmq_store.broker_files.offsets_to_broker import (
    CONSUMER_OFFSETS,
    DELAY_OFFSETS,
    Change,
    How,
    KnownOffsets,
    OffsetWrite,
    changes,
    planned_write,
    planned_writes,
    write_both,
)
from rmq_store.errors import BadData, WrongUse
from rmq_store.message.message_const import SCHEDULE_TOPIC

KNOWN = KnownOffsets(committed={"T@here": {0: 5, 1: 6}}, observed={"T@here": {1: 9, 2: 7}, "T@there": {0: 3}})
FILE = {"T@here": {0: 8, 1: 8, 2: 9}, "T@there": {0: 2}, "T@other": {0: 4}, "T@client@host": {0: 1}, "no key": {0: 2}}
VERSION = DataVersion(timestamp=2000)


def planned(path: Path, how: How, known: KnownOffsets = KNOWN) -> bool:
    return planned_write(path, CONSUMER_OFFSETS, known, VERSION, how).write()


def table(path: Path) -> object:
    return parse_consumer_offsets(path.read_text()).offset_table


def test_an_export_holds_what_was_committed_and_else_what_was_observed() -> None:
    assert KNOWN.table == {"T@here": {0: 5, 1: 6, 2: 7}, "T@there": {0: 3}}


def test_in_a_merge_a_commit_wins_what_was_observed_lowers_nothing_and_other_keys_stay() -> None:
    assert KNOWN.merged_into(FILE) == FILE | {"T@here": {0: 5, 1: 6, 2: 9}, "T@there": {0: 3}}


def test_the_file_of_a_broker_that_owns_its_groups_gets_only_what_it_lacks(tmp_path: Path) -> None:
    known = replace(KNOWN, committed={}, of_broker=True)
    file = {"T@here": {1: 8, 2: 9}, "T@other": {0: 4}}
    assert known.merged_into(file, How.MERGE) == file | {"T@there": {0: 3}}
    path = tmp_path / "consumerOffset.json"
    path.write_text(consumer_offsets_text(file, VERSION))
    added, lower = planned_write(path, CONSUMER_OFFSETS, known, VERSION, How.MERGE).notes
    assert "1 offsets of the last import or the hand-back are added, which it lacks: T@there queue 0 at 3" in added
    assert "1 offsets are lower than at the last import or the hand-back: T@here queue 1 at 8 (9 here)" in lower


def test_in_the_file_of_an_earlier_export_all_that_is_known_is_newer() -> None:
    """Also an offset that the broker has reset, and a queue whose topic it has deleted."""
    known = replace(KNOWN, of_broker=True, left_out={"T@other": (0,), "T@new": (3,)})
    file = {key: queues for key, queues in FILE.items() if key != "T@other"}
    expected = file | {"T@here": {0: 5, 1: 6, 2: 7}, "T@there": {0: 3}, "T@other": {}}
    assert known.merged_into(FILE, How.UPDATE) == expected
    levels = KnownOffsets(observed={"L": {0: 3}}, never_back=True)
    assert levels.merged_into({"L": {0: 4, 1: 1}}, How.UPDATE) == {"L": {0: 4, 1: 1}}


def test_of_a_deleted_group_that_is_no_longer_the_brokers_nothing_stays() -> None:
    assert KnownOffsets(gone=frozenset({"other"})).merged_into(FILE) == {k: FILE[k] for k in FILE if k != "T@other"}


def test_the_changes_are_what_differs_in_order() -> None:
    assert changes({"b": {1: 1, 0: 2}, "a": {0: 1}}, {"b": {0: 3, 1: 1}, "c": {0: 1}}) == (
        Change("a", 0, 1, None),
        Change("b", 0, 2, 3),
        Change("c", 0, None, 1),
    )


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"T@other": {0: 4}}, "T@other queue 0 at 4 (not known here)"),
        ({"T@here": {0: 5, 9: 0}}, "T@here queue 9 at 0 (not known here)"),
        ({"T@there": {0: 4}}, "T@there queue 0 at 4 (3 here)"),
    ],
)
def test_a_file_that_knows_more_is_written_over_only_when_told(
    tmp_path: Path, more: dict[str, dict[int, int]], says: str
) -> None:
    path = tmp_path / "consumerOffset.json"
    text = consumer_offsets_text(more, VERSION)
    path.write_text(text)
    with pytest.raises(WrongUse) as refused:
        planned(path, How.KEEP)
    assert f"{path} knows more than the export: {says}" in str(refused.value)
    assert path.read_text() == text
    assert planned(path, How.OVERWRITE)
    assert table(path) == KNOWN.table
    assert path.with_name("consumerOffset.json.bak").read_text() == text


def test_a_file_that_knows_less_is_replaced_and_an_equal_one_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_text('{"offsetTable":{"T@here":{0:5}}}')
    assert planned(path, How.KEEP)
    text = path.read_text()
    assert not planned(path, How.KEEP)
    assert not planned(path, How.MERGE)
    assert path.read_text() == text


def test_a_merged_file_is_newer_than_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_text(consumer_offsets_text(FILE, DataVersion(3, 5000, 41)))
    assert planned(path, How.MERGE)
    assert parse_data_version(path.read_text()) == DataVersion(3, 5000, 42)
    assert [one.name for one in tmp_path.iterdir() if one.name.endswith(".tmp")] == []


@pytest.mark.parametrize(("how", "end"), [(How.KEEP, "give --overwrite"), (How.MERGE, "remove it and export again")])
@pytest.mark.parametrize("text", ["garbage", '{"offsetTable":{"T@here":{0:', '{"offsetTable":{"T@here":null}}'])
def test_a_file_that_cannot_be_read_is_left_alone(tmp_path: Path, how: How, end: str, text: str) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_text(text)
    with pytest.raises(BadData, match=r"consumerOffset\.json cannot be read ") as refused:
        planned(path, how)
    assert str(refused.value).endswith(
        f"{path}.bak is missing. Nothing was written. Restore consumerOffset.json; to discard what only it knows, {end}."
    )
    assert path.read_text() == text
    assert planned(path, How.OVERWRITE)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WrongUse, match=r"file/consumerOffset\.json cannot be (read|written)"):
        planned(tmp_path / "file" / "consumerOffset.json", How.KEEP)


NO_MAIN = {
    "missing": None,
    "empty": "",
    "damaged": '{"offsetTable":{"T@here":',
    "null": '{"offsetTable":{"T@here":null}}',
}


def of_killed_broker(folder: Path, main: str | None, bak: str) -> Path:
    """The place of the file, with what a kill left."""
    path = folder / "consumerOffset.json"
    if main is not None:
        path.write_text(main)
    path.with_name("consumerOffset.json.bak").write_text(bak)
    return path


@pytest.mark.parametrize("main", NO_MAIN.values(), ids=NO_MAIN)
def test_the_bak_is_merged_with_where_the_broker_would_read_it(tmp_path: Path, main: str | None) -> None:
    bak = consumer_offsets_text(FILE, DataVersion(3, 5000, 41))
    path = of_killed_broker(tmp_path, main, bak)
    plan = planned_write(path, CONSUMER_OFFSETS, KNOWN, VERSION, How.MERGE)
    assert [f"{path}.bak is used, as RocketMQ would" in note for note in plan.notes] == [True, False]
    assert plan.write()
    assert table(path) == KNOWN.merged_into(FILE)
    assert parse_data_version(path.read_text()) == DataVersion(3, 5000, 42)
    assert path.with_name("consumerOffset.json.bak").read_text() == bak


@pytest.mark.parametrize("main", NO_MAIN.values(), ids=NO_MAIN)
def test_a_bak_that_knows_more_is_not_written_past_unless_told(tmp_path: Path, main: str | None) -> None:
    path = of_killed_broker(tmp_path, main, consumer_offsets_text({"T@other": {0: 4}}, VERSION))
    with pytest.raises(WrongUse, match=r"consumerOffset\.json\.bak knows more than the export: T@other queue 0 at 4"):
        planned(path, How.KEEP)
    assert (path.read_text() if path.exists() else None) == main
    assert planned(path, How.OVERWRITE)
    assert table(path) == KNOWN.table


@pytest.mark.parametrize("main", NO_MAIN.values(), ids=NO_MAIN)
def test_the_file_is_made_again_where_its_bak_says_the_same(tmp_path: Path, main: str | None) -> None:
    path = of_killed_broker(tmp_path, main, consumer_offsets_text(KNOWN.table, VERSION))
    assert planned(path, How.KEEP)
    assert table(path) == KNOWN.table


@pytest.mark.parametrize("main", [None, "", "garbage"])
def test_where_neither_file_can_be_read_nothing_is_merged(tmp_path: Path, main: str | None) -> None:
    path = of_killed_broker(tmp_path, main, "garbage")
    with pytest.raises(BadData, match="RocketMQ would not start with them: restore one of the two"):
        planned(path, How.MERGE)
    assert (path.read_text() if path.exists() else None) == main


LEVELS = KnownOffsets(committed={SCHEDULE_TOPIC: {2: 124, 3: 9}}, never_back=True)


def test_a_merge_lowers_no_delay_level_and_names_those_that_are_further_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "delayOffset.json"
    path.write_text(delay_offsets_text({3: 211, 4: 5, 17: 2}, VERSION))
    plan = planned_write(path, DELAY_OFFSETS, LEVELS, VERSION, How.MERGE)
    (note,) = plan.notes
    assert note.startswith(f"{path}: level 3 is delivered up to 211 there, 124 here. The higher offset is kept")
    assert plan.write()
    assert parse_delay_offsets(path.read_text()) == {3: 211, 4: 9, 17: 2}


def test_a_file_without_a_level_that_is_further_gets_no_note(tmp_path: Path) -> None:
    path = tmp_path / "delayOffset.json"
    path.write_text(delay_offsets_text({3: 124, 4: 5, 17: 2}, VERSION))
    assert planned_write(path, DELAY_OFFSETS, LEVELS, VERSION, How.MERGE).notes == ()


def test_a_plain_export_does_not_lower_a_delay_level(tmp_path: Path) -> None:
    path = tmp_path / "delayOffset.json"
    path.write_text(delay_offsets_text({3: 211}, VERSION))
    with pytest.raises(WrongUse, match="queue 2 at 211 \\(124 here\\)"):
        planned_write(path, DELAY_OFFSETS, LEVELS, VERSION, How.KEEP)


@pytest.mark.parametrize("how", [How.MERGE, How.OVERWRITE])
def test_offsets_of_the_file_that_are_lowered_are_told(tmp_path: Path, how: How) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_text(consumer_offsets_text({"T@here": {0: 8, 1: 6}}, VERSION))
    plan = planned_write(path, CONSUMER_OFFSETS, KNOWN, VERSION, how)
    assert plan.lowered == (Change("T@here", 0, 8, 5),)
    assert plan.notes == (
        f"{path}: 1 offsets are lowered, the broker consumes again from there: T@here queue 0 at 8 (5 here)",
    )


def both(file: Path) -> tuple[OffsetWrite, OffsetWrite]:
    return planned_writes(file, KNOWN, LEVELS, VERSION, How.MERGE)


def test_exports_of_two_brokers_into_one_folder_share_no_file(tmp_path: Path) -> None:
    levels = {"b": {3: 432, 18: 15}, "a": {3: 433, 18: 16}}  # a's file would be a newer one of b
    for broker, reached in levels.items():
        delays = KnownOffsets(observed=DELAY_OFFSETS.parse(delay_offsets_text(reached, VERSION)), never_back=True)
        planned = planned_writes(tmp_path / f"{broker}.json", KNOWN, delays, VERSION, How.KEEP)
        assert write_both(planned) == [True, True]
        (note,) = planned[1].notes
        assert note.startswith(
            f"the delay levels are in {tmp_path}/delayOffset-{broker}.json: the broker reads the two as "
        )
    written = {broker: parse_delay_offsets((tmp_path / f"delayOffset-{broker}.json").read_text()) for broker in levels}
    assert written == levels


def test_beside_a_brokers_own_file_the_levels_have_the_brokers_name(tmp_path: Path) -> None:
    _, levels = planned_writes(tmp_path / "consumerOffset.json", KNOWN, LEVELS, VERSION, How.KEEP)
    assert (levels.path, levels.notes) == (tmp_path / "delayOffset.json", ())


@pytest.mark.parametrize("name", ["consumerOffset.json", "delayOffset.json"])
@pytest.mark.parametrize("end", ["", ".bak"])
def test_neither_file_is_written_where_one_of_them_or_a_bak_is_a_folder(tmp_path: Path, name: str, end: str) -> None:
    for one in ("consumerOffset.json", "delayOffset.json"):
        (tmp_path / one).write_text('{"offsetTable":{}}')
    (tmp_path / f"{name}{end}").unlink(missing_ok=True)
    (tmp_path / f"{name}{end}").mkdir()
    with pytest.raises(WrongUse, match=r"cannot be (read|written): it is a folder, not a file"):
        both(tmp_path / "consumerOffset.json")


def test_neither_file_is_written_in_a_folder_without_the_right_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_store.broker_files.offsets_to_broker.os.access", lambda path, _: Path(path) != tmp_path)
    with pytest.raises(WrongUse, match=f"cannot be written: {tmp_path} is not writable"):
        both(tmp_path / "new" / "consumerOffset.json")


def test_when_the_second_file_fails_all_the_same_it_is_said_that_the_first_was_changed(tmp_path: Path) -> None:
    planned = both(tmp_path / "consumerOffset.json")
    (tmp_path / "delayOffset.json").mkdir()
    with pytest.raises(
        WrongUse,
        match=r"delayOffset\.json cannot be .*consumerOffset\.json was already written: fix this and export again",
    ):
        write_both(planned)
    (tmp_path / "delayOffset.json").rmdir()
    assert write_both(both(tmp_path / "consumerOffset.json")) == [False, True]
