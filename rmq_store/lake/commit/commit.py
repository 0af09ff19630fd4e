"""The commit protocol (``docs/decisions/0001-one-commit-point.md``). Its states were explored exhaustively; each rule below
prevents a violation that was found. The steps:

1. *Plan*    (``lake/window``) look for the request, read positions, choose ranges, take a new commit id.
2. *Claim*   (``claim.py``)   a small commit on ``own/…``, made by the steps below.
3. *Run*     (``consume_slice.py``) tasks write data files under names that no other attempt uses. Files that are never
             committed are harmless. A failed write is tried again (``stage.py``), since the listener has already run.
4. *Decide*  reload the log. If this commit's id is there, it has been committed: go to 7. Compare epoch, claim and
             offsets with the plan: any difference ends the attempt (StaleAttempt). Assign the bases. Choose the store
             timestamp, or raise ClockSkew, also if the request's date is too far in the future to find this commit
             again (``check_day``). Write the one-row ctl file.
5. *Commit*  validate every file, then make one transaction on exactly this table version, with all files and one
             ``txn`` per position. delta-rs retries little; the retries are made here, with jitter and a deadline.
6. *Read back*, also after a success (a delayed PUT can write a log entry whose version was cleaned up meanwhile, and be
             reported as a success). If this commit's id is there: done. Else go to 4, which ends the attempt if a
             position has changed. Before any other failure is reported, a *release* commit takes the log version that an
             unanswered PUT might still write; if that cannot be confirmed either: CommitOutcomeUnknown. The text of an
             error does not show whether a PUT was made. Before the first PUT nothing can have been committed: steps 4
             and 5 are tried again, since a run may have taken hours; only an error that waiting cannot clear ends it at
             once.
7. *Follow up* dispatch and reports. Any later command can resume a dispatch (``dispatch.py``), so an error is a warning.

A test may stop the process at each of ``STEPS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

from deltalake.exceptions import DeltaError

from rmq_store.commit.ctl import Action, Ctl, Proposal, StagedFile
from rmq_store.commit.decide import (
    MAX_SKEW_MS,
    Clocks,
    Decided,
    check_age,
    check_day,
    check_evidence,
    compare,
    decide,
    overtaken,
)
from rmq_store.commit.positions import ABSENT, Claim, PositionKind, Positions, kind_of
from rmq_store.errors import (
    ClockSkew,
    CommitOutcomeUnknown,
    RmqError,
    StagedFileGone,
    StaleAttempt,
    StoreUnusable,
)
from rmq_store.lake.table.delta_log import LogCleaned
from rmq_store.lake.table.evidence import tally_of_range
from rmq_store.lake.table.object_store import is_refused
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import stage_ctl
from rmq_store.utils.host import Host

STEPS = (
    "1.planned",
    "2.claimed",
    "3.staged",
    "4.decided",
    "4.ctl-written",
    "5.put",
    "6.read-back",
    "7.dispatched",
)
"""Where ``on_step`` is called, in order."""

DEADLINE_MS = 60_000
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 2.0
_SILENCE = (StoreUnusable, DeltaError, OSError, LogCleaned)
"""What reading and staging raise when the store does not answer."""


def _nothing(step: str) -> None:
    """Outside of tests a step is not reported."""


on_step: Callable[[str], None] = _nothing
"""Called with each step when it is reached. Tests replace it to kill the process there."""


def reached(step: str) -> None:
    on_step(step)


@dataclass(frozen=True, slots=True)
class Committed:
    """The ctl row as the log holds it, and the version at which it was seen there."""

    ctl: Ctl
    version: int


def commit(shard: Shard, proposal: Proposal, host: Host, *, started_ms: int, quiet: bool = False) -> Committed:
    """Steps 4 to 6 for one proposal. ``started_ms``: when its run began, UTC ms. ``quiet``: do not call ``on_step`` (claims).

    Raises StaleAttempt, ClockSkew, EvidenceMismatch, StagedFileGone, StoreUnusable (nothing was committed) and
    CommitOutcomeUnknown.
    """
    step = _nothing if quiet else reached
    assert proposal.expect.keys() <= proposal.advance.keys(), "what is expected is written too, else nothing conflicts"
    check_evidence(proposal.ctl, tally_of_range)
    check_age(proposal.ctl, started_ms, host.now_ms())
    deadline_ms = host.now_ms() + DEADLINE_MS
    tries, puts, wait_s = count(), 0, _FIRST_WAIT_S
    answer: Exception | None = None
    while True:
        try:
            # 4. Decide.
            if committed := _committed(shard, proposal):
                return committed
            decided = _decide(shard, proposal, host, started_ms)
            step("4.decided")
            # A file for each try: one that arrives late must not take the place of another.
            ctl_file = stage_ctl(shard.root, shard.commitlog.path, decided.ctl, next(tries))
            shard.remember(ctl_file.path, (decided.ctl,))
            step("4.ctl-written")
            # 5. Commit.
            day = ctl_file.store_day
            files = [ctl_file, *(file if file.store_day else replace(file, store_day=day) for file in proposal.files)]
            answer = _put(shard, decided, files)
            puts += 1
            step("5.put")
            # 6. Read back.
            if committed := _committed(shard, proposal):
                step("6.read-back")
                return committed
        except (ClockSkew, *_SILENCE) as error:
            if not puts and _is_final(error):
                raise _nothing_written(proposal, error) from error
            answer = error
        if host.now_ms() >= deadline_ms or isinstance(answer, StagedFileGone):
            if not puts:
                raise _nothing_written(proposal, answer) from answer
            # A PUT may still be on its way: only the log or a withdrawal ends this.
            return _give_up(shard, proposal, host, started_ms, answer)
        host.sleep(host.uniform(0, wait_s))
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


def _committed(shard: Shard, proposal: Proposal) -> Committed | None:
    """The proposal's commit in the newest snapshot; None: it is not there."""
    shard.commitlog.refresh()
    ctl = shard.ctl_of(proposal.ctl.commit_id)
    return Committed(ctl, shard.commitlog.version) if ctl else None


def _decide(shard: Shard, proposal: Proposal, host: Host, started_ms: int) -> Decided:
    clocks = Clocks(own_ms=host.now_ms(), store_ms=shard.root.server_time_ms(host))
    positions = shard.positions()
    try:
        decided = decide(proposal, positions, clocks)
    except StaleAttempt as stale:
        raise _naming_mover(stale, shard, proposal, positions, started_ms) from None
    check_day(decided.ctl)
    return decided


def _naming_mover(
    stale: StaleAttempt, shard: Shard, proposal: Proposal, positions: Positions, started_ms: int
) -> StaleAttempt:
    return overtaken(stale, proposal, positions, shard.ctls_since(started_ms - MAX_SKEW_MS))


def _put(shard: Shard, decided: Decided, files: Sequence[StagedFile]) -> Exception | None:
    try:
        shard.commitlog.put(
            files,
            decided.positions,
            decided.updated_ms,
            metadata={"commit_id": decided.ctl.commit_id, "action": str(decided.ctl.action)},
            now_ms=decided.ctl.store_timestamp,
        )
    except (DeltaError, OSError) as error:
        # Not looked at: only the log says whether it landed.
        return error
    return None


def _is_final(error: Exception) -> bool:
    """Whether waiting cannot help. Any other error may pass, and the run may have worked for hours. A staged file that is
    gone also ends a run at once, even after a PUT."""
    return isinstance(error, ClockSkew) or is_refused(error)


def _nothing_written(proposal: Proposal, error: Exception | None) -> RmqError:
    if isinstance(error, RmqError):
        return error
    return StoreUnusable(f"the store does not answer: {error}. Nothing of {_named(proposal)} was committed.")


def _named(proposal: Proposal) -> str:
    return f"{proposal.ctl.action} {proposal.ctl.commit_id}"


# --- giving up -------------------------------------------------------------------------------------------------------


def _give_up(shard: Shard, proposal: Proposal, host: Host, started_ms: int, answer: Exception | None) -> Committed:
    """Take the slot that an unanswered PUT might still fill, then say what the log says."""
    for _ in range(2):
        with suppress(*_SILENCE):
            if committed := _committed(shard, proposal):
                return committed
            positions = shard.positions()
            try:
                # Another commit that moved a position has taken the slot already, and its values must stay.
                compare(proposal, positions)
            except StaleAttempt as stale:
                raise _naming_mover(stale, shard, proposal, positions, started_ms) from None
            release = _release_of(proposal, positions, host)
            decided = decide(release, positions, Clocks(host.now_ms(), host.now_ms()))
            _put(shard, decided, [stage_ctl(shard.root, shard.commitlog.path, decided.ctl, 0)])
            if committed := _committed(shard, proposal):
                return committed
            if shard.ctl_of(release.ctl.commit_id):
                raise StaleAttempt(
                    f"{_named(proposal)} could not be committed within {DEADLINE_MS // 1000} s and has been withdrawn "
                    f"(last answer of the store: {answer}). Run the same request again."
                )
    raise CommitOutcomeUnknown(
        f"the store confirmed neither {_named(proposal)} nor its withdrawal (last answer: {answer}). Do not "
        "change anything. When the store answers again, run the same request: it reports whether it was committed."
    )


def _release_of(proposal: Proposal, positions: Positions, host: Host) -> Proposal:
    """A commit that rewrites the proposal's positions as they are and frees its claim."""
    unchanged = {app_id: positions.get(app_id) for app_id in proposal.advance}
    advance = {app_id: ABSENT if value is None else value for app_id, value in unchanged.items()}
    advance |= {
        app_id: Claim(Claim.of(value).number, 0).packed()
        for app_id, value in unchanged.items()
        if kind_of(app_id) == PositionKind.CLAIM
    }
    ctl = replace(
        proposal.ctl, commit_id=host.new_commit_id(), action=Action.RELEASE, consumed=(), produced=(), moved=(), observed=(),
        request_complete=False,
    )  # fmt: skip
    return Proposal(ctl, {}, advance)
