"""The search of ``proposal_explorer.py``: no violation with the real proposals, and a known one for every guard left out.

Each kind of position that a proposal expects, and each other condition of it, is in one of four tables: a new one has to be
added. All pairs of requests take minutes; run them with
``.venv/bin/python -m pytest tests/faults/test_proposal_explorer.py --hypothesis-profile=deep``.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest
from hypothesis import settings

from tests.faults.proposal_book import INVARIANTS
from tests.faults.proposal_explorer import Result, Scenario, explore
from tests.faults.proposal_log import OTHERS, Guard
from tests.faults.proposal_operations import Operation
from tests.faults.proposal_scenarios import EVERYTHING, LEASE_OVER, SCENARIOS, SHARDS

FOUND: dict[Guard, tuple[str, str]] = {
    ("consume", "grp"): ("a reset to the same offset and a window", "operator"),
    ("consume", "own"): ("absorbed keys", "key"),
    ("consume", "sub"): ("two subscriptions", "subscription"),
    ("consume", "begins"): ("a window and retention", "lost"),
    ("deliver", "grp"): ("a delivery and a cut-over", "operator"),
    ("deliver", "own"): ("two deliveries", "position"),
    ("redrive", "grp"): ("a redrive and a delete", "operator"),
    ("redrive", "own"): ("two redrives", "position"),
    ("send", "max"): ("a redrive and a send", "position"),
    ("send", "snd"): ("three sends", "once"),
    ("import", "own"): ("an import and a cut-over", "owner"),
    ("import that continues", "grp"): ("a new name and a delete", "position"),
    ("import that continues", "own"): ("a new name and a cut-over", "owner"),
    ("cutover", "grp"): ("a cut-over and a delete", "position"),
    ("cutover", "off"): ("a window and a cut-over", "moved"),
    ("cutover", "own"): ("two cut-overs", "position"),
    ("cutover", "begins"): ("a cut-over and retention", "lost"),
    ("hand-back", "grp"): ("a reset to the same offset and a hand-back", "position"),
    ("hand-back", "own"): ("two hand-backs", "position"),
    ("hand-back", "closed"): ("a client and a hand-back", "left"),
    ("move", "grp"): ("a new name and a reset", "position"),
    ("move", "off"): ("a window and a reset", "moved"),
    ("move", "begins"): ("a reset and retention", "lost"),
    ("undo", "grp"): ("a reset to the same offset and an undo", "undone"),
    ("undo", "off"): ("a window and an undo", "moved"),
    ("undo", "closed"): ("a first window and an undo", "undone"),
    ("undo", "begins"): ("an undo and retention", "lost"),
    ("delete", "grp"): ("a reset to the same offset and a delete", "position"),
    ("delete", "closed"): ("a client and a delete", "deleted"),
    ("retention", "min"): ("two retentions", "lost"),
    ("retention", "off"): ("a window and loss", "position"),
    ("retention", "behind"): ("a reset and retention", "lost"),
    ("compact", "removed"): ("two compactions", "files"),
    ("claim", "own"): ("absorbed keys", "key"),
    ("renewal", "own"): ("a renewal", "position"),
    ("release", "own"): ("two attempts and a reset", "position"),
    ("any", "age"): ("a window and a vacuum", "gone"),
    ("any", "vacuum"): ("a window and a vacuum", "gone"),
    ("any", "written"): ("two clients", "order"),
    ("any", "time"): ("two clocks", "time"),
    ("dispatch", "cursor"): ("two dispatches", "dispatch"),
}
"""Guards that no other one covers: the scenario that shows it, and the invariant."""

TOGETHER: dict[Guard, tuple[str, str, str]] = {
    ("consume", "off"): ("own", "two windows", "overlap"),
    ("deliver", "off"): ("own", "two deliveries", "overlap"),
    ("redrive", "red"): ("own", "two redrives", "redriven"),
    ("import", "import"): ("own max", "two imports", "log"),
    ("import", "max"): ("own import", "two imports", "places"),
    ("import that continues", "import"): ("own diverged max min", "a new name without groups, twice", "owner"),
    ("import that continues", "diverged"): ("own import max min", "a new name without groups, twice", "owner"),
    ("cutover", "import"): ("own", "an import and a cut-over", "owner"),
    ("cutover", "cutover"): ("own", "two cut-overs without groups", "owner"),
    ("hand-back", "cutover"): ("own", "two hand-backs without groups", "owner"),
    ("attempt", "grp"): ("off", "two attempts of a replay", "position"),
    ("attempt", "off"): ("grp", "two attempts of a replay", "moved"),
}
"""Guards that a claim covers, alone or with others, or one of the two of an attempt the other: those kinds of the same
proposal, the scenario that shows what goes wrong without all of them, and the invariant."""

COVERED: dict[Guard, str] = {
    (
        "import",
        "min",
    ): "it is set with the end of the queue, which is compared; retention removes nothing of a new queue",
    ("import that continues", "max"): "there is no queue of the new name before its first import",
    ("import that continues", "min"): "there is no queue of the new name before its first import",
    ("import that continues", "off"): "there is no queue of the new name before its first import",
    ("import that continues", "pas"): "there is no queue of the new name before its first import",
    ("hand-back", "import"): "nothing is imported between a cut-over and a hand-back",
    ("delete", "begins"): "it moves offsets to the end of a queue, and retention removes nothing after it",
    ("delete", "blk"): "it is deleted whatever it is",
    ("delete", "sub"): "it is deleted whatever it is",
    ("delete", "del"): "another delete raises the epoch",
}
"""Guards without which nothing goes wrong, and why."""

NEVER = {
    ("delete", "off"): "a window and a delete",
    ("hand-back", "off"): "an owned window and a hand-back",
}
"""Guards that a closed prefix relies on: without them the commit is always refused."""


@cache
def explored(name: str) -> Result:
    return explore(SCENARIOS[name])


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_goes_wrong_with_the_real_proposals(name: str) -> None:
    result = explored(name)
    assert not result.wrong, "\n".join([*result.trace, *result.wrong])


def test_every_kind_of_proposal_is_committed() -> None:
    commits = frozenset[str]().union(*(explored(name).commits for name in SCENARIOS))
    assert commits == {by for by, _ in every_guard() if by not in ("any", "dispatch")} | {"vacuum"}


def every_guard() -> set[Guard]:
    return set(OTHERS).union(*(explored(name).guards for name in SCENARIOS))


def test_every_guard_is_left_out_in_a_test() -> None:
    lists = [*FOUND, *TOGETHER, *COVERED, *NEVER]
    assert sorted(lists) == sorted(every_guard())


def test_every_invariant_is_broken_by_a_guard_left_out() -> None:
    assert {row[-1] for row in (*FOUND.values(), *TOGETHER.values())} == INVARIANTS.keys()


@pytest.mark.parametrize("guard", FOUND, ids=" ".join)
def test_what_goes_wrong_without(guard: Guard) -> None:
    name, invariant = FOUND[guard]
    result = explore(SCENARIOS[name], frozenset([guard]), frozenset([invariant]))
    assert result.wrong


@pytest.mark.parametrize("guard", TOGETHER, ids=" ".join)
def test_what_goes_wrong_without_all(guard: Guard) -> None:
    by, _ = guard
    kinds, name, invariant = TOGETHER[guard]
    others = frozenset((by, kind) for kind in kinds.split())
    assert not explore(SCENARIOS[name], frozenset([guard])).wrong, "the others are enough"
    watched = frozenset([invariant])
    assert not explore(SCENARIOS[name], others, watched).wrong, "it is enough"
    assert explore(SCENARIOS[name], others | {guard}, watched).wrong


@pytest.mark.parametrize("guard", COVERED, ids=" ".join)
def test_nothing_goes_wrong_without(guard: Guard) -> None:
    names = [name for name in SCENARIOS if guard in explored(name).guards]
    assert names
    for name in names:
        assert not explore(SCENARIOS[name], frozenset([guard])).wrong, name


@pytest.mark.parametrize("guard", NEVER, ids=" ".join)
def test_nothing_is_committed_without(guard: Guard) -> None:
    assert guard[0] in explored(NEVER[guard]).commits
    assert guard[0] not in explore(SCENARIOS[NEVER[guard]], frozenset([guard])).commits


@pytest.mark.parametrize("shard", SHARDS)
def test_nothing_goes_wrong_with_any_pair(shard: str) -> None:
    if settings.get_current_profile_name() != "deep":
        pytest.skip("takes minutes: --hypothesis-profile=deep")
    before, wait = SHARDS[shard]
    for pair in combinations(EVERYTHING, 2):
        if not same_request(*pair):
            result = explore(Scenario(pair, before, wait, (LEASE_OVER,)))
            assert not result.wrong, "\n".join([*result.trace, *result.wrong])


def same_request(one: Operation, other: Operation) -> bool:
    """Whether they are different requests with one id."""
    return one.request_id == other.request_id and type(one) is not type(other)
