"""Steps 4 to 6 against a store whose answers are late, lost or wrong: what is reported is what the log shows (P4)."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EIO, ENOSPC, EROFS
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import ParquetWriter

from rmq_store.commit.ctl import SCHEDULE_GROUP, Action, StagedFile
from rmq_store.errors import ClockSkew, CommitOutcomeUnknown, RmqError, StagedFileGone, StaleAttempt, StoreUnusable
from rmq_store.lake.commit import claim
from rmq_store.lake.commit import commit as commit_steps
from rmq_store.lake.commit.commit import Member
from rmq_store.lake.table import stage as staging
from rmq_store.lake.table.delta_log import LogCleaned
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import stage_ctl
from rmq_store.utils.host import Host
from tests.faults import listeners
from tests.faults.answers import (
    Clock,
    InFlight,
    NoAnswer,
    Put,
    answer_puts,
    clean_log_after_hours,
    fall_silent,
    other_commits,
    set_clock,
)
from tests.faults.stores import GROUP, HOUR_MS, OPERATOR, REQUEST, Lake, group_named, write_broker


@pytest.fixture
def clock() -> Clock:
    return Clock(stride_ms=25_000)


@pytest.fixture
def patient(lake: Lake, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """The store, on a host whose waiting takes no time."""
    return Lake(lake.folder, set_clock(monkeypatch, clock))


@pytest.fixture
def wrong() -> Iterator[pytest.MonkeyPatch]:
    """For what the store does wrong, to be undone before its clock is."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def assert_committed_once(lake: Lake, windowed: Lake) -> None:
    assert lake.commits("consume") == [REQUEST]
    assert lake.projections() == windowed.projections()
    assert lake.audit() == []


def assert_not_committed(lake: Lake) -> None:
    assert lake.commits("consume") == []
    assert lake.offsets() == {}
    assert lake.audit() == []


def at_step(wrong: pytest.MonkeyPatch, step: str, do: Callable[[], object]) -> None:
    """``do`` when the step is reached for the first time; its own steps are not watched."""

    def at(reached: str) -> None:
        if reached == step:
            wrong.setattr(commit_steps, "on_step", lambda step: None)
            do()

    wrong.setattr(commit_steps, "on_step", at)


# --- while the data files are written --------------------------------------------------------------------------------


@pytest.fixture
def asked(wrong: pytest.MonkeyPatch) -> list[object]:
    """What the group's listener was asked about."""
    messages: list[object] = []

    def listener(msgs: Any, context: Any) -> Any:
        messages.extend(msgs)
        return real(msgs, context)

    real = listeners.fail_some
    wrong.setattr(listeners, "fail_some", listener)
    return messages


@pytest.fixture
def naps(wrong: pytest.MonkeyPatch) -> list[float]:
    """How long staging would have waited, in seconds."""
    waits: list[float] = []
    wrong.setattr(staging.TRIES, "sleep", waits.append)
    return waits


TOO_BUSY = StoreUnusable(
    "cannot write kind=msg/x at s3://b: S3 answered PutObject with 503 SlowDown (reduce your rate)"
)


@pytest.mark.parametrize("where", [(pq, "ParquetWriter"), (ParquetWriter, "write_table")])
@pytest.mark.parametrize("error", [OSError(EIO, "Input/output error"), TOO_BUSY])
def test_a_hiccup_while_a_task_stages_its_rows_does_not_throw_the_window_away(
    patient: Lake,
    windowed: Lake,
    wrong: pytest.MonkeyPatch,
    asked: list[object],
    naps: list[float],
    where: tuple[Any, str],
    error: Exception,
) -> None:
    """Nobody is asked again about messages that were answered."""
    at_step(wrong, "2.claimed", lambda: fail_first(wrong, *where, error, times=2))
    report = patient.consume()
    assert asked
    count, tries = len(asked), len(naps)
    wrong.undo()
    assert (report.status, count, tries) == ("committed", len(set(map(str, asked))), 2)
    assert_committed_once(patient, windowed)


@pytest.mark.parametrize(
    "error",
    [
        OSError(ENOSPC, "No space left on device"),
        OSError(EROFS, "Read-only file system"),
        PermissionError(EACCES, "Permission denied"),
        StoreUnusable("cannot write kind=msg/x at s3://b: S3 answered PutObject with 403 AccessDenied (Access Denied)"),
    ],
    ids=str,
)
def test_a_store_that_refuses_the_rows_of_a_task_ends_the_window_at_once(
    patient: Lake, wrong: pytest.MonkeyPatch, asked: list[object], naps: list[float], error: Exception
) -> None:
    said = str(error.strerror) if isinstance(error, OSError) else "403 AccessDenied"
    at_step(wrong, "2.claimed", lambda: fail_first(wrong, pq, "ParquetWriter", error))
    with pytest.raises(StoreUnusable, match=f"cannot write kind=msg/.*{re.escape(said)}.*This commit was not made"):
        patient.consume()
    wrong.undo()
    assert naps == []
    assert_not_committed(patient)


def test_a_store_that_stays_silent_ends_the_staging_after_about_a_minute(
    patient: Lake, wrong: pytest.MonkeyPatch, naps: list[float]
) -> None:
    at_step(wrong, "2.claimed", lambda: fail_first(wrong, pq, "ParquetWriter", TOO_BUSY, times=1000))
    with pytest.raises(StoreUnusable, match="SlowDown"):
        patient.consume()
    wrong.undo()
    assert 5 < len(naps) < 20
    assert sum(naps) < 120
    assert_not_committed(patient)


# --- before the first PUT --------------------------------------------------------------------------------------------


CONFLICT = StoreUnusable(
    "cannot write x at s3://b: S3 answered PutObject with 409 ConditionalRequestConflict (a conflict)"
)
SLOW_DOWN = StoreUnusable("cannot ask for the time at s3://lake: S3 answered HeadBucket with 503 SlowDown")
HICCUPS = [
    (commit_steps, "stage_ctl", CONFLICT),
    (commit_steps, "stage_ctl", OSError(EIO, "Input/output error")),
    (Root, "server_time_ms", SLOW_DOWN),
    (Shard, "positions", NoAnswer("silence")),
    (Shard, "positions", LogCleaned("version 3")),
    (LakeTable, "_check_staged", SLOW_DOWN),
]


def fail_first(patch: pytest.MonkeyPatch, where: Any, name: str, error: Exception, times: int = 1) -> None:
    """The first calls from now on raise the error; the following ones do what they do."""
    real, left = getattr(where, name), [error] * times

    def called(*arguments: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return real(*arguments, **options)

    patch.setattr(where, name, called)


@pytest.mark.parametrize(("where", "name", "error"), HICCUPS)
def test_a_hiccup_before_the_first_put_does_not_throw_the_window_away(
    patient: Lake, windowed: Lake, wrong: pytest.MonkeyPatch, where: Any, name: str, error: Exception
) -> None:
    """The listener may have worked for hours."""
    at_step(wrong, "3.staged", lambda: fail_first(wrong, where, name, error, times=2))
    assert patient.consume().status == "committed"
    wrong.undo()
    assert_committed_once(patient, windowed)


def test_a_hiccup_before_the_first_put_of_a_claim_does_not_end_the_window(
    patient: Lake, windowed: Lake, wrong: pytest.MonkeyPatch
) -> None:
    at_step(wrong, "1.planned", lambda: fail_first(wrong, commit_steps, "stage_ctl", CONFLICT, times=2))
    assert patient.consume().status == "committed"
    wrong.undo()
    assert_committed_once(patient, windowed)


def test_every_try_stages_its_row_under_a_name_of_its_own(patient: Lake, wrong: pytest.MonkeyPatch) -> None:
    """One that arrives late must not take the place of what a later try has named in its commit."""
    names: list[str] = []

    def noted(*arguments: Any) -> StagedFile:
        staged = stage_ctl(*arguments)
        names.append(staged.path)
        return staged

    wrong.setattr(commit_steps, "stage_ctl", noted)
    at_step(wrong, "3.staged", lambda: fail_first(wrong, LakeTable, "content", CONFLICT, times=2))
    report = patient.consume()
    tried = [name for name in names if report.commit_id and report.commit_id in name]
    assert (report.status, len(tried), len(set(tried))) == ("committed", 3, 3)


@pytest.mark.parametrize(
    "error",
    [
        StoreUnusable(
            "cannot write x at s3://b: S3 answered CreateMultipartUpload with 403 AccessDenied (Access Denied)"
        ),
        PermissionError(EACCES, "Permission denied", "/store"),
        OSError(ENOSPC, "No space left on device"),
        OSError(EDQUOT, "Disk quota exceeded"),
        OSError(EROFS, "Read-only file system"),
        StoreUnusable("cannot look at x: S3 answered HeadObject with 403 InvalidAccessKeyId (Forbidden): mend it"),
        StoreUnusable("no table at /store/s1/commitlog: the shard's commit log is gone"),
        ClockSkew("this host's clock and the store's differ"),
        StagedFileGone("staged file x is gone"),
    ],
    ids=str,
)
def test_what_waiting_cannot_mend_ends_a_window_at_once(
    patient: Lake, clock: Clock, wrong: pytest.MonkeyPatch, error: Exception
) -> None:
    before_ms = clock.ms
    at_step(wrong, "3.staged", lambda: fail_first(wrong, commit_steps, "stage_ctl", error))
    with pytest.raises(type(error) if isinstance(error, RmqError) else StoreUnusable, match=re.escape(str(error))):
        patient.consume()
    wrong.undo()
    assert clock.ms == before_ms, "it waited"
    assert_not_committed(patient)


def lake_files(lake: Lake) -> dict[str, int]:
    """The files of the commit log's table, with their sizes."""
    folder = Path(lake.store.root.location, lake.shard.commitlog.path)
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


@contextmanager
def longest_file(size: int) -> Iterator[None]:
    """A longer file is cut there, and the write fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 3000])
def test_a_disk_that_is_full_ends_a_commit_at_once_and_no_cut_file_is_left(
    patient: Lake, clock: Clock, size: int
) -> None:
    before_ms, before = clock.ms, lake_files(patient)
    with longest_file(size), pytest.raises(StoreUnusable, match=r"File too large.*Nothing of claim"):
        patient.consume()
    assert clock.ms == before_ms, "it waited"
    assert lake_files(patient) == before
    assert_not_committed(patient)


@pytest.mark.parametrize("error", [ENOSPC, EDQUOT, EROFS])
def test_a_disk_that_is_full_at_the_entry_ends_a_commit_at_once(
    patient: Lake, clock: Clock, wrong: pytest.MonkeyPatch, error: int
) -> None:
    before_ms = clock.ms
    full = OSError(error, os.strerror(error))
    at_step(wrong, "4.ctl-written", lambda: fail_first(wrong, os, "fsync", full))
    with pytest.raises(StoreUnusable, match=f"{os.strerror(error)}.*Nothing of consume"):
        patient.consume()
    wrong.undo()
    assert clock.ms == before_ms, "it waited"
    assert_not_committed(patient)


def remove_staged(lake: Lake) -> None:
    """What no version names, as a VACUUM without retention does. Rows of commits are left."""
    table = lake.shard.commitlog
    live = set(table.files().column("path").to_pylist())
    folder = Path(table.root.location, table.path)
    for file in folder.glob("kind=msg/*.parquet"):
        if str(file.relative_to(folder)) not in live:
            file.unlink()


def test_a_staged_file_that_is_gone_ends_a_window_at_once_and_it_can_run_again(
    patient: Lake, windowed: Lake, clock: Clock, wrong: pytest.MonkeyPatch
) -> None:
    before_ms = clock.ms
    at_step(wrong, "3.staged", lambda: remove_staged(patient))
    with pytest.raises(StagedFileGone, match=r"staged file kind=msg/.* is gone. Run the same request again"):
        patient.consume()
    wrong.undo()
    assert clock.ms == before_ms, "it waited"
    assert_not_committed(patient)
    assert patient.consume().status == "committed"
    assert_committed_once(patient, windowed)


# --- one PUT ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("landed", [True, False], ids=["the reply is lost", "the request is lost"])
def test_a_put_without_an_answer_is_committed_once(
    patient: Lake, windowed: Lake, wrong: pytest.MonkeyPatch, landed: bool
) -> None:
    puts: list[Put] = []

    def answer(put: Put) -> None:
        puts.extend([put] if put.action == "consume" else [])
        first = put in puts and len(puts) == 1
        if landed or not first:
            put.send()
        if first:
            raise NoAnswer("gone")

    answer_puts(wrong, answer)
    assert patient.consume().status == "committed"
    assert len(puts) == (1 if landed else 2)
    assert_committed_once(patient, windowed)


def test_a_store_that_never_confirms_anything_still_gets_every_commit_once(
    patient: Lake, windowed: Lake, wrong: pytest.MonkeyPatch
) -> None:
    def answer(put: Put) -> None:
        put.send()
        raise NoAnswer("gone")

    answer_puts(wrong, answer)
    assert patient.consume().status == "committed"
    assert patient.deliver().status == "committed"
    assert patient.consume().status == "already_committed"
    wrong.undo()
    assert patient.commits("consume") == [REQUEST]
    assert patient.projections(GROUP) == windowed.projections(GROUP)
    assert len(patient.commits("deliver", SCHEDULE_GROUP)) == 1
    assert patient.audit() == []


def test_a_put_that_lands_after_the_read_back_is_found_before_anything_is_dropped(
    patient: Lake, windowed: Lake, clock: Clock, wrong: pytest.MonkeyPatch
) -> None:
    """M2: at the next decision the offsets have moved, and it was this very run that moved them."""

    def answer(put: Put) -> None:
        if put.action != "consume":
            return put.send()
        clock.while_asleep.append(put.held_back().arrive)
        raise NoAnswer("late")

    answer_puts(wrong, answer)
    assert patient.consume().status == "committed"
    assert_committed_once(patient, windowed)


# --- giving up -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lands", [True, False])
def test_a_put_that_is_never_answered_is_told_by_the_next_attempt(
    patient: Lake, windowed: Lake, wrong: pytest.MonkeyPatch, lands: bool
) -> None:
    """M2b: whatever is still on its way has one name and one content, and the next attempt takes that name or finds it."""
    late: list[InFlight] = []

    def answer(put: Put) -> None:
        if put.action != "consume":
            return put.send()
        late.append(put.held_back())
        raise NoAnswer("late")

    answer_puts(wrong, answer)
    with pytest.raises(CommitOutcomeUnknown, match=r"has not confirmed .*late.* Do not change anything"):
        patient.consume()
    wrong.undo()
    assert len(late) > 1
    assert len(set(late)) == 1
    assert not list(patient.shard.positions().prefixed("off/")), "a group that never began has no offset"
    if lands:
        assert late[0].arrive()
    assert patient.consume().status == ("already_committed" if lands else "committed")
    assert not late[0].arrive()
    assert_committed_once(patient, windowed)


@pytest.mark.parametrize("lands", [False, True])
def test_a_clock_that_goes_wrong_after_a_put_without_an_answer_does_not_end_the_window(
    patient: Lake, windowed: Lake, clock: Clock, wrong: pytest.MonkeyPatch, lands: bool
) -> None:
    """The PUT is still on its way: only the log tells what became of it."""
    late: list[InFlight] = []

    def answer(put: Put) -> None:
        if put.action != "consume":
            return put.send()
        late.append(put.held_back())
        wrong.setattr(Root, "server_time_ms", lambda root, host: clock.ms + HOUR_MS)
        clock.while_asleep.extend([late[0].arrive] if lands else [])
        raise NoAnswer("late")

    answer_puts(wrong, answer)
    if lands:
        assert patient.consume().status == "committed"
    else:
        with pytest.raises(CommitOutcomeUnknown):
            patient.consume()
    wrong.undo()
    if lands:
        assert_committed_once(patient, windowed)
    else:
        assert_not_committed(patient)


def test_when_nothing_can_be_confirmed_the_outcome_is_unknown_and_the_same_request_tells_it_later(
    patient: Lake, windowed: Lake, wrong: pytest.MonkeyPatch
) -> None:
    def answer(put: Put) -> None:
        if put.action == "claim":
            return put.send()
        raise NoAnswer("silence")

    answer_puts(wrong, answer)
    with pytest.raises(CommitOutcomeUnknown, match="Do not change anything"):
        patient.consume()
    wrong.undo()
    assert_not_committed(patient)
    assert patient.consume().status == "committed"
    assert_committed_once(patient, windowed)


@pytest.mark.parametrize("landed", [True, False])
def test_a_store_that_cannot_be_read_after_a_put_leaves_the_outcome_unknown(
    patient: Lake, windowed: Lake, wrong: pytest.MonkeyPatch, landed: bool
) -> None:
    def answer(put: Put) -> None:
        if put.action == "consume":
            if landed:
                put.send()
            fall_silent(wrong)
            raise NoAnswer("silence")
        put.send()

    answer_puts(wrong, answer)
    with pytest.raises(CommitOutcomeUnknown):
        patient.consume()
    wrong.undo()
    assert patient.consume().status == ("already_committed" if landed else "committed")
    assert_committed_once(patient, windowed)


def test_a_store_that_cannot_be_read_before_the_first_put_is_unusable_and_nothing_was_written(
    patient: Lake, windowed: Lake, clock: Clock, wrong: pytest.MonkeyPatch
) -> None:

    def silence() -> None:
        clock.ms += 10_000  # what was read before is not fresh
        fall_silent(wrong)

    at_step(wrong, "3.staged", silence)
    with pytest.raises(StoreUnusable, match="silence"):
        patient.consume()
    wrong.undo()
    assert_not_committed(patient)
    assert patient.consume().status == "committed"
    assert_committed_once(patient, windowed)


def test_a_put_without_an_answer_whose_name_an_operator_has_taken_is_no_commit(
    patient: Lake, wrong: pytest.MonkeyPatch
) -> None:
    patient.consume()
    patient.reset("2026-01-02-back", 3)
    late: list[InFlight] = []

    def answer(put: Put) -> None:
        if put.action != "consume" or late:
            return put.send()
        late.append(put.held_back())
        assert patient.reset("2026-01-02-operator", 6, actor=OPERATOR).status == "committed"
        raise NoAnswer("silence")

    answer_puts(wrong, answer)
    with pytest.raises(StaleAttempt, match=r"Moved by reset 2026-01-02-operator of olga \(airflow\)"):
        patient.consume("2026-01-02-r2")
    wrong.undo()
    assert not late[0].arrive()
    assert patient.offsets() == {0: 6, 1: 6, 2: 6}
    assert patient.audit() == []


def test_a_store_that_is_silent_for_a_while_does_not_end_the_renewals(
    patient: Lake, windowed: Lake, wrong: pytest.MonkeyPatch
) -> None:
    tried: list[Action] = []
    renewed = Event()

    def commit_together(shard: Shard, members: Sequence[Member], host: Host, **options: Any) -> Any:
        (member,) = members
        if member.proposal.ctl.action is not Action.RENEW:
            return commit_steps.commit_together(shard, members, host, **options)
        tried.append(member.proposal.ctl.action)
        if len(tried) < 3:
            return [StoreUnusable("silence")]
        outcomes = commit_steps.commit_together(shard, members, host, **options)
        renewed.set()
        return outcomes

    wrong.setattr(claim, "commit_together", commit_together)
    wrong.setattr(claim, "RENEW_EVERY_S", 0.001)
    at_step(wrong, "2.claimed", lambda: renewed.wait(600))
    assert patient.consume().status == "committed"
    assert renewed.is_set()
    assert_committed_once(patient, windowed)


# --- the log is cleaned ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [1, 9])
def test_a_success_that_is_in_no_snapshot_is_noticed(
    patient: Lake, windowed: Lake, clock: Clock, wrong: pytest.MonkeyPatch, others: int
) -> None:
    """M1, the phantom commit: the PUT is held while others commit and the log is cleaned, and lands in the freed slot."""
    puts: list[Put] = []

    def answer(put: Put) -> None:
        if put.action != "consume" or puts:
            puts.extend([put] if put.action == "consume" else [])
            return put.send()
        puts.append(put)
        held = put.held_back()
        other_commits(patient, others + 1)
        clean_log_after_hours(patient.shard.commitlog, clock)
        assert held.arrive(), "the slot is not free"
        return None  # the store says: done

    answer_puts(wrong, answer)
    report = patient.consume()
    wrong.undo()
    assert (report.status, len(puts)) == ("committed", 2)
    assert report.commit_id in {ctl.commit_id for ctl in patient.shard.ctls_since(0, action="consume")}
    assert_committed_once(patient, windowed)


@pytest.mark.parametrize("step", ["2.claimed", "3.staged", "4.decided"])
def test_the_log_may_be_cleaned_while_a_window_runs(
    patient: Lake, windowed: Lake, clock: Clock, wrong: pytest.MonkeyPatch, step: str
) -> None:
    def others() -> None:
        other_commits(patient, 3)
        clean_log_after_hours(patient.shard.commitlog, clock)

    at_step(wrong, step, others)
    assert patient.consume().status == "committed"
    assert_committed_once(patient, windowed)


# --- others commit between the decision and the PUT ------------------------------------------------------------------


@pytest.mark.parametrize("step", ["3.staged", "4.decided", "4.ctl-written"])
def test_a_reset_wins_over_a_running_window_which_names_it(lake: Lake, wrong: pytest.MonkeyPatch, step: str) -> None:
    at_step(wrong, step, lambda: lake.reset("2026-01-02-back", 5, actor=OPERATOR))
    with pytest.raises(StaleAttempt, match=r"reset 2026-01-02-back of olga \(airflow\): a test says so"):
        lake.consume()
    assert lake.commits("consume") == []
    assert lake.offsets() == {0: 5, 1: 5, 2: 5}
    assert lake.consume("2026-01-02-r2").messages() == 15
    assert lake.audit() == []


@pytest.mark.parametrize("step", ["3.staged", "4.decided"])
def test_offsets_that_were_moved_away_and_back_are_not_the_ones_that_were_planned(
    lake: Lake, wrong: pytest.MonkeyPatch, step: str
) -> None:
    """ABA: every offset has its old value again, but an operator has spoken."""
    lake.consume()
    lake.reset("2026-01-02-back", 2)
    before = lake.offsets()

    def away_and_back() -> None:
        lake.reset("2026-01-03-away", 9, actor=OPERATOR)
        lake.reset("2026-01-03-back", 2, actor=OPERATOR)

    at_step(wrong, step, away_and_back)
    with pytest.raises(StaleAttempt, match="2026-01-03-back of olga"):
        lake.consume("2026-01-02-r2")
    assert lake.offsets() == before
    assert lake.commits("consume") == [REQUEST]
    assert lake.audit() == []


def test_what_does_not_touch_the_group_does_not_stop_its_window(
    lake: Lake, windowed: Lake, tmp_path_factory: pytest.TempPathFactory, wrong: pytest.MonkeyPatch
) -> None:
    """An import, another group's window and a delivery, all between the decision and the PUT."""
    lake.consume("2026-01-01-earlier", group_named("shipping"))
    more = write_broker(tmp_path_factory.mktemp("broker"), 60)

    def others() -> None:
        assert lake.load(more, "2026-01-01-more").messages == 30
        assert lake.consume("2026-01-01-other", group_named("invoices")).status == "committed"
        assert lake.deliver().status == "committed"

    at_step(wrong, "4.decided", others)
    assert lake.consume().status == "committed"
    assert lake.projections(GROUP) == windowed.projections(GROUP)
    assert len(lake.commits("deliver", SCHEDULE_GROUP)) == 1
    assert lake.audit() == []
