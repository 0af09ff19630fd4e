"""Steps 4 to 6 of the commit protocol (``docs/decisions/0001-one-commit-point.md``) in memory, with the lake's decisions.

A put always answers here, so nothing has to be withdrawn. Everything else is the same, and the shard's ``on_step`` is
called at the same steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_store.commit.ctl import Ctl, Proposal
from rmq_store.commit.decide import Clocks, check_age, check_day, check_evidence, decide, overtaken
from rmq_store.commit.positions import QueueRange, Tally, tally
from rmq_store.errors import StaleAttempt
from rmq_store.utils.host import Host
from tests.oracle.memory.shard import Conflict, MemoryShard


@dataclass(frozen=True, slots=True)
class Committed:
    """The ctl row as the log holds it, and the version at which it was seen there."""

    ctl: Ctl
    version: int


def tally_of_range(range_: QueueRange) -> Tally:
    """The tally of all offsets of a range."""
    return tally(range(range_.begin, range_.end))


def commit(shard: MemoryShard, proposal: Proposal, host: Host, *, started_ms: int, quiet: bool = False) -> Committed:
    """Steps 4 to 6 for one proposal. ``started_ms``: when its run began; ``quiet`` commits report no steps (claims).

    Raises StaleAttempt, ClockSkew, EvidenceMismatch; nothing was committed then.
    """
    check_evidence(proposal.ctl, tally_of_range)
    check_age(proposal.ctl, started_ms, host.now_ms())
    while True:
        # 4. Decide.
        positions = shard.positions()
        if ctl := shard.ctl_of(proposal.ctl.commit_id):
            return Committed(ctl, positions.version)
        clocks = Clocks(own_ms=host.now_ms(), store_ms=shard.server_time_ms())
        try:
            decided = decide(proposal, positions, clocks)
        except StaleAttempt as error:
            raise overtaken(error, proposal, positions, shard.ctls()) from None
        check_day(decided.ctl)
        _reached(shard, "4.decided", quiet)
        # 5. Commit.
        try:
            shard.put(decided, proposal.files)
        except Conflict:
            continue  # another commit was first: decide again
        _reached(shard, "5.put", quiet)
        # 6. Read back: what the log holds decides, at the top of the loop.


def _reached(shard: MemoryShard, step: str, quiet: bool) -> None:
    if not quiet:
        shard.on_step(step)
