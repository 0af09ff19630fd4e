from __future__ import annotations

from dataclasses import replace

import pytest

from rmq_store.consumer.claim import (
    LEASE_S,
    RENEW_EVERY_S,
    CtlsSince,
    Holder,
    claim_proposal,
    next_claim,
    release_proposal,
)
from rmq_store.errors import HeldByAnother
from rmq_store.offsets import Claim, own_id
from rmq_store.store import Action, Actor, Ctl, Proposal, canonical_json

NOW_S = 1_717_416_000
NOW_MS = NOW_S * 1000 + 999
ANA = Holder("2024-06-03-a", "ana", 4)


def ask(current: Claim, holder: Holder | None = ANA, request_id: str = "2024-06-03-b") -> tuple[Claim, str]:
    return next_claim(current, holder, request_id, "broker-a/billing", NOW_MS)


@pytest.mark.parametrize(
    ("current", "reason"),
    [
        (Claim(0, 0), "free"),
        (Claim(4, 0), "free"),
        (Claim(4, NOW_S), "took over claim 4, whose lease ended 0 s ago"),
        (Claim(4, NOW_S - 30), "took over claim 4, whose lease ended 30 s ago"),
    ],
)
def test_a_claim_that_nobody_holds_is_taken_with_the_next_number_and_a_whole_lease(current: Claim, reason: str) -> None:
    assert ask(current) == (Claim(current.number + 1, NOW_S + LEASE_S), reason)


def test_another_request_is_told_who_holds_it_and_for_how_long() -> None:
    with pytest.raises(
        HeldByAnother, match=r"broker-a/billing is held by request 2024-06-03-a of ana \(claim 4\) for 7 s"
    ):
        ask(Claim(4, NOW_S + 7))


def test_a_holder_that_left_no_name_still_holds() -> None:
    with pytest.raises(HeldByAnother, match="held by another run"):
        ask(Claim(4, NOW_S + 7), holder=None)


def test_a_later_attempt_of_the_same_request_takes_over_at_once() -> None:
    claim, reason = ask(Claim(4, NOW_S + 7), request_id=ANA.request_id)
    assert (claim.number, reason) == (5, "took over claim 4 of an earlier attempt of this request")


def the_holders_commits(since_ms: int) -> list[Ctl]:
    """Ana's claim 4, renewed; before it another one's claim 3, besides it claim 4 on something else."""
    claims = [("ben", "billing", 3), ("ana", "billing", 4), ("eve", "~deliver", 4)]
    found = [
        Ctl("c", Action.CLAIM, Actor(name, "cli"), request_id=f"of-{name}", parameters=said(scope, number))
        for name, scope, number in claims
    ]
    return [*found, replace(found[1], action=Action.RENEW), replace(found[1], action=Action.CONSUME, request_id="?")]


def said(scope: str, number: int) -> str:
    return canonical_json({"scope": scope, "claim": number})


def propose(current: Claim, request_id: str, ctls_since: CtlsSince = the_holders_commits) -> tuple[Claim, Proposal]:
    asked = Ctl("mine", Action.CLAIM, Actor("ben", "cli"), request_id=request_id, request_complete=False)
    return claim_proposal(asked, "broker-a", ("billing",), current.packed(), ctls_since, NOW_MS)


def test_a_claim_is_a_commit_on_its_position_that_says_its_scope_number_and_why() -> None:
    claim, proposal = propose(Claim(4, NOW_S + 7), "of-ana")
    assert claim == Claim(5, NOW_S + LEASE_S)
    assert (proposal.expect, proposal.advance) == (
        {own_id("billing"): Claim(4, NOW_S + 7).packed()},
        {own_id("billing"): claim.packed()},
    )
    assert (proposal.ctl.commit_id, proposal.ctl.parameters) == ("mine", said("billing", 5))
    assert proposal.ctl.reason == "took over claim 4 of an earlier attempt of this request"


def test_the_holder_is_who_made_or_renewed_the_claim_of_that_scope_and_number() -> None:
    with pytest.raises(HeldByAnother, match=r"broker-a/billing is held by request of-ana of ana \(claim 4\)"):
        propose(Claim(4, NOW_S + 7), "of-ben")


def test_the_log_is_asked_for_the_holder_only_while_a_lease_lasts() -> None:
    asked: list[int] = []

    def ctls_since(ms: int) -> list[Ctl]:
        asked.append(ms)
        return the_holders_commits(ms)

    for current in (Claim(0, 0), Claim(4, 0), Claim(4, NOW_S)):
        propose(current, "of-ben", ctls_since)
    assert asked == []
    propose(Claim(4, NOW_S + 1), "of-ana", ctls_since)
    assert len(asked) == 1
    assert asked[0] < NOW_MS - LEASE_S * 1000


def test_a_release_frees_exactly_the_claim_that_was_taken() -> None:
    claim, proposal = propose(Claim(4, 0), "of-ben")
    released = release_proposal("later", proposal.ctl, own_id("billing"), claim)
    assert (released.ctl.action, released.ctl.request_id, released.ctl.commit_id) == (Action.RELEASE, "of-ben", "later")
    assert (released.expect, released.advance) == (
        {own_id("billing"): claim.packed()},
        {own_id("billing"): Claim(5, 0).packed()},
    )


def test_a_lease_outlives_two_renewals_that_fail() -> None:
    assert 3 * RENEW_EVERY_S <= LEASE_S
