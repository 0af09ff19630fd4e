"""A checkpoint of another tool without the statistics of any file, in each table, and no entry before it: what reads the store
finds the same rows as before, acts as before, and the audit says what is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.ctl import Action
from rmq_store.consumer.duplicates import AbsorbRule
from rmq_store.errors import BadData
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.lake.admin.last_action import last_action_in
from rmq_store.lake.audit.finding import Problem
from rmq_store.lake.commit.derived_tables import KINDS
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.commit.rebuild import check, rebuild
from rmq_store.lake.maintain.compact import CompactRequest, compact
from rmq_store.lake.maintain.retention import RetentionRequest, retain
from rmq_store.settings.retention_settings import RetentionRule
from tests.faults.stores import GROUP, HOUR_MS, SHARD, TESTS, TOPIC, Lake, copied, group_named, write_broker
from tests.planted_shard import COMMITLOG, PlantedShard, Row

RESET = "2026-01-02-reset"
TABLES = (COMMITLOG, *(kind.name for kind in KINDS))
ABSORBING = group_named(
    "once",
    listener="tests.contract.world:succeed",
    subscriptions=(build_subscription_data(TOPIC, "*"),),
    absorb_duplicates=AbsorbRule("TAGS", 24 * HOUR_MS),
)
UNKNOWN = r"does not say of which day .* is, or how many rows it has"
VIEWS = ("messages", "windows", "offset_history", "operator_actions", "retries", "outcomes", "acked_keys", "lag")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    folder = tmp_path_factory.mktemp("sound")
    lake = Lake(folder / "store")
    lake.load(write_broker(folder / "broker"))
    lake.consume()
    lake.consume("2026-01-01-once", ABSORBING)
    lake.reset(RESET, 3)
    dispatch(lake.shard, lake.host, every_commit=True)
    for table in TABLES:
        PlantedShard(lake.folder, SHARD).leave_checkpoint(table)
    assert lake.audit() == []
    return lake


def without_statistics(rows: list[Row]) -> list[Row]:
    return [row if row["add"] is None else row | {"add": row["add"] | {"stats": None}} for row in rows]


@pytest.fixture(params=[(COMMITLOG,), TABLES], ids=["the commit log", "all tables"])
def pair(request: pytest.FixtureRequest, sound: Lake, tmp_path: Path) -> tuple[Lake, Lake]:
    """The same store, whole and without statistics."""
    whole, less = copied(sound, tmp_path / "whole"), copied(sound, tmp_path / "less")
    for table in request.param:
        PlantedShard(less.folder, SHARD).edit_checkpoint(without_statistics, table)
    return whole, less


def absorbed(lake: Lake) -> Any:
    """More messages with the keys of before."""
    shutil.rmtree(lake.folder.parent / "broker", ignore_errors=True)
    lake.load(write_broker(lake.folder.parent / "broker", 42), "2026-01-03-import")
    return lake.consume("2026-01-03-once", ABSORBING).counts()


def last_of(lake: Lake) -> Any:
    last = last_action_in(lake.shard, GROUP)
    return last and last.request_id


ACTS: dict[str, Callable[[Lake], Any]] = {
    "views": lambda lake: lake.rows(*VIEWS),
    "the last action of an operator": last_of,
    "a reset again": lambda lake: lake.reset(RESET, 3).status,
    "moves after a time": lambda lake: [ctl.request_id for ctl in lake.shard.ctls_stored_after(0, [Action.RESET])],
    "the first window of an epoch": lambda lake: [
        one and one.request_id for one in (lake.shard.first_ctl(GROUP, Action.CONSUME, epoch) for epoch in (0, 1))
    ],
    "a window": lambda lake: lake.consume("2026-01-03-r2").counts(),
    "a window of a group that absorbs duplicates": absorbed,
    "a delivery": lambda lake: (lake.deliver().delivered, lake.consume("2026-01-03-r3").counts()),
    "a check of the derived tables": lambda lake: [asdict(one) for one in check(lake.shard)],
    "a dispatch": lambda lake: dispatch(lake.shard, lake.host) > 0 and [one.differs for one in check(lake.shard)],
    "a rebuild, and a window": lambda lake: (
        [one.rebuilt for one in rebuild(lake.shard, lake.host)],
        absorbed(lake),
    ),
}


@pytest.mark.parametrize("name", ACTS)
def test_what_is_done_without_statistics_is_what_is_done_with_them(pair: tuple[Lake, Lake], name: str) -> None:
    whole, less = map(ACTS[name], pair)
    assert less == whole


def test_the_audit_a_compaction_and_retention_say_what_is_missing(pair: tuple[Lake, Lake]) -> None:
    _, less = pair
    assert {finding.problem for finding in less.audit()} == {Problem.FILE_ROWS_DIFFER}
    with pytest.raises(BadData, match=UNKNOWN):
        compact(less.shard, CompactRequest("2026-01-03-compact", TESTS), less.host)
    rule = RetentionRule(topic=TOPIC, max_age_ms=HOUR_MS)
    wanted = RetentionRequest(request_id="2026-01-03-retain", actor=TESTS, rules=[rule])
    with pytest.raises(BadData, match=UNKNOWN):
        retain(
            less.shard,
            wanted,
            less.host,
        )
