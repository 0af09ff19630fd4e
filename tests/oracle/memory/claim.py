"""Step 2, claim: a small commit on ``own/…`` with a lease. Nobody renews it here: a listener that takes longer than the
lease may be overtaken, and its commit is refused then."""

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
    """The claims that this run holds. ``taken``: which; its ``ended_by`` makes the run's own commit end them."""

    shard: MemoryShard
    host: Host
    taken: Taken

    def release(self) -> None:
        """Let the next run in at once instead of after the lease, when there is no commit that does it."""
        proposal = self.taken.released(self.host.new_commit_id(), self.shard.positions())
        if proposal is not None:
            with suppress(RmqError):
                commit(self.shard, proposal, self.host, started_ms=self.host.now_ms(), quiet=True)


@contextmanager
def claimed(shard: MemoryShard, wish: Wish, host: Host) -> Iterator[HeldClaim]:
    """Hold what the wish gets for the body. It is released by the body's own commit, or here when the body fails.

    Raises HeldByAnother, naming the holders.
    """
    held = HeldClaim(shard, host, _take(shard, wish, host))
    try:
        yield held
    except BaseException:
        held.release()
        raise


def _take(shard: MemoryShard, wish: Wish, host: Host) -> Taken:
    while True:
        positions, now_ms = shard.positions(), host.now_ms()
        taken = take(wish, host.new_commit_id(), shard.name, positions, lambda _: shard.ctls(), now_ms)
        with suppress(StaleAttempt):  # somebody else took one first: look who holds it now
            commit(shard, taken.proposal(), host, started_ms=now_ms, quiet=True)
            return taken
