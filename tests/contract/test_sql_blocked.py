"""What SQL says of queues that wait, and that the audit finds nothing in windows that consume in order or broadcast."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rmq_store.admin.reset import ResetTo
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.lake.audit.finding import Finding
from rmq_store.lake.audit.full import full
from rmq_store.lake.audit.positions import positions
from rmq_store.lake.sql.sql import queries, query
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.utils.host import Host
from tests.contract.engines import LakeWorld
from tests.contract.test_engines_orderly import SUSPEND, in_order, suspend_at
from tests.contract.world import DAY, HOUR, NOON, fail_bodies, group, orders, several


@pytest.fixture
def lake(tmp_path: Path) -> LakeWorld:
    made = LakeWorld(tmp_path)
    for queue_id in range(2):
        made.fill(orders(queue_id), several(6))
    return made


def rows(lake: LakeWorld, text: str) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = query(lake.store, text).to_pylist()
    return table


BLOCKED = """
SELECT queue_id, next_offset, begin_offset, end_offset, attempts, status, first_failed_at, last_tried_at, error_type
FROM blocked ORDER BY queue_id, begin_offset
"""


def test_a_queue_that_waits_is_shown_until_it_goes_on(lake: LakeWorld) -> None:
    def raising(msgs: list[Any], context: Any) -> str:
        if (context.message_queue.queue_id, msgs[0].queue_offset) == (1, 2):
            raise ValueError("no such customer")
        return "SUCCESS"

    lake.consume(in_order(), f"{DAY}-1", raising)
    lake.clock.advance(HOUR)
    lake.consume(in_order(), f"{DAY}-2", raising)
    (found,) = rows(lake, BLOCKED)
    assert list(found.values()) == [1, 2, 2, 3, 6, SUSPEND, NOON, NOON + HOUR, "ValueError"]
    assert rows(lake, "SELECT sum(messages) AS n FROM windows") == [{"n": 8}]
    lake.consume(in_order(), f"{DAY}-3", suspend_at())
    assert rows(lake, BLOCKED) == []
    assert rows(lake, "SELECT * FROM audit") == []


@pytest.mark.parametrize("lag_ms", [0, 3 * 60_000, HOUR, -HOUR])
def test_tries_are_counted_on_whatever_the_clocks_of_a_folder_say(lake: LakeWorld, lag_ms: int) -> None:
    """Another host's window comes between the plan and the claim, which the clock of this host dates before it."""
    numbers = count(1)

    def window(host: Host | None = None) -> None:
        lake.consume(in_order(), f"{DAY}-{next(numbers)}", suspend_at(0), host=host)

    def other() -> None:
        lake.clock.advance(lag_ms)
        window()
        lake.clock.advance(-lag_ms)

    for _ in range(3):
        lake.clock.advance(1000)
        window(lake.another_host(other))
    assert [row["attempts"] for row in rows(lake, BLOCKED)] == [18, 18], "three in each window"
    assert rows(lake, "SELECT * FROM audit") == []


def test_the_audit_knows_when_a_queue_was_blocked_and_when_not(lake: LakeWorld) -> None:
    lake.consume(in_order(), f"{DAY}-1", suspend_at(3))
    assert of_positions(lake) == []
    lake.clock.advance(HOUR)
    lake.reset_to(ResetTo.OFFSET, 4, queues=(orders(0),))
    assert of_positions(lake) == []
    lake.consume(in_order(), f"{DAY}-2", suspend_at(3))
    assert of_positions(lake) == []
    lake.delete()
    assert of_positions(lake) == []
    lake.consume(in_order(), f"{DAY}-3", suspend_at(1))
    assert of_positions(lake) == []


def of_positions(lake: LakeWorld) -> list[Finding]:
    return list(positions(partial(queries, lake.store)))


def test_a_queue_that_an_operator_has_moved_waits_no_more(lake: LakeWorld) -> None:
    lake.consume(in_order(), f"{DAY}-1", suspend_at(3))
    assert [row["next_offset"] for row in rows(lake, BLOCKED)] == [3, 3]
    lake.reset_to(ResetTo.OFFSET, 4, queues=(orders(0),))
    assert [row["queue_id"] for row in rows(lake, BLOCKED)] == [1]


def test_windows_in_order_pass_the_audit(lake: LakeWorld) -> None:
    for number in range(3):
        lake.consume(in_order(max_reconsume_times=4), f"{DAY}-{number}", suspend_at(1, 2, 5))
    letters = rows(lake, "SELECT origin_queue_offset FROM dead_letters WHERE cause = 'max_reconsume_times'")
    assert len(letters) == rows(lake, "SELECT CAST(sum(dead) AS BIGINT) AS n FROM windows")[0]["n"] == 4
    assert rows(lake, "SELECT * FROM audit") == []
    report = full(lake.store, LocalEngine(lake.host))
    assert (report.findings, report.copies) == ([], 4)


def test_windows_of_broadcasting_clients_pass_the_audit(lake: LakeWorld) -> None:
    for client in "ab":
        reader = group(f"audit@{client}", message_model=MessageModel.BROADCASTING)
        lake.consume(reader, f"{DAY}-1", fail_bodies(b"1", b"2", b"5"))
    text = "SELECT group_name, queue_id, begin_offset, end_offset, reason FROM outcomes WHERE outcome = 'dropped' ORDER BY ALL"
    found = [(n, q, 1, 3, "RECONSUME_LATER") for n in ("audit@a", "audit@b") for q in (0, 1)]
    found += [(n, q, 5, 6, "RECONSUME_LATER") for n in ("audit@a", "audit@b") for q in (0, 1)]
    assert [tuple(row.values()) for row in rows(lake, text)] == sorted(found)
    assert rows(lake, "SELECT * FROM audit") == []
