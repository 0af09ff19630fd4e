"""Step 2, claim: a small commit on ``own/…`` with a lease that is renewed while the run lives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from rmq_store.consumer.claim import LEASE_S, RENEW_EVERY_S, claim_proposal, release_proposal
from rmq_store.errors import CommitOutcomeUnknown, HeldByAnother, RmqError, StaleAttempt
from rmq_store.host import Host
from rmq_store.lake.commit import commit
from rmq_store.lake.shard import Shard
from rmq_store.offsets import Claim, own_id
from rmq_store.store import Action, Actor, Ctl, Proposal


class HeldClaim:
    """A claim that this run holds. ``app_id`` and ``claim`` go into the proposal of the commit."""

    def __init__(self, shard: Shard, scope: tuple[str, ...], claim: Claim, ctl: Ctl, host: Host) -> None:
        self.app_id = own_id(*scope)
        self.claim = claim
        self._shard = Shard(shard.root, shard.name)  # a handle of its own: renewal runs in another thread
        self._ctl = ctl
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
        proposal = release_proposal(self._host.new_commit_id(), self._ctl, self.app_id, self.claim)
        with suppress(RmqError):
            commit(self._shard, proposal, self._host, started_ms=self._host.now_ms(), quiet=True)

    def _renew_until_stopped(self) -> None:
        while not self._stopped.wait(RENEW_EVERY_S):
            with suppress(RmqError):  # a store that is silent for a while is no reason to stop
                try:
                    self._renew()
                except StaleAttempt:
                    return  # taken over: the commit will be refused and say by whom

    def _renew(self) -> None:
        longer = Claim(self.claim.number, self._host.now_ms() // 1000 + LEASE_S)
        ctl = replace(self._ctl, commit_id=self._host.new_commit_id(), action=Action.RENEW)
        proposal = Proposal(ctl, {self.app_id: self.claim.packed()}, {self.app_id: longer.packed()})
        commit(self._shard, proposal, self._host, started_ms=self._host.now_ms(), quiet=True)
        self.claim = longer


@contextmanager
def claimed(
    shard: Shard, scope: tuple[str, ...], request_id: str, actor: Actor, host: Host, *, group: str | None = None
) -> Iterator[HeldClaim]:
    """Hold the claim on ``scope`` for the body. It is released by the body's own commit, or here when there was none.

    Raises HeldByAnother, naming the holder.
    """
    held = _take(shard, scope, request_id, actor, host, group)
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


def _take(
    shard: Shard, scope: tuple[str, ...], request_id: str, actor: Actor, host: Host, group: str | None
) -> HeldClaim:
    while True:
        packed, now_ms = shard.positions().get(own_id(*scope)), host.now_ms()
        asked = Ctl(
            host.new_commit_id(), Action.CLAIM, actor, request_id=request_id, request_complete=False, group=group
        )
        claim, proposal = claim_proposal(asked, shard.name, scope, packed, shard.ctls_since, now_ms)
        try:
            commit(shard, proposal, host, started_ms=now_ms, quiet=True)
        except StaleAttempt:
            continue  # somebody else took it first: look who holds it now
        return HeldClaim(shard, scope, claim, proposal.ctl, host)


__all__ = ["HeldByAnother", "HeldClaim", "claimed"]
