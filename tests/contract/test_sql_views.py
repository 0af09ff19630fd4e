"""The views over small stores: they show what is there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from rmq_store.commit.ctl import Action, Observed, canonical_json, lake_message_id
from rmq_store.commit.positions import ABSENT, grp_id, sub_id
from rmq_store.lake.sql.sql_functions import FUNCTIONS
from rmq_store.lake.sql.views import views
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from rmq_store.window.sub_version import sub_version_of
from tests.contract.sql import of, rows
from tests.lake_damages import QUEUE
from tests.lake_fixtures import Bench, SmallStore, message, small_store
from tests.s3 import S3Root

PLACE = ("shard", "topic", "broker_name", "queue_id")


def test_every_offset_of_every_queue_has_one_message(small: SmallStore) -> None:
    found = rows(
        small.store,
        f"""SELECT {", ".join(PLACE)}, min(queue_offset) AS first, max(queue_offset) + 1 AS last, count(*) AS messages,
                   count(DISTINCT queue_offset) AS offsets, count(DISTINCT offset_msg_id) AS ids
            FROM messages GROUP BY ALL ORDER BY ALL""",
    )
    queues = rows(small.store, f"SELECT {', '.join(PLACE)}, min_offset, max_offset FROM queues ORDER BY ALL")
    assert len(found) == 10
    for messages, queue in zip(found, queues, strict=True):
        assert [messages[name] for name in PLACE] == [queue[name] for name in PLACE]
        assert (messages["first"], messages["last"]) == (queue["min_offset"], queue["max_offset"])
        assert messages["messages"] == messages["offsets"] == messages["ids"] == messages["last"] - messages["first"]


def test_an_imported_message_is_shown_as_it_was_stored(small: SmallStore) -> None:
    (found,) = rows(
        small.store,
        "SELECT * FROM messages WHERE shard = 'broker-b' AND topic = 'Orders' AND queue_id = 1 AND queue_offset = 7",
    )
    expected = message(MessageQueue("Orders", "broker-b", 1), 7, found["store_timestamp"])
    assert found == {"shard": "broker-b"} | expected


def test_a_message_born_in_the_lake_is_named_by_its_row(small: SmallStore) -> None:
    shard = small.store.shards("broker-a")[0]
    found = rows(
        small.store,
        """SELECT commit_id, part, topic, broker_name, queue_id, rel, queue_offset, commit_log_offset, offset_msg_id,
                  store_timestamp, born_timestamp
           FROM message_rows WHERE group_name IS NOT NULL ORDER BY commit_id, part, topic, queue_id, rel""",
    )
    assert len(found) == 17 + 8 + 5
    segments = rows(small.store, "SELECT * FROM segments")
    for row in found:
        (segment,) = (s for s in segments if all(s[name] == row[name] for name in ("commit_id", "part", *PLACE[1:])))
        at = row["rel"]
        table = pq.read_table(f"{shard.root.location}/{shard.commitlog.path}/{segment['file']}", partitioning=None)
        assert table.slice(at, 1).select(["topic", "rel"]).to_pylist() == [{"topic": row["topic"], "rel": row["rel"]}]
        assert row["commit_log_offset"] == at
        assert row["offset_msg_id"] == lake_message_id(row["commit_id"], row["part"], at)
        assert row["queue_offset"] == segment["base_offset"] + row["rel"] - segment["first_row"]
        assert row["store_timestamp"] == segment["store_timestamp"]


def test_a_log_record_without_an_entry_is_no_message(small: SmallStore) -> None:
    assert rows(small.store, "SELECT count(*) AS n FROM msg WHERE sys_flag = 4") == [{"n": 2}]
    assert rows(small.store, "SELECT count(*) AS n FROM messages WHERE sys_flag = 4") == [{"n": 0}]


def test_an_entry_of_a_level_queue_has_the_due_time_as_its_tags_code(small: SmallStore) -> None:
    found = rows(
        small.store,
        """SELECT e.tags_code, s.deliver_at, s.store_timestamp, s.delay_level, e.broker_name
           FROM consume_queue_entries e JOIN scheduled s USING (shard, broker_name, queue_id, queue_offset)
           WHERE e.topic = 'SCHEDULE_TOPIC_XXXX'""",
    )
    delays = {3: 10_000, 4: 30_000, 16: 1_800_000}
    assert len(found) == 19
    for row in found:
        assert row["tags_code"] == row["deliver_at"] == row["store_timestamp"] + delays[row["delay_level"]]


def test_a_group_stands_where_its_positions_say_and_each_move_names_its_window(small: SmallStore) -> None:
    found = rows(
        small.store,
        "SELECT topic, queue_id, next_offset, window_id FROM consumer_offsets WHERE group_name = 'shop' ORDER BY ALL",
    )
    windows = {row["window_id"]: row for row in rows(small.store, "SELECT * FROM windows")}
    assert [(row["topic"], row["queue_id"], row["next_offset"]) for row in found] == [
        ("%RETRY%shop", 0, 8),
        ("Orders", 0, 24),
        ("Orders", 1, 27),
    ]
    assert [windows[row["window_id"]]["request_id"] for row in found] == [
        "2026-11-20-two",
        "2026-11-20-three",
        "2026-11-20-one",
    ]


def test_the_history_tells_who_moved_an_offset_when_and_why(small: SmallStore) -> None:
    found = rows(
        small.store,
        """SELECT action, from_offset, to_offset, actor, reason FROM offset_history
           WHERE group_name = 'shop' AND topic = 'Orders' AND queue_id = 0 ORDER BY read_version""",
    )
    assert [tuple(row.values()) for row in found] == [
        ("consume", 0, 24, "alice", "a test"),
        ("reset", 24, 18, "alice", "again"),
        ("consume", 18, 24, "alice", "a test"),
    ]


def test_lag_counts_as_rocketmq_does_and_tells_what_is_readable(hand: Bench) -> None:
    other = MessageQueue("Orders", "broker-a", 1)
    now_ms = hand.host.now_ms()
    hand.import_messages({other: [message(other, offset, now_ms + offset) for offset in range(5, 9)]})
    hand.window("shop", QUEUE, 0, 4, start_rule="first", retried=[1])
    hand.deliver("shop", 2, 0, 1, copies=[0])
    columns = "topic, queue_id, min_offset, max_offset, next_offset, has_offset, lag, readable_lag"
    found = rows(of(hand), f"SELECT {columns} FROM lag WHERE group_name = 'shop' ORDER BY topic, queue_id")
    assert [tuple(row.values()) for row in found] == [
        ("%RETRY%shop", 0, 0, 1, 0, False, 1, 1),
        ("Orders", 0, 0, 10, 4, True, 6, 6),
        ("Orders", 1, 5, 9, 0, False, 9, 4),
    ]


def test_a_group_of_a_living_broker_stands_where_it_was_last_seen_until_the_lake_moves_it(small: SmallStore) -> None:
    text = "SELECT queue_id, next_offset, window_id FROM consumer_offsets WHERE shard = 'broker-b' ORDER BY ALL"
    assert [tuple(row.values()) for row in rows(small.store, text)] == [(0, 5, None), (1, 3, None)]
    held_by = "SELECT shard, group_name, held_by FROM groups ORDER BY ALL"
    assert [tuple(row.values()) for row in rows(small.store, held_by)] == [
        ("broker-a", "CID_RMQ_SYS_SCHEDULE", "lake"),
        ("broker-a", "elsewhere", "broker"),
        ("broker-a", "shop", "lake"),
        ("broker-b", "elsewhere", "broker"),
    ]


def test_the_lakes_own_offset_wins_over_an_observed_one(hand: Bench) -> None:
    more = [message(QUEUE, 10, hand.host.now_ms())]
    hand.import_messages({QUEUE: more}, observed=[Observed("shop", QUEUE, 9)])
    text = "SELECT next_offset, window_id FROM consumer_offsets"
    assert rows(of(hand), text) == [{"next_offset": 9, "window_id": None}]
    hand.window("shop", QUEUE, 9, 10, start_rule="observed")
    assert rows(of(hand), text) == [{"next_offset": 10, "window_id": "shop-0-hand"}]


def test_a_window_counts_its_outcomes(small: SmallStore) -> None:
    columns = "request_id, messages, acked, filtered, retried, dead, lost"
    found = rows(small.store, f"SELECT {columns} FROM windows ORDER BY read_version")
    assert [tuple(row.values()) for row in found] == [
        ("2026-11-20-one", 48, 20, 16, 8, 4, 0),
        ("2026-11-20-two", 8, 0, 0, 8, 0, 0),
        ("2026-11-20-three", 6, 2, 2, 1, 1, 0),
    ]


def test_of_a_groups_subscriptions_the_newest_of_the_recorded_version_is_current(hand: Bench) -> None:
    def window(group: str, version: int, listener: str) -> None:
        text = canonical_json({"Orders": {"TAG": f"Tag{version}"}})
        said = {"subscription": text, "subscription_version": version, "listener": listener}
        ctl = hand.ctl(Action.CONSUME, group=group, request_id="2026-11-20-hand", **said)
        hand.commit(ctl, {grp_id(group): 0, sub_id(group): sub_version_of(version, text).packed()})

    for group, version, listener in [("shop", 1, "a:A"), ("shop", 2, "a:A"), ("shop", 2, "a:B"), ("shop", 2, "a:B")]:
        window(group, version, listener)
    for group, version in [("audit@x", 1), ("audit@y", 2)]:
        window(group, version, "a:A")
    asked = "SELECT group_name, subscription_version, listener, windows, is_current FROM subscriptions ORDER BY ALL"
    expected = [
        ("audit@x", 1, "a:A", 1, False),
        ("audit@y", 2, "a:A", 1, True),
        ("shop", 1, "a:A", 1, False),
        ("shop", 2, "a:A", 1, False),
        ("shop", 2, "a:B", 2, True),
    ]
    assert [tuple(row.values()) for row in rows(of(hand), asked)] == expected
    hand.commit(hand.ctl(Action.RESET, group="shop", request_id="2026-11-20-void"), {sub_id("shop"): ABSENT})
    assert [row["group_name"] for row in rows(of(hand), f"SELECT * FROM ({asked}) WHERE is_current")] == ["audit@y"]


def test_retries_are_delivered_or_waiting_and_delayed_shows_those_that_wait(small: SmallStore) -> None:
    found = rows(
        small.store, "SELECT state, attempt, delay_level, count(*) AS n FROM retries GROUP BY ALL ORDER BY ALL"
    )
    assert [tuple(row.values()) for row in found] == [
        ("delivered", 1, 3, 8),
        ("waiting", 1, 3, 1),
        ("waiting", 2, 4, 8),
    ]
    waiting = rows(small.store, "SELECT real_topic, count(*) AS n FROM delayed GROUP BY ALL ORDER BY ALL")
    assert [tuple(row.values()) for row in waiting] == [("%RETRY%shop", 9), ("Orders", 2)]


def test_a_retry_keeps_its_origin_its_error_and_the_topic_it_came_from(small: SmallStore) -> None:
    (found,) = rows(
        small.store,
        """SELECT group_name, original_topic, origin_topic, origin_queue_id, error_type, error_text FROM retries
           WHERE unique_key = 'U1-9' AND attempt = 1""",
    )
    assert tuple(found.values()) == ("shop", "Orders", "Orders", 1, "ValueError", "no such customer")
    (again,) = rows(
        small.store, "SELECT original_topic, origin_topic FROM retries WHERE unique_key = 'U1-9' AND attempt = 2"
    )
    assert tuple(again.values()) == ("Orders", "%RETRY%shop")


def test_dead_letters_tell_their_cause(small: SmallStore) -> None:
    found = rows(small.store, "SELECT unique_key, cause, original_topic FROM dead_letters ORDER BY queue_offset")
    assert [row["unique_key"] for row in found] == ["U0-7", "U0-19", "U1-7", "U1-19", "U0-19"]
    assert {(row["cause"], row["original_topic"]) for row in found} == {("negative_delay_level", "Orders")}


def test_a_dead_letter_that_two_redrives_sent_is_one_row_with_the_first_time(hand: Bench) -> None:
    hand.window("billing", QUEUE, 0, 10, start_rule="first", dead=[1, 2, 3, 4, 5, 6])
    first = hand.redrive("billing", [(0, 3)], copies=[0, 1, 2]).ctl.store_timestamp
    second = hand.redrive("billing", [(2, 3), (4, 5)], copies=[2, 4]).ctl.store_timestamp
    found = rows(of(hand), "SELECT queue_offset, redriven_at, redriven_to FROM dead_letters ORDER BY queue_offset")
    assert first < second
    assert [row["redriven_at"] for row in found] == [first, first, first, None, second, None]
    assert {row["redriven_to"] for row in found if row["redriven_at"]} == {"%RETRY%billing"}


def test_outcomes_are_the_exceptions_of_all_windows(hand: Bench) -> None:
    hand.window("shop", QUEUE, 0, 10, start_rule="first", retried=[3], dead=[5, 6], lost=[(0, 2)])
    found = rows(of(hand), "SELECT outcome, begin_offset, end_offset, reason FROM outcomes ORDER BY begin_offset")
    assert [tuple(row.values()) for row in found] == [
        ("lost", 0, 2, "no message is there"),
        ("retried", 3, 4, "retry"),
        ("dead", 5, 6, "max_reconsume_times"),
        ("dead", 6, 7, "max_reconsume_times"),
    ]


def test_topics_tell_their_type_and_size(small: SmallStore) -> None:
    found = rows(
        small.store, "SELECT topic, type, queues, messages FROM topics WHERE shard = 'broker-a' ORDER BY topic"
    )
    assert [tuple(row.values()) for row in found] == [
        ("%DLQ%shop", "dead letters", 1, 5),
        ("%RETRY%shop", "retry", 1, 8),
        ("Orders", "normal", 2, 48),
        ("SCHEDULE_TOPIC_XXXX", "delay", 3, 18),
    ]


def test_a_file_with_partial_statistics_loses_no_row(hand: Bench) -> None:
    now_ms = hand.host.now_ms()
    other = MessageQueue("Orders", "broker-a", 1)
    ctl = hand.ctl(Action.IMPORT)
    whole = hand.stage_messages(ctl.commit_id, [{**message(other, n, now_ms), "part": 0, "rel": n} for n in range(4)])
    stats = json.loads(whole.stats)
    for name in ("topic", "queue_id", "group_name", "queue_offset"):
        for part in ("minValues", "maxValues", "nullCount"):
            stats[part].pop(name, None)
    stats["minValues"].pop("broker_name")
    hand.commit(ctl, {"import/broker-a": 1}, [replace(whole, stats=json.dumps(stats))])
    where = (
        "topic = 'Orders' AND broker_name = 'broker-a' AND queue_id = 1 AND group_name IS NULL AND queue_offset >= 0"
    )
    assert rows(of(hand), f"SELECT count(*) AS n FROM msg WHERE {where}") == [{"n": 4}]
    assert rows(of(hand), "SELECT count(*) AS n FROM msg WHERE queue_id = 0") == [{"n": 10}]


def test_a_store_without_shards_has_empty_views(tmp_path: Path) -> None:
    store, _ = LakeStore.init(Root.parse(str(tmp_path)))
    for name in views():
        assert rows(store, f"SELECT * FROM {name}") == []


def test_a_store_on_s3_answers_too(s3_root: S3Root) -> None:
    made = small_store(s3_root.root, ["broker-a"])
    where = "topic = 'Orders' AND queue_id = 1 AND queue_offset = 9"
    assert rows(made.store, f"SELECT keys FROM messages WHERE {where}") == [{"keys": "order-9"}]
    assert rows(made.store, "SELECT state, count(*) AS n FROM retries GROUP BY ALL ORDER BY ALL") == [
        {"state": "delivered", "n": 8},
        {"state": "waiting", "n": 9},
    ]
    assert rows(made.store, "SELECT * FROM audit") == []


def test_a_view_needs_exactly_what_it_says() -> None:
    with duckdb.connect() as empty:
        for name, (function, arguments) in FUNCTIONS.items():
            empty.create_function(name, function, ["BIGINT"] * arguments, "BIGINT", type="arrow")  # type: ignore[call-overload]
        assert {view.name: empty.get_table_names(view.sql) for view in views().values()} == {
            view.name: set(view.needs) for view in views().values()
        }
