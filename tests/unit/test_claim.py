from __future__ import annotations

import pytest

from rmq_store.consumer.claim import LEASE_S, RENEW_EVERY_S, Holder, next_claim
from rmq_store.errors import HeldByAnother
from rmq_store.offsets import Claim

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


def test_a_lease_outlives_two_renewals_that_fail() -> None:
    assert 3 * RENEW_EVERY_S <= LEASE_S
