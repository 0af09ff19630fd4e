"""Step 2, claim: a small commit on ``own/…`` with a lease. Nobody renews it here: a listener that takes longer than the
lease may be overtaken, and its commit is refused then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rmq_store.consumer.claim import claim_proposal, release_proposal
from rmq_store.errors import RmqError, StaleAttempt
from rmq_store.host import Host
from rmq_store.memory.commit import commit
from rmq_store.memory.shard import MemoryShard
from rmq_store.offsets import Claim, own_id
from rmq_store.store import Action, Actor, Ctl


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim that this run holds. ``app_id`` and ``claim`` go into the proposal of its commit."""

    shard: MemoryShard
    host: Host
    app_id: str
    claim: Claim
    ctl: Ctl

    def release(self) -> None:
        """Let the next run in at once instead of after the lease, when there is no commit that does it."""
        proposal = release_proposal(self.host.new_commit_id(), self.ctl, self.app_id, self.claim)
        with suppress(RmqError):
            commit(self.shard, proposal, self.host, started_ms=self.host.now_ms(), quiet=True)


@contextmanager
def claimed(
    shard: MemoryShard, scope: tuple[str, ...], request_id: str, actor: Actor, host: Host, *, group: str | None = None
) -> Iterator[HeldClaim]:
    """Hold the claim on ``scope`` for the body. It is released by the body's own commit, or here when the body fails.

    Raises HeldByAnother, naming the holder.
    """
    held = _take(shard, scope, request_id, actor, host, group)
    try:
        yield held
    except BaseException:
        held.release()
        raise


def _take(
    shard: MemoryShard, scope: tuple[str, ...], request_id: str, actor: Actor, host: Host, group: str | None
) -> HeldClaim:
    app_id = own_id(*scope)
    while True:
        packed, now_ms = shard.positions().get(app_id), host.now_ms()
        asked = Ctl(
            host.new_commit_id(), Action.CLAIM, actor, request_id=request_id, request_complete=False, group=group
        )
        claim, proposal = claim_proposal(asked, shard.name, scope, packed, lambda _: shard.ctls(), now_ms)
        try:
            commit(shard, proposal, host, started_ms=now_ms, quiet=True)
        except StaleAttempt:
            continue  # somebody else took it first: look who holds it now
        return HeldClaim(shard, host, app_id, claim, proposal.ctl)
