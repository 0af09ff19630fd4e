"""Step 2, claim: a small commit on ``own/…`` with a lease that is renewed while the run lives.

``claimed`` is for one run. The functions that end in ``_together`` make one commit for several runs. A lease ends by the
store's clock, so that hosts whose clocks differ agree when.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from rmq_store.commit.claim import RENEW_EVERY_S, Taken, Wish, take
from rmq_store.errors import CommitOutcomeUnknown, HeldByAnother, RmqError, StaleAttempt
from rmq_store.lake.commit.commit import Member, commit_together
from rmq_store.lake.table.shard import Shard
from rmq_store.utils.host import Host


class HeldClaim:
    """The claims that this run holds (``taken``). ``taken.ended_by`` makes the run's own commit end them."""

    def __init__(self, shard: Shard, taken: Taken, host: Host) -> None:
        self.taken = taken
        self._shard = Shard(shard.root, shard.name)  # a handle of its own: renewal runs in another thread
        self._host = host
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_stopped, name="renew-claim", daemon=True)

    def start_renewing(self) -> None:
        self._thread.start()

    def stop_renewing(self) -> None:
        """Call it before step 4, so that no renewal of this run races its own commit."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def release(self) -> None:
        """End the claims when the body makes no commit, so that the next run need not wait for the lease.

        Errors of the store are ignored: the lease ends by itself."""
        self.stop_renewing()
        with suppress(RmqError, OSError):
            self._shard.commitlog.refresh()
            release_together(self._shard, [self.taken], self._host)

    def _renew_until_stopped(self) -> None:
        while not self._stopped.wait(RENEW_EVERY_S):
            with suppress(RmqError):  # the store may answer again at the next renewal
                (outcome,) = renew_together(self._shard, [self.taken], self._host)
                if isinstance(outcome, StaleAttempt):
                    return  # a claim was taken over: the commit will be refused and name who did it
                if isinstance(outcome, Taken):
                    self.taken = outcome


@contextmanager
def claimed(shard: Shard, wish: Wish, host: Host) -> Iterator[HeldClaim]:
    """Claim what the wish gets and hold it for the body. The body's own commit ends the claims; if the body raises, they
    are released here.

    Raises HeldByAnother, naming the holders.
    """
    (taken,) = take_together(shard, [wish], host)
    if isinstance(taken, RmqError):
        raise taken
    claim = HeldClaim(shard, taken, host)
    try:
        claim.start_renewing()
        yield claim
    except CommitOutcomeUnknown:
        claim.stop_renewing()  # write nothing more: the lease ends by itself
        raise
    except BaseException:
        claim.release()
        raise
    claim.stop_renewing()


def take_together(shard: Shard, wishes: Sequence[Wish], host: Host) -> list[Taken | RmqError]:
    """What each wish gets, in one commit, in their order: HeldByAnother, which names the holders, or another error of
    ``commit``."""
    outcomes: dict[int, Taken | RmqError] = {}
    while len(outcomes) < len(wishes):
        positions, now_ms, started_ms = shard.positions(), shard.root.server_time_ms(host), host.now_ms()
        free: dict[int, Taken] = {}
        for number, wish in enumerate(wishes):
            if number in outcomes:
                continue
            ctls_since = partial(shard.ctls_since, group=wish.group)  # its claims are made by its own commits only
            try:
                free[number] = take(
                    wish, host.new_commit_id(), shard.name, positions, ctls_since=ctls_since, now_ms=now_ms
                )
            except HeldByAnother as error:
                outcomes[number] = error
        members = [Member(taken.proposal(), started_ms) for taken in free.values()]
        committed = commit_together(shard, members, host, quiet=True)
        for (number, taken), outcome in zip(free.items(), committed, strict=True):
            if not isinstance(outcome, StaleAttempt):  # another run took one first: read again who holds it
                outcomes[number] = outcome if isinstance(outcome, RmqError) else taken
    return [outcomes[number] for number in range(len(wishes))]


def renew_together(shard: Shard, several: Sequence[Taken], host: Host) -> list[Taken | RmqError]:
    """Each with a full lease, or the error of its commit: StaleAttempt when a claim was taken over."""
    now_ms, started_ms = shard.root.server_time_ms(host), host.now_ms()
    renewed = [taken.renewed(host.new_commit_id(), now_ms) for taken in several]
    committed = commit_together(shard, [Member(proposal, started_ms) for _, proposal in renewed], host, quiet=True)
    return [
        outcome if isinstance(outcome, RmqError) else longer
        for (longer, _), outcome in zip(renewed, committed, strict=True)
    ]


def release_together(shard: Shard, several: Sequence[Taken], host: Host) -> None:
    """End the claims that are still held, by the handle's positions. Who is refused has lost a claim. One that the log does not
    have was lost by a restore in place, and its number may be that of another run."""
    positions = shard.positions()
    held = [taken for taken in several if shard.has_commit(taken.ctl.commit_id)]
    released = [taken.released(host.new_commit_id(), positions) for taken in held]
    members = [Member(proposal, host.now_ms()) for proposal in released if proposal is not None]
    commit_together(shard, members, host, quiet=True)
