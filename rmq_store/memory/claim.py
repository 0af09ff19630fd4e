"""Step 2, claim: a small commit on ``own/…`` with a lease. Nobody renews it here: a listener that takes longer than the
lease may be overtaken, and its commit is refused then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from rmq_store.consumer.claim import Holder, next_claim
from rmq_store.errors import RmqError, StaleAttempt
from rmq_store.host import Host
from rmq_store.memory.commit import commit
from rmq_store.memory.shard import MemoryShard
from rmq_store.offsets import Claim, own_id
from rmq_store.store import Action, Actor, Ctl, Proposal, canonical_json


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
        ctl = replace(self.ctl, commit_id=self.host.new_commit_id(), action=Action.RELEASE, reason="no commit")
        free = {self.app_id: Claim(self.claim.number, 0).packed()}
        with suppress(RmqError):
            commit(self.shard, Proposal(ctl, {self.app_id: self.claim.packed()}, free), self.host, quiet=True)


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
    app_id, name = own_id(*scope), "/".join(scope)
    while True:
        packed, now_ms = shard.positions().get(app_id), host.now_ms()
        holder = _holder(shard, name, Claim.of(packed))
        claim, why = next_claim(Claim.of(packed), holder, request_id, f"{shard.name}/{name}", now_ms)
        ctl = Ctl(
            host.new_commit_id(),
            Action.CLAIM,
            actor,
            reason=why,
            request_id=request_id,
            request_complete=False,
            group=group,
            parameters=canonical_json({"scope": name, "claim": claim.number}),
        )
        try:
            commit(shard, Proposal(ctl, {app_id: packed}, {app_id: claim.packed()}), host, quiet=True)
        except StaleAttempt:
            continue  # somebody else took it first: look who holds it now
        return HeldClaim(shard, host, app_id, claim, ctl)


def _holder(shard: MemoryShard, scope: str, current: Claim) -> Holder | None:
    """Who holds the claim: the newest claim of that number."""
    for ctl in reversed(shard.ctls()):
        if ctl.action is Action.CLAIM and (ctl.parameter("scope"), ctl.parameter("claim")) == (scope, current.number):
            return Holder(ctl.request_id, ctl.actor.name, current.number)
    return None
