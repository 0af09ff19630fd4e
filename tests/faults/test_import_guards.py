"""What an import refuses, so that no message is lost, doubled or mixed with those of another log: with a small broker store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_store.commit.positions import import_id
from rmq_store.errors import BadData, WrongUse
from rmq_store.lake.broker.cutover import cutover
from rmq_store.lake.commit import commit as commit_steps
from tests.faults.stores import BROKER, MESSAGES, TESTS, Lake, write_broker

REQUEST = "2026-01-01-nightly"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty one."""
    return Lake(tmp_path / "store")


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    return write_broker(tmp_path / "broker")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_broker(tmp_path / "other", port=10921)


def before_the_claim(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Once, when an import has looked for its request, and before it has its claim."""

    def on_step(step: str) -> None:
        if step == "1.planned":
            monkeypatch.undo()
            happens()

    monkeypatch.setattr(commit_steps, "on_step", on_step)


def messages_in(lake: Lake) -> int:
    positions = lake.shard.positions()
    return sum(positions.max_offset(queue) for queue in positions.all_queues())


def test_of_two_attempts_of_one_request_one_is_committed(
    lake: Lake, broker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_claim(monkeypatch, lambda: lake.load(broker, REQUEST))
    assert lake.load(broker, REQUEST).status == "already_committed"
    assert len(lake.commits("import", None)) == 1
    assert messages_in(lake) == MESSAGES


def test_a_broker_that_is_cut_over_meanwhile_is_not_imported(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its groups belong to the lake by then."""
    lake.load(write_broker(tmp_path / "earlier", 12), "2026-01-01-earlier")
    end = lake.shard.positions().get(import_id(BROKER))

    def cut_over() -> None:
        cutover(lake.store, lake.shard, BROKER, lake.host, request_id="2026-01-01-x", actor=TESTS, reason="a test")

    before_the_claim(monkeypatch, cut_over)
    with pytest.raises(WrongUse, match="was cut over"):
        lake.load(write_broker(tmp_path / "broker"), REQUEST)
    assert lake.shard.positions().get(import_id(BROKER)) == end


def test_a_request_id_that_imported_another_broker_is_refused(lake: Lake, broker: Path, other: Path) -> None:
    """Its commits would be taken for those of this import, which would then do nothing."""
    lake.load(broker, REQUEST)
    with pytest.raises(WrongUse, match="already used with different parameters"):
        lake.load(other, REQUEST, "broker-b")
    assert lake.load(other, "2026-01-01-other", "broker-b").messages == MESSAGES


def test_a_broker_is_imported_into_one_shard(lake: Lake, broker: Path, other: Path) -> None:
    lake.load(broker, REQUEST)
    with pytest.raises(WrongUse, match="is imported into shard s1"):
        replace(lake, shard_name="s2").load(broker, "2026-01-01-other")
    assert replace(lake, shard_name="s2").load(other, "2026-01-01-b", "broker-b").messages == MESSAGES


def test_a_log_is_imported_under_one_name(lake: Lake, broker: Path) -> None:
    lake.load(broker, REQUEST)
    for shard_name in ("s2", lake.shard_name):
        with pytest.raises(WrongUse, match=f"those of broker {BROKER}: under another name .* twice"):
            replace(lake, shard_name=shard_name).load(broker, "2026-01-01-other", "broker-b")
    assert messages_in(lake) == MESSAGES


def test_a_log_with_other_bytes_before_the_position_is_not_the_one_that_was_imported(lake: Lake, broker: Path) -> None:
    lake.load(broker, REQUEST)
    write_broker(broker, MESSAGES + 6)
    (file,) = (broker / "commitlog").iterdir()
    file.write_bytes(file.read_bytes().replace(b"order %d" % (MESSAGES - 1), b"other %d" % (MESSAGES - 1)))
    with pytest.raises(BadData, match="is not the one that was imported up to"):
        lake.load(broker, "2026-01-02-nightly")
    assert messages_in(lake) == MESSAGES


def test_a_log_that_ends_before_the_position_is_an_older_copy(lake: Lake, tmp_path: Path) -> None:
    lake.load(write_broker(tmp_path / "newer"), REQUEST)
    with pytest.raises(BadData, match="is not the one that was imported up to"):
        lake.load(write_broker(tmp_path / "older", 12), "2026-01-02-nightly")
    assert messages_in(lake) == MESSAGES
