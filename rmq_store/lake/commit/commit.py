"""The commit protocol (``docs/decisions/0001-one-commit-point.md``, ``0011-own-log.md``). Its states were explored
exhaustively; each rule below prevents a violation that was found. The steps:

1. *Plan*    (``lake/window``) look for the request, read positions, choose ranges, take a new commit id.
2. *Claim*   (``claim.py``)   a small commit on ``own/…``, made by the steps below.
3. *Run*     (``consume_slice.py``) tasks write data files under names that no other attempt uses. Files that are never
             committed are harmless. A failed write is tried again (``stage.py``), since the listener has already run.
4. *Decide*  on the log as it was read last. Compare epoch, claim and offsets with the plan: any difference ends the attempt
             (StaleAttempt). Assign the bases. Choose the store timestamp, or raise ClockSkew, also if the request's date is
             too far in the future to find this commit again (``check_day``). Write the ctl file.
5. *Put*     validate every file, then create the log's next entry, with all files and one ``txn`` per position, only if its
             name is absent.
6. *Settle*  (``commit/append.py``) a PUT without an answer, or of a name that is taken, says nothing: the name is read. Who
             lost to an entry that touches none of its positions takes the same bytes to the next name; else go to 4, which
             ends the attempt if a position of the plan has changed. A failure is reported only when no PUT can be, or come,
             into the log; else CommitOutcomeUnknown. Before the first PUT nothing can have been committed: steps 4 and 5 are
             tried again, since a run may have taken hours; only an error that waiting cannot clear ends it at once.
7. *Follow up* dispatch and reports. Any later command can resume a dispatch (``dispatch.py``), so an error is a warning.

Several commits can share an entry (``commit_together``). Each is decided on the positions that those before it leave, and one
that was overtaken leaves the others alone.

A test may stop the process at each of ``STEPS``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from rmq_store.commit.append import Verdict
from rmq_store.commit.ctl import Ctl, Proposal, StagedFile
from rmq_store.commit.decide import (
    MAX_SKEW_MS,
    Clocks,
    Decided,
    check_age,
    check_evidence,
    decide_in_turn,
    overtaken,
)
from rmq_store.errors import (
    ClockSkew,
    CommitOutcomeUnknown,
    OtherFormat,
    RmqError,
    StagedFileGone,
    StaleAttempt,
    StoreUnusable,
    clause,
)
from rmq_store.lake.table.delta_log import Content, LogCleaned
from rmq_store.lake.table.delta_table import FRESH_MS
from rmq_store.lake.table.evidence import tally_of_range
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import stage_ctl
from rmq_store.lake.table.store_errors import is_refused
from rmq_store.utils.host import Host, day_of

STEPS = (
    "1.planned",
    "2.claimed",
    "3.staged",
    "4.decided",
    "4.ctl-written",
    "5.put",
    "6.settled",
    "7.dispatched",
)
"""Where ``on_step`` is called, in order."""

DEADLINE_MS = 60_000
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 2.0
_SILENCE = (StoreUnusable, OSError, LogCleaned)
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


@dataclass(frozen=True, slots=True)
class Member:
    """One commit of those that share an entry."""

    proposal: Proposal
    started_ms: int
    """When its run began, UTC ms."""

    @property
    def commit_id(self) -> str:
        return self.proposal.ctl.commit_id

    def __str__(self) -> str:
        return f"{self.proposal.ctl.action} {self.commit_id}"


def commit(shard: Shard, proposal: Proposal, host: Host, *, started_ms: int, quiet: bool = False) -> Committed:
    """Steps 4 to 6 for one proposal. ``started_ms``: when its run began, UTC ms. ``quiet``: do not call ``on_step`` (claims).

    Raises StaleAttempt, ClockSkew, EvidenceMismatch, StagedFileGone, StoreUnusable (nothing was committed) and
    CommitOutcomeUnknown.
    """
    (outcome,) = commit_together(shard, [Member(proposal, started_ms)], host, quiet=quiet)
    if isinstance(outcome, Committed):
        return outcome
    raise outcome


def commit_together(
    shard: Shard, members: Sequence[Member], host: Host, *, quiet: bool = False
) -> list[Committed | RmqError]:
    """Steps 4 to 6 for proposals that share an entry. Each has its own outcome, in the order of ``members``; an error is one
    of those that ``commit`` raises."""
    step = _nothing if quiet else reached
    outcomes: dict[str, Committed | RmqError] = {}
    for member in members:
        proposal = member.proposal
        assert proposal.expect.keys() <= proposal.advance.keys(), (
            "what is expected is written too, else nothing conflicts"
        )
        try:
            check_evidence(proposal.ctl, tally_of_range)
        except RmqError as error:
            outcomes[member.commit_id] = error
    # Members of an entry have one read version, so their ids order them.
    waiting = sorted((one for one in members if one.commit_id not in outcomes), key=lambda one: one.commit_id)
    deadline_ms = host.now_ms() + DEADLINE_MS
    # A fresh view is not refreshed before a decision: if an entry has come since, the PUT says so.
    tries, wait_s, fresh_ms = count(), _FIRST_WAIT_S, FRESH_MS
    while waiting:
        try:
            # 4. Decide.
            shard.commitlog.log.refresh_if_older(fresh_ms, shard.root.server_time_ms(host))
            shard.commitlog.check_format()
            decided = _decided(shard, waiting, host, outcomes)
            waiting = [one for one in waiting if one.commit_id in decided]
            if not waiting:
                break
            step("4.decided")
            # A file for each try: one that arrives late must not take the place of another.
            content = _content(shard, waiting, decided, next(tries))
            step("4.ctl-written")
        except (ClockSkew, *_SILENCE) as error:
            # Nothing of these bytes was sent, and nothing of earlier ones can come any more.
            if _is_final(error) or host.now_ms() >= deadline_ms:
                outcomes |= {one.commit_id: _nothing_written(one, error) for one in waiting}
                break
            host.sleep(host.uniform(0, wait_s))
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
            continue
        # 5. Put. 6. Settle.
        outcomes |= _appended(shard, waiting, decided, content, host, deadline_ms, step)
        waiting = [one for one in waiting if one.commit_id not in outcomes]
        fresh_ms = 0  # more entries may have come behind the one that was faster
    return [outcomes[member.commit_id] for member in members]


def _decided(
    shard: Shard, members: Sequence[Member], host: Host, outcomes: dict[str, Committed | RmqError]
) -> dict[str, Decided]:
    """The decisions by commit id. Who cannot be committed any more gets its outcome."""
    clocks = Clocks(own_ms=host.now_ms(), store_ms=shard.root.server_time_ms(host))
    for member in members:
        try:
            # At each decision: this process may have slept since the one before, and a vacuum may be under way.
            check_age(member.proposal.ctl, member.started_ms, clocks.own_ms)
        except StaleAttempt as error:
            outcomes[member.commit_id] = error
    members = [one for one in members if one.commit_id not in outcomes]
    positions = shard.positions()
    decided: dict[str, Decided] = {}
    for member, decision in zip(
        members, decide_in_turn([one.proposal for one in members], positions, clocks), strict=True
    ):
        if isinstance(decision, StaleAttempt):
            recent = shard.ctls_since(member.started_ms - MAX_SKEW_MS)
            outcomes[member.commit_id] = overtaken(decision, member.proposal, positions, recent)
        elif isinstance(decision, RmqError):
            outcomes[member.commit_id] = decision
        else:
            try:
                _check_claim(shard, decision.ctl)
                shard.commitlog.check_staged(member.proposal.files)
                shard.commitlog.check_live(member.proposal.removed)
            except (StagedFileGone, StaleAttempt) as error:
                # Those behind it were decided on what it would leave: decide again without it.
                outcomes[member.commit_id] = error
                others = [one for one in members if one.commit_id not in outcomes]
                return _decided(shard, others, host, outcomes) if others else {}
            decided[member.commit_id] = decision
    return decided


def _check_claim(shard: Shard, ctl: Ctl) -> None:
    """Raise StaleAttempt when the log does not have the claim that the commit names. That the number is the same says nothing:
    after a restore in place the next claim has the number of the lost one."""
    claim = ctl.parameter("claim")
    if claim is not None and not shard.has_commit(claim):
        raise StaleAttempt(
            f"the log of shard {shard.name} does not have the claim {claim} of this run: it was restored from a copy since. "
            "Nothing was written. Run the request again."
        )


def _files(member: Member, decision: Decided) -> list[StagedFile]:
    day = day_of(decision.ctl.store_timestamp)
    return [file if file.store_day else replace(file, store_day=day) for file in member.proposal.files]


def _content(shard: Shard, members: Sequence[Member], decided: dict[str, Decided], attempt: int) -> Content:
    """The entry, after its ctl rows have been written."""
    decisions = [decided[member.commit_id] for member in members]
    ctls = [decision.ctl for decision in decisions]
    files = [file for member, one in zip(members, decisions, strict=True) for file in _files(member, one)]
    for day in sorted({day_of(ctl.store_timestamp) for ctl in ctls}):
        of_day = [ctl for ctl in ctls if day_of(ctl.store_timestamp) == day]
        file = stage_ctl(shard.root, shard.commitlog.path, of_day, attempt)
        shard.remember(file.path, tuple(of_day))
        files.insert(0, file)
    positions = {app_id: value for one in decisions for app_id, value in one.positions.items()}
    updated_ms = {app_id: value for one in decisions for app_id, value in one.updated_ms.items()}
    return shard.commitlog.content(
        files,
        positions,
        updated_ms,
        operation=", ".join(sorted({str(ctl.action) for ctl in ctls})).upper(),
        now_ms=max(ctl.store_timestamp for ctl in ctls),
        commit_ids=[ctl.commit_id for ctl in ctls],
        read_commit=next(iter(shard.commitlog.log.commit_ids()), ""),
        closed=[prefix for member in members for prefix in member.proposal.closed],
        removed={path for member in members for path in member.proposal.removed},
    )


def _appended(
    shard: Shard,
    members: Sequence[Member],
    decided: dict[str, Decided],
    content: Content,
    host: Host,
    deadline_ms: int,
    step: Callable[[str], None],
) -> dict[str, Committed | RmqError]:
    """The outcomes; empty if the entry was overtaken, so that all must be decided again."""

    def holds() -> bool:
        return shard.ctl_of(members[0].commit_id) is not None

    try:
        verdict = shard.commitlog.log.append(
            content, host, deadline_ms=deadline_ms, holds=holds, after_put=lambda: step("5.put")
        )
    except StoreUnusable as error:
        return {member.commit_id: _nothing_written(member, error.__cause__ or error) for member in members}
    except CommitOutcomeUnknown as error:
        return {member.commit_id: _unknown(member, error) for member in members}
    if verdict is not Verdict.COMMITTED:
        return {}
    step("6.settled")
    version = shard.commitlog.version
    return {member.commit_id: Committed(decided[member.commit_id].ctl, version) for member in members}


def _is_final(error: Exception) -> bool:
    """Whether waiting cannot help. Any other error may pass, and the run may have worked for hours."""
    return isinstance(error, ClockSkew | OtherFormat | StagedFileGone) or is_refused(error)


def _nothing_written(member: Member, error: BaseException) -> RmqError:
    if isinstance(error, RmqError):
        return error
    return StoreUnusable(f"the store could not be used: {clause(error)}. Nothing of {member} was committed.")


def _unknown(member: Member, error: CommitOutcomeUnknown) -> RmqError:
    return CommitOutcomeUnknown(
        f"{member}: {clause(error)}. Do not change anything. When the store answers again, run the same request: it reports "
        "whether it was committed."
    )
