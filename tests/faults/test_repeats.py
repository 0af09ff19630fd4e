"""What comes twice: an effect of a listener, a reset, a request that was cleaned out of the log, and equal messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.admin.offset_moves import MoveReport
from rmq_store.commit.positions import Outcome
from rmq_store.errors import StaleAttempt
from rmq_store.lake.admin.undo import actions_to_undo
from rmq_store.lake.admin.undo import undo as undo_in
from rmq_store.lake.commit import commit as commit_steps
from rmq_store.lake.table.shard import Shard
from rmq_store.log.record_encoder import encode, new_record
from tests.faults.answers import Clock, clean_log_after_hours, other_commits, set_clock
from tests.faults.stores import FIRST_STORED_MS, GROUP, LOG_FILE_BYTES, OPERATOR, TOPIC, Lake, group_named

EFFECTS = """
def consume_message(msgs, context):
    with open({file!r}, "a") as file:
        file.writelines(f"{{context.idempotency_key(message)}}\\n" for message in msgs)
    return "CONSUME_SUCCESS"
"""


class Crash(BaseException):
    """The process ends."""


def at_step(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """``act`` when the step is reached for the first time."""

    def on_step(reached: str) -> None:
        if reached == step:
            monkeypatch.setattr(commit_steps, "on_step", lambda _: None)
            act()

    monkeypatch.setattr(commit_steps, "on_step", on_step)


def test_a_message_whose_effect_came_before_a_crash_comes_again_with_the_same_idempotency_key(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = tmp_path / "effects"
    (tmp_path / "listener_with_effects.py").write_text(EFFECTS.format(file=str(effects)))
    monkeypatch.syspath_prepend(tmp_path)
    group = group_named(listener="listener_with_effects:consume_message")

    def crash() -> None:
        raise Crash

    at_step(monkeypatch, "3.staged", crash)
    with pytest.raises(Crash):
        lake.consume(group=group)
    assert lake.offsets() == {}
    before = Counter(effects.read_text().split())
    assert set(before.values()) == {1}
    report = lake.consume(group=group)
    assert len(before) == report.counts()[Outcome.ACKED] > 0
    assert Counter(effects.read_text().split()) == before + before
    assert lake.audit() == []


def test_of_two_resets_at_once_one_moves_the_offsets_and_the_other_is_told(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.consume()
    at_step(monkeypatch, "4.decided", lambda: lake.reset("2026-01-02-three", 3))
    with pytest.raises(StaleAttempt, match="2026-01-02-three"):
        lake.reset("2026-01-02-five", 5)
    assert lake.offsets() == {0: 3, 1: 3, 2: 3}
    assert lake.commits("reset") == ["2026-01-02-three"]
    assert lake.reset("2026-01-02-five", 5).status == "committed"
    assert lake.offsets() == {0: 5, 1: 5, 2: 5}
    assert lake.audit() == []


def test_of_two_processes_with_the_same_reset_one_moves_and_the_other_says_so(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.consume()
    first = []
    at_step(monkeypatch, "4.decided", lambda: first.append(lake.reset("2026-01-02-three", 3)))
    second = lake.reset("2026-01-02-three", 3)
    assert (first[0].status, second.status, second.notes) == ("committed", "already_committed", ())
    assert (second.moves, second.commit_id) == (first[0].moves, first[0].commit_id)
    assert lake.commits("reset") == ["2026-01-02-three"]
    assert lake.audit() == []


def test_of_two_processes_with_the_same_undo_one_moves_and_the_other_says_so(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.consume()
    before = lake.offsets()
    lake.reset("2026-01-02-three", 3)

    def undo() -> MoveReport:
        shard = Shard(lake.store.root, lake.shard_name)
        undone = actions_to_undo([shard], GROUP, "2026-01-02-back")
        (report,) = undo_in(
            undone, GROUP, lake.host, request_id="2026-01-02-back", actor=OPERATOR, reason="a test says so"
        )
        return report

    first = []
    at_step(monkeypatch, "4.decided", lambda: first.append(undo()))
    second = undo()
    assert (first[0].status, second.status, second.notes) == ("committed", "already_committed", ())
    assert second.commit_id == first[0].commit_id
    assert lake.offsets() == before
    assert lake.commits("undo") == ["2026-01-02-back"]


def test_a_request_whose_commit_was_cleaned_out_of_the_log_is_still_known(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    lake = Lake(lake.folder, set_clock(monkeypatch, clock))
    first = lake.consume()
    entries = lake.folder / "s1" / "commitlog" / "_delta_log"
    other_commits(lake, 1)
    clean_log_after_hours(lake.shard.commitlog, clock)
    assert not (entries / f"{first.version:020}.json").exists()
    again = lake.consume()
    assert (again.status, again.commit_id, again.counts()) == ("already_committed", first.commit_id, first.counts())
    assert lake.audit() == []


def test_messages_with_the_same_content_are_different_messages(tmp_path: Path) -> None:
    log = bytearray()
    for offset in range(4):
        record = new_record(
            topic=TOPIC,
            queue_id=0,
            queue_offset=offset,
            commit_log_offset=len(log),
            stored_body=b"order 3",
            properties={"TAGS": "A", "KEYS": "k3", "UNIQ_KEY": f"{3:032X}"},
            born_timestamp=FIRST_STORED_MS,
            store_timestamp=FIRST_STORED_MS,
        )
        log += encode(record)
    (tmp_path / "broker" / "commitlog").mkdir(parents=True)
    (tmp_path / "broker" / "commitlog" / f"{0:020}").write_bytes(log.ljust(LOG_FILE_BYTES, b"\0"))
    lake = Lake(tmp_path / "store")
    assert lake.load(tmp_path / "broker").messages == 4
    assert {outcome: count for outcome, count in lake.consume().counts().items() if count} == {"dead": 4}
    (projection,) = lake.projections(GROUP)
    assert [copy.origin_offset for copy in projection.copies] == [0, 1, 2, 3]
    assert lake.audit() == []
