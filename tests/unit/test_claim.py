from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from rmq_store.commit.claim import LEASE_S, RENEW_EVERY_S, CtlsSince, Holder, Taken, Wish, next_claim, take
from rmq_store.commit.ctl import Action, Actor, Ctl, Proposal, canonical_json
from rmq_store.commit.positions import Claim, Positions, grp_id, own_id, own_queue_id
from rmq_store.errors import HeldByAnother
from rmq_store.message.message import MessageQueue

NOW_S = 1_717_416_000
NOW_MS = NOW_S * 1000 + 999
ANA = Holder("2024-06-03-a", "ana", 4)
WHOLE = own_id("billing")
QUEUES = [MessageQueue("Orders", "broker-a", n) for n in range(4)]
Q0, Q1, Q2, Q3 = (own_queue_id("billing", queue) for queue in QUEUES)


def ask(current: Claim, holder: Holder | None = ANA, request_id: str = "2024-06-03-b") -> tuple[Claim, str] | None:
    return next_claim(current, holder, request_id, NOW_MS)


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


@pytest.mark.parametrize("holder", [ANA, None])
def test_a_claim_that_another_request_holds_is_not_taken_before_its_lease_is_over(holder: Holder | None) -> None:
    assert ask(Claim(4, NOW_S + 1), holder) is None


def test_a_later_attempt_of_the_same_request_takes_over_at_once() -> None:
    taken = ask(Claim(4, NOW_S + 7), request_id=ANA.request_id)
    assert taken == (Claim(5, NOW_S + LEASE_S), "took over claim 4 of an earlier attempt of this request")


# --- several at once -------------------------------------------------------------------------------------------------


def claiming(name: str, claims: dict[str, int], client_id: str | None = None) -> Ctl:
    who = {"client_id": client_id} if client_id else {}
    said = canonical_json({"claims": claims, "lease_end_s": 0} | who)
    return Ctl("c", Action.CLAIM, Actor(name, "cli"), request_id=f"of-{name}", parameters=said)


ANAS = claiming("ana", {Q1: 4, Q2: 4}, "c1")


def the_commits(since_ms: int) -> list[Ctl]:
    """Ana's claims 4 of two queues, renewed; before it another one's claim 3, besides it claim 4 on something else."""
    return [
        claiming("ben", {Q1: 3}),
        ANAS,
        claiming("eve", {own_id("~deliver"): 4}),
        replace(ANAS, action=Action.RENEW),
        replace(ANAS, action=Action.CONSUME, request_id="?"),
    ]


def now(claims: Mapping[str, Claim]) -> Positions:
    return Positions(1, {app_id: claim.packed() for app_id, claim in claims.items()})


HELD = {Q0: Claim(2, 0), Q1: Claim(4, NOW_S + 7), Q2: Claim(4, NOW_S + 7), Q3: Claim(9, NOW_S - 5)}


def wish(request_id: str = "of-ben", *queues: str, needed: tuple[str, ...] = ()) -> Wish:
    return Wish(request_id, Actor("ben", "cli"), "billing", needed, queues or (Q0, Q1, Q2, Q3), "c2")


def taken(
    asked: Wish, claims: Mapping[str, Claim] = HELD, ctls_since: CtlsSince = the_commits, now_ms: int = NOW_MS
) -> Taken:
    return take(asked, "mine", "broker-a", now(claims), ctls_since, now_ms)


def test_what_is_free_is_taken_and_what_is_held_is_left_with_who_holds_it() -> None:
    got = taken(wish())
    assert got.claims == {Q0: Claim(3, NOW_S + LEASE_S), Q3: Claim(10, NOW_S + LEASE_S)}
    assert got.queues() == {QUEUES[0], QUEUES[3]}
    ana = Holder("of-ana", "ana", 4, "c1")
    assert [(one.queue, one.claim_number, one.remaining_s, one.holder) for one in got.held] == [
        (QUEUES[1], 4, 7, ana), (QUEUES[2], 4, 7, ana),
    ]  # fmt: skip


def test_a_claim_is_one_commit_on_its_positions_that_says_which_numbers_for_whom_and_why() -> None:
    got = taken(wish())
    proposal = got.proposal()
    assert proposal.expect == {Q0: HELD[Q0].packed(), Q3: HELD[Q3].packed()}
    assert proposal.advance == {Q0: Claim(3, NOW_S + LEASE_S).packed(), Q3: Claim(10, NOW_S + LEASE_S).packed()}
    told = {"claims": {Q0: 3, Q3: 10}, "lease_end_s": NOW_S + LEASE_S, "client_id": "c2"}
    assert (proposal.ctl.commit_id, proposal.ctl.action) == ("mine", Action.CLAIM)
    assert proposal.ctl.parameters == canonical_json(told)
    assert proposal.ctl.reason == "took over claim 9, whose lease ended 5 s ago"


def test_when_every_queue_is_held_the_error_names_the_holder_and_for_how_long() -> None:
    told = r"broker-a/billing/Orders/broker-a/1 and 1 more are held by request of-ana of ana, client c1 \(claim 4\) for 7 s"
    with pytest.raises(HeldByAnother, match=told):
        taken(wish("of-ben", Q1, Q2))


def test_each_holder_is_named() -> None:
    eve = claiming("eve", {Q0: 3})
    with pytest.raises(HeldByAnother, match=r"/0 is held by request of-eve of eve .*; .*/1 is held by request of-ana"):
        taken(wish("of-ben", Q0, Q1), HELD | {Q0: Claim(3, NOW_S + 9)}, lambda ms: [*the_commits(ms), eve])


def test_a_holder_that_left_no_name_still_holds() -> None:
    with pytest.raises(HeldByAnother, match="held by another run"):
        taken(wish("of-ben", Q1), ctls_since=lambda ms: [])


def test_an_earlier_claim_of_this_request_does_not_take_over_a_later_one_of_another() -> None:
    """Ben had claim 3. Who has claim 4 is not in the log any more."""
    with pytest.raises(HeldByAnother, match="held by another run"):
        taken(wish("of-ben", Q1), ctls_since=lambda ms: the_commits(ms)[:1])


def test_what_is_needed_is_had_or_nothing_is() -> None:
    whole = {WHOLE: Claim(1, NOW_S + 60)}
    with pytest.raises(HeldByAnother, match="broker-a/billing is held by another run"):
        taken(wish("of-ben", Q0, needed=(WHOLE,)), HELD | whole)
    got = taken(wish("of-ben", Q0, Q1, needed=(WHOLE,)), HELD | {WHOLE: Claim(1, 0)})
    assert set(got.claims) == {WHOLE, Q0}
    assert [one.app_id for one in got.held] == [Q1]


def test_work_of_which_one_run_goes_at_a_time_needs_its_whole_scope() -> None:
    asked = Wish.of_whole("of-ben", Actor("ben", "cli"), "~import", "broker-a")
    got = taken(asked, {})
    assert got.claims == {own_id("~import", "broker-a"): Claim(1, NOW_S + LEASE_S)}
    assert got.queues() == frozenset()


def test_the_log_is_asked_for_holders_once_and_only_while_a_lease_lasts() -> None:
    asked: list[int] = []

    def ctls_since(ms: int) -> list[Ctl]:
        asked.append(ms)
        return the_commits(ms)

    for current in (Claim(0, 0), Claim(4, 0), Claim(4, NOW_S)):
        taken(wish("of-ben", Q1, Q2), {Q1: current, Q2: current}, ctls_since)
    assert asked == []
    taken(wish("of-ana"), HELD, ctls_since)
    assert len(asked) == 1
    assert asked[0] < NOW_MS - LEASE_S * 1000


# --- what becomes of them --------------------------------------------------------------------------------------------


def test_a_renewal_gives_all_of_them_a_whole_lease_once_more() -> None:
    got = taken(wish())
    longer, proposal = got.renewed("later", NOW_MS + 40_000)
    assert longer.claims == {Q0: Claim(3, NOW_S + 40 + LEASE_S), Q3: Claim(10, NOW_S + 40 + LEASE_S)}
    assert (proposal.ctl.action, proposal.ctl.commit_id) == (Action.RENEW, "later")
    assert proposal.ctl.parameter("lease_end_s") == NOW_S + 40 + LEASE_S
    assert proposal.expect == got.proposal().advance
    assert proposal.advance == {app_id: claim.packed() for app_id, claim in longer.claims.items()}


def test_a_release_frees_exactly_those_that_are_still_ours() -> None:
    got = taken(wish())
    proposal = got.released("later", now({**got.claims, Q3: Claim(11, NOW_S + 500)}))
    assert proposal is not None
    assert (proposal.ctl.action, proposal.ctl.request_id, proposal.ctl.commit_id) == (Action.RELEASE, "of-ben", "later")
    assert proposal.ctl.parameter("claims") == {Q0: 3}
    assert (proposal.expect, proposal.advance) == ({Q0: got.claims[Q0].packed()}, {Q0: Claim(3, 0).packed()})
    assert got.released("later", now({Q0: Claim(4, 1), Q3: Claim(11, 0)})) is None


def test_the_runs_own_commit_expects_its_claims_ends_them_and_names_their_commit() -> None:
    window = Ctl("window", Action.CONSUME, Actor("ben", "cli"), parameters=canonical_json({"until_ms": 7}))
    ended = taken(wish()).ended_by(Proposal(window, {grp_id("billing"): 0}, {grp_id("billing"): 0}))
    assert ended.ctl.parameters == canonical_json({"until_ms": 7, "claim": "mine"})
    assert ended.expect == {grp_id("billing"): 0, **taken(wish()).proposal().advance}
    assert ended.advance == {grp_id("billing"): 0, Q0: Claim(3, 0).packed(), Q3: Claim(10, 0).packed()}


def test_a_lease_outlives_two_renewals_that_fail() -> None:
    assert 3 * RENEW_EVERY_S <= LEASE_S
