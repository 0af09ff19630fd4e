"""``Positions`` equals a plain dict of all ids, over random histories."""

from __future__ import annotations

import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rmq_store.commit.positions import (
    ABSENT,
    PositionKind,
    Positions,
    blk_id,
    grp_id,
    ids_of,
    max_id,
    min_id,
    off_id,
    own_id,
    own_queue_id,
    queue_of,
    split_id,
    sub_id,
)
from rmq_store.message.message import MessageQueue

NAMES = ("a", "ab", "a/b", "a%2Fb", "a b", "%RETRY%a", "日本", "~a")
QUEUES = tuple(MessageQueue(topic, broker, n) for topic in NAMES[:4] for broker in ("b", "b/1") for n in (0, 2, 10))
IDS = (
    *(make(name) for make in (grp_id, sub_id, own_id) for name in NAMES),
    *(make(name, queue) for make in (off_id, blk_id, own_queue_id) for name in NAMES for queue in QUEUES),
    *(make(queue) for make in (max_id, min_id) for queue in QUEUES),
    own_id("~import", "broker-a"),
    "kind-of-a-later-release/x/y",
    "no-parts",
)
CHANGES = st.dictionaries(st.sampled_from(IDS), st.tuples(st.integers(ABSENT, 3), st.sampled_from((0, 7))), max_size=12)


def values_of(changes: dict[str, tuple[int, int]]) -> dict[str, int]:
    return {app_id: value for app_id, (value, _) in changes.items()}


def times_of(changes: dict[str, tuple[int, int]]) -> dict[str, int]:
    return {app_id: updated_ms for app_id, (_, updated_ms) in changes.items()}


@given(st.lists(CHANGES, min_size=1, max_size=6))
def test_positions_are_a_plain_dict_and_an_earlier_version_never_changes(history: list[dict[str, Any]]) -> None:
    plain: dict[str, tuple[int, int]] = {}
    versions = [(Positions(0, {}), plain)]
    for version, changes in enumerate(history, 1):
        plain = plain | changes
        advanced = versions[-1][0].advanced(version, values_of(changes), times_of(changes))
        versions.append((advanced, plain))
    for version, (positions, expected) in enumerate(versions):
        assert positions == Positions(version, values_of(expected), times_of(expected))
        assert positions != Positions(version, values_of(expected) | {"grp/other": 1}, times_of(expected))
        assert pickle.loads(pickle.dumps(positions)) == positions
        assert_equal(positions, expected)


def assert_equal(positions: Positions, plain: dict[str, tuple[int, int]]) -> None:
    present = {app_id: value for app_id, (value, _) in plain.items() if value != ABSENT}
    assert dict(positions.items()) == plain
    assert len(list(positions.items())) == len(plain)
    for app_id in IDS:
        assert positions.get(app_id) == present.get(app_id)
        assert positions.updated_ms(app_id) == plain.get(app_id, (0, 0))[1]
    prefixes = [f"{kind}/" for kind in PositionKind]
    prefixes += [ids_of(kind, name) for kind in (PositionKind.OFFSET, PositionKind.BLOCKED) for name in NAMES]
    prefixes += [
        "off/a/a/",
        "off/a/a/b/",
        "own/~import/",
        "off/a/a/b/1",
        "off/a",
        "grp/a",
        "own/~",
        "kind-of-a-later-release/",
    ]
    for prefix in prefixes:
        assert dict(positions.prefixed(prefix)) == {id_: v for id_, v in present.items() if id_.startswith(prefix)}
    for kind in PositionKind:
        assert dict(positions.of_kind(kind)) == {id_: v for id_, v in present.items() if split_id(id_)[0] == kind}
        assert positions.names(kind) == {split_id(id_)[1] for id_ in present if split_id(id_)[0] == kind}
    for name in NAMES:
        offsets = {queue_of(id_): v for id_, v in present.items() if split_id(id_)[:2] == ("off", name)}
        assert positions.offsets_of(name) == offsets
        queues = [queue_of(id_) for id_ in present if split_id(id_)[:2] == ("max", name)]
        assert positions.queues_of(name) == sorted(queues)
        assert positions.queues_of(name, "b") == [queue for queue in sorted(queues) if queue.broker_name == "b"]
        assert positions.brokers_of(name) == {queue.broker_name for queue in queues}
    assert positions.all_queues() == sorted(queue_of(id_) for id_ in present if id_.startswith("max/"))
