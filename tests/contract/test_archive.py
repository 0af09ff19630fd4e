"""The archive: messages that retention removed from their queues are still found by queries and searches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rmq_store.admin.track import REMOVED, TrackType
from rmq_store.commit.ctl import canonical_json
from rmq_store.commit.positions import Outcome
from rmq_store.errors import BadData, WrongUse
from rmq_store.lake.admin.track import track
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.audit.full import full
from rmq_store.lake.maintain.compact import CompactReport, CompactRequest, compact
from rmq_store.lake.maintain.expired_rows import without_expired
from rmq_store.lake.maintain.retention import RetentionRequest, retain
from rmq_store.lake.read.message_search import message_by_id, messages_by_key, messages_by_unique_key
from rmq_store.lake.sql.sql import query
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.maintain.files_to_join import Limits
from rmq_store.message.message_const import DLQ_GROUP_TOPIC_PREFIX, SCHEDULE_TOPIC, retry_topic
from rmq_store.settings.retention_settings import RetentionRule
from tests.contract.test_compact import lived
from tests.faults.answers import Clock, set_clock
from tests.faults.stores import BROKER, GROUP, HOUR_MS, OPERATOR, TOPIC, Lake, copied, group_named, write_broker
from tests.faults.test_planted_contents import Plant, first_row, planted, rows_of
from tests.planted_shard import PlantedShard, Row

KINDS_OF_ROWS = ("msg", "archive", "outcome", "key")
ALL = [
    RetentionRule(topic=topic, max_age_ms=1, archive=True)
    for topic in ("*", "%RETRY%*", f"{DLQ_GROUP_TOPIC_PREFIX}*", SCHEDULE_TOPIC)
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Windows with failures, deliveries and dead letters, three days ago."""
    folder, clock = tmp_path_factory.mktemp("archive"), Clock()
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_clock(monkeypatch, clock)
        lake = Lake(folder / "store", clock.host)
        lake.load(write_broker(folder / "broker"))
        lived(lake, clock, "1")
    return lake.folder, clock.ms + 72 * HOUR_MS


@pytest.fixture
def clock(built: tuple[Path, int], monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(built[1])
    set_clock(monkeypatch, clock)
    return clock


@pytest.fixture
def lake(built: tuple[Path, int], clock: Clock, tmp_path: Path) -> Lake:
    return copied(Lake(built[0], clock.host), tmp_path / "store")


def maintained(lake: Lake, *rules: RetentionRule) -> CompactReport:
    """Retention and compaction, without the files that they replaced: as a vacuum leaves it two days later."""
    request = RetentionRequest(request_id="2026-01-05-maintain", actor=OPERATOR, rules=rules)
    retain(lake.shard, request, lake.host)
    report = compact(lake.shard, CompactRequest("2026-01-05-maintain", OPERATOR, "", Limits(least_files=2)), lake.host)
    for file in lake.folder.glob("*/commitlog/kind=*/*.parquet"):
        if not lake.shard.commitlog.is_live(f"{file.parent.name}/{file.name}"):
            file.unlink()
    return report


def fully(lake: Lake) -> list[Finding]:
    return [*lake.audit(), *full(lake.store, LocalEngine(lake.host)).findings]


def rows(lake: Lake, sql: str) -> list[str]:
    return sorted(map(repr, query(lake.store, sql).to_pylist(maps_as_pydicts="lossy")))


def count(lake: Lake, view: str) -> int:
    number: int = query(lake.store, f"SELECT count(*) AS n FROM {view}").to_pylist()[0]["n"]
    return number


@pytest.mark.slow
def test_every_message_is_found_as_before(lake: Lake, tmp_path: Path) -> None:
    before = rows(lake, "SELECT * FROM messages")
    places = query(lake.store, "SELECT offset_msg_id, queue_offset, body FROM messages").to_pylist()
    all_rows = count(lake, "message_rows")
    keyed = messages_by_key(lake.store, TOPIC, "k7"), messages_by_unique_key(lake.store, f"{7:032X}")
    report = maintained(lake, *ALL)
    assert report.archived_rows == report.removed_rows == count(lake, "archived_rows") > 0
    assert count(lake, "message_rows") == all_rows - report.archived_rows
    assert rows(lake, "SELECT * FROM messages") == before
    assert (messages_by_key(lake.store, TOPIC, "k7"), messages_by_unique_key(lake.store, f"{7:032X}")) == keyed
    for place in places[:: len(places) // 12]:
        (same,) = message_by_id(lake.store, place["offset_msg_id"])
        assert (same["queue_offset"], same["body"]) == (place["queue_offset"], place["body"])
    with pytest.raises(WrongUse, match=f"imported as those of broker {BROKER}"):
        lake.load(write_broker(tmp_path / "broker"), "2026-01-05-twice", "broker-b")
    assert fully(lake) == []


@pytest.mark.slow
def test_a_message_is_tracked_through_its_archived_copies(lake: Lake) -> None:
    messages = messages_by_unique_key(lake.store, f"{2:032X}", topic=TOPIC)
    before = track(lake.store, messages[0])
    maintained(lake, *ALL)
    assert messages_by_unique_key(lake.store, f"{2:032X}", topic=TOPIC) == messages
    assert track(lake.store, messages[0]) == before
    assert any(len(one.hops) > 2 for one in before)


def test_where_copies_are_gone_a_track_ends_there(lake: Lake) -> None:
    (message,) = messages_by_unique_key(lake.store, f"{2:032X}", topic=TOPIC)
    maintained(lake, RetentionRule(topic="%RETRY%*", max_age_ms=1))
    (of_group,) = [one for one in track(lake.store, message) if one.group == GROUP]
    assert [hop.outcome for hop in of_group.hops] == [Outcome.RETRIED, REMOVED]
    assert of_group.hops[1].topic == SCHEDULE_TOPIC
    maintained(lake, *(replace(rule, archive=False) for rule in ALL[1:]))
    (of_group,) = [one for one in track(lake.store, message) if one.group == GROUP]
    assert ([hop.outcome for hop in of_group.hops], of_group.type) == ([Outcome.RETRIED, REMOVED], TrackType.UNKNOWN)


def test_an_archive_that_is_taken_out_of_the_table_is_found(lake: Lake) -> None:
    maintained(lake, *ALL)
    at = PlantedShard(lake.folder, lake.shard_name)
    archived, file = count(lake, "archived_rows"), at.files(kind="archive")[0]
    at.take_out(file)
    assert count(lake, "archived_rows") < archived
    (finding,) = lake.audit()
    assert (finding.problem, finding.file) == (Problem.RECORDED_FILE_NOT_LIVE, f"commitlog/{file}")


# --- what the rows of an archive must be ---


def largest(at: PlantedShard) -> str:
    """The file with the most archived messages."""
    return max(at.files(kind="archive"), key=lambda file: pq.ParquetFile(at.path(file)).metadata.num_rows)


def of_rows(change: Callable[[list[Row]], list[Row]]) -> Plant:
    return rows_of(largest, change)


def second_at_first(rows: list[Row]) -> list[Row]:
    return [rows[0], rows[1] | {"queue_offset": rows[0]["queue_offset"]}, *rows[2:]]


def removed(end: object) -> Plant:
    """The end of what a retention has removed in a queue."""

    def change(row: Row) -> Row:
        parameters = json.loads(row["parameters"])
        parameters["removed"] = {app_id: [0, end] for app_id in parameters["removed"]}
        return row | {"parameters": canonical_json(parameters)}

    return lambda at: at.rewrite_record("retention", change)


COLUMNS: dict[str, Any] = {
    "topic": "Other", "broker_name": "broker-z", "queue_id": 9, "queue_offset": 777, "commit_id": "f" * 32, "part": 9,
    "rel": 777,
}  # fmt: skip
PLANTED: dict[str, tuple[Plant, Problem]] = {
    "the last message removed": (of_rows(lambda rows: rows[:-1]), Problem.MESSAGE_ELSEWHERE),
    "all but the first removed": (of_rows(lambda rows: rows[:1]), Problem.MESSAGE_ELSEWHERE),
    "a message removed in the middle": (of_rows(lambda rows: rows[:1] + rows[2:]), Problem.MESSAGE_ELSEWHERE),
    "a message doubled": (of_rows(lambda rows: [*rows, rows[0]]), Problem.MESSAGE_ELSEWHERE),
    "a message in place of another": (of_rows(lambda rows: [rows[0], rows[0], *rows[2:]]), Problem.MESSAGE_ELSEWHERE),
    "two messages at an offset": (of_rows(second_at_first), Problem.MESSAGE_ELSEWHERE),
    "two messages exchanged": (of_rows(lambda rows: [rows[1], rows[0], *rows[2:]]), Problem.MESSAGE_ELSEWHERE),
    "a message of an unknown topic": (
        of_rows(lambda rows: [*rows, rows[0] | {"topic": "Other"}]),
        Problem.MESSAGE_ELSEWHERE,
    ),
    "a file taken out": (lambda at: at.take_out(largest(at)), Problem.MESSAGES_MISSING),
    "a retention up to null": (removed(None), Problem.NOT_AUDITED),
    "a retention up to a text": (removed("x"), Problem.NOT_AUDITED),
    "a retention up to a huge offset": (removed(2**70), Problem.NOT_AUDITED),
    "due otherwise": (of_rows(first_row(deliver_at=1)), Problem.MESSAGE_DIFFERS_FROM_COMMIT),
} | {
    f"{name} {value}": (
        of_rows(first_row(**{name: value})),
        Problem.MESSAGE_DIFFERS_FROM_COMMIT if name in ("commit_id", "part") else Problem.MESSAGE_ELSEWHERE,
    )
    for name, other in COLUMNS.items()
    for value in (other, None)
}


@pytest.mark.slow
def test_what_was_changed_in_an_archive_is_found(lake: Lake, clock: Clock, tmp_path: Path) -> None:
    """Each fault in a shard of its own. The archive is of two retentions, and its files were joined."""
    maintained(lake, ALL[1])
    clock.ms += 2 * HOUR_MS
    maintained(lake, ALL[0], *ALL[2:])
    found = planted(lake.folder, tmp_path / "planted", {name: plant for name, (plant, _) in PLANTED.items()})
    problems = {name: {Problem.of(one.problem) for one in findings} for name, findings in found.items()}
    assert {name: problem for name, (_, problem) in PLANTED.items() if problem not in problems[name]} == {}


@pytest.mark.slow
def test_what_was_removed_without_an_archive_and_is_still_stored_goes_there_with_the_next(
    lake: Lake, clock: Clock
) -> None:
    """Half of its files was not written again in between."""
    request = RetentionRequest(request_id="2026-01-05-before", actor=OPERATOR, rules=[replace(ALL[1], archive=False)])
    retain(lake.shard, request, lake.host)
    lake.consume("2026-01-05-r1")
    clock.ms += 2 * HOUR_MS
    maintained(lake, *ALL)
    assert count(lake, "archived_rows") > 0
    assert fully(lake) == []


def test_a_compaction_on_positions_of_before_a_retention_archives_what_these_say(
    lake: Lake, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retention is committed while the files are written, so long before the compaction that this is decided on it."""

    def overtaken(*args: Any) -> Any:
        retain(lake.shard, RetentionRequest(request_id="2026-01-05-a", actor=OPERATOR, rules=ALL), lake.host)
        clock.ms += HOUR_MS
        return without_expired(*args)

    request = CompactRequest("2026-01-05-maintain", OPERATOR, "", Limits(least_files=2))
    with monkeypatch.context() as patch:
        patch.setattr("rmq_store.lake.maintain.compact.without_expired", overtaken)
        assert compact(lake.shard, request, lake.host).archived_rows < count(lake, "message_rows")
    assert fully(lake) == []


NAMES = {
    "of another tool": "part-00000-1b2c3d4e-aaaa-bbbb-cccc-000000000000-c000.snappy.parquet",
    "of an unknown commit": "deadbeef" * 4 + "-00000.parquet",
    "of the same commit": "",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_each_kind_that_is_there_twice_is_found(lake: Lake, clock: Clock, name: str) -> None:
    """No commit recorded the second one."""
    maintained(lake, *ALL)
    clock.ms += 2 * HOUR_MS
    lake.load(write_broker(lake.folder.parent / "more", 60), "2026-01-05-import")
    lived(lake, clock, "2")
    at = PlantedShard(lake.folder, lake.shard_name)
    assert fully(lake) == []
    planted = {f"commitlog/{at.second_copy(at.files(kind=kind)[-1], name=NAMES[name])}" for kind in KINDS_OF_ROWS}
    assert {finding.file for finding in lake.audit()} >= planted
    report = full(lake.store, LocalEngine(lake.host))
    assert report.without_digest == 0
    missing = {finding.file for finding in report.findings if finding.problem == Problem.DIGEST_NOT_RECORDED_ONCE}
    assert missing == planted


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *((kind, name) for kind in ("archive", "outcome", "key") for name in NAMES),
        *(("ctl", name) for name in NAMES if name != "of the same commit"),
    ],
)
def test_a_file_that_no_commit_wrote_is_not_joined(lake: Lake, clock: Clock, kind: str, name: str) -> None:
    """In a joined file its rows would be those of a commit. The record of a commit is in no record: the audit finds it as one
    that is there twice."""
    at = PlantedShard(lake.folder, lake.shard_name)
    if kind == "archive":
        maintained(lake, *ALL)
        clock.ms += 2 * HOUR_MS
    at.second_copy(at.files(kind=kind)[0], name=NAMES[name])
    with pytest.raises(BadData, match="no commit wrote it"):
        compact(lake.shard, CompactRequest("2026-01-06-maintain", OPERATOR, "", Limits(least_files=2)), lake.host)


@pytest.mark.slow
def test_only_what_a_rule_archives_is_kept(lake: Lake) -> None:
    maintained(lake, ALL[0], replace(ALL[1], archive=False))
    assert count(lake, "archived_rows") == count(lake, f"archived_rows WHERE topic = '{TOPIC}'") > 0
    assert count(lake, f"message_rows WHERE topic = '{retry_topic(GROUP)}'") == 0
    assert fully(lake) == []


@pytest.mark.slow
def test_a_rule_that_archives_no_more_leaves_the_archive(lake: Lake, clock: Clock, tmp_path: Path) -> None:
    maintained(lake, ALL[0])
    archived = count(lake, "archived_rows")
    lake.load(write_broker(tmp_path / "more", 60), "2026-01-05-import")
    for name in (GROUP, "absorbing"):
        lake.consume(f"2026-01-05-{name}", group_named(name))
    lake.shard.positions()
    clock.ms += 2 * HOUR_MS
    report = maintained(lake, replace(ALL[0], archive=False, max_unconsumed_age_ms=1))
    assert (report.removed_rows, report.archived_rows) == (30, 0)
    assert count(lake, "archived_rows") == archived
    assert fully(lake) == []


@pytest.mark.slow
def test_small_files_of_the_archive_are_joined(lake: Lake, clock: Clock) -> None:
    for rule in ALL[1:]:
        maintained(lake, rule)
        clock.ms += 2 * HOUR_MS
    before = rows(lake, "SELECT * FROM archived_rows")

    def files() -> list[Any]:
        kinds = lake.shard.commitlog.files().select(["partition.kind", "partition.store_day"]).to_pylist()
        return [str(row["partition.store_day"]) for row in kinds if row["partition.kind"] == "archive"]

    several = len(files())
    maintained(lake, *ALL[1:])
    assert len(files()) == len(set(files())) < several
    assert rows(lake, "SELECT * FROM archived_rows") == before
    assert fully(lake) == []
