"""Who may run a listener for a group: a claim with a lease (step 2 of the commit protocol), as pure decisions.

A claim only saves work: the commit compares its number, so a wrong overlap costs time and never a double outcome.
Two minutes of lease, renewed while the run lives; RocketMQ's broker lock lives for one (S6.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from rmq_store.errors import HeldByAnother
from rmq_store.offsets import Claim, own_id
from rmq_store.store import Action, Ctl, Proposal, canonical_json

LEASE_S = 120
RENEW_EVERY_S = 40
_LOOK_BACK_MS = 10 * LEASE_S * 1000

CtlsSince = Callable[[int], Iterable[Ctl]]
"""The commits whose ids were made at a time (UTC ms) or later, oldest first."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The request that made or renewed a claim last."""

    request_id: str
    actor: str
    claim_number: int


def next_claim(current: Claim, holder: Holder | None, request_id: str, scope: str, now_ms: int) -> tuple[Claim, str]:
    """The claim to write and why it may be written.

    A later attempt of the same request takes over at once; another request only after the lease.
    Raises HeldByAnother, naming the holder.
    """
    mine = Claim(current.number + 1, now_ms // 1000 + LEASE_S)
    left_s = current.lease_end_s - now_ms // 1000
    if current.lease_end_s == 0:
        return mine, "free"
    if left_s <= 0:
        return mine, f"took over claim {current.number}, whose lease ended {-left_s} s ago"
    if holder is not None and holder.request_id == request_id:
        return mine, f"took over claim {current.number} of an earlier attempt of this request"
    who = f"request {holder.request_id} of {holder.actor}" if holder else "another run"
    raise HeldByAnother(
        f"{scope} is held by {who} (claim {current.number}) for {left_s} s more unless it renews. "
        "Wait for it, or give the same --request to take it over."
    )


def claim_proposal(
    asked: Ctl, shard: str, scope: tuple[str, ...], packed: int | None, ctls_since: CtlsSince, now_ms: int
) -> tuple[Claim, Proposal]:
    """The commit that takes ``scope`` of a shard, and the claim it makes.

    ``asked``: its id, and who takes it for which request. ``packed``: the position as it is. ``ctls_since`` is asked
    only while somebody's lease lasts. Raises HeldByAnother, naming the holder.
    """
    app_id, name, current = own_id(*scope), "/".join(scope), Claim.of(packed)
    is_held = current.lease_end_s > now_ms // 1000
    holder = _holder(ctls_since(now_ms - _LOOK_BACK_MS), name, current) if is_held else None
    claim, why = next_claim(current, holder, asked.request_id, f"{shard}/{name}", now_ms)
    ctl = replace(asked, reason=why, parameters=canonical_json({"scope": name, "claim": claim.number}))
    return claim, Proposal(ctl, {app_id: packed}, {app_id: claim.packed()})


def release_proposal(commit_id: str, claiming: Ctl, app_id: str, claim: Claim) -> Proposal:
    """The commit that ends a claim whose run makes none of its own. ``claiming``: the commit that took it."""
    ctl = replace(claiming, commit_id=commit_id, action=Action.RELEASE, reason="no commit")
    return Proposal(ctl, {app_id: claim.packed()}, {app_id: Claim(claim.number, 0).packed()})


def _holder(recent: Iterable[Ctl], scope: str, current: Claim) -> Holder | None:
    """Who holds the claim: the newest claim or renewal of that number."""
    of_claim = [
        ctl
        for ctl in recent
        if ctl.action in (Action.CLAIM, Action.RENEW)
        and (ctl.parameter("scope"), ctl.parameter("claim")) == (scope, current.number)
    ]
    return Holder(of_claim[-1].request_id, of_claim[-1].actor.name, current.number) if of_claim else None
