"""``audit`` names every sort of damage, and nothing in a sound store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.ctl import Action
from rmq_store.commit.positions import Outcome, Tally, off_id
from rmq_store.lake.audit.finding import ADVICE, Problem
from rmq_store.lake.table.store import LakeStore
from tests.contract.sql import of, rows
from tests.lake_damages import DAMAGES, GROUPS, QUEUE, damaged_store
from tests.lake_fixtures import HOUR_MS, Bench, SmallStore, small_store

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "sql.md"


def test_a_healthy_store_has_nothing_to_audit(small: SmallStore) -> None:
    assert rows(small.store, "SELECT * FROM audit") == []


def test_everything_an_operator_and_a_window_may_do_passes_the_audit(hand: Bench) -> None:
    hand.window("shop", QUEUE, 0, 4, start_rule="first", retried=[1, 2], dead=[3])
    hand.move("shop", QUEUE, 4, 0)
    hand.window("shop", QUEUE, 0, 10, retried=[1], lost=[(4, 6)])
    hand.deliver("shop", 2, 0, 2, copies=[0, 1])
    hand.deliver("shop", 2, 2, 3, copies=[2])
    hand.move("new", QUEUE, None, 5)
    hand.window("new", QUEUE, 5, 5)
    assert rows(of(hand), "SELECT * FROM audit") == []


@pytest.mark.parametrize(
    ("begin", "end"), [(4, (1 << 63) - 1), (-(1 << 63), (1 << 63) - 1), (-(1 << 63), 6), (6, 4)], ids=str
)
def test_a_damaged_outcome_range_of_any_length_is_a_finding(hand: Bench, begin: int, end: int) -> None:
    hand.window("shop", QUEUE, 0, 10, start_rule="first", lost=[(4, 6)], lost_rows=[(begin, end)])
    assert {"lost differs from its rows"} <= {row["problem"] for row in rows(of(hand), "SELECT problem FROM audit")}


@pytest.mark.parametrize("count", [(1 << 63) - 1, -(1 << 63)])
def test_a_damaged_count_or_end_of_any_size_is_a_finding(hand: Bench, count: int) -> None:
    hand.window("shop", QUEUE, 0, 4, start_rule="first")
    hand.window(
        "shop",
        QUEUE,
        4,
        (1 << 63) - 1,
        tallies={Outcome.ACKED: Tally(count, 0), Outcome.LOST: Tally(9, 0)},
        position=10,
    )
    found = {row["problem"] for row in rows(of(hand), "SELECT problem FROM audit")}
    assert found & {"counts do not add up", "hash sums do not add up"}


def test_the_reset_that_ends_a_changed_position_is_named_from_then_on_as_the_advice_says(hand: Bench) -> None:
    """Else a window could be taken out of the history together with its position, if a reset went back to where it began."""
    hand.window("shop", QUEUE, 0, 9, start_rule="first")
    hand.commit(hand.ctl(Action.RELEASE), {off_id("shop", QUEUE): 7})
    ask = "SELECT problem, begin_offset, end_offset FROM audit"
    assert rows(of(hand), ask) == [{"problem": "position differs", "begin_offset": 9, "end_offset": 7}]
    hand.move("shop", QUEUE, 7, 9)
    hand.window("shop", QUEUE, 9, 10)
    assert rows(of(hand), ask) == [{"problem": "moved from elsewhere", "begin_offset": 9, "end_offset": 7}]
    assert "'moved from elsewhere'" in ADVICE[Problem.POSITION_DIFFERS].action
    assert "'position differs'" in ADVICE[Problem.MOVED_FROM_ELSEWHERE].action


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> LakeStore:
    return damaged_store(tmp_path_factory.mktemp("damaged"))


@pytest.fixture(scope="module")
def findings(damaged: LakeStore) -> list[dict[str, Any]]:
    return rows(damaged, "SELECT * FROM audit")


@pytest.mark.parametrize("name", DAMAGES)
def test_the_audit_names(damaged: LakeStore, findings: list[dict[str, Any]], name: str) -> None:
    group = GROUPS[name]
    lane = damaged.shards("broker-a")[0].lane(group)
    of_group = [row for row in findings if row["group_name"] == group or row["broker_name"] == lane]
    assert {(row["problem"], row["begin_offset"], row["end_offset"]) for row in of_group} == DAMAGES[name][1]


def test_the_audit_names_nothing_else(findings: list[dict[str, Any]]) -> None:
    assert len(findings) == sum(len(expected) for _, expected in DAMAGES.values())
    assert {row["shard"] for row in findings} == {"broker-a"}


def test_the_audit_names_the_place(findings: list[dict[str, Any]]) -> None:
    assert [row for row in findings if row["group_name"] == GROUPS["a gap"]] == [
        {
            "shard": "broker-a",
            "group_name": "a-gap",
            "pass": 0,
            "topic": "Orders",
            "broker_name": "broker-a",
            "queue_id": 0,
            "problem": "gap",
            "begin_offset": 5,
            "end_offset": 7,
        }
    ]


def test_every_problem_of_the_document_has_been_seen_and_no_other(findings: list[dict[str, Any]]) -> None:
    """The first table has those of the view, the second those of the other parts of ``rmq audit``."""
    page = DOCUMENT.read_text().partition("### audit")[2]
    of_view, of_others = (_problems(part) for part in page.partition("`rmq audit` also")[::2])
    assert of_view == {Problem.of(row["problem"]) for row in findings}
    assert of_others == set(Problem) - of_view


def _problems(page: str) -> set[Problem]:
    table = re.findall(r"^\| (`.+) \| .+ \|$", page.partition("## Below the views")[0], re.MULTILINE)
    names = {name for cell in table for name in re.findall(r"`([^`]+ [^`]+|gap|overlap)`", cell)}
    return {Problem.of(name) for name in names}


def test_a_delivery_a_day_later_ends_the_chains(tmp_path: Path) -> None:
    made = small_store(tmp_path, ["broker-a"])
    made.deliver("broker-a", "2026-11-21-deliver", later_ms=24 * HOUR_MS)
    assert rows(made.store, "SELECT count(*) AS n FROM retries WHERE state = 'waiting'") == [{"n": 0}]
    assert rows(made.store, "SELECT * FROM audit") == []
