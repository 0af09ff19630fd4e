"""Step 2, claim: a small commit on ``own/…`` with a lease, which is not renewed here: a run that takes longer than the lease
may be overtaken, and its commit is then refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rmq_store.commit.claim import Taken, Wish, take
from rmq_store.errors import RmqError, StaleAttempt
from rmq_store.utils.host import Host
from tests.oracle.memory.commit import commit
from tests.oracle.memory.shard import MemoryShard


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """The claims that this run holds (``taken``). ``taken.ended_by`` makes the run's own commit end them."""

    shard: MemoryShard
    host: Host
    taken: Taken

    def release(self) -> None:
        """End the claims when the body makes no commit, so that the next run need not wait for the lease."""
        proposal = self.taken.released(self.host.new_commit_id(), self.shard.positions())
        if proposal is not None:
            with suppress(RmqError):
                commit(self.shard, proposal, self.host, started_ms=self.host.now_ms(), quiet=True)


@contextmanager
def claimed(shard: MemoryShard, wish: Wish, host: Host) -> Iterator[HeldClaim]:
    """Claim what the wish gets and hold it for the body. The body's own commit ends the claims; if the body raises, they
    are released here.

    Raises HeldByAnother, naming the holders.
    """
    claim = HeldClaim(shard, host, _take(shard, wish, host))
    try:
        yield claim
    except BaseException:
        claim.release()
        raise


def _take(shard: MemoryShard, wish: Wish, host: Host) -> Taken:
    while True:
        positions, now_ms = shard.positions(), shard.server_time_ms()
        commit_id = host.new_commit_id()
        taken = take(wish, commit_id, shard.name, positions, ctls_since=lambda _: shard.ctls(), now_ms=now_ms)
        with suppress(StaleAttempt):  # another run took one first: read again who holds it
            commit(shard, taken.proposal(), host, started_ms=host.now_ms(), quiet=True)
            return taken
