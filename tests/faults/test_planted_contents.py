"""``rmq audit --full`` finds what was changed in the rows of a store, however carefully.

Each row of ``FAULTS`` is a fault, how it is planted, and a problem that the audit must name besides ``file changed``. Sizes and
statistics in the log agree with the files, so that only a look at the rows can show it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from rmq_store import Message, open_store
from rmq_store.consumer.duplicates import AbsorbRule
from rmq_store.consumer.timer import SLOT_MS, SLOTS
from rmq_store.lake.audit.file_content import ContentJob, ContentTask, read_content
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.audit.full import full
from rmq_store.lake.maintain.compact import CompactRequest, compact
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.send import send
from rmq_store.maintain.files_to_join import Limits
from rmq_store.message.message_const import TIMER_TOPIC
from rmq_store.message.sys_flag import body_crc
from rmq_store.utils.host import Host
from tests.faults.answers import Clock, set_clock
from tests.faults.stores import GROUP, HOUR_MS, SHARD, TESTS, Lake, group_named, write_broker
from tests.planted_shard import PlantedShard, Row

ABSORBING = group_named("absorbing", absorb_duplicates=AbsorbRule("KEYS", HOUR_MS))
Plant = Callable[[PlantedShard], None]


# --- which file ------------------------------------------------------------------------------------------------------


def file_with(at: PlantedShard, column: str, prefix: str) -> str:
    """The first message file that has a row whose ``column`` begins so."""
    for file in at.files(kind="msg"):
        values = at.shard.commitlog.read([file], [column]).column(column)
        if pc.any(pc.starts_with(values, prefix)).as_py():
            return file
    raise AssertionError(f"no {column} {prefix}")


def of_cause(cause: str) -> Callable[[PlantedShard], str]:
    return lambda at: file_with(at, "cause", cause)


def of_topic(topic: str) -> Callable[[PlantedShard], str]:
    return lambda at: file_with(at, "topic", topic)


def acked_keys(at: PlantedShard) -> str:
    (file,) = at.files(kind="key")
    return file


imported, sent, retried, delivered = of_topic("Orders"), of_topic("Notes"), of_cause("retry"), of_cause("deliver")


# --- what is done to its rows ----------------------------------------------------------------------------------------


def rows_of(file: Callable[[PlantedShard], str], change: Callable[[list[Row]], list[Row]]) -> Plant:
    def plant(at: PlantedShard) -> None:
        at.rewrite(file(at), lambda rows: pa.Table.from_pylist(change(rows.to_pylist()), rows.schema))

    return plant


def first_row(**values: Any) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [rows[0] | values, *rows[1:]]


def other_body(rows: list[Row]) -> list[Row]:
    body = bytearray(rows[1]["body"])
    body[0] ^= 1
    return [rows[0], rows[1] | {"body": bytes(body)}, *rows[2:]]


def other_body_and_crc(rows: list[Row]) -> list[Row]:
    body = rows[0]["body"][::-1]
    return first_row(body=body, body_crc=body_crc(body))(rows)


def swapped_bodies(rows: list[Row]) -> list[Row]:
    first, second, *rest = rows
    assert first["body"] != second["body"]
    return [first | {"body": second["body"]}, second | {"body": first["body"]}, *rest]


def another_message(rows: list[Row]) -> list[Row]:
    """The copy of another message, in all columns that say which it is."""
    properties = dict(rows[0]["properties"]) | {"UNIQ_KEY": "0" * 32}
    return first_row(unique_key="0" * 32, properties=list(properties.items()))(rows)


def another_property(rows: list[Row]) -> list[Row]:
    return first_row(properties=[*rows[0]["properties"], ("region", "eu")])(rows)


def tried_otherwise(topic: str, more: int) -> Callable[[list[Row]], list[Row]]:
    """The copies in topics that begin so, with more attempts than they had."""

    def change(row: Row) -> Row:
        return row | {name: row[name] + more for name in ("reconsume_times", "attempt")}

    return lambda rows: [change(row) if row["topic"].startswith(topic) else row for row in rows]


def with_key_texts(rows: pa.Table, texts: Sequence[str | None]) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index("key_text"), "key_text", pa.array(texts, pa.string()))


def without_a_key_text(at: PlantedShard) -> None:
    at.rewrite(acked_keys(at), lambda rows: with_key_texts(rows, [None, *rows.column("key_text").to_pylist()[1:]]))


def flipped(at: PlantedShard) -> None:
    """A bit in the middle of the file. Not all such bits are in a page that can still be read."""
    path = at.path(imported(at))
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)


def filtered_as_acked(at: PlantedShard) -> None:
    """In the newest window that filtered messages: it counts them as acked."""

    def change(row: Row) -> Row:
        consumed = []
        for one in row["consumed"]:
            both = (one["acked_hash"] + one["filtered_hash"] + (1 << 63)) % (1 << 64) - (1 << 63)
            acked = {"acked": one["acked"] + one["filtered"], "acked_hash": both, "filtered": 0, "filtered_hash": 0}
            consumed.append(one | acked)
        return row | {"consumed": consumed}

    at.rewrite_record("consume", change)


def of_its_segments(action: str, topic: str, **by: int) -> Plant:
    """Other numbers in the segments of a topic in the newest record of an action, each so much more."""

    def change(row: Row) -> Row:
        of_topic = [segment for segment in row["produced"] if segment["topic"] == topic]
        assert of_topic
        for segment in of_topic:
            segment.update({name: (segment[name] or 0) + more for name, more in by.items()})
        return row

    return lambda at: at.rewrite_record(action, change)


def of_another_tag(at: PlantedShard) -> None:
    """In the newest import: a reader of its tags passes over the segments."""

    def change(row: Row) -> Row:
        return row | {"produced": [segment | {"tags_codes": [7]} for segment in row["produced"]]}

    at.rewrite_record("import", change)


def of_its_files(action: str, change: Callable[[list[Row]], list[Row]]) -> Plant:
    """Other files in the newest record of an action."""
    return lambda at: at.rewrite_record(action, lambda row: row | {"files": change(row["files"])})


FAULTS: dict[str, tuple[Plant, Problem]] = {
    "rows in the middle dropped": (rows_of(imported, lambda rows: rows[:3] + rows[5:]), Problem.MESSAGE_ELSEWHERE),
    "a slice twice": (rows_of(imported, lambda rows: rows[:5] + rows[3:]), Problem.MESSAGE_ELSEWHERE),
    "as many rows, one of them twice": (
        rows_of(imported, lambda rows: [rows[0], rows[0], *rows[2:]]),
        Problem.MESSAGE_ELSEWHERE,
    ),
    "two rows exchanged": (rows_of(imported, lambda rows: [rows[1], rows[0], *rows[2:]]), Problem.MESSAGE_ELSEWHERE),
    "two sent rows exchanged": (rows_of(sent, lambda rows: [rows[1], rows[0], *rows[2:]]), Problem.MESSAGE_ELSEWHERE),
    "a byte of a body altered": (rows_of(imported, other_body), Problem.BODY_DIFFERS),
    "two bodies swapped": (rows_of(imported, swapped_bodies), Problem.BODY_DIFFERS),
    "a sent body altered": (rows_of(sent, other_body), Problem.BODY_DIFFERS),
    "the body of a retry altered": (rows_of(retried, other_body_and_crc), Problem.COPY_BODY_DIFFERS),
    "the body of a delivered retry altered": (rows_of(delivered, other_body_and_crc), Problem.COPY_BODY_DIFFERS),
    "a retry of another message": (rows_of(retried, another_message), Problem.COPY_OF_ANOTHER_MESSAGE),
    "a retry of another offset": (
        rows_of(retried, lambda rows: first_row(origin_queue_offset=rows[0]["origin_queue_offset"] + 1)(rows)),
        Problem.COPY_OF_ANOTHER_MESSAGE,
    ),
    "a retry of no group": (rows_of(retried, first_row(group_name=None)), Problem.COPY_IN_ANOTHER_TOPIC),
    "a retry of no broker": (rows_of(retried, first_row(broker_name=None)), Problem.COPY_IN_ANOTHER_TOPIC),
    "a retry of no offset": (rows_of(retried, first_row(origin_queue_offset=None)), Problem.COPY_OF_ANOTHER_MESSAGE),
    "a delivered retry in another group's topic": (
        rows_of(delivered, first_row(topic="%RETRY%other")),
        Problem.COPY_IN_ANOTHER_TOPIC,
    ),
    "a retry with a property more": (rows_of(retried, another_property), Problem.COPY_PROPERTIES_DIFFER),
    "a delivered retry with a property more": (rows_of(delivered, another_property), Problem.COPY_PROPERTIES_DIFFER),
    "a retry that was tried more often": (
        rows_of(retried, tried_otherwise("SCHEDULE", 1)),
        Problem.COPY_PROPERTIES_DIFFER,
    ),
    "a retry of another attempt": (rows_of(retried, first_row(attempt=7)), Problem.COPY_PROPERTIES_DIFFER),
    "a delivered retry that was tried more often": (
        rows_of(delivered, tried_otherwise("%RETRY%", 1)),
        Problem.COPY_PROPERTIES_DIFFER,
    ),
    "a dead letter that was tried more often": (
        rows_of(of_topic("%DLQ%"), tried_otherwise("%DLQ%", 1)),
        Problem.COPY_PROPERTIES_DIFFER,
    ),
    "a dead letter that was tried less often": (
        rows_of(of_topic("%DLQ%"), tried_otherwise("%DLQ%", -1)),
        Problem.COPY_PROPERTIES_DIFFER,
    ),
    "a unique key altered": (rows_of(imported, first_row(unique_key="1" * 32)), Problem.PROPERTIES_DIFFER),
    "a single key altered": (rows_of(sent, first_row(key_words=["other"])), Problem.PROPERTIES_DIFFER),
    "two single keys in one": (rows_of(sent, first_row(key_words=["a0 b0"])), Problem.PROPERTIES_DIFFER),
    "a property twice": (
        rows_of(sent, lambda rows: first_row(properties=[*rows[0]["properties"], ("KEYS", "other")])(rows)),
        Problem.PROPERTIES_DIFFER,
    ),
    "a property altered": (
        rows_of(imported, lambda rows: first_row(properties=[("KEYS", "other")])(rows)),
        Problem.PROPERTIES_DIFFER,
    ),
    "an imported message without its tags code": (
        rows_of(imported, first_row(tags_code=None)),
        Problem.PROPERTIES_DIFFER,
    ),
    "a sent message of another tags code": (rows_of(sent, first_row(tags_code=1)), Problem.PROPERTIES_DIFFER),
    "an imported message with an epoch": (rows_of(imported, first_row(epoch=0)), Problem.MESSAGE_DIFFERS_FROM_COMMIT),
    "a sent message with other columns": (
        rows_of(
            sent,
            first_row(commit_id="0" * 32, part=7, deliver_at=1, magic=3, sys_flag=4, flag=5, reconsume_times=6),
        ),
        Problem.MESSAGE_DIFFERS_FROM_COMMIT,
    ),
    "a sent body altered, without its CRC": (
        rows_of(sent, lambda rows: [row | {"body_crc": None} for row in other_body(rows)]),
        Problem.BODY_DIFFERS,
    ),
    "a retry of another epoch": (rows_of(retried, first_row(epoch=9)), Problem.MESSAGE_DIFFERS_FROM_COMMIT),
    "a retry without an epoch": (rows_of(retried, first_row(epoch=None)), Problem.MESSAGE_DIFFERS_FROM_COMMIT),
    "a retry of another pass": (rows_of(retried, first_row(**{"pass": 3})), Problem.MESSAGE_DIFFERS_FROM_COMMIT),
    "a retry of another window": (rows_of(retried, first_row(window_id="w")), Problem.MESSAGE_DIFFERS_FROM_COMMIT),
    "a retry that is due otherwise": (rows_of(retried, first_row(deliver_at=1)), Problem.MESSAGE_DIFFERS_FROM_COMMIT),
    "a retry that was born otherwise": (rows_of(retried, first_row(born_timestamp=1)), Problem.COPY_PROPERTIES_DIFFER),
    "a delivered retry of another epoch": (rows_of(delivered, first_row(epoch=None)), Problem.COPY_PROPERTIES_DIFFER),
    "a delivered retry of a window": (
        rows_of(delivered, first_row(window_id="w")),
        Problem.MESSAGE_DIFFERS_FROM_COMMIT,
    ),
    "the text of an acked key altered": (
        rows_of(acked_keys, lambda rows: first_row(key_text=rows[0]["key_text"] + "x")(rows)),
        Problem.KEY_DIFFERS,
    ),
    "the texts of two acked keys exchanged": (
        rows_of(
            acked_keys,
            lambda rows: [
                rows[0] | {"key_text": rows[1]["key_text"]},
                rows[1] | {"key_text": rows[0]["key_text"]},
                *rows[2:],
            ],
        ),
        Problem.KEY_DIFFERS,
    ),
    "an acked key without its text": (without_a_key_text, Problem.KEY_DIFFERS),
    "the hashes of two acked keys altered": (
        rows_of(
            acked_keys,
            lambda rows: [
                rows[0] | {"key_hash": rows[0]["key_hash"] ^ 1},
                rows[1] | {"key_hash": rows[1]["key_hash"] ^ 1},
                *rows[2:],
            ],
        ),
        Problem.KEY_DIFFERS,
    ),
    "a bit of a file flipped": (flipped, Problem.FILE_CHANGED),
    "filtered counted as acked": (filtered_as_acked, Problem.FILTERED_DIFFERS),
    "an imported segment with a later greatest time": (
        of_its_segments("import", "Orders", max_store_timestamp=HOUR_MS),
        Problem.MESSAGE_DIFFERS_FROM_COMMIT,
    ),
    "an imported segment with an earlier least time": (
        of_its_segments("import", "Orders", min_store_timestamp=-HOUR_MS),
        Problem.MESSAGE_DIFFERS_FROM_COMMIT,
    ),
    "an imported segment of another tag": (of_another_tag, Problem.PROPERTIES_DIFFER),
    "a timer's segment that is due a turn of the wheel later": (
        of_its_segments("send", TIMER_TOPIC, deliver_at=SLOTS * SLOT_MS),
        Problem.MESSAGE_DIFFERS_FROM_COMMIT,
    ),
    "a file less in the record of its commit": (
        of_its_files("consume", lambda files: files[1:]),
        Problem.DIGEST_NOT_RECORDED_ONCE,
    ),
    "no file in the record of its commit": (of_its_files("import", lambda files: []), Problem.DIGEST_NOT_RECORDED_ONCE),
    "a file without its digest in the record of its commit": (
        of_its_files("import", lambda files: [file | {"sha256": None} for file in files]),
        Problem.DIGEST_NOT_RECORDED_ONCE,
    ),
    "a file twice in the record of its commit": (
        of_its_files("import", lambda files: [*files, files[0] | {"sha256": "0" * 64}]),
        Problem.DIGEST_NOT_RECORDED_ONCE,
    ),
    "a file removed under another encoding of its path": (
        lambda at: at.take_out(sent(at).replace("kind=", "kind%3D")),
        Problem.LOG_READ_DIFFERENTLY,
    ),
}
WITHOUT_DIGEST = {
    "filtered counted as acked",
    "an imported segment with a later greatest time",
    "an imported segment with an earlier least time",
    "an imported segment of another tag",
    "a timer's segment that is due a turn of the wheel later",
    *(
        name
        for name, (_, problem) in FAULTS.items()
        if problem in (Problem.DIGEST_NOT_RECORDED_ONCE, Problem.LOG_READ_DIFFERENTLY)
    ),
}
"""What was changed is the record of an older commit, or the log, of which nothing else has a digest."""


def altered(value: Any, type_: pa.DataType) -> Any:
    """Another value of the type."""
    if pa.types.is_map(type_):
        return [*(value or []), ("another", "property")]
    if pa.types.is_binary(type_):
        return (value or b"") + b"!"
    if pa.types.is_string(type_):
        return (value or "") + "!"
    return (value or 0) + 1


# --- the stores ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one shard: an import, windows that filter and fail messages, deliveries, sent messages."""
    folder = tmp_path_factory.mktemp("sound")
    made = Lake(folder / "store")
    made.load(write_broker(folder / "broker"))
    made.consume()
    made.deliver()
    made.consume("2026-01-01-again")
    made.load(write_broker(folder / "broker", 60), "2026-01-02-import")
    made.consume("2026-01-02-r1")
    made.consume("2026-01-02-keys", ABSORBING)
    notes = [Message("Notes", b"note %d" % number, keys=(f"a{number}", f"b{number}")) for number in range(4)]
    notes.append(Message("Notes", b"later", delay_ms=HOUR_MS))
    open_store(made.folder).send(notes, create_queues=1, request_id="2026-11-20-n")
    assert audited(made.store) == []
    return made.folder


def audited(store: LakeStore) -> list[Finding]:
    return full(store, LocalEngine(Host())).findings


def planted(sound: Path, root: Path, faults: dict[str, Plant]) -> dict[str, list[Finding]]:
    """The findings by fault, each of which is planted in a shard of its own."""
    shutil.copytree(sound, root, ignore=shutil.ignore_patterns(SHARD, "shards"))
    (root / "shards").mkdir()
    shards = {name: f"fault-{number}" for number, name in enumerate(faults)}
    for name, shard in shards.items():
        shutil.copytree(sound / SHARD, root / shard)
        (root / "shards" / f"{shard}.json").write_text(json.dumps({"name": shard}))
        faults[name](PlantedShard(root, shard))
    findings = audited(LakeStore.open(Root.parse(str(root))))
    return {name: [one for one in findings if one.shard == shard] for name, shard in shards.items()}


@pytest.fixture(scope="module")
def findings(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Finding]]:
    return planted(
        sound, tmp_path_factory.mktemp("planted") / "store", {name: one for name, (one, _) in FAULTS.items()}
    )


# --- the tests -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS)
def test_the_audit_finds(findings: dict[str, list[Finding]], name: str) -> None:
    problems = {Problem.of(finding.problem) for finding in findings[name]}
    assert FAULTS[name][1] in problems
    if name not in WITHOUT_DIGEST:
        assert Problem.FILE_CHANGED in problems


def test_any_altered_column_is_found(sound: Path, tmp_path: Path) -> None:
    """A column that nothing repeats changes the bytes of the file at least."""
    shard = PlantedShard(sound, SHARD)
    file = imported(shard)
    rows = pq.ParquetFile(shard.path(file)).read()
    (recorded,) = (one.sha256 for ctl in shard.shard.ctls_since(0) for one in ctl.files if one.path == file)
    job = ContentJob(root=Root.parse(str(tmp_path)), table=".")
    unnoticed = set()
    for at, field in enumerate(rows.schema):
        first, *rest = rows.column(at).to_pylist()
        changed = pa.array([altered(first, field.type), *rest], field.type)
        pq.write_table(rows.set_column(at, field, changed), tmp_path / "f.parquet")
        content = read_content(job, ContentTask(path="f.parquet", kind="msg", sha256=recorded), "")
        if not content.changed or content.error:
            unnoticed.add(field.name)
    assert unnoticed == set()


def test_a_finding_names_the_messages(findings: dict[str, list[Finding]]) -> None:
    (body,) = (one for one in findings["a byte of a body altered"] if one.problem == Problem.BODY_DIFFERS)
    assert (body.topic, body.queue_id, body.begin_offset, body.end_offset) == ("Orders", 0, 1, 2)
    assert body.file
    (copy,) = (one for one in findings["a retry of another message"] if one.problem == Problem.COPY_OF_ANOTHER_MESSAGE)
    assert copy.group_name == GROUP
    assert "Orders" in str(copy.detail)


def test_a_finding_names_each_column_that_differs(findings: dict[str, list[Finding]]) -> None:
    of_commit = [
        one
        for one in findings["a sent message with other columns"]
        if one.problem == Problem.MESSAGE_DIFFERS_FROM_COMMIT
    ]
    assert {(one.topic, one.begin_offset, one.end_offset) for one in of_commit} == {("Notes", 0, 1)}
    columns = ("commit_id", "part", "deliver_at", "magic", "sys_flag", "flag", "reconsume_times")
    assert {one.detail for one in of_commit} == {f"of {column}" for column in columns}


def test_a_finding_names_the_messages_of_acked_keys(findings: dict[str, list[Finding]]) -> None:
    (of_text,) = (one for one in findings["the text of an acked key altered"] if one.problem == Problem.KEY_DIFFERS)
    assert (of_text.group_name, of_text.topic, of_text.queue_id) == (ABSORBING.name, "Orders", 0)
    assert (of_text.begin_offset, of_text.end_offset) == (0, 1)
    assert str(of_text.file).startswith("commitlog/kind=key/")


def test_a_joined_message_that_was_born_here_has_the_time_of_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction writes the time into the row, and its segment has the least and the greatest of all its commits."""
    lake, clock = Lake(tmp_path / "store"), Clock()
    lake.load(write_broker(tmp_path / "broker"))
    host = set_clock(monkeypatch, clock)
    for number in range(3):
        clock.ms += 60_000
        queues, request = None if number else 1, f"2026-11-20-n{number}"
        send(lake.store, lake.shard, [Message("Notes", b"note")], request, TESTS, host, create_queues=queues)
    clock.ms += 2 * HOUR_MS
    compact(lake.shard, CompactRequest("2026-11-21-maintain", TESTS, limits=Limits(least_files=2)), host)
    assert audited(lake.store) == []
    at = PlantedShard(lake.folder, lake.shard_name)

    def earlier(row: Row) -> Row:
        is_second = (row["topic"], row["queue_offset"]) == ("Notes", 1)
        return row | {"store_timestamp": row["store_timestamp"] - 1} if is_second else row

    at.rewrite_rows(sent(at), earlier)
    (finding,) = (one for one in audited(lake.store) if one.problem == Problem.MESSAGE_DIFFERS_FROM_COMMIT)
    assert (finding.detail, finding.topic) == ("of store_timestamp", "Notes")
    assert (finding.begin_offset, finding.end_offset) == (1, 2)


def test_of_many_acked_keys_some_are_named_and_the_others_counted(sound: Path, tmp_path: Path) -> None:
    shard = PlantedShard(sound, SHARD)
    rows = pq.ParquetFile(shard.path(acked_keys(shard))).read()
    count = rows.num_rows
    assert count > 12
    texts = [f"{text}x" for text in rows.column("key_text").to_pylist()]
    pq.write_table(with_key_texts(rows, texts), tmp_path / "f.parquet")
    job = ContentJob(root=Root.parse(str(tmp_path)), table=".")
    content = read_content(job, ContentTask(path="f.parquet", kind="key", sha256=None), "")
    assert (content.error, content.rows) == (None, count)
    *named, rest = content.problems
    assert len(named) == 10
    assert (rest.queue, rest.detail) == (None, f"and {count - 10} more acked keys of the file")
