"""The search of ``explorer.py``: no violation with the real decisions, and the known one for every guard left out.

With the invariants of the search: I1 a range begins at the committed offset; I2 a base is the end of its queue; I3 a
request is committed once; I4 nothing of a deleted group is committed; I6 nothing that was planned before an operator's
action; I7 a reported success is in the log; I7b a reported failure is not, and never will be; I8g the commits of a group
are ordered by the versions they were decided on.
"""

from __future__ import annotations

import pytest

from tests.faults.explorer import GUARDS, Scenario, explore

ONE = (("A1", "A"),)
ATTEMPTS = (("A1", "A"), ("A2", "A"))
REQUESTS = (("A1", "A"), ("B1", "B"))
ALL = (*ATTEMPTS, ("B1", "B"))
SHARED = {"A": (0, 1), "B": (1, 2)}
"""Both want the queue in the middle: who comes second takes the other one, and that one when it is free."""

SCENARIOS = {
    "two attempts and another request": Scenario(ALL),
    "two attempts, late": Scenario(ATTEMPTS, losses=1, clean_ups=1),
    "two requests, late": Scenario(REQUESTS, losses=1, clean_ups=1),
    "twice late": Scenario(ONE, losses=2, clean_ups=1, producers=2),
    "another producer": Scenario(REQUESTS, losses=1, producers=1),
    "attempts and a reset": Scenario(ATTEMPTS, ("reset",), losses=1),
    "requests and a reset": Scenario(REQUESTS, ("reset",), losses=1),
    "requests and a reset, nothing late": Scenario(REQUESTS, ("reset",)),
    "away and back": Scenario(REQUESTS, ("away", "back"), losses=1, offset=0),
    "deleted": Scenario(REQUESTS, ("delete",), losses=1),
    "deleted later": Scenario(REQUESTS, ("delete later",), losses=1, known=True),
    "deleted later, read before": Scenario(ATTEMPTS, ("delete later",), losses=1, offset=0),
    "all and a reset": Scenario(ALL, ("reset",)),
    "overlapping queues": Scenario(REQUESTS, wants=SHARED),
    "overlapping queues and a reset": Scenario(REQUESTS, ("reset",), wants=SHARED),
    "overlapping queues, late": Scenario(REQUESTS, wants=SHARED, losses=1),
    "overlapping queues and two attempts": Scenario(ALL, wants=SHARED, leases_end=False),
    # With leases that end this is too much for every day: without the reset 367,781 states, and no violation.
    "all, late, and a reset": Scenario(ALL, ("reset",), losses=1, leases_end=False),
}

MUTANTS = [
    # One guard out.
    (["max txn"], "another producer", "I2"),
    (["new bases"], "another producer", "I2"),
    (["own txn"], "two requests, late", "I7b"),
    (["grp txn"], "deleted", "I4"),
    (["grp compare"], "deleted", "I4"),
    (["grp compare"], "deleted later", "I4"),
    (["delete closed"], "deleted later", "I4"),
    (["grp compare"], "away and back", "I6"),
    (["epoch raised"], "away and back", "I6"),
    (["request check"], "attempts and a reset", "I3"),
    (["found by id"], "two attempts, late", "I7"),
    (["error read back"], "two attempts, late", "I7b"),
    (["success read back"], "two attempts, late", "I7"),
    (["look before drop"], "two attempts, late", "I7b"),
    (["withdrawal"], "twice late", "I7b"),
    # Sets in which one guard covers for the other.
    (["off compare", "own compare"], "requests and a reset", "I1"),
    (["off compare", "claim"], "requests and a reset", "I1"),
    (["off compare", "claim"], "attempts and a reset", "I3"),
    (["off compare", "claim number raised"], "requests and a reset", "I1"),
    (["off compare", "grp compare"], "requests and a reset", "I6"),
    (["off compare", "grp compare", "own compare"], "two requests, late", "I1"),
    (["off compare", "grp compare", "own compare"], "two attempts and another request", "I3"),
    (["grp compare", "own compare"], "away and back", "I6"),
    (["grp txn", "off txn"], "requests and a reset", "I6"),
    (["grp txn", "claim"], "deleted", "I4"),
    (["own txn", "grp txn", "off txn"], "requests and a reset", "I6"),
    (["off compare", "held left out"], "overlapping queues", "I1"),
    (["off compare", "own compare"], "overlapping queues", "I1"),
    (["off compare", "claim"], "overlapping queues", "I1"),
    (["own txn"], "overlapping queues, late", "I7b"),
    (["withdrawal"], "overlapping queues, late", "I7b"),
]

COVERED = [
    (["off compare"], "the claim's number says the same as long as a claim is taken"),
    (["own compare"], "the epoch and the offsets are compared, and every commit of the group writes them"),
    (["off txn"], "grp and own are in the same commit and conflict already"),
    (["claim"], "a claim saves work; the epoch and the offsets decide"),
    (["lease"], "so a claim that is taken from a living run costs only its work"),
    (["claim number raised"], "the offsets still tell two runs apart"),
    (["held left out"], "who plans what another run holds does that work in vain"),
    (["claim found by id"], "who believes wrongly that it holds the claim is refused by the offsets"),
]


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_goes_wrong_with_the_real_decisions(name: str) -> None:
    found = explore(SCENARIOS[name])
    assert found.violation is None, "\n".join(found.trace)
    assert found.states > 500


@pytest.mark.parametrize(
    ("guards", "scenario", "violation"), MUTANTS, ids=[", ".join(m[0]) + ": " + m[2] for m in MUTANTS]
)
def test_what_goes_wrong_without(guards: list[str], scenario: str, violation: str) -> None:
    found = explore(SCENARIOS[scenario], frozenset(guards))
    assert found.violation == violation, "\n".join(found.trace)
    assert len(found.trace) > 2


@pytest.mark.parametrize(("guards", "why"), COVERED, ids=[m[0][0] for m in COVERED])
@pytest.mark.parametrize(
    "scenario", ["requests and a reset, nothing late", "two attempts, late", "overlapping queues and a reset"]
)
def test_what_another_guard_covers(guards: list[str], why: str, scenario: str) -> None:
    assert explore(SCENARIOS[scenario], frozenset(guards)).violation is None, why


def test_every_guard_is_needed_by_itself_or_in_a_set() -> None:
    needed = {guard for guards, _, _ in MUTANTS for guard in guards}
    assert set(GUARDS) - needed == {"lease", "claim found by id"}


def test_a_search_is_never_taken_for_complete_that_is_not() -> None:
    with pytest.raises(AssertionError, match="more than 1000 states"):
        explore(SCENARIOS["away and back"], most=1000)
