"""The search of ``log_explorer.py``: no violation with the real rules, and the known one for every guard left out.

``INVARIANTS`` (``log_states.py``) says what the numbers mean. The biggest scenarios take minutes; run them with
``.venv/bin/python -m pytest tests/faults/test_log_explorer.py --hypothesis-profile=deep``.
"""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.faults.log_decisions import Work
from tests.faults.log_explorer import explore
from tests.faults.log_states import GUARDS, INVARIANTS, Scenario

A, B, H = Work("A"), Work("B"), Work("H", group="h")
ONE = {"A1": ((A,),)}
ATTEMPTS = {"A1": ((A,),), "A2": ((A,),)}
REQUESTS = {"A1": ((A,),), "B1": ((B,),)}
ALL = {**ATTEMPTS, "B1": ((B,),)}
DELETE = {**REQUESTS, "D1": ((Work("D", kind="delete"),),)}
TWO_GROUPS = {"A1": ((A, H),), "B1": ((B,),)}
"""One entry with windows of two groups, and another window of one of them."""
ONE_AFTER_ANOTHER = {"A1": ((A,), (H,))}
COMPACTIONS = {"C1": ((Work("C", kind="compaction"),),), "D1": ((Work("D", kind="compaction"),),), **ONE}
OVERLAP = {"A1": ((Work("A", queues=(0, 1)),),), "B1": ((Work("B", queues=(1, 2)),),)}
"""Both want the queue in the middle: who comes second takes the other one, and that one when it is free."""
UNRELATED = (("unrelated",),)
TWO_UNRELATED = (("unrelated", "unrelated"),)

SCENARIOS = {
    "attempts": Scenario(ATTEMPTS, losses=2, late=1, others=(("produce",),), gives_up=True),
    "requests": Scenario(REQUESTS, losses=2, late=1, others=(("produce",),)),
    "attempts and another request": Scenario(ALL, losses=1, late=1),
    "late twice": Scenario(REQUESTS, losses=1, late=2, others=(("produce",),), gives_up=True),
    "two groups": Scenario(TWO_GROUPS, losses=1, late=1, others=(("produce",),), gives_up=True),
    "two groups and a reset": Scenario(TWO_GROUPS, losses=1, late=1, others=(("reset",),)),
    "a reset": Scenario(REQUESTS, losses=1, late=1, others=(("reset",),)),
    "attempts and a reset": Scenario(ATTEMPTS, losses=1, late=1, others=(("reset",),)),
    "away and back": Scenario(REQUESTS, losses=1, late=1, others=(("away", "back"),), offset=0),
    "deleted": Scenario(REQUESTS, losses=1, late=1, others=(("delete",),)),
    "deleted later": Scenario(DELETE, losses=1, late=1, known=True),
    "compactions": Scenario(COMPACTIONS, losses=1, late=1),
    # With a clean-up.
    "cleaned, a lost reply": Scenario(REQUESTS, losses=1, ticks=2, maintainers=(1,), others=UNRELATED),
    "cleaned, a late PUT": Scenario(REQUESTS, late=1, ticks=2, maintainers=(1,), others=UNRELATED),
    "cleaned, attempts": Scenario(ATTEMPTS, ticks=2, maintainers=(1,), others=TWO_UNRELATED),
    "cleaned, two groups": Scenario(TWO_GROUPS, losses=1, late=1, ticks=2, maintainers=(1,)),
    "cleaned, gives up": Scenario(
        ONE, losses=1, late=1, ticks=2, maintainers=(1,), others=TWO_UNRELATED, gives_up=True
    ),
    "asleep while opening": Scenario(ONE, late=1, ticks=3, maintainers=(1,), others=TWO_UNRELATED),
    "cleaned, late twice": Scenario(ONE, late=2, ticks=2, maintainers=(1,), others=TWO_UNRELATED),
    "cleaned, a reader": Scenario(ONE, late=1, ticks=2, maintainers=(1,), others=TWO_UNRELATED, readers=1),
    "reads at once": Scenario(ticks=2, maintainers=(1,), others=(("unrelated",) * 4,), readers=1, at_once=3),
    "a view kept for two windows": Scenario(ONE_AFTER_ANOTHER, losses=1, ticks=2, maintainers=(1,), others=UNRELATED),
    "a damaged checkpoint": Scenario(ticks=4, maintainers=(2,), others=TWO_UNRELATED, readers=1, damages=1),
    "two checkpoints": Scenario(ONE, late=1, ticks=4, maintainers=(2,), others=TWO_UNRELATED),
    "two maintainers": Scenario(ONE, ticks=2, maintainers=(1, 1), slow=True, others=TWO_UNRELATED),
    "the hint behind": Scenario(ONE, losses=1, ticks=2, maintainers=(1,), slow=True, others=TWO_UNRELATED),
    "no hint": Scenario(ONE, ticks=2, maintainers=(1,), slow=True, others=TWO_UNRELATED, hint=-1),
    "the hint ahead": Scenario(REQUESTS, ticks=2, maintainers=(1,), slow=True, others=UNRELATED, hint=9),
    # Half the time that a view is trusted is a step. The second: checkpoints are no older than a trusted view.
    "time in halves": Scenario(REQUESTS, losses=1, late=1, ticks=4, maintainers=(1,), view_trust=2, checkpoint_trust=4),
    "younger checkpoints": Scenario(
        ONE, late=1, ticks=3, maintainers=(1,), others=TWO_UNRELATED, view_trust=2, checkpoint_trust=2
    ),
    "reads at once, younger checkpoints": Scenario(
        ticks=3, maintainers=(1,), others=(("unrelated",) * 3,), readers=1, at_once=2, view_trust=2, checkpoint_trust=2
    ),
    # In a folder, where no clock is trusted.
    "folder": Scenario(REQUESTS, losses=1, maintainers=(1,), others=UNRELATED, folder=True),
    "folder, a reader": Scenario(ONE, losses=1, maintainers=(1,), others=TWO_UNRELATED, readers=1, folder=True),
    "folder, two behind": Scenario(REQUESTS, maintainers=(1,), others=(("unrelated",) * 3,), opens=False, folder=True),
    "folder, attempts": Scenario(ATTEMPTS, losses=1, maintainers=(1,), others=UNRELATED, folder=True),
    "folder, reads at once": Scenario(
        maintainers=(2,), others=(("unrelated",) * 4,), readers=1, at_once=3, folder=True
    ),
    "folder, two maintainers": Scenario(ONE, maintainers=(1, 1), slow=True, others=TWO_UNRELATED, folder=True),
    # With claims.
    "claims": Scenario(REQUESTS, losses=1, late=1, claims=True),
    "claims, attempts": Scenario(ATTEMPTS, losses=1, late=1, claims=True),
    "claims, attempts and another request": Scenario(ALL, claims=True),
    "claims and a reset": Scenario(REQUESTS, losses=1, claims=True, others=(("reset",),)),
    "claims, attempts and a reset": Scenario(ATTEMPTS, losses=1, claims=True, others=(("reset",),)),
    "claims, all, and a reset": Scenario(ALL, claims=True, others=(("reset",),), leases_end=False),
    "claims, away and back": Scenario(REQUESTS, late=1, claims=True, others=(("away", "back"),), offset=0),
    "claims, deleted": Scenario(REQUESTS, losses=1, claims=True, others=(("delete",),)),
    "claims, deleted later": Scenario(DELETE, losses=1, claims=True, known=True),
    "overlapping queues": Scenario(OVERLAP, claims=True),
    "overlapping queues, late": Scenario(OVERLAP, late=1, claims=True),
    "overlapping queues and a reset": Scenario(OVERLAP, claims=True, others=(("reset",),)),
    "overlapping queues and attempts": Scenario({**OVERLAP, "A2": OVERLAP["A1"]}, claims=True, leases_end=False),
}

DEEP = {
    "folder, a reader at once": Scenario(
        ONE, losses=1, maintainers=(1,), others=(("unrelated",) * 3,), readers=1, at_once=2, folder=True
    ),
    "folder, two unrelated": Scenario(REQUESTS, losses=1, maintainers=(1,), others=TWO_UNRELATED, folder=True),
    "folder, all": Scenario(ALL, maintainers=(1,), others=UNRELATED, folder=True),
    "folder, kept views": Scenario(
        {**ONE_AFTER_ANOTHER, "B1": ((B,),)}, losses=1, maintainers=(2,), others=TWO_UNRELATED, folder=True
    ),
    "cleaned, requests": Scenario(REQUESTS, losses=1, late=1, ticks=2, maintainers=(1,), others=UNRELATED),
    "cleaned, attempts, late": Scenario(ATTEMPTS, losses=1, late=1, ticks=2, maintainers=(1,), others=UNRELATED),
    "cleaned, a reader, lost and late": Scenario(
        ONE, losses=1, late=1, ticks=2, maintainers=(1,), others=TWO_UNRELATED, readers=1
    ),
    "kept views": Scenario(
        ONE_AFTER_ANOTHER, losses=1, late=1, ticks=2, maintainers=(1,), others=TWO_UNRELATED, readers=1
    ),
    "two checkpoints, lost and late": Scenario(
        ONE, losses=1, late=1, ticks=4, maintainers=(2,), others=(("unrelated",) * 3,)
    ),
    "two maintainers and a reader": Scenario(
        ONE, ticks=2, maintainers=(1, 1), slow=True, others=TWO_UNRELATED, readers=1
    ),
    "cleaned, claims": Scenario(REQUESTS, losses=1, ticks=2, maintainers=(1,), claims=True),
    "cleaned and a reset": Scenario(REQUESTS, losses=1, ticks=2, maintainers=(1,), others=(("reset",),)),
    "younger checkpoints, requests": Scenario(
        REQUESTS, late=1, ticks=3, maintainers=(1,), others=UNRELATED, view_trust=2, checkpoint_trust=2
    ),
}

MUTANTS = [
    # The decision.
    (["off expected"], "requests", "I1"),
    (["grp expected"], "away and back", "I6"),
    (["grp expected"], "deleted", "I4"),
    (["epoch raised"], "away and back", "I6"),
    (["request check"], "attempts and a reset", "I3"),
    (["request found by id"], "a reset", "I9"),
    (["delete closed"], "deleted later", "I4"),
    (["bases in sequence"], "two groups", "I2"),
    (["new bases"], "two groups and a reset", "I2"),
    # Another's entry at my name.
    (["newcomer compared"], "requests", "I1"),
    (["newcomer compared"], "requests", "I2"),
    (["newcomer compared"], "a reset", "I6"),
    (["newcomer compared"], "a reset", "I8"),
    (["max met"], "requests", "I2"),
    (["max met"], "requests", "I8"),
    (["grp met"], "deleted later", "I4"),
    (["grp met"], "deleted later", "I8"),
    (["grp met", "off met"], "a reset", "I6"),
    (["grp met", "off met"], "a reset", "I8"),
    (["own met"], "claims", "I8"),
    (["cmp met", "files met"], "compactions", "C"),
    (["cmp expected", "files expected"], "compactions", "C"),
    # Answers.
    (["silence is unknown"], "requests", "I7b"),
    (["settled"], "late twice", "I7b"),
    (["same name"], "attempts", "D"),
    (["same name"], "attempts", "G"),
    (["same name"], "attempts", "I1"),
    (["same name"], "attempts", "I2"),
    (["same name"], "attempts", "I3"),
    (["taken is read"], "attempts", "D"),
    (["taken is read"], "attempts", "I1"),
    (["taken is read"], "attempts", "I3"),
    (["all or none"], "two groups", "I7b"),
    (["look after opening"], "cleaned, a lost reply", "I7b"),
    # Time.
    (["young to walk"], "cleaned, a reader", "R2"),
    (["young to walk"], "cleaned, a reader", "I7"),
    (["young when created"], "cleaned, a reader", "I7"),
    (["young when mine"], "cleaned, a lost reply", "I7"),
    (["young while opening"], "asleep while opening", "I7"),
    (["young while opening"], "asleep while opening", "R1"),
    (["behind an absent name"], "reads at once", "R1"),
    (["time of the answer"], "reads at once, younger checkpoints", "R2"),
    (["time, not hint"], "the hint behind", "I7"),
    # In a folder.
    (["look before"], "folder", "R2"),
    (["look before"], "folder", "I7"),
    (["newer checkpoint"], "folder", "R2"),
    (["look compared"], "folder, two behind", "R2"),
    (["look compared"], "folder, two behind", "I7"),
    # Opening and clean-up.
    (["hint may be absent"], "no hint", "I7"),
    (["hint may be absent"], "no hint", "R2"),
    (["list"], "two maintainers", "I7"),
    (["list"], "two maintainers", "R2"),
    (["list", "checkpoints go late"], "two maintainers", "I7"),
    (["checkpoint before names"], "cleaned, a reader", "R1"),
    (["checkpoint age"], "asleep while opening", "I7"),
    (["checkpoint age"], "asleep while opening", "R1"),
    (["checkpoint read back"], "a damaged checkpoint", "R2"),
    (["checkpoint read back"], "a damaged checkpoint", "R3"),
    # Claims: sets in which one guard covers for the other.
    (["off expected", "own expected"], "claims and a reset", "I1"),
    (["off expected", "claim"], "claims", "I1"),
    (["off expected", "claim number raised"], "claims", "I1"),
    (["off expected", "grp expected"], "claims and a reset", "I6"),
    (["off expected", "grp expected", "own expected"], "claims", "I1"),
    (["off expected", "grp expected", "own expected"], "claims, attempts", "I3"),
    (["grp expected", "own expected"], "claims, away and back", "I6"),
    (["grp met", "off met"], "claims and a reset", "I6"),
    (["grp met", "claim"], "claims, deleted", "I4"),
    (["off expected", "held left out"], "overlapping queues", "I1"),
    (["off expected", "own expected"], "overlapping queues", "I1"),
    (["off expected", "claim"], "overlapping queues", "I1"),
]

FREED_NAMES = {
    "a reader takes a deleted name for the end": (
        ["young to walk"], "cleaned, a reader", "R2",
        ["checkpoint 2", "clean-up of 1"],
    ),
    "a success under a freed name": (
        ["young when created"], "cleaned, a reader", "I7",
        ["checkpoint 2", "clean-up of 1", "A1.A1 is reported as committed"],
    ),
    "a request found under a freed name": (
        ["young to walk"], "cleaned, attempts", "I7a",
        ["clean-up of 1", "A1: PUT 1: created"],
    ),
    "a reader reads a freed name": (
        ["young to walk"], "cleaned, a reader", "R1",
        ["clean-up of 1", "A1: PUT 1: created"],
    ),
    "another's entry in my old name, after opening with a wrong hint": (
        ["time, not hint", "hint may be absent"], "the hint ahead", "I7b",
        ["A1: PUT 1: created", "A1: opens again", "clean-up of 1", "B1: PUT 1: created", "A1: reads 1"],
    ),
    "a lost reply from a freed name": (
        ["young when mine"], "cleaned, a lost reply", "I7",
        ["clean-up of 1", "PUT 1: created, the reply is lost"],
    ),
    "a late PUT in a freed name, read as mine": (
        ["young when mine"], "cleaned, late twice", "I7",
        ["A1: PUT 1 is late", "clean-up of 1", "the PUT of A1.A1 as 1 arrives"],
    ),
    "the same bytes twice in a kept view": (
        ["young to walk"], "cleaned, a reader", "D",
        ["PUT 1 is late", "PUT 2: created", "checkpoint 2", "clean-up of 1", "the PUT of A1.A1 as 1 arrives"],
    ),
    "another's entry in my freed name": (
        ["young when another's"], "cleaned, a late PUT", "I7b",
        ["PUT 1 is late", "arrives", "checkpoint 2", "clean-up of 1", "PUT 1: created"],
    ),
}  # fmt: skip
"""What happens when a clean-up frees names and a view is trusted too long: guards left out, the scenario, the violation, and
the steps that its shortest trace has, in this order."""

COVERED = [
    (["off met"], "the epoch is part of every commit of its group"),
    (["closed met"], "so is the group's that a delete closes"),
    (["own expected"], "the epoch and the offsets are compared, and every commit of the group writes them"),
    (["claim"], "a claim saves work; the epoch and the offsets decide"),
    (["lease"], "so a claim that is taken from a living run costs only its work"),
    (["claim number raised"], "the offsets still tell two runs apart"),
    (["held left out"], "who plans what another run holds is refused by the offsets"),
    (["cmp met"], "compactions also compare the files that they remove"),
    (["files met"], "and they share an id"),
    (["cmp expected"], "a file that is not live cannot be removed"),
    (["files expected"], "the number of compactions has changed"),
    (["same bytes"], "other bytes with the same commits under the same name are found by their ids"),
    (["taken, then absent"], "the time of the next answer shows that the view is old"),
    (["time of the answer"], "entries go late enough for a view that is trusted twice as long"),
    (["checkpoints go late"], "an opening that finds its checkpoint gone opens again"),
]
COVERED_IN = {
    "cmp": ["compactions"],
    "files": ["compactions"],
    "closed": ["deleted later"],
    "same": ["attempts", "requests", "two groups"],
    "taken,": ["cleaned, late twice", "cleaned, two groups"],
    "time": ["reads at once"],
    "checkpoints": ["the hint behind"],
    "off": ["requests", "a reset", "deleted later", "away and back"],
}
"""By the guard's first word; the others are those of claims."""
OF_CLAIMS = ["claims and a reset", "claims, attempts", "overlapping queues and a reset"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_goes_wrong_with_the_real_rules(name: str) -> None:
    result = explore(SCENARIOS[name])
    assert result.violation is None, "\n".join(result.trace)
    assert result.states > 500


@pytest.mark.parametrize("name", DEEP)
def test_nothing_goes_wrong_in_the_biggest_scenarios(name: str) -> None:
    if settings.get_current_profile_name() != "deep":
        pytest.skip("takes minutes: --hypothesis-profile=deep")
    result = explore(DEEP[name], most=20_000_000)
    assert result.violation is None, "\n".join(result.trace)


@pytest.mark.parametrize(
    ("guards", "scenario", "violation"), MUTANTS, ids=[f"{', '.join(m[0])}: {m[2]}, {m[1]}" for m in MUTANTS]
)
def test_what_goes_wrong_without(guards: list[str], scenario: str, violation: str) -> None:
    result = explore(SCENARIOS[scenario], frozenset(guards), frozenset([violation]))
    assert result.violation == violation
    assert len(result.trace) > 1


@pytest.mark.parametrize("name", FREED_NAMES)
def test_what_a_freed_name_does(name: str) -> None:
    guards, scenario, violation, steps = FREED_NAMES[name]
    result = explore(SCENARIOS[scenario], frozenset(guards), frozenset([violation]))
    assert result.violation == violation
    at = -1
    for step in steps:
        at = next((n for n, one in enumerate(result.trace) if n > at and step in one), -1)
        assert at >= 0, (step, *result.trace)


@pytest.mark.parametrize(
    ("guards", "why", "scenario"),
    [(guards, why, name) for guards, why in COVERED for name in COVERED_IN.get(guards[0].split()[0], OF_CLAIMS)],
)
def test_what_another_guard_covers(guards: list[str], why: str, scenario: str) -> None:
    assert explore(SCENARIOS[scenario], frozenset(guards)).violation is None, why


def test_checkpoints_younger_than_a_trusted_view_are_not_enough() -> None:
    younger = Scenario(ONE, late=1, ticks=3, maintainers=(1,), others=TWO_UNRELATED, view_trust=2, checkpoint_trust=1)
    for violation in ("R2", "I7"):
        assert explore(younger, watched=frozenset([violation])).violation == violation


def test_every_guard_is_needed_by_itself_or_in_a_set_and_every_invariant_was_violated() -> None:
    freed = [(guards, scenario, violation) for guards, scenario, violation, _ in FREED_NAMES.values()]
    needed = {guard for guards, _, _ in [*MUTANTS, *freed] for guard in guards}
    assert set(GUARDS) - needed == {"closed met", "lease", "same bytes", "taken, then absent"}
    assert set(INVARIANTS) - {violation for _, _, violation in [*MUTANTS, *freed]} == {"R4"}


def test_a_search_is_never_taken_for_complete_that_is_not() -> None:
    with pytest.raises(AssertionError, match="more than 1000 states"):
        explore(SCENARIOS["away and back"], most=1000)
