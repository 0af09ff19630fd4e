"""A request is found again whatever the clocks say: each change of a store, around midnight and with an id of tomorrow.

``tests/contract/test_engines_clocks.py`` has windows, sends and resets in every order of clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store.admin.delete_group import DeleteGroupRequest
from rmq_store.lake.admin.delete_group import delete_group
from rmq_store.lake.broker.cutover import cutover
from rmq_store.lake.window.send import send
from rmq_store.producer.producer import Message
from rmq_store.utils.host import day_of
from tests.faults.answers import Clock, set_clock
from tests.faults.stores import BROKER, GROUP, HOUR_MS, OPERATOR, TESTS, Lake, copied, group_named, write_broker

WHY = "a test says so"
DAY_MS = 24 * HOUR_MS


def consume(lake: Lake, request: str) -> Any:
    return lake.consume(request, group_named("shipping"))


def consume_all(lake: Lake, request: str) -> Any:
    (report,) = lake.consume_all(request, group_named("shipping")).groups
    return report


def send_one(lake: Lake, request: str) -> Any:
    return send(lake.store, lake.shard, [Message("New", b"1")], request, TESTS, lake.host, create_queues=1)


def import_more(lake: Lake, request: str) -> Any:
    return lake.load(write_broker(lake.folder.parent / "more", 60), request)


def reset(lake: Lake, request: str) -> Any:
    return lake.reset(request, 3)


def deliver(lake: Lake, request: str) -> Any:
    return lake.deliver(request)


def redrive(lake: Lake, request: str) -> Any:
    return lake.redrive(request)


def delete(lake: Lake, request: str) -> Any:
    (report,) = delete_group([lake.shard], DeleteGroupRequest(GROUP, request, OPERATOR, WHY), lake.host)
    return report


def cut_over(lake: Lake, request: str) -> Any:
    return cutover(lake.store, lake.shard, BROKER, lake.host, request_id=request, actor=OPERATOR, reason=WHY)


CHANGES = [consume, consume_all, send_one, import_more, reset, deliver, redrive, delete, cut_over]


@pytest.mark.parametrize("seconds", [(-7200, -20, 10), (10, -20, 2 * 86400)], ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_a_request_is_done_once_whatever_the_clocks_say(
    windowed: Lake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Lake, str], Any],
    seconds: tuple[int, ...],
) -> None:
    """Each attempt so many seconds from the midnight with which the id's date begins."""
    clock = Clock()
    midnight_ms = (clock.ms // DAY_MS + 2) * DAY_MS
    lake = replace(copied(windowed, tmp_path / "lake"), host=set_clock(monkeypatch, clock))
    request = f"{day_of(midnight_ms)}-once"
    statuses, versions = [], []
    for second in seconds:
        clock.ms = midnight_ms + 1000 * second
        statuses.append(str(change(lake, request).status))
        versions.append(lake.shard.commitlog.version)
    assert statuses == ["committed", "already_committed", "already_committed"]
    assert versions[1:] == versions[:1] * 2
    assert lake.audit() == []
