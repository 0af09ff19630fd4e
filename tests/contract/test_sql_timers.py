"""What the views say of retry policies and of the timer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, Consumed, Produced
from rmq_store.commit.positions import Outcome, QueueRange, grp_id, off_id, tally
from rmq_store.consumer.delay import CustomizedRetryPolicy, DelayLevels, GroupRetryPolicy
from rmq_store.consumer.timer import SLOT_MS, place, policy_queue_id
from rmq_store.lake.broker.broker_timer import WaitingTimers, waiting_timers
from rmq_store.lake.broker.export import export_offsets
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.deliver import deliver
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest
from tests.lake_fixtures import ALICE, HOUR_MS, Bench, import_orders, message, small_group

TIMER = "rmq_sys_wheel_timer"
MINUTE_MS = 60_000


@pytest.fixture
def store(tmp_path: Path) -> LakeStore:
    """One shard with two queues of 24 messages; four of each will fail and be retried."""
    made, _ = LakeStore.init(Root.parse(str(tmp_path)))
    import_orders(Bench(made.create_shard("broker-a")), 24)
    return made


def shard_of(store: LakeStore) -> Shard:
    return store.shards("broker-a")[0]


def rows(store: LakeStore, text: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in query(store, text).to_pylist()]


def fail_some(store: LakeStore) -> MessageQueue:
    """A window of a group that retries after a minute; the queue in which the failures wait."""
    host, shard = Host(), shard_of(store)
    policy = GroupRetryPolicy(customized=CustomizedRetryPolicy((MINUTE_MS,)))
    group = replace(small_group(), retry_policy=policy)
    request = ConsumeRequest("2026-11-20-one", ALICE)
    report = consume_window(store, shard, group, request, lambda plan: LocalEngine(host), host)
    assert report.counts()[Outcome.RETRIED] == 8
    return MessageQueue(TIMER, shard.lane("shop"), policy_queue_id(MINUTE_MS))


def deliver_at(store: LakeStore, request_id: str, now_ms: int) -> int:
    return deliver(store, shard_of(store), f"2026-11-20-{request_id}", ALICE, Host(), now_ms=now_ms).delivered


def test_retries_by_a_policy_wait_and_are_delivered_in_the_views_too(store: LakeStore) -> None:
    queue = fail_some(store)
    shown = (
        "SELECT topic, queue_id, state, attempt, delay_level, deliver_at - store_timestamp, count(*) AS n FROM retries"
    )
    said = f"{shown} GROUP BY ALL"
    assert rows(store, said) == [(TIMER, queue.queue_id, "waiting", 1, None, MINUTE_MS, 8)]
    assert rows(store, "SELECT count(*) AS n FROM delayed WHERE real_topic = '%RETRY%shop'") == [(8,)]
    assert rows(store, "SELECT outcome, count(*) AS n FROM outcomes WHERE outcome = 'retried' GROUP BY ALL") == [
        ("retried", 8)
    ]
    assert deliver_at(store, "d", Host().now_ms() + MINUTE_MS) == 8
    assert rows(store, said) == [(TIMER, queue.queue_id, "delivered", 1, None, MINUTE_MS, 8)]
    assert rows(store, "SELECT count(*) AS n FROM delayed WHERE real_topic = '%RETRY%shop'") == [(0,)]
    assert rows(store, "SELECT * FROM audit") == []


def test_the_audit_finds_retries_of_a_policy_that_were_passed_over(store: LakeStore) -> None:
    queue, made = fail_some(store), Bench(shard_of(store))
    done = Consumed(QueueRange(queue, 0, 8), 0, {Outcome.ACKED: tally(range(8))}, "first_offset")
    ctl = made.ctl(Action.DELIVER, group=SCHEDULE_GROUP, request_id="2026-11-20-d", consumed=(done,))
    made.commit(ctl, {grp_id(SCHEDULE_GROUP): 0, off_id(SCHEDULE_GROUP, queue): 8})
    found = rows(store, "SELECT problem, count(*) AS n FROM audit GROUP BY ALL ORDER BY ALL")
    assert found == [("delivered differs from its rows", 1), ("retry not delivered", 8)]


def test_an_export_says_that_retries_of_a_policy_still_wait(store: LakeStore) -> None:
    fail_some(store)
    assert export_offsets(shard_of(store), "broker-a").waiting_retries == {"shop": 8}


def test_a_message_of_the_timer_waits_moves_on_and_is_delivered(store: LakeStore) -> None:
    made = Bench(shard_of(store))
    now_ms = made.host.now_ms()
    begins_ms = (now_ms + HOUR_MS) // SLOT_MS * SLOT_MS
    due_ms = begins_ms + 5000
    placed = place("Orders", 1, {"TIMER_DELIVER_MS": str(due_ms)}, now_ms, DelayLevels())
    assert placed.deliver_at == begins_ms
    queue = MessageQueue(placed.topic, made.shard.lane(""), placed.queue_id)
    born_here = dict.fromkeys(("queue_offset", "commit_log_offset", "offset_msg_id", "store_timestamp"))
    row = message(queue, 0, now_ms, properties=list(placed.properties.items()), part=0, rel=0) | born_here
    ctl = made.ctl(Action.IMPORT, request_id="2026-11-20-send")
    file = made.stage_messages(ctl.commit_id, [row])
    produced = (Produced(queue, 0, 1, 0, file.path, deliver_at=placed.deliver_at),)
    made.commit(replace(ctl, produced=produced), {}, [file])
    said = f"SELECT state, deliver_at, real_topic, real_queue_id FROM scheduled WHERE topic = '{TIMER}' ORDER BY ALL"
    waits = f"SELECT count(*) AS n FROM delayed WHERE topic = '{TIMER}'"
    there = "SELECT count(*) AS n FROM messages WHERE topic = 'Orders' AND broker_name = 'lake-broker-a'"
    assert rows(store, said) == [("waiting", due_ms, "Orders", 1)]
    assert deliver_at(store, "d1", begins_ms) == 0
    assert rows(store, said) == [("moved on", due_ms, "Orders", 1), ("waiting", due_ms, "Orders", 1)]
    assert (rows(store, waits), rows(store, there)) == ([(1,)], [(0,)])
    assert deliver_at(store, "d2", due_ms - 1) == 0
    assert deliver_at(store, "d3", due_ms) == 1
    assert [state for state, *_ in rows(store, said)] == ["delivered", "moved on"]
    assert (rows(store, waits), rows(store, there)) == ([(0,)], [(1,)])
    assert rows(store, "SELECT * FROM audit") == []


@pytest.mark.parametrize(
    ("in_the_timer", "arrived", "waiting"),
    [
        ([{"key": "A"}, {"key": "B"}], ["A"], 1),
        ([{"key": "A"}, {"key": "A"}], [], 2),  # sent twice
        ([{"key": "A"}, {"key": "A"}], ["A"], 1),
        ([{"key": "A"}, {"key": "A", "TIMER_ROLL_TIMES": "1"}], [], 1),  # rolled on, which is one message
        ([{"key": "A"}, {"key": "A", "TIMER_ROLL_TIMES": "1"}], ["A"], 0),
        ([{"key": "A"}, {"key": "B", "TIMER_DEL_UNIQKEY": "A"}], [], 0),  # taken back
        ([{"key": "A"}, {"key": "B", "TIMER_DEL_UNIQKEY": "Later+A"}, {"key": "C"}], [], 1),
    ],
)
def test_what_a_brokers_timer_has_not_delivered_is_told_by_its_keys(
    tmp_path: Path, in_the_timer: list[dict[str, str]], arrived: list[str], waiting: int
) -> None:
    store, _ = LakeStore.init(Root.parse(str(tmp_path)))
    made, now_ms = Bench(store.create_shard("broker-a")), Host().now_ms()
    timer, later = MessageQueue(TIMER, "broker-a", 0), MessageQueue("Later", "broker-a", 2)
    place_ = {"REAL_TOPIC": "Later", "REAL_QID": "2", "TIMER_OUT_MS": str(now_ms)}

    def rows_of(queue: MessageQueue, said: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
        return [
            message(queue, n, now_ms, unique_key=one["key"], properties=list((place_ | dict(one)).items()))
            for n, one in enumerate(said)
        ]

    messages = {timer: rows_of(timer, in_the_timer), later: rows_of(later, [{"key": key} for key in arrived])}
    made.import_messages({queue: of_queue for queue, of_queue in messages.items() if of_queue})
    expected = [WaitingTimers("Later", waiting, now_ms + 1000, now_ms + 1000)] if waiting else []
    assert waiting_timers(store, "broker-a", ["broker-a"]) == expected
