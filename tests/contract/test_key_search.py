"""Messages by key: the answer of a plain scan, from the few row groups whose Bloom filters have the key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_store.errors import MissingFile
from rmq_store.lake.maintain.compact import SETTLED_MS, CompactRequest, compact
from rmq_store.lake.read.key_search import BOUNDS, KeySearch
from rmq_store.lake.read.message_search import PLACE, messages_by_key, messages_by_unique_key
from rmq_store.lake.table import stage as staging
from rmq_store.lake.table.key_filters import with_key_words
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.maintain.files_to_join import Limits
from rmq_store.message.message import MessageQueue
from tests.contract.sql import kind, of, rows
from tests.lake_damages import QUEUE
from tests.lake_fixtures import ALICE, Bench, SmallStore, bench, message
from tests.s3 import S3Root

KEYS = ["a", "b", "ab", "a-1", "", "Schlüssel", "钥匙", "🔑", "it's", "x" * 40]
TEXTS = st.none() | st.lists(st.sampled_from(KEYS), min_size=1, max_size=3).map(" ".join)
UNIQUE_KEYS = st.none() | st.sampled_from(KEYS)

Chosen = list[list[int] | None]


def scanned(store: LakeStore, where: str) -> list[dict[str, Any]]:
    """The places of the messages that a plain scan returns, in order."""
    order = "store_timestamp, commit_log_offset, topic, broker_name, queue_id, queue_offset"
    return rows(store, f"SELECT {', '.join(PLACE)} FROM messages WHERE {where} ORDER BY {order}")


def places(messages: Sequence[Any]) -> list[dict[str, Any]]:
    return [{name: one[name] for name in PLACE} for one in messages]


def check_key(store: LakeStore, topic: str, key: str) -> int:
    """Compares both searches with a scan; returns the number of messages."""
    text = "'" + key.replace("'", "''") + "'"
    of_key = scanned(
        store, f"topic = '{topic}' AND (unique_key = {text} OR list_contains(string_split(keys, ' '), {text}))"
    )
    assert places(messages_by_key(store, topic, key)) == of_key
    of_unique_key = scanned(store, f"unique_key = {text}")
    by_place = sorted(of_unique_key, key=lambda row: [row[name] for name in PLACE[:-1]])
    assert (
        sorted(places(messages_by_unique_key(store, key)), key=lambda row: [row[name] for name in PLACE[:-1]])
        == by_place
    )
    return len(of_key) + len(of_unique_key)


def import_keys(made: Bench, keys: Sequence[tuple[str | None, str | None]]) -> None:
    """Messages with these KEYS and unique keys, in one file."""
    now_ms = made.host.now_ms() - 10_000
    rows = [
        message(QUEUE, offset, now_ms + offset, keys=texts, unique_key=unique_key)
        for offset, (texts, unique_key) in enumerate(keys)
    ]
    made.import_messages({QUEUE: rows})


def cut_into(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Row groups of files that are staged from now on have so many rows."""

    def row_groups(all_rows: int, *_: Any) -> Iterator[tuple[int, int]]:
        return pairwise([*range(0, all_rows, rows), all_rows])

    monkeypatch.setattr(staging, "row_groups", row_groups)


def without_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are staged as by earlier versions."""
    monkeypatch.setattr(staging, "with_key_words", lambda rows: rows)
    monkeypatch.setattr(staging, "filter_options", lambda *_: None)


def chosen(made: Bench, key: str, *, unique_only: bool = False, **bounds: Any) -> Chosen:
    """The row groups that a search reads of each message file."""
    made.shard.commitlog.refresh()
    index = made.shard.commitlog.files(kind("msg"))
    search = KeySearch(key=key, unique_only=unique_only, **bounds)
    groups = search.row_groups(made.shard.root, made.shard.commitlog.path, index)
    return [None if of_file is None else list(of_file) for of_file in groups]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path / "store") as made:
        yield made


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TEXTS, UNIQUE_KEYS), min_size=1, max_size=12), st.integers(1, 4))
def test_no_row_group_with_a_key_is_left_out(
    tmp_path_factory: pytest.TempPathFactory, messages: list[tuple[str | None, str | None]], rows_of_a_group: int
) -> None:
    columns = {"keys": [keys for keys, _ in messages], "unique_key": [unique_key for _, unique_key in messages]}
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    root = Root.parse(str(tmp_path_factory.mktemp("keys")))
    with pytest.MonkeyPatch.context() as monkeypatch:
        cut_into(monkeypatch, rows_of_a_group)
        file = staging.stage(root, "t", staging.NewFile(kind="msg", name="f", rows=table))
    index = pa.table({"path": [file.path], "size_bytes": [file.size]} | dict.fromkeys(BOUNDS, pa.nulls(1)))
    for key in KEYS:
        by_unique_key, by_key = (
            KeySearch(key=key, unique_only=unique_only).row_groups(root, "t", index)[0] for unique_only in (True, False)
        )
        assert by_key is not None
        assert by_unique_key is not None
        for row, (keys, unique_key) in enumerate(messages):
            if unique_key == key:
                assert row // rows_of_a_group in by_unique_key
            if key == unique_key or (keys is not None and key in keys.split(" ")):
                assert row // rows_of_a_group in by_key


def test_any_key_gives_what_a_scan_gives(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch, 2)
    import_keys(made, [*((key, None) for key in KEYS), (" ".join(KEYS), "a"), ("b b", ""), (None, "it's"), ("a", "a")])
    for key in ("a", "", "it's", "🔑", "a b"):
        check_key(of(made), QUEUE.topic, key)


def test_retries_and_copies_of_a_message_are_there(small: SmallStore) -> None:
    unique_keys = [row["unique_key"] for row in rows(small.store, "SELECT DISTINCT unique_key FROM retries")]
    assert unique_keys
    for key in unique_keys[:2]:
        assert len(messages_by_unique_key(small.store, key)) > len(small.store.shards())
        check_key(small.store, "Orders", key)


def test_only_the_row_groups_with_the_key_are_read(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_into(monkeypatch, 10)
    import_keys(made, [(f"order-{n} user-{n % 25}" if n % 2 else f"order-{n}", f"U{n}") for n in range(100)])
    for n in (1, 98):
        assert n // 10 in (by_key := chosen(made, f"order-{n}")[0] or [])
        assert n // 10 in (by_unique_key := chosen(made, f"U{n}", unique_only=True)[0] or [])
        assert max(len(by_key), len(by_unique_key)) <= 3  # few are read without need
        assert check_key(of(made), QUEUE.topic, f"order-{n}") == 1
        assert check_key(of(made), QUEUE.topic, f"U{n}") == 2
    assert {0, 5} <= set(chosen(made, "user-3")[0] or [])
    assert check_key(of(made), QUEUE.topic, "user-3") == 2
    assert sum(len(chosen(made, f"absent-{n}")[0] or []) for n in range(50)) < 100  # of 500


def test_files_without_filters_are_scanned(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        without_filters(earlier)
        import_keys(made, [("k1 k2", "U1"), ("k3", "U2")])
    assert chosen(made, "k2") == [[0]]
    assert chosen(made, "absent") == [[0]]
    assert check_key(of(made), QUEUE.topic, "k2") == 1


def test_a_file_outside_the_topic_or_the_time_is_not_opened(made: Bench) -> None:
    import_keys(made, [("k", "U")])
    (path,) = made.shard.commitlog.files(kind("msg")).column("path").to_pylist()
    made.shard.root.delete(f"{made.shard.commitlog.path}/{path}")
    now_ms = made.host.now_ms()
    assert chosen(made, "k", topic="Other") == [[]]
    assert chosen(made, "k", begin_ms=now_ms) == [[]]
    assert chosen(made, "k", end_ms=now_ms - 60_000) == [[]]
    assert chosen(made, "k", topic=QUEUE.topic, begin_ms=now_ms - 60_000, end_ms=now_ms) == [None]
    with pytest.raises(MissingFile):
        messages_by_key(of(made), QUEUE.topic, "k")


def test_compacted_files_have_filters(made: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_store.lake.maintain.compact.SETTLED_MS", -SETTLED_MS)
    with monkeypatch.context() as earlier:
        without_filters(earlier)
        import_keys(made, [("k1 k2", "U1")] * 5)
        queue = MessageQueue("Other", QUEUE.broker_name, 0)
        other = message(queue, 0, made.host.now_ms(), keys="k3", unique_key="U3")
        made.import_messages({queue: [other]})
    request = CompactRequest("2026-01-02-maintain", ALICE, "daily", Limits(least_files=2))
    compact(made.shard, request, made.host)
    (groups,) = chosen(made, "k2")
    assert groups == [0]
    assert chosen(made, "absent") == [[]]
    assert check_key(of(made), QUEUE.topic, "k2") == 5
    assert check_key(of(made), "Other", "U3") == 2


@pytest.mark.s3
def test_keys_in_large_files_of_s3(s3_root: S3Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_store.lake.read.key_search.TAIL_BYTES", 0)  # as if each file were large
    store, _ = LakeStore.init(s3_root.root)
    made = Bench(store.create_shard("broker-a"))
    cut_into(monkeypatch, 10)
    import_keys(made, [(f"k{n} user-{n}", f"U{n}") for n in range(40)])
    assert 2 in (chosen(made, "user-25")[0] or [])
    assert check_key(store, QUEUE.topic, "user-25") == 1
    assert check_key(store, QUEUE.topic, "absent") == 0


def test_a_file_of_single_keys_has_no_further_column(made: Bench) -> None:
    def columns() -> list[str]:
        made.shard.commitlog.refresh()
        paths = made.shard.commitlog.files(kind("msg")).column("path").to_pylist()
        root = Path(made.shard.root.location)
        names: list[str] = pq.read_schema(root / made.shard.commitlog.path / paths[-1]).names
        return names

    import_keys(made, [("k1", "U1"), (None, "U2"), ("", None)])
    assert "key_words" not in columns()


def test_words_of_keys_are_those_of_rocketmq() -> None:
    rows = pa.table({"keys": ["k1", "k1 k2", None, " k3", ""]})
    words = with_key_words(rows).column("key_words").to_pylist()
    assert words == [None, ["k1", "k2"], None, ["", "k3"], None]
