"""The rules for duplicates: keys, turns, hashes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.absorb import (
    AbsorbRule,
    Keyed,
    absorb_rule_of,
    absorb_rule_problems,
    acks_count_since,
    key_hash,
    runs,
    take_turn,
)
from rmq_store.lake.key_files import text_hashes
from rmq_store.message import MessageQueue
from rmq_store.offsets import QueueRange

Q = MessageQueue("Orders", "broker-a", 0)
DAY_MS = 86_400_000


def keyed(*keys: str, since: int = 0) -> list[Keyed]:
    return [Keyed(Q, offset, key, since) for offset, key in enumerate(keys)]


def offsets(several: tuple[Keyed, ...]) -> list[int]:
    return [one.offset for one in several]


def test_the_first_of_a_key_is_asked_and_the_others_wait() -> None:
    turn = take_turn(keyed("a", "b", "a", "a", "c"), {})
    assert (offsets(turn.ask), offsets(turn.wait), offsets(turn.duplicates)) == ([0, 1, 4], [2, 3], [])


@pytest.mark.parametrize(("acked", "since", "is_duplicate"), [(0, 0, True), (0, 1, False), (1, 1, True), (2, 1, True)])
def test_an_ack_counts_from_the_epoch_of_the_last_action_on(acked: int, since: int, is_duplicate: bool) -> None:
    turn = take_turn(keyed("a", since=since), {"a": acked})
    assert (len(turn.duplicates), len(turn.ask)) == ((1, 0) if is_duplicate else (0, 1))


@given(st.lists(st.sampled_from("abc")), st.sets(st.integers(0, 20)))
def test_turn_by_turn_each_message_is_answered_and_each_key_acked_once(keys: list[str], vain: set[int]) -> None:
    acked: dict[str, int] = {}
    answered, absorbed, successes = [], [], []
    turn = take_turn(keyed(*keys), acked)
    while turn.ask or turn.duplicates:
        answered += offsets(turn.ask)
        absorbed += offsets(turn.duplicates)
        won = [one for one in turn.ask if one.offset not in vain]
        successes += [one.key for one in won]
        acked |= {one.key: 0 for one in won}
        turn = take_turn(turn.wait, acked)
    assert not turn.wait
    assert sorted(answered + absorbed) == list(range(len(keys)))
    assert len(successes) == len(set(successes))
    assert all(keys[offset] in successes for offset in absorbed)


def test_for_retries_only_acks_after_the_groups_last_action_count() -> None:
    assert acks_count_since("billing", Q, 2, 5) == 2
    assert acks_count_since("billing", MessageQueue("%RETRY%billing", "lake-a", 0), 0, 5) == 5


def test_runs_are_neighbours() -> None:
    assert runs(Q, [1, 2, 3, 5]) == [QueueRange(Q, 1, 4), QueueRange(Q, 5, 6)]
    assert runs(Q, []) == []


def test_the_hash_of_a_key_is_what_it_was() -> None:
    assert [key_hash(key) for key in ("", "A", "ABCDEFGH", "ABCDEFGHI")] == [
        0xE220A8397B1DCDAF, 0xF7D56560769FE4EC, 0x1540DF15F1AAB0CA, 0xD1183405F16737EE,
    ]  # fmt: skip


@given(st.lists(st.text(max_size=40)), st.integers(0, 3))
def test_columns_are_hashed_as_single_keys_are(texts: list[str], cut: int) -> None:
    signed = text_hashes(pa.array(texts, pa.string()).slice(cut)).tolist()
    assert [number % (1 << 64) for number in signed] == [key_hash(text) for text in texts[cut:]]


@pytest.mark.parametrize(
    ("by", "horizon", "rule"),
    [
        ("UNIQ_KEY", "7d", AbsorbRule("UNIQ_KEY", 7 * DAY_MS)),
        ("KEYS", "90s", AbsorbRule("KEYS", 90_000)),
        ("property:orderId", "12h", AbsorbRule("orderId", DAY_MS // 2)),
        ("property:KEYS", "5m", AbsorbRule("KEYS", 300_000)),
    ],
)
def test_a_rule_is_read_from_its_table(by: str, horizon: str, rule: AbsorbRule) -> None:
    table = {"by": by, "horizon": horizon}
    assert absorb_rule_problems(table) == []
    assert absorb_rule_of(table) == rule


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"by": "TAGS", "horizon": "1d"}, "by must be UNIQ_KEY, KEYS or property:NAME, it is 'TAGS'"),
        ({"by": "property:", "horizon": "1d"}, "by must be"),
        ({"by": 5, "horizon": "1d"}, "by must be"),
        ({"by": "KEYS", "horizon": "0d"}, "horizon must be a time like"),
        ({"by": "KEYS", "horizon": "367d"}, "horizon must be a time like"),
        ({"by": "KEYS", "horizon": 7}, "horizon must be a time like"),
        ({"by": "KEYS"}, "horizon is missing"),
        ({"horizon": "1d"}, "by is missing"),
        ({"by": "KEYS", "horizon": "1d", "horzon": 1}, "unknown key 'horzon'"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(table: dict[str, object], problem: str) -> None:
    (said,) = absorb_rule_problems(table)
    assert problem in said


def test_an_empty_key_is_none() -> None:
    rule = AbsorbRule("KEYS", 1)
    assert [rule.key_of({"KEYS": "k 1"}), rule.key_of({"KEYS": ""}), rule.key_of({})] == ["k 1", None, None]
