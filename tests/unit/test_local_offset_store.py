"""The client's offset stores: RocketMQ's sequences on the file of a broadcasting client, and the broker's as its twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.broker_files.local_offsets import (
    LocalOffsetsFile,
    local_offsets_path,
    local_offsets_text,
    parse_local_offsets,
    usable_local_offsets,
)
from rmq_store.errors import BadData, StoreUnusable
from rmq_store.message.message import MessageQueue
from tests.conformance.checks import passed
from tests.conformance.local_offset_store import check
from tests.oracle.local_offset_store import LocalFileOffsetStore
from tests.oracle.offset_store import NOT_FOUND, READ_FAILED, OffsetStore, ReadOffsetType
from tests.oracle.remote_offset_store import RemoteBrokerOffsetStore
from tests.unit import vectors

Q0, Q1, Q2 = (MessageQueue("T", "broker-a", queue_id) for queue_id in range(3))
MEMORY, STORE, BOTH = (
    ReadOffsetType.READ_FROM_MEMORY,
    ReadOffsetType.READ_FROM_STORE,
    ReadOffsetType.MEMORY_FIRST_THEN_STORE,
)


@pytest.fixture
def file(tmp_path: Path) -> LocalOffsetsFile:
    return LocalOffsetsFile(local_offsets_path(tmp_path, "127.0.0.1@DEFAULT", "g"))


class Broker:
    """A broker that remembers what it was sent. ``down``: it answers nothing."""

    def __init__(self) -> None:
        self.offsets = dict[MessageQueue, int]()
        self.down = False

    def query_offset(self, queue: MessageQueue) -> int | None:
        if self.down:
            raise StoreUnusable("the broker does not answer; start it")
        return self.offsets.get(queue)

    def update_offset(self, queue: MessageQueue, offset: int) -> None:
        self.offsets[queue] = offset


def test_sequences_on_a_local_offset_store_end_with_rocketmqs_answers_and_file() -> None:
    assert passed(check(vectors.read("local-offset-store"))) == 1067


@pytest.mark.parametrize("name", ["broadcast-offsets", "broadcast-offsets.bak"])
def test_a_real_clients_file_is_read_and_written_again_byte_by_byte(name: str) -> None:
    text = (vectors.DATA / "behaviour" / f"market-clean.{name}.json").read_text(encoding="utf-8")
    offsets = parse_local_offsets(text)
    assert offsets == {MessageQueue("PaymentFlow", "broker-a", queue_id): 225 for queue_id in range(4)}
    assert local_offsets_text(dict(sorted(offsets.items()))) == text


def test_more_queues_than_a_small_hash_map_holds_stand_in_the_order_of_a_larger_one() -> None:
    # As a Java ConcurrentHashMap with MessageQueue's hash code lists them.
    queues = {MessageQueue(f"Topic{number % 5}", f"broker-{number % 3}", number): number for number in range(24)}
    listed = "10 12 14 6 8 4 0 2 22 20 18 16 13 11 9 5 7 1 3 21 23 15 17 19"
    assert list(parse_local_offsets(local_offsets_text(queues)).values()) == [int(number) for number in listed.split()]


def test_offsets_survive_a_restart_and_the_file_before_is_kept(file: LocalOffsetsFile) -> None:
    store = LocalFileOffsetStore(file)
    for offset in (5, 8):
        store.update_offset(Q0, offset, increase_only=False)
        store.persist_all([Q0])
    again = LocalFileOffsetStore(file)
    again.load()
    assert again.read_offset(Q0, MEMORY) == 8
    bak = file.path.with_name("offsets.json.bak").read_text(encoding="utf-8")
    assert parse_local_offsets(bak) == {Q0: 5}


def test_two_clients_that_share_a_file_keep_each_others_queues(file: LocalOffsetsFile) -> None:
    one, other = LocalFileOffsetStore(file), LocalFileOffsetStore(file)
    one.update_offset(Q0, 5, increase_only=False)
    one.persist_all([Q0, Q1])
    other.update_offset(Q1, 7, increase_only=False)
    other.persist_all([Q1])
    assert file.read() == {Q0: 5, Q1: 7}


@pytest.mark.parametrize(
    ("text", "bak", "offset"),
    [
        ('{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:3}}', "garbage", 3),
        ("", '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:2}}', 2),
        ('{"offsetTable":{{"bro', '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:2}}', 2),
        (
            '{"offsetTable":{{"topic":"T"}:1}}',
            '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:2}}',
            2,
        ),
        (None, '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:2}}', 2),
        ("{}", '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:2}}', None),
        (None, None, None),
        ("", "", None),
    ],
)
def test_a_file_that_does_not_count_gives_way_to_its_bak(text: str | None, bak: str | None, offset: int | None) -> None:
    assert usable_local_offsets(text, bak) == ({} if offset is None else {Q0: offset})


def test_with_both_files_bad_nothing_is_loaded_or_stored_and_reading_finds_nothing(file: LocalOffsetsFile) -> None:
    file.path.parent.mkdir(parents=True)
    bak = file.path.with_name("offsets.json.bak")
    for path in (file.path, bak):
        path.write_text("garbage", encoding="utf-8")
    store = LocalFileOffsetStore(file)
    with pytest.raises(BadData, match="restore one of the two"):
        store.load()
    assert store.read_offset(Q0, BOTH) == NOT_FOUND
    store.update_offset(Q0, 5, increase_only=False)
    with pytest.raises(BadData, match="restore one of the two"):
        store.persist(Q0)
    assert [path.read_text(encoding="utf-8") for path in (file.path, bak)] == ["garbage", "garbage"]


def test_a_bad_file_never_becomes_the_bak_of_a_good_one(file: LocalOffsetsFile) -> None:
    file.write({Q0: 1})
    file.write({Q0: 2})
    file.path.write_text('{"offsetTable":{{"bro', encoding="utf-8")
    store = LocalFileOffsetStore(file)
    store.load()
    store.update_offset(Q1, 9, increase_only=True)
    store.persist(Q1)
    assert file.read() == {Q0: 1, Q1: 9}
    bak = file.path.with_name("offsets.json.bak").read_text(encoding="utf-8")
    assert parse_local_offsets(bak) == {Q0: 1}


def frozen(store: OffsetStore) -> list[int]:
    """What memory says of a queue while it is frozen, frozen again, and removed and updated."""
    seen = []
    changes: list[Callable[[], None]] = [
        lambda: store.update_offset(Q0, 99, increase_only=False),
        lambda: store.update_and_freeze_offset(Q0, 20),
        lambda: store.remove_offset(Q0),
        lambda: store.update_offset(Q0, 7, increase_only=True),
    ]
    store.update_and_freeze_offset(Q0, 25)
    for change in changes:
        change()
        seen.append(store.read_offset(Q0, MEMORY))
    return seen


def test_a_frozen_queue_takes_no_update_until_it_is_removed(file: LocalOffsetsFile) -> None:
    wanted = [25, 20, NOT_FOUND, 7]
    assert frozen(LocalFileOffsetStore(file)) == frozen(RemoteBrokerOffsetStore(Broker())) == wanted


def test_a_broker_without_an_offset_is_minus_one_and_one_that_does_not_answer_minus_two() -> None:
    broker = Broker()
    store = RemoteBrokerOffsetStore(broker)
    assert store.read_offset(Q0, BOTH) == NOT_FOUND
    broker.down = True
    assert store.read_offset(Q0, BOTH) == READ_FAILED
    assert store.read_offset(Q0, MEMORY) == NOT_FOUND


def test_what_the_broker_answers_goes_into_memory_also_when_it_is_less() -> None:
    broker = Broker()
    store = RemoteBrokerOffsetStore(broker)
    store.update_offset(Q0, 9, increase_only=False)
    broker.offsets[Q0] = 4
    assert (store.read_offset(Q0, BOTH), store.read_offset(Q0, STORE), store.read_offset(Q0, MEMORY)) == (9, 4, 4)


def test_a_round_sends_the_named_queues_and_forgets_the_others_unsent() -> None:
    broker = Broker()
    store = RemoteBrokerOffsetStore(broker)
    for queue in (Q0, Q1):
        store.update_offset(queue, 5, increase_only=False)
    store.persist_all([])
    assert broker.offsets == {}
    store.persist_all([Q1, Q2])
    assert broker.offsets == {Q1: 5}
    assert [store.read_offset(queue, MEMORY) for queue in (Q0, Q1)] == [NOT_FOUND, 5]
    store.persist(Q2)
    assert broker.offsets == {Q1: 5}
