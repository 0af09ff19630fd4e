"""An error after the commit: the report says ``committed``, as the log does (P4), and warns of what went wrong."""

from __future__ import annotations

from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from rmq_store.admin.clone import CloneRequest
from rmq_store.admin.dead_letters import DeadLetterFilter
from rmq_store.admin.delete_group import DeleteGroupRequest
from rmq_store.admin.offset_moves import MoveRequest
from rmq_store.admin.redrive import RedriveRequest
from rmq_store.admin.replay import as_replay
from rmq_store.admin.set_offsets import SetOffsetsRequest
from rmq_store.errors import StoreUnusable
from rmq_store.lake.admin.delete_group import delete_group
from rmq_store.lake.admin.offset_moves import move_in_all
from rmq_store.lake.admin.redrive import redrive_all
from rmq_store.lake.admin.replay import begin_attempt
from rmq_store.lake.broker.cutover import cutover
from rmq_store.lake.commit import dispatch as dispatching
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.send import send
from rmq_store.lake.window.window import consume_window
from rmq_store.message.message import MessageQueue
from rmq_store.producer.producer import Message
from rmq_store.window.consume_request import ConsumeRequest
from tests.faults.stores import BROKER, GROUP, OPERATOR, TESTS, TOPIC, Lake, copied, group_named, write_broker

DISK_FULL = OSError(ENOSPC, "No space left on device")
SLOW_DOWN = StoreUnusable("cannot read x at s3://lake: S3 answered GetObject with 503 SlowDown")
R = "2026-01-03-after"


def consume(lake: Lake) -> Any:
    return lake.consume(R, group_named("shipping"))


def deliver(lake: Lake) -> Any:
    return lake.deliver(R)


def redrive(lake: Lake) -> Any:
    request = RedriveRequest(
        group=GROUP,
        dead_letters=DeadLetterFilter(all=True),
        request_id=R,
        actor=OPERATOR,
        reason="a test says so",
        retry_queue_nums=2,
    )
    return redrive_all(lake.shard, request, lake.host)


def send_one(lake: Lake) -> Any:
    return send(lake.store, lake.shard, [Message("New", b"1")], R, TESTS, lake.host, create_queues=1)


def import_more(lake: Lake) -> Any:
    return lake.load(write_broker(lake.folder.parent / "more", 60), R)


def reset(lake: Lake) -> Any:
    return lake.reset(R, 3)


def moved(lake: Lake, request: MoveRequest) -> Any:
    (report,) = move_in_all([(lake.shard, request)], lake.host)
    return report


def clone(lake: Lake) -> Any:
    return moved(lake, CloneRequest("copy", GROUP, R, OPERATOR, "a test says so"))


def import_offsets(lake: Lake) -> Any:
    queue = MessageQueue(TOPIC, BROKER, 0)
    return moved(lake, SetOffsetsRequest("copy", {queue: 3}, "offsets.json", R, OPERATOR, "a test says so"))


def delete(lake: Lake) -> Any:
    (report,) = delete_group([lake.shard], DeleteGroupRequest(GROUP, R, OPERATOR, "a test says so"), lake.host)
    return report


def cut_over(lake: Lake) -> Any:
    why = "a test says so"
    return cutover(lake.store, lake.shard, BROKER, lake.host, request_id=R, actor=OPERATOR, reason=why)


CALLERS = [consume, deliver, redrive, send_one, import_more, reset, clone, import_offsets, delete, cut_over]


@pytest.fixture
def worked(windowed: Lake, tmp_path: Path) -> Lake:
    """A copy of the store after its first window: retries wait, and letters are dead."""
    return copied(windowed, tmp_path / "worked")


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Exception], None]:
    """From now on a step of every dispatch fails."""

    def fail(step: str, error: Exception) -> None:
        def failing(*arguments: object, **options: object) -> None:
            raise error

        monkeypatch.setattr(dispatching, step, failing)

    return fail


def derived(lake: Lake) -> list[int]:
    """How many files each derived table has."""
    return [table.files().num_rows for table in (lake.shard.consumequeue, lake.shard.offsets)]


@pytest.mark.parametrize(
    ("caller", "step", "error"),
    [*((caller, "staged", DISK_FULL) for caller in CALLERS), (consume, "_is_due", SLOW_DOWN)],
)
def test_what_goes_wrong_after_a_commit_is_a_warning(
    worked: Lake,
    fails: Callable[[str, Exception], None],
    monkeypatch: pytest.MonkeyPatch,
    caller: Callable[[Lake], Any],
    step: str,
    error: Exception,
) -> None:
    dispatch(worked.shard, worked.host)
    version, before = worked.shard.commitlog.version, derived(worked)
    fails(step, error)
    report = caller(worked)
    assert report.status == "committed"
    (warning,) = report.warnings
    assert warning.startswith("shard s1: committed, but ")
    assert f"({type(error).__name__}: {error})" in warning
    assert worked.shard.commitlog.version > version
    assert derived(worked) == before, "it was dispatched after all"
    monkeypatch.undo()
    again = caller(worked)
    assert (again.status, again.warnings) == ("already_committed", ())
    assert worked.audit() == []
    dispatch(worked.shard, worked.host)
    assert sum(derived(worked)) > sum(before) or caller is cut_over  # which moved nothing here


def test_a_commit_that_could_be_followed_up_has_no_warning(worked: Lake) -> None:
    assert [caller(worked).warnings for caller in (reset, send_one)] == [(), ()]


def test_an_attempt_of_a_replay_goes_on_to_its_window_which_warns(
    lake: Lake, fails: Callable[[str, Exception], None]
) -> None:
    group, engine = group_named(), LocalEngine(lake.host)
    replaying, request, scope = as_replay(group, TOPIC, 0, ConsumeRequest("2026-01-02-replay", TESTS))
    consume_window(lake.store, lake.shard, replaying, request, lambda _: engine, lake.host, scope)
    fails("staged", DISK_FULL)
    again = ConsumeRequest(R, TESTS, "the listener is mended")
    settings, asked, scope = begin_attempt(lake.shard, replaying, again, lake.host)
    report = consume_window(lake.store, lake.shard, settings, asked, lambda _: engine, lake.host, scope)
    assert (report.status, report.messages(), len(report.warnings)) == ("committed", 30, 1)
