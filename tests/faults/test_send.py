"""A sender that is killed at any step and starts again has sent once (P5); many at a time all get through."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmq_store.lake.commit.commit import STEPS
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.send import send
from rmq_store.producer.producer import Message
from rmq_store.producer.send import SendReport
from rmq_store.utils.host import Host
from tests.faults.jobs import Job, killed_at
from tests.faults.stores import REQUEST, SHARD, TESTS

HOUR_MS = 3_600_000
STEPS_OF_A_SEND = [step for step in STEPS if step != "2.claimed"]
MESSAGES = [Message("Orders", b"%d" % n, delay_level=n % 2, delay_ms=HOUR_MS if n == 4 else None) for n in range(10)]


@dataclass(frozen=True)
class SendJob(Job):
    """The same ten messages each time; every second one waits in a level, and one in the timer."""

    def run(self) -> SendReport:
        store = LakeStore.open(Root.parse(str(self.folder)))
        shard = Shard(store.root, SHARD)
        return send(store, shard, MESSAGES, self.request, TESTS, Host(), create_queues=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store, _ = LakeStore.init(Root.parse(str(tmp_path / "lake")))
    store.create_shard(SHARD)
    return tmp_path / "lake"


def stored(folder: Path) -> list[tuple[str, bytes]]:
    found = query(LakeStore.open(Root.parse(str(folder))), "SELECT topic, body FROM messages ORDER BY ALL")
    return [(row["topic"], row["body"]) for row in found.to_pylist()]


WAITING = dict.fromkeys(range(1, 10, 2), "SCHEDULE_TOPIC_XXXX") | {4: "rmq_sys_wheel_timer"}
ONCE = sorted((WAITING.get(n, "Orders"), b"%d" % n) for n in range(10))


@pytest.mark.parametrize("step", STEPS_OF_A_SEND)
def test_a_send_that_is_killed_and_given_again_has_sent_once(folder: Path, step: str) -> None:
    job = SendJob("send", folder)
    assert killed_at(job, step)
    committed_before = STEPS.index(step) >= STEPS.index("5.put")
    assert job.run().status == ("already_committed" if committed_before else "committed")
    assert job.run().messages == len(MESSAGES)
    assert stored(folder) == ONCE


def test_of_many_senders_and_attempts_at_a_time_each_request_is_sent_once(folder: Path) -> None:
    requests = [f"{REQUEST}-{n}" for n in range(4)] * 2
    with ThreadPoolExecutor(len(requests)) as pool:
        reports = list(pool.map(lambda request: SendJob("send", folder, request).run(), requests))
    assert sorted(report.status for report in reports) == ["already_committed"] * 4 + ["committed"] * 4
    assert stored(folder) == sorted(ONCE * 4)
