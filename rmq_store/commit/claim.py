"""Claims with a lease: which run may work on which queues (step 2 of the commit protocol), as pure decisions.

A window claims every queue that it will read, all of them in one commit. As with RocketMQ's batch lock
(``RebalanceLockManager#tryLockBatch``, rules 6.5), it gets the queues that no other run holds. Work that is not shared
(imports, deliveries, redrives, groups that absorb duplicates) needs one claim on the whole of it.

A claim only saves work: the commit compares its number, so a wrong overlap costs time and never a double outcome.
The lease lasts two minutes and is renewed while the run lives. RocketMQ's broker lock lasts one minute
(``rocketmq.broker.rebalance.lockMaxLiveTime``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rmq_store.commit.ctl import Action, Actor, Ctl, Proposal, canonical_json
from rmq_store.commit.positions import Claim, Positions, claimed_queue, own_id, split_id
from rmq_store.errors import HeldByAnother
from rmq_store.message.message import MessageQueue

LEASE_S = 120
RENEW_EVERY_S = 40
_LOOK_BACK_MS = 10 * LEASE_S * 1000
_FREE = "free"

CtlsSince = Callable[[int], Iterable[Ctl]]
"""The commits of the wish's group (None: all) whose ids were made at a time (UTC ms) or later, oldest first."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The request that made or renewed a claim last."""

    request_id: str
    actor: str
    claim_number: int
    client_id: str | None = None
    """The consumer that it works for, if several share the group."""

    def __str__(self) -> str:
        return f"request {self.request_id} of {self.actor}" + (f", client {self.client_id}" if self.client_id else "")


@dataclass(frozen=True, slots=True)
class Held:
    """A claim that another run holds."""

    app_id: str
    claim_number: int
    remaining_s: int
    """How long its lease lasts if it is not renewed."""
    holder: Holder | None

    @property
    def queue(self) -> MessageQueue | None:
        """The claimed queue, None for a claim on other work."""
        return claimed_queue(self.app_id)


@dataclass(frozen=True, slots=True)
class Wish:
    """The claims that a run asks for, by application id."""

    request_id: str
    actor: Actor
    group: str | None = None
    needed: tuple[str, ...] = ()
    """The run needs all of these."""
    queues: tuple[str, ...] = ()
    """The run takes as many of these as are free, and needs at least one."""
    client_id: str | None = None

    @classmethod
    def of_whole(cls, request_id: str, actor: Actor, *scope: str, group: str | None = None) -> Wish:
        """For work that one run does at a time: ``~import``, ``~deliver`` and the like."""
        return cls(request_id, actor, group, needed=(own_id(*scope),))

    def claiming(self, commit_id: str) -> Ctl:
        """The commit of the claims, before they are known."""
        client = {} if self.client_id is None else {"client_id": self.client_id}
        return Ctl(
            commit_id,
            Action.CLAIM,
            self.actor,
            request_id=self.request_id,
            request_complete=False,
            group=self.group,
            parameters=canonical_json(client),
        )


def next_claim(current: Claim, holder: Holder | None, request_id: str, now_ms: int) -> tuple[Claim, str] | None:
    """The claim to write and why it may be written; None: another request holds it.

    A later attempt of the same request takes over at once; another request only after the lease.
    """
    claim = Claim(current.number + 1, now_ms // 1000 + LEASE_S)
    remaining_s = current.lease_end_s - now_ms // 1000
    if current.lease_end_s == 0:
        return claim, _FREE
    if remaining_s <= 0:
        return claim, f"took over claim {current.number}, whose lease ended {-remaining_s} s ago"
    if holder is not None and holder.request_id == request_id:
        return claim, f"took over claim {current.number} of an earlier attempt of this request"
    return None


@dataclass(frozen=True, slots=True)
class Taken:
    """The claims that one commit takes."""

    claims: Mapping[str, Claim]
    """By application id."""
    held: tuple[Held, ...]
    """The claims of the wish that other runs hold."""
    ctl: Ctl
    """The commit."""
    before: Mapping[str, int | None]
    """The claims' positions before it."""

    def proposal(self) -> Proposal:
        """The commit that takes them."""
        return Proposal(self.ctl, self.before, _packed(self.claims))

    def queues(self) -> frozenset[MessageQueue]:
        return frozenset(queue for app_id in self.claims if (queue := claimed_queue(app_id)))

    def renewed(self, commit_id: str, now_ms: int) -> tuple[Taken, Proposal]:
        """The same claims with a full lease, and the commit that renews them."""
        longer = {app_id: Claim(claim.number, now_ms // 1000 + LEASE_S) for app_id, claim in self.claims.items()}
        ctl = replace(self.ctl, commit_id=commit_id, action=Action.RENEW, parameters=_parameters(self.ctl, longer))
        return replace(self, claims=longer), Proposal(ctl, _packed(self.claims), _packed(longer))

    def released(self, commit_id: str, positions: Positions) -> Proposal | None:
        """The commit that ends the claims that this run still holds, for a run that commits nothing; None: it holds none."""
        now = {app_id: Claim.of(positions.get(app_id)) for app_id in self.claims}
        kept = {app_id: claim for app_id, claim in self.claims.items() if now[app_id].number == claim.number}
        if not kept:
            return None
        ctl = replace(self.ctl, commit_id=commit_id, action=Action.RELEASE, reason="no commit")
        return Proposal(replace(ctl, parameters=_parameters(ctl, kept)), _packed(kept), _packed(_ended(kept)))

    def ended_by(self, proposal: Proposal) -> Proposal:
        """The run's own commit. It is refused unless the run still holds all claims; it ends them, and names their commit."""
        parameters = json.loads(proposal.ctl.parameters) | {"claim": self.ctl.commit_id}
        return replace(
            proposal,
            ctl=replace(proposal.ctl, parameters=canonical_json(parameters)),
            expect={**proposal.expect, **_packed(self.claims)},
            advance={**proposal.advance, **_packed(_ended(self.claims))},
        )


def take(wish: Wish, commit_id: str, shard: str, positions: Positions, ctls_since: CtlsSince, now_ms: int) -> Taken:
    """Which claims of a shard the wish gets. ``ctls_since`` is called once, and only while another run's lease lasts.

    Raises HeldByAnother, naming the holders, when something that is needed is held, or every queue.
    """
    before = {app_id: positions.get(app_id) for app_id in (*wish.needed, *wish.queues)}
    current = {app_id: Claim.of(value) for app_id, value in before.items()}
    lasting = {app_id: claim for app_id, claim in current.items() if claim.lease_end_s > now_ms // 1000}
    holders = _holders(ctls_since(now_ms - _LOOK_BACK_MS), lasting) if lasting else {}
    claims, reasons, held = {}, set(), []
    for app_id, claim in current.items():
        holder = holders.get(app_id)
        if (taken := next_claim(claim, holder, wish.request_id, now_ms)) is None:
            held.append(Held(app_id, claim.number, claim.lease_end_s - now_ms // 1000, holder))
        else:
            claims[app_id], reason = taken
            reasons.add(reason)
    if not claims or any(one.app_id in wish.needed for one in held):
        raise held_by_another(shard, held)
    ctl = wish.claiming(commit_id)
    reason = "; ".join(sorted(reasons - {_FREE})) or _FREE
    ctl = replace(ctl, reason=reason, parameters=_parameters(ctl, claims))
    return Taken(claims, tuple(held), ctl, {app_id: before[app_id] for app_id in claims})


def held_by_another(shard: str, held: Collection[Held]) -> HeldByAnother:
    """The error that names the holders, their claims, and how long their leases last."""
    of_holder: dict[tuple[str, int], list[Held]] = defaultdict(list)
    for one in held:
        of_holder[str(one.holder or "another run"), one.claim_number].append(one)
    texts = [_described(shard, who, number, several) for (who, number), several in of_holder.items()]
    return HeldByAnother(
        f"{'; '.join(texts)}. Wait for it, or repeat that request, which takes it over: with its id as "
        "--request, in Airflow by clearing the task of that run."
    )


def _described(shard: str, who: str, number: int, several: Sequence[Held]) -> str:
    """The claims of one holder, as one text."""
    remaining_s = max(one.remaining_s for one in several)
    more = f" and {len(several) - 1} more are" if len(several) > 1 else " is"
    scope = "/".join(split_id(several[0].app_id)[1:])
    return f"{shard}/{scope}{more} held by {who} (claim {number}) for {remaining_s} s more unless it renews"


def _parameters(ctl: Ctl, claims: Mapping[str, Claim]) -> str:
    """The parameters of a commit about claims. The view ``queue_owners`` reads them."""
    numbers = {app_id: claim.number for app_id, claim in claims.items()}
    of_claims = {"claims": numbers, "lease_end_s": max(claim.lease_end_s for claim in claims.values())}
    return canonical_json(json.loads(ctl.parameters) | of_claims)


def _packed(claims: Mapping[str, Claim]) -> dict[str, int]:
    return {app_id: claim.packed() for app_id, claim in claims.items()}


def _ended(claims: Mapping[str, Claim]) -> dict[str, Claim]:
    return {app_id: Claim(claim.number, 0) for app_id, claim in claims.items()}


def _holders(recent: Iterable[Ctl], lasting: Mapping[str, Claim]) -> dict[str, Holder]:
    """The holder of each claim: the newest claim or renewal with its number."""
    holders = {}
    for ctl in recent:
        if ctl.action in (Action.CLAIM, Action.RENEW):
            for app_id, number in (ctl.parameter("claims") or {}).items():
                if app_id in lasting and lasting[app_id].number == number:
                    holders[app_id] = Holder(ctl.request_id, ctl.actor.name, number, ctl.parameter("client_id"))
    return holders
