"""Who may run a listener for a group: a claim with a lease (step 2 of the commit protocol), as pure decisions.

A claim only saves work: the commit compares its number, so a wrong overlap costs time and never a double outcome.
Two minutes of lease, renewed while the run lives; RocketMQ's broker lock lives for one (S6.5).
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_store.errors import HeldByAnother
from rmq_store.offsets import Claim

LEASE_S = 120
RENEW_EVERY_S = 40


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
