"""Step 2, claim: a small commit on ``own/…`` with a lease that is renewed while the run lives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from deltalake.exceptions import DeltaError

from rmq_store.commit.claim import RENEW_EVERY_S, Taken, Wish, take
from rmq_store.commit.ctl import Proposal
from rmq_store.errors import CommitOutcomeUnknown, HeldByAnother, RmqError, StaleAttempt
from rmq_store.lake.commit.commit import commit
from rmq_store.lake.table.shard import Shard
from rmq_store.utils.host import Host


class HeldClaim:
    """The claims that this run holds. ``taken``: which; its ``ended_by`` makes the run's own commit end them."""

    def __init__(self, shard: Shard, taken: Taken, host: Host) -> None:
        self.taken = taken
        self._shard = Shard(shard.root, shard.name)  # a handle of its own: renewal runs in another thread
        self._host = host
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_stopped, name="renew-claim", daemon=True)

    def start_renewing(self) -> None:
        self._thread.start()

    def stop_renewing(self) -> None:
        """Before step 4, so that no renewal of ours races our own commit."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def release(self) -> None:
        """Let the next run in at once instead of after the lease, when the body makes no commit of its own. Whatever
        goes wrong here, the lease still ends."""
        self.stop_renewing()
        with suppress(RmqError, DeltaError, OSError):
            self._shard.commitlog.refresh()
            proposal = self.taken.released(self._host.new_commit_id(), self._shard.positions())
            if proposal is not None:
                self._commit(proposal)

    def _renew_until_stopped(self) -> None:
        while not self._stopped.wait(RENEW_EVERY_S):
            with suppress(RmqError):  # a store that is silent for a while is no reason to stop
                try:
                    self._renew()
                except StaleAttempt:
                    return  # one was taken over: the commit will be refused and say by whom

    def _renew(self) -> None:
        longer, proposal = self.taken.renewed(self._host.new_commit_id(), self._host.now_ms())
        self._commit(proposal)
        self.taken = longer

    def _commit(self, proposal: Proposal) -> None:
        commit(self._shard, proposal, self._host, started_ms=self._host.now_ms(), quiet=True)


@contextmanager
def claimed(shard: Shard, wish: Wish, host: Host) -> Iterator[HeldClaim]:
    """Hold what the wish gets for the body. It is released by the body's own commit, or here when there was none.

    Raises HeldByAnother, naming the holders.
    """
    held = HeldClaim(shard, _take(shard, wish, host), host)
    held.start_renewing()
    try:
        yield held
    except CommitOutcomeUnknown:
        held.stop_renewing()  # touch nothing: the lease ends by itself
        raise
    except BaseException:
        held.release()
        raise
    held.stop_renewing()


def _take(shard: Shard, wish: Wish, host: Host) -> Taken:
    while True:
        positions, now_ms = shard.positions(), host.now_ms()
        taken = take(wish, host.new_commit_id(), shard.name, positions, shard.ctls_since, now_ms)
        with suppress(StaleAttempt):  # somebody else took one first: look who holds it now
            commit(shard, taken.proposal(), host, started_ms=now_ms, quiet=True)
            return taken


__all__ = ["HeldByAnother", "HeldClaim", "claimed"]
