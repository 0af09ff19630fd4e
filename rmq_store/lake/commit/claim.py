"""Step 2, claim: a small commit on ``own/…`` with a lease that is renewed while the run lives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from rmq_store.commit.claim import RENEW_EVERY_S, Taken, Wish, take
from rmq_store.commit.ctl import Proposal
from rmq_store.errors import CommitOutcomeUnknown, RmqError, StaleAttempt
from rmq_store.lake.commit.commit import commit
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
            proposal = self.taken.released(self._host.new_commit_id(), self._shard.positions())
            if proposal is not None:
                self._commit(proposal)

    def _renew_until_stopped(self) -> None:
        while not self._stopped.wait(RENEW_EVERY_S):
            with suppress(RmqError):  # the store may answer again at the next renewal
                try:
                    self._renew()
                except StaleAttempt:
                    return  # a claim was taken over: the commit will be refused and name who did it

    def _renew(self) -> None:
        longer, proposal = self.taken.renewed(self._host.new_commit_id(), self._host.now_ms())
        self._commit(proposal)
        self.taken = longer

    def _commit(self, proposal: Proposal) -> None:
        commit(self._shard, proposal, self._host, started_ms=self._host.now_ms(), quiet=True)


@contextmanager
def claimed(shard: Shard, wish: Wish, host: Host) -> Iterator[HeldClaim]:
    """Claim what the wish gets and hold it for the body. The body's own commit ends the claims; if the body raises, they
    are released here.

    Raises HeldByAnother, naming the holders.
    """
    claim = HeldClaim(shard, _take(shard, wish, host), host)
    claim.start_renewing()
    try:
        yield claim
    except CommitOutcomeUnknown:
        claim.stop_renewing()  # write nothing more: the lease ends by itself
        raise
    except BaseException:
        claim.release()
        raise
    claim.stop_renewing()


def _take(shard: Shard, wish: Wish, host: Host) -> Taken:
    while True:
        positions, now_ms = shard.positions(), host.now_ms()
        ctls_since = partial(shard.ctls_since, group=wish.group)  # its claims are made by its own commits only
        taken = take(wish, host.new_commit_id(), shard.name, positions, ctls_since=ctls_since, now_ms=now_ms)
        with suppress(StaleAttempt):  # another run took one first: read again who holds it
            commit(shard, taken.proposal(), host, started_ms=now_ms, quiet=True)
            return taken
