"""The rules for duplicates: keys, turns, hashes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_store.consumer.duplicates import (
    AbsorbRule,
    Keyed,
    absorb_rule_of,
    absorb_rule_problems,
    acks_count_since,
    key_hash,
    key_tally,
    take_turn,
)
from rmq_store.lake.window.duplicates import turn_of
from rmq_store.lake.window.key_files import HashSet
from rmq_store.lake.window.window_keys import Keys, key_texts, text_hashes
from rmq_store.message.message import MessageQueue

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


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2))),
    st.lists(st.integers(-1, 2), min_size=4, max_size=4),
    st.data(),
)
def test_turns_over_columns_are_those_of_the_rule(
    candidates: list[tuple[int, int]], epochs: list[int], data: st.DataObject
) -> None:
    plain = [Keyed(Q, offset, str(key), since) for offset, (key, since) in enumerate(candidates)]
    keys, since = (np.array([pair[n] for pair in candidates], dtype=np.int64) for n in (0, 1))
    told = {str(key): epoch for key, epoch in enumerate(epochs) if epoch >= 0}
    acked = np.array(epochs)
    turn, columns = take_turn(plain, told), turn_of(keys, since, acked)
    while True:
        assert [c.tolist() for c in (columns.ask, columns.wait, columns.duplicates)] == [
            offsets(several) for several in (turn.ask, turn.wait, turn.duplicates)
        ]
        if not turn.ask:
            return
        won = [one for one in turn.ask if data.draw(st.booleans())]
        told |= {one.key: 2 for one in won}
        acked[[int(one.key) for one in won]] = 2
        turn, columns = take_turn(turn.wait, told), turn_of(keys, since, acked, columns.wait)


def test_for_retries_only_acks_after_the_groups_last_action_count() -> None:
    assert acks_count_since("billing", Q, 2, 5) == 2
    assert acks_count_since("billing", MessageQueue("%RETRY%billing", "lake-a", 0), 0, 5) == 5


def test_the_hash_of_a_key_is_what_it_was() -> None:
    assert [key_hash(key) for key in ("", "A", "ABCDEFGH", "ABCDEFGHI")] == [
        0xE220A8397B1DCDAF, 0xF7D56560769FE4EC, 0x1540DF15F1AAB0CA, 0xD1183405F16737EE,
    ]  # fmt: skip


@given(st.lists(st.text(max_size=40)), st.integers(0, 3))
def test_columns_are_hashed_as_single_keys_are(texts: list[str], cut: int) -> None:
    signed = text_hashes(pa.array(texts, pa.string()).slice(cut)).tolist()
    assert [number % (1 << 64) for number in signed] == [key_hash(text) for text in texts[cut:]]


@given(st.integers(0, 20), st.data(), st.integers(0, 3))
def test_columns_of_texts_of_one_length_are_hashed_as_single_keys_are(
    length: int, data: st.DataObject, cut: int
) -> None:
    texts = data.draw(st.lists(st.text("abc", min_size=length, max_size=length)))
    for type_ in (pa.string(), pa.large_string()):
        signed = text_hashes(pa.array(texts, type_).slice(cut)).tolist()
        assert [number % (1 << 64) for number in signed] == [key_hash(text) for text in texts[cut:]]


# --- columns of keys -------------------------------------------------------------------------------------------------

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NEAR = st.integers(-3, 3) | st.integers((1 << 63) - 4, (1 << 63) - 1) | INT64


@given(st.lists(NEAR), st.lists(NEAR), st.integers(1, 4))
def test_the_wanted_hashes_are_found_in_their_rows(wanted: list[int], stored: list[int], size: int) -> None:
    pieces = [np.array(stored[at : at + size], dtype=np.int64) for at in range(0, len(stored), size)]
    sought = HashSet(np.array(sorted(wanted), dtype=np.int64))
    rows, found = sought.maybe_in(pieces)
    assert found.tolist() == [stored[row] for row in rows]
    there = rows[sought.contains(found)].tolist()
    assert there == [row for row, number in enumerate(stored) if number in wanted]


def two_queues() -> Keys:
    """Offsets 3, 5 and 6 of one queue and 4 and 5 of another; a third one has none."""
    queues = [MessageQueue("Orders", "broker-a", number) for number in range(3)]
    texts = pa.chunked_array([["a", "b"], ["c", "d", "e"]])
    hashed = np.array([key_hash(text) for text in "abcde"], dtype=np.uint64).view(np.int64)
    return Keys(queues, np.array([0, 3, 3, 5]), np.array([3, 5, 6, 4, 5]), texts, hashed)


def texts_of(keys: Keys) -> list[str]:
    assert keys.texts is not None
    texts: list[str] = keys.texts.to_pylist()
    return texts


def test_messages_without_a_key_have_no_row() -> None:
    keys = two_queues()
    first, none, last = keys.queues
    places = [(last, np.array([3, 4, 5, 6])), (first, np.array([2, 4, 6, 7])), (none, np.array([3]))]
    assert keys.rows_of(places).tolist() == [3, 4, 2]
    assert {queue: found.tolist() for queue, found in keys.by_queue(np.array([0, 2, 4])).items()} == {
        first: [3, 6], last: [5],
    }  # fmt: skip


def test_keys_are_taken_out_and_cut() -> None:
    keys = two_queues().without(np.array([False, True, False, False, False]))
    assert (keys.begins.tolist(), keys.offsets.tolist(), texts_of(keys)) == (
        [0, 2, 2, 4], [3, 6, 4, 5], ["a", "c", "d", "e"],
    )  # fmt: skip
    assert keys.tally() == key_tally("acde")
    assert [(part.begins.tolist(), texts_of(part)) for part in keys.cut(3)] == [
        ([0, 2, 2, 3], ["a", "c", "d"]), ([0, 0, 0, 1], ["e"]),
    ]  # fmt: skip
    assert texts_of(two_queues().without(np.zeros(5, dtype=np.bool_))) == list("abcde")


# --- the rule of a group ---------------------------------------------------------------------------------------------


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
        ({"by": "property:a=b", "horizon": "1d"}, "the NAME of property:NAME has no '=' here, it is 'a=b'"),
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
    assert rule.key_of("Orders", {"KEYS": "k 1"}) == "Orders KEYS=k 1"
    assert [rule.key_of("Orders", {"KEYS": ""}), rule.key_of("Orders", {})] == [None, None]


@pytest.mark.parametrize(
    ("by", "topic", "retry_topic", "key"),
    [
        ("KEYS", "Orders", None, "Orders KEYS=v=1"),
        ("customer", "Orders", None, "Orders property:customer=v=1"),
        ("UNIQ_KEY", "Orders", None, "v=1"),
        ("KEYS", "%RETRY%billing", "Orders", "Orders KEYS=v=1"),
        ("customer", "%RETRY%billing", "Orders", "Orders property:customer=v=1"),
        ("KEYS", "%RETRY%billing", "", "%RETRY%billing KEYS=v=1"),
        ("KEYS", "%RETRY%billing", None, "%RETRY%billing KEYS=v=1"),
        ("KEYS", "Orders", "Payments", "Orders KEYS=v=1"),
        ("UNIQ_KEY", "%RETRY%billing", "Orders", "v=1"),
    ],
)
def test_a_key_names_its_topic_and_its_rule_unless_it_is_unique_by_itself(
    by: str, topic: str, retry_topic: str | None, key: str
) -> None:
    rule = AbsorbRule(by, 1)
    properties = {by: "v=1"} | ({} if retry_topic is None else {"RETRY_TOPIC": retry_topic})
    assert rule.key_of(topic, properties) == key
    several = pa.array([list(properties.items()), [("RETRY_TOPIC", "Payments")]], pa.map_(pa.string(), pa.string()))
    texts = key_texts(rule, topic, pc.map_lookup(several, by, "last"), several if topic.startswith("%RETRY%") else None)
    assert texts.to_pylist() == [key, None]


def test_a_rule_by_a_name_with_an_equals_sign_is_no_rule() -> None:
    with pytest.raises(ValueError, match="="):
        AbsorbRule("a=b", 1)
