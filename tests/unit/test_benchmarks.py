"""The benchmarks' own arithmetic and data. Nothing is timed here."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from benchmarks.__main__ import CHECKOUT, LAST_RUN, SCENARIOS, only_one, options
from benchmarks.broker_log import QUEUES, RECORD_BYTES, TOPIC, BrokerLog
from benchmarks.listeners import NAMED, Everything, EverythingFails10, Named, NamedFails10, NamedFails83, failing
from benchmarks.speed_page import with_last_run
from benchmarks.table import Measurement, Section, Target, at_quantile, document, ratios, shown, table, with_scenarios
from rmq_store.broker_files.commit_log_file import list_commit_log, read_log
from rmq_store.broker_files.consume_queue_file import list_consume_queues
from rmq_store.broker_files.file_source import LocalFileSource
from rmq_store.log.commit_log import NothingWritten
from rmq_store.log.consume_queue import ConsumeQueueEntry
from rmq_store.log.record import Record
from rmq_store.message.properties import tags_code

# --- the table -------------------------------------------------------------------------------------------------------

OURS = Measurement("ours", "our way", "M/s", (3.0, 1.0, 2.0), target=Target(">=", 2.0), peers=("peer", "not measured"))
PEER = Measurement("peer", "their way", "M/s", (0.5, 0.4, 9.0), is_peer=True, short="theirs")
SLOW = Measurement("slow", "a commit", "ms", (70.0, 50.0, 90.0, 80.0), target=Target("<=", 60.0), more_is_better=False)


def rendered(*sections: Section) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(table(sections, "on a test"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_value_is_the_median_of_its_samples_and_is_held_against_the_target() -> None:
    assert (OURS.value, OURS.is_met) == (2.0, True)
    assert (SLOW.value, SLOW.is_met) == (75.0, False)
    assert PEER.is_met is None


def test_a_quantile_is_a_sample_that_so_many_do_not_exceed() -> None:
    samples = [float(number) for number in range(1, 101)]
    assert (at_quantile(samples, 0.99), at_quantile(samples, 1.0), at_quantile([7.0], 0.99)) == (99.0, 100.0, 7.0)


def test_ratios_are_of_the_values_and_only_to_peers_that_were_measured() -> None:
    assert ratios(OURS, {"peer": PEER}) == {"peer": 4.0}


def test_where_less_is_better_the_ratio_turns_round() -> None:
    quicker = Measurement("quick", "another commit", "ms", (25.0,), more_is_better=False)
    assert quicker.times_better_than(SLOW) == 3.0


def test_different_units_are_not_compared() -> None:
    with pytest.raises(ValueError, match="ours is in M/s, slow in ms"):
        OURS.times_better_than(SLOW)


@pytest.mark.parametrize("samples", [(), (1.0, float("nan"))])
def test_a_measurement_needs_samples_that_are_numbers(samples: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="samples must be"):
        Measurement("none", "nothing", "s", samples)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (1.005, "1.00"), (59.96, "60.0"), (123.4, "123"), (1e6, "1,000,000")],
)
def test_three_digits_are_shown(value: float, text: str) -> None:
    assert shown(value) == text


def test_the_table_says_what_was_measured_and_whether_the_target_is_met() -> None:
    text = rendered(Section("windows", (OURS, PEER)), Section("commits", (SLOW,)))
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert lines == [
        ["windows", *[""] * 7],
        ["our way", "2.00", "1.00..3.00", "3", "M/s", "4.00 theirs", ">= 2.00", "yes"],
        ["peer: their way", "0.500", "0.400..9.00", "3", "M/s", "", "", ""],
        ["commits", *[""] * 7],
        ["a commit", "75.0", "50.0..90.0", "4", "ms", "", "<= 60.0", "no"],
    ]
    assert "on a test" in text


def test_a_scenario_that_failed_says_so_beside_what_it_had_measured() -> None:
    text = rendered(Section("windows", (OURS,), "WrongResult: outcomes: 3, not 4"))
    assert "our way" in text
    assert "failed: WrongResult: outcomes: 3, not 4" in text


def test_the_document_holds_every_sample_and_is_json() -> None:
    sections = [Section("windows", (OURS, PEER), loads=(0.5, 1.5)), Section("commits", (), "broken")]
    windows, commits = json.loads(json.dumps(document(sections, {"cores": 2}, {"quick": True})))["scenarios"]
    ours, peer = windows["measurements"]
    assert (ours["samples"], ours["value"], ours["target"], ours["met"]) == ([3.0, 1.0, 2.0], 2.0, ">= 2.00", True)
    assert (ours["ratios"], peer["met"]) == ({"peer": 4.0}, None)
    assert (windows["title"], windows["machine"], windows["options"]) == ("windows", {"cores": 2}, {"quick": True})
    assert (windows["loads"], windows["failed"], commits["failed"]) == ([0.5, 1.5], "", "broken")


def test_a_run_of_some_scenarios_replaces_these() -> None:
    older = document([Section("commits", (SLOW,)), Section("gone")], {"day": 1}, {})
    newer = document([Section("windows", (OURS,))], {"day": 2}, {})
    merged = with_scenarios(older, newer, ["windows", "commits", "new"])
    assert [(one["title"], one["machine"]["day"]) for one in merged["scenarios"]] == [("windows", 2), ("commits", 1)]
    again = with_scenarios(merged, document([Section("commits")], {"day": 3}, {}), ["windows", "commits"])
    assert [(one["title"], one["machine"]["day"]) for one in again["scenarios"]] == [("windows", 2), ("commits", 3)]


# --- docs/speed.md ---------------------------------------------------------------------------------------------------


def test_the_page_shows_the_last_run() -> None:
    page = (CHECKOUT / "docs" / "speed.md").read_text()
    assert page == with_last_run(page, json.loads(LAST_RUN.read_text())), (
        "run python -m benchmarks --write-docs docs/speed.md"
    )


def test_the_page_names_every_scenario() -> None:
    page = (CHECKOUT / "docs" / "speed.md").read_text()
    assert [name for name in SCENARIOS if f"\n| `{name}` |" not in page] == []


def test_the_last_section_is_written_from_a_run() -> None:
    machine = {
        "day": "2026-11-20",
        "cores": 2,
        "memory_bytes": 24 << 30,
        "python": "3.11.7",
        "versions": {"pyarrow": "1"},
    }
    sizes = {"messages": 5_000_000, "rounds": 3, "windows": 1_000, "quick": False}
    sections = [Section("windows", (OURS, PEER), loads=(0.25, 1.0)), Section("commits", (SLOW,), "broken", (1.0, 2.0))]
    run = document(sections, machine, sizes)
    lines = with_last_run("# Speed\n\n## Last measured\n\nold\n", json.loads(json.dumps(run))).splitlines()
    assert lines[:4] == ["# Speed", "", "## Last measured", ""]
    begin = lines.index("### Windows")
    assert lines[begin + 2 : begin + 4] == [
        "On 2026-11-20: 2 cores, 24 GiB, load 0.2 to 1.0. Sizes: 5,000,000 messages,",
        "3 rounds, 1,000 windows. Python 3.11.7, pyarrow 1.",
    ]
    assert "| our way | 2.00 | 1.00..3.00 | M/s | 4.00 theirs | >= 2.00 | yes |" in lines
    assert "| peer: their way | 0.500 | 0.400..9.00 | M/s |  |  |  |" in lines
    assert "| a commit | 75.0 | 50.0..90.0 | ms |  | <= 60.0 | no |" in lines
    assert lines[-1] == "Failed: broken"
    assert "old" not in lines


def test_a_page_without_the_section_is_refused() -> None:
    with pytest.raises(ValueError, match="Last measured"):
        with_last_run("# Speed\n", {})


# --- the command line ------------------------------------------------------------------------------------------------


def test_a_scenario_that_is_not_there_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options(["--only", "everything"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert [name for name in SCENARIOS if name not in said] == []


def test_sizes_are_at_least_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert options(["--messages", "5,000,000"]).messages == 5_000_000
    with pytest.raises(SystemExit):
        options(["--rounds", "0"])
    assert "--rounds" in capsys.readouterr().err


def test_a_second_run_in_the_same_checkout_ends_at_once(tmp_path: Path) -> None:
    with only_one(tmp_path / "lock"), pytest.raises(SystemExit, match="run already"), only_one(tmp_path / "lock"):
        pytest.fail("both are inside")


# --- the data --------------------------------------------------------------------------------------------------------

LOG = BrokerLog(messages=400, file_bytes=1 << 16)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> LocalFileSource:
    folder = tmp_path_factory.mktemp("broker")
    LOG.write(folder)
    return LocalFileSource(folder)


@pytest.fixture(scope="module")
def records(broker: LocalFileSource) -> list[Record]:
    items = [item for _, item in read_log(broker, list_commit_log(broker))]
    assert isinstance(items[-1], NothingWritten)
    return [item for item in items if isinstance(item, Record)]


def test_the_rule_reads_every_record_of_the_log_with_its_crc(records: list[Record]) -> None:
    assert len(records) == LOG.messages > 2 * LOG.per_file
    assert [(r.queue_id, r.queue_offset) for r in records] == [(n % QUEUES, n // QUEUES) for n in range(LOG.messages)]
    assert {(r.topic, r.store_size) for r in records} == {(TOPIC, RECORD_BYTES)}


def test_the_records_add_up_to_the_sums_that_imports_are_checked_with(records: list[Record]) -> None:
    sums = LOG.sums()
    assert {name: sum(getattr(record, name) for record in records) for name in sums} == sums


def test_store_times_do_not_fall_and_bodies_differ(records: list[Record]) -> None:
    assert all(before.store_timestamp <= after.store_timestamp for before, after in pairwise(records))
    bodies = [json.loads(record.stored_body) for record in records]
    assert len({str(body) for body in bodies}) == LOG.messages
    assert [record.properties["KEYS"] for record in records] == [str(body["order"]) for body in bodies]


def test_the_consume_queues_say_what_the_log_says(broker: LocalFileSource, records: list[Record]) -> None:
    for files in list_consume_queues(broker):
        of_queue = [record for record in records if record.queue_id == files.queue_id]
        assert files.entries(0, len(of_queue)) == [
            ConsumeQueueEntry(r.commit_log_offset, r.store_size, tags_code(r.properties["TAGS"])) for r in of_queue
        ]
        assert files.written() == range(len(of_queue))


def test_the_log_is_the_same_every_time(broker: LocalFileSource, tmp_path: Path) -> None:
    LOG.write(tmp_path)
    again = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert again == {p.relative_to(broker.root): p.read_bytes() for p in broker.root.rglob("*") if p.is_file()}


@pytest.mark.parametrize("listener", [Named(), NamedFails83(), NamedFails10(), Everything(), EverythingFails10()])
def test_a_listener_fails_the_offsets_that_its_check_expects(listener: Named) -> None:
    columns = {"body": [b"{}"] * 300, "keys": ["k"] * 300, "queue_offset": range(300)}
    batch = pa.RecordBatch.from_pydict({name: pa.array(columns[name]) for name in NAMED})
    answer = listener.consume_batch(batch).to_pylist()
    assert [offset for offset, acked in enumerate(answer) if not acked] == list(failing(300, listener.every))
