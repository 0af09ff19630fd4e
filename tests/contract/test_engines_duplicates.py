"""What every engine promises to a group that absorbs duplicates: a key is acked once. See ``test_engines.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_store.admin.reset import ResetTo
from rmq_store.commit.ctl import StagedFile
from rmq_store.commit.positions import QueueRange, tally
from rmq_store.consumer import duplicates
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.duplicates import AbsorbRule
from rmq_store.errors import BadData, HeldByAnother, StaleAttempt
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.delta_log import Content
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.window import key_tasks, window_keys
from rmq_store.lake.window.window_keys import COMPARED_BYTES, text_hashes
from rmq_store.message.message import MessageExt, MessageQueue
from tests.contract.cluster_engine import ClusterEngine, ClusterWorld, all_keys_in_tasks
from tests.contract.engines import LakeWorld, MemoryWorld, story
from tests.contract.world import BEN, DAY, HOUR, Key, Lost, World, bodies, counts, fail_bodies, group, orders, said
from tests.oracle.memory.rows import MessageRow

ONCE = group(absorb_duplicates=AbsorbRule("UNIQ_KEY", 24 * HOUR))


@pytest.fixture(params=["memory", "lake", "cluster"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """Also a lake whose windows run on a cluster, where each bit of work on keys is a task."""
    if request.param == "memory":
        return MemoryWorld()
    if request.param == "cluster":
        all_keys_in_tasks(monkeypatch)
        return ClusterWorld(tmp_path)
    return LakeWorld(tmp_path)


def keyed(number: int, key: str, **more: Any) -> MessageRow:
    return said(number, UNIQ_KEY=key, **more)


def handed_over(into: list[bytes | None], *failing: bytes) -> Any:
    """A listener that notes what it is asked about."""

    def listener(msgs: list[MessageExt], context: Any) -> Any:
        into.extend(m.body for m in msgs)
        return fail_bodies(*failing)(msgs, context)

    return listener


# --- of an earlier window --------------------------------------------------------------------------------------------


@story
def test_a_key_counts_in_all_brokers_of_a_shard_and_in_no_other_shard(world: World) -> None:
    """A client that sees no answer sends to another broker. Brokers of which a group absorbs such duplicates share a shard."""
    of_other_broker = MessageQueue("Orders", "broker-b", 0)
    world.fill(orders(0), [keyed(0, "A")])
    assert counts(world.consume(ONCE, f"{DAY}-1")) == {"acked": 1}
    world.fill(of_other_broker, [keyed(0, "A")])
    assert counts(world.consume(ONCE, f"{DAY}-2")) == {"duplicate": 1}
    with world.in_shard("broker-c"):
        world.fill(MessageQueue("Orders", "broker-c", 0), [keyed(0, "A")])
        assert counts(world.consume(ONCE, f"{DAY}-3")) == {"acked": 1}


@story
def test_a_message_whose_key_was_acked_is_not_asked_about_and_recorded_as_duplicate(world: World) -> None:
    world.fill(orders(0), [keyed(0, "A"), keyed(1, "B")])
    assert counts(world.consume(ONCE, f"{DAY}-1")) == {"acked": 2}
    world.fill(orders(0), [keyed(2, "C"), keyed(3, "A"), keyed(4, "B"), keyed(5, "D")])
    seen: list[bytes | None] = []
    report = world.consume(ONCE, f"{DAY}-2", handed_over(seen))
    assert (seen, counts(report)) == ([b"2", b"5"], {"acked": 2, "duplicate": 2})
    (done,) = report.consumed
    assert {str(o): t for o, t in done.tallies.items()} == {"acked": tally([2, 5]), "duplicate": tally([3, 4])}
    assert world.outcomes("billing") == [Lost(QueueRange(orders(0), 3, 5), 0, "duplicate")]
    assert [(key.key, key.offset) for key in sorted(world.keys("billing"))] == [("A", 0), ("B", 1), ("C", 2), ("D", 5)]


@story
def test_an_earlier_message_in_another_queue_counts(world: World) -> None:
    world.fill(orders(0), [keyed(0, "A")])
    world.consume(ONCE, f"{DAY}-1")
    world.fill(orders(1), [keyed(1, "A")])
    assert counts(world.consume(ONCE, f"{DAY}-2")) == {"duplicate": 1}


@story
def test_what_failed_is_no_reason_and_its_retry_is_not_absorbed_by_itself(world: World) -> None:
    world.fill(orders(0), [keyed(0, "A")])
    world.consume(ONCE, f"{DAY}-1", fail_bodies(b"0"))
    assert world.keys("billing") == []
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    assert counts(world.consume(ONCE, f"{DAY}-2")) == {"acked": 1}
    assert [key.key for key in world.keys("billing")] == ["A"]


@story
def test_a_retry_is_absorbed_once_another_message_with_its_key_was_acked(world: World) -> None:
    world.fill(orders(0), [keyed(0, "A")])
    world.consume(ONCE, f"{DAY}-1", fail_bodies(b"0"))
    world.fill(orders(0), [keyed(1, "A")])
    assert counts(world.consume(ONCE, f"{DAY}-2")) == {"acked": 1}
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    assert counts(world.consume(ONCE, f"{DAY}-3")) == {"duplicate": 1}


@story
def test_a_dead_message_is_no_reason(world: World) -> None:
    mortal = group(absorb_duplicates=AbsorbRule("UNIQ_KEY", HOUR), max_reconsume_times=0)
    world.fill(orders(0), [keyed(0, "A")])
    assert counts(world.consume(mortal, f"{DAY}-1", fail_bodies(b"0"))) == {"dead": 1}
    world.fill(orders(0), [keyed(1, "A")])
    assert counts(world.consume(mortal, f"{DAY}-2")) == {"acked": 1}


@story
def test_an_ack_older_than_the_horizon_is_no_reason(world: World) -> None:
    short = group(absorb_duplicates=AbsorbRule("UNIQ_KEY", HOUR))
    world.fill(orders(0), [keyed(0, "A")])
    world.consume(short, f"{DAY}-1")
    world.clock.advance(HOUR // 2)
    world.fill(orders(0), [keyed(1, "A")])
    assert counts(world.consume(short, f"{DAY}-2")) == {"duplicate": 1}
    world.clock.advance(HOUR // 2 + 1)
    world.fill(orders(0), [keyed(2, "A")])
    assert counts(world.consume(short, f"{DAY}-3")) == {"acked": 1}  # being absorbed prolongs nothing


@story
def test_another_groups_ack_is_no_reason(world: World) -> None:
    world.fill(orders(0), [keyed(0, "A")])
    world.consume(group("billing-2", absorb_duplicates=AbsorbRule("UNIQ_KEY", HOUR)), f"{DAY}-1")
    assert counts(world.consume(ONCE, f"{DAY}-2")) == {"acked": 1}


@story
def test_a_group_that_absorbs_nothing_writes_no_keys(world: World) -> None:
    world.fill(orders(0), [keyed(0, "A"), keyed(1, "A")])
    assert counts(world.consume(group(), f"{DAY}-1")) == {"acked": 2}
    assert world.keys("billing") == []


# --- within a window -------------------------------------------------------------------------------------------------


@story
def test_of_one_windows_messages_with_a_key_the_first_is_asked_about(world: World) -> None:
    world.fill(orders(0), [keyed(0, "A"), keyed(1, "A"), keyed(2, "B")])
    world.fill(orders(1), [keyed(3, "A"), keyed(4, "C"), keyed(5, "B")])
    seen: list[bytes | None] = []
    report = world.consume(group(absorb_duplicates=ONCE.absorb_duplicates, consumers=2), f"{DAY}-1", handed_over(seen))
    assert (seen, counts(report)) == ([b"0", b"2", b"4"], {"acked": 3, "duplicate": 3})


@story
def test_the_next_one_is_asked_about_when_the_first_has_failed(world: World) -> None:
    world.fill(orders(0), [keyed(0, "A"), keyed(1, "A"), keyed(2, "B"), keyed(3, "A")])
    world.fill(orders(1), [keyed(4, "A"), keyed(5, "B"), keyed(6, "A")])
    seen: list[bytes | None] = []
    report = world.consume(ONCE, f"{DAY}-1", handed_over(seen, b"0", b"1", b"3"))
    assert seen == [b"0", b"2", b"1", b"3", b"4"]
    assert counts(report) == {"retried": 3, "acked": 2, "duplicate": 2}
    assert sorted(world.keys("billing")) == [Key("A", orders(1), 0, 0), Key("B", orders(0), 2, 0)]
    assert bodies(world.lane(3)) == [b"0", b"1", b"3"]


@story
def test_all_of_a_key_may_fail(world: World) -> None:
    world.fill(orders(0), [keyed(n, "A") for n in range(3)])
    assert counts(world.consume(ONCE, f"{DAY}-1", fail_bodies(b"0", b"1", b"2"))) == {"retried": 3}
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    assert counts(world.consume(ONCE, f"{DAY}-2")) == {"acked": 1, "duplicate": 2}


@story
def test_a_broadcasting_client_absorbs_what_it_has_acked_itself(world: World) -> None:
    clients = [
        group(f"news@{name}", absorb_duplicates=ONCE.absorb_duplicates, message_model=MessageModel.BROADCASTING)
        for name in "ab"
    ]
    world.fill(orders(0), [keyed(0, "A"), keyed(1, "B"), keyed(2, "A"), keyed(3, "B")])
    assert counts(world.consume(clients[0], f"{DAY}-a", fail_bodies(b"0"))) == {
        "dropped": 1, "acked": 2, "duplicate": 1,
    }  # fmt: skip
    assert counts(world.consume(clients[1], f"{DAY}-b")) == {"acked": 2, "duplicate": 2}


# --- which key -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["UNIQ_KEY", "KEYS", "orderId"])
def test_a_message_without_a_key_is_never_absorbed(world: World, by: str) -> None:
    @story
    def told(world: World) -> None:
        empty: dict[str, Any] = {by: ""}
        same: dict[str, Any] = {by: "K"}
        rows = [said(n, **empty) for n in range(2)] + [said(n, **same) for n in (2, 3)]
        world.fill(orders(0), rows)
        once = group(absorb_duplicates=AbsorbRule(by, HOUR))
        assert counts(world.consume(once, f"{DAY}-1")) == {"acked": 3, "duplicate": 1}
        world.fill(orders(0), [said(4), said(5)] if by != "UNIQ_KEY" else rows[:2])
        assert counts(world.consume(once, f"{DAY}-2")) == {"acked": 2}

    told(world)


@story
def test_the_same_text_by_another_rule_is_another_key(world: World) -> None:
    rules = [AbsorbRule(by, HOUR) for by in ("KEYS", "customer", "order", "UNIQ_KEY")]
    for number, rule in enumerate(rules):
        row: dict[str, Any] = {"UNIQ_KEY": f"U{number}", rule.by: "1001"}
        world.fill(orders(0), [said(number, **row)])
        assert counts(world.consume(group(absorb_duplicates=rule), f"{DAY}-{number}")) == {"acked": 1}
    assert [key.key for key in world.keys("billing")] == [
        "Orders KEYS=1001", "Orders property:customer=1001", "Orders property:order=1001", "1001",
    ]  # fmt: skip
    world.fill(orders(0), [said(7, KEYS="1001"), said(8, customer="1001")])
    assert counts(world.consume(group(absorb_duplicates=rules[0]), f"{DAY}-7")) == {"acked": 1, "duplicate": 1}


@pytest.mark.parametrize(("by", "acked"), [("KEYS", 2), ("customer", 2), ("UNIQ_KEY", 1)])
def test_a_text_in_another_topic_is_another_key_and_a_unique_key_is_the_same(world: World, by: str, acked: int) -> None:
    @story
    def told(world: World) -> None:
        once = group(topics=("Orders", "Payments"), absorb_duplicates=AbsorbRule(by, HOUR))
        same: dict[str, Any] = {by: "1"}
        world.fill(orders(0), [said(0, **same)])
        world.fill(orders(0, "Payments"), [said(1, **same), said(2, **same)])
        assert counts(world.consume(once, f"{DAY}-1")) == {"acked": acked, "duplicate": 3 - acked}

    told(world)


@pytest.mark.parametrize("by", ["KEYS", "customer"])
def test_a_retry_has_the_key_of_the_topic_in_which_it_failed_first(world: World, by: str) -> None:
    @story
    def told(world: World) -> None:
        once = group(topics=("Orders", "Payments"), absorb_duplicates=AbsorbRule(by, HOUR))
        same: dict[str, Any] = {by: "1"}
        world.fill(orders(0), [said(0, **same), said(9)])
        world.fill(orders(0, "Payments"), [said(1, **same)])
        assert counts(world.consume(once, f"{DAY}-1", fail_bodies(b"0", b"1"))) == {"retried": 2, "acked": 1}
        world.fill(orders(0), [said(2, **same)])
        assert counts(world.consume(once, f"{DAY}-2")) == {"acked": 1}
        world.clock.advance(10_000)
        world.deliver(f"{DAY}-d")
        seen: list[bytes | None] = []
        assert counts(world.consume(once, f"{DAY}-3", handed_over(seen))) == {"duplicate": 1, "acked": 1}
        assert seen == [b"1"]
        world.clock.advance(1000)
        world.fill(orders(0, "Payments"), [said(3, **same)])
        assert counts(world.consume(once, f"{DAY}-4")) == {"duplicate": 1}

    told(world)


@pytest.mark.parametrize("expression", ["TagA", "TagA || TagC"])
def test_what_is_filtered_is_no_reason(world: World, expression: str) -> None:
    @story
    def told(world: World) -> None:
        once = group(topics={"Orders": expression}, absorb_duplicates=ONCE.absorb_duplicates)
        world.fill(orders(0), [keyed(0, "A", tag="TagB"), keyed(1, "A", tag="TagA"), keyed(2, "A", tag="TagB")])
        world.fill(orders(0), [keyed(3, "A", tag="TagA")])
        assert counts(world.consume(once, f"{DAY}-1")) == {"filtered": 2, "acked": 1, "duplicate": 1}

    told(world)


def test_keys_with_one_hash_are_told_apart_by_their_texts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    in_lake, in_memory = text_hashes, duplicates.key_hash
    monkeypatch.setattr(window_keys, "text_hashes", lambda texts: in_lake(texts) & 1)
    monkeypatch.setattr(duplicates, "key_hash", lambda key: in_memory(key) & 1)

    @story
    def told(world: World) -> None:
        world.fill(orders(0), [keyed(n, f"K{n % 7}") for n in range(10)])
        assert counts(world.consume(ONCE, f"{DAY}-1")) == {"acked": 7, "duplicate": 3}
        world.fill(orders(0), [keyed(n, f"K{n}") for n in range(5, 12)])
        assert counts(world.consume(ONCE, f"{DAY}-2")) == {"acked": 5, "duplicate": 2}

    told(world)


# --- operators -------------------------------------------------------------------------------------------------------


@story
def test_after_a_reset_its_queues_messages_are_consumed_again_and_their_retries_too(world: World) -> None:
    world.fill(orders(0), [keyed(0, "A"), keyed(1, "B")])
    world.consume(ONCE, f"{DAY}-1")
    world.clock.advance(1000)
    world.reset_to(ResetTo.MIN)
    assert counts(world.consume(ONCE, f"{DAY}-2", fail_bodies(b"1"))) == {"acked": 1, "retried": 1}
    world.clock.advance(10_000)
    world.deliver(f"{DAY}-d")
    assert counts(world.consume(ONCE, f"{DAY}-3")) == {"acked": 1}
    world.fill(orders(0), [keyed(2, "A"), keyed(3, "B")])
    assert counts(world.consume(ONCE, f"{DAY}-4")) == {"duplicate": 2}


# --- two windows -----------------------------------------------------------------------------------------------------


@story
def test_of_two_windows_that_hold_a_key_the_second_one_waits_or_is_told_to(world: World) -> None:
    world.fill(orders(0), [keyed(0, "A")])
    world.fill(orders(1), [keyed(1, "A")])
    said_no: list[Exception] = []

    def meanwhile() -> None:
        with pytest.raises(HeldByAnother) as error:
            world.consume(ONCE, f"{DAY}-2", actor=BEN, host=world.another_host())
        said_no.append(error.value)

    first = world.another_host(meanwhile, before_id=2)
    assert counts(world.consume(ONCE, f"{DAY}-1", host=first)) == {"acked": 1, "duplicate": 1}
    assert len(said_no) == 1
    assert world.consume(ONCE, f"{DAY}-2", actor=BEN).status == "empty"
    assert len(world.keys("billing")) == 1


@story
def test_a_window_whose_claim_was_taken_over_acks_no_key_that_the_other_one_acked(world: World) -> None:
    world.fill(orders(0), [keyed(0, "A")])

    def meanwhile() -> None:
        world.clock.advance(2 * HOUR)  # the first one's lease is over
        world.fill(orders(1), [keyed(1, "A")])
        assert counts(world.consume(ONCE, f"{DAY}-2", actor=BEN, host=world.another_host())) == {
            "acked": 1, "duplicate": 1,
        }  # fmt: skip

    with pytest.raises(StaleAttempt):
        world.consume(ONCE, f"{DAY}-1", host=world.another_host(meanwhile, before_id=2))
    assert [key.key for key in world.keys("billing")] == ["A"]


@story
def test_a_window_that_planned_early_finds_the_keys_of_one_that_committed_before_its_claim(world: World) -> None:
    world.fill(orders(0), [keyed(0, "A")])
    world.fill(orders(1), [keyed(1, "A")])

    def meanwhile() -> None:
        assert counts(world.consume(ONCE, f"{DAY}-1", host=world.another_host(), max_messages=1)) == {"acked": 1}

    late = world.another_host(meanwhile, before_id=1)  # between its plan and its claim
    assert counts(world.consume(ONCE, f"{DAY}-2", actor=BEN, host=late)) == {"duplicate": 1}
    assert len(world.keys("billing")) == 1


def test_a_windows_tasks_are_cut_and_its_turns_are_parts_of_one_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_store.lake.window.window_tasks.task_rows", lambda *_: 6)
    world.fill(orders(0), [keyed(n, f"K{n % 4}") for n in range(12)])
    once = group(absorb_duplicates=ONCE.absorb_duplicates, consumers=2)
    report = world.consume(once, f"{DAY}-1", fail_bodies(b"0", b"1", b"4"))
    assert counts(report) == {"retried": 3, "acked": 4, "duplicate": 5}
    assert sorted((key.key, key.offset) for key in world.keys("billing")) == [
        ("K0", 8), ("K1", 5), ("K2", 2), ("K3", 3),
    ]  # fmt: skip
    assert bodies(world.lane(3)) == [b"0", b"1", b"4"]


def test_the_keys_of_a_window_are_cut_into_files(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_tasks, "KEYS_A_FILE", 3)

    @story
    def told(world: World) -> None:
        world.fill(orders(0), [keyed(n, f"K{n}") for n in range(5)])
        world.fill(orders(1), [keyed(n, f"K{n}") for n in range(5, 8)])
        assert counts(world.consume(ONCE, f"{DAY}-1", fail_bodies(b"2"))) == {"acked": 7, "retried": 1}
        assert len(world.keys("billing")) == 7
        world.fill(orders(1), [keyed(n, f"K{n}") for n in range(8)])
        assert counts(world.consume(ONCE, f"{DAY}-2")) == {"acked": 1, "duplicate": 7}

    told(world)


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-8])])
def test_keys_that_cannot_be_read_stop_the_next_window(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    world = LakeWorld(tmp_path)
    world.fill(orders(0), [keyed(0, "A"), keyed(1, "B")])
    world.consume(ONCE, f"{DAY}-1")
    world.fill(orders(0), [keyed(2, "A")])
    (file,) = tmp_path.glob("**/kind=key/*.parquet")
    damage(file)
    seen: list[bytes | None] = []
    with pytest.raises(
        BadData, match=r"the acked keys of group billing in kind=key/.* cannot be read .* restore the file"
    ):
        world.consume(ONCE, f"{DAY}-2", handed_over(seen))
    assert seen == []


def test_the_audit_finds_a_window_whose_keys_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = LakeTable.content

    def without_keys(self: LakeTable, files: Sequence[StagedFile], *others: Any, **more: Any) -> Content:
        return content(self, [file for file in files if file.kind != "key"], *others, **more)

    monkeypatch.setattr(LakeTable, "content", without_keys)
    world = LakeWorld(tmp_path)
    world.fill(orders(0), [keyed(0, "A"), keyed(1, "B")])
    world.consume(ONCE, f"{DAY}-1")
    (problem,) = query(world.store, "SELECT group_name, problem FROM audit").to_pylist()
    assert problem == {"group_name": "billing", "problem": "acked keys differ from their rows"}


def test_the_audit_finds_every_duplicate_it_was_told_of(tmp_path: Path) -> None:
    world = LakeWorld(tmp_path)
    world.fill(orders(0), [keyed(0, "A"), keyed(1, "B"), keyed(2, "A"), keyed(3, "A"), keyed(4, "C")])
    world.consume(ONCE, f"{DAY}-1", fail_bodies(b"0"))
    world.fill(orders(0), [keyed(5, "C"), keyed(6, "C"), keyed(7, "D")])
    world.consume(ONCE, f"{DAY}-2")
    dispatch(world.shard, world.host)
    assert query(world.store, "SELECT * FROM audit").to_pylist() == []
    keys = query(world.store, "SELECT key_text, queue_offset FROM acked_keys").to_pylist()
    assert sorted(tuple(row.values()) for row in keys) == [("A", 2), ("B", 1), ("C", 4), ("D", 7)]
    found = query(world.store, "SELECT begin_offset, end_offset, reason FROM outcomes WHERE outcome = 'duplicate'")
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == [
        (3, 4, "its UNIQ_KEY was acked before"), (5, 7, "its UNIQ_KEY was acked before"),
    ]  # fmt: skip


# --- on a cluster ----------------------------------------------------------------------------------------------------


def test_tasks_on_keys_return_hashes_and_of_a_long_key_never_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 2_000
    world = ClusterWorld(tmp_path)
    all_keys_in_tasks(monkeypatch)
    for name, value in {"PART_ROWS": many // 4, "KEYS_A_FILE": many // 2, "MOST_HASHES": many}.items():
        monkeypatch.setattr(key_tasks, name, value)
    engines = [ClusterEngine(), ClusterEngine()]
    waiting = iter(engines)
    monkeypatch.setattr(world, "engine", lambda host: next(waiting))
    once = group(absorb_duplicates=AbsorbRule("KEYS", HOUR))
    world.fill(orders(0), [said(n, KEYS=f"{n:0300}") for n in range(many)])
    assert counts(world.consume(once, f"{DAY}-1")) == {"acked": many}
    world.fill(orders(0), [said(n, KEYS=f"{n % many:0300}") for n in range(many // 2, many * 3 // 2)])
    assert counts(world.consume(once, f"{DAY}-2")) == {"duplicate": many}
    first, second = (engine.sizes for engine in engines)
    assert set(first) == {"_read_hashes", "_stage"}, "no key occurs twice, and no file is in the horizon"
    assert set(second) == {"_read_hashes", "_look_up", "_compared"}, "nothing was acked"
    assert all(len(sizes["_read_hashes"]) == 4 for sizes in (first, second))
    overhead = 4 * 600
    assert sum(first["_read_hashes"]) <= 8 * many + overhead
    assert sum(second["_compared"]) <= (COMPARED_BYTES + 8) * many + overhead
    assert sum(second["_look_up"]) <= (COMPARED_BYTES + 3 * 8) * many + overhead
    assert max(first["_stage"]) < 1_000
