"""``make test`` runs a third of the cases of each test, so that it keeps its time while the cases grow.

Each commit has another third, so that all cases run in the course of some commits, and the same commit always has the same.
``make test CASES=all`` runs each case, as does pytest without ``--sample`` (``docs/decisions/0027-a-third-of-the-cases.md``).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable

PART = 3
"""One of so many cases runs, rounded up: of one or more at least one."""


def sampled(cases: Iterable[tuple[str, str]], seed: str) -> set[str]:
    """The cases that run, of pairs of a test and the id of one of its cases."""
    of_test: defaultdict[str, list[str]] = defaultdict(list)
    for test, case in cases:
        of_test[test].append(case)
    drawn: set[str] = set()
    for several in of_test.values():
        several.sort(key=lambda case: hashlib.blake2b(f"{seed} {case}".encode(), digest_size=8).digest())
        drawn.update(several[: -(-len(several) // PART)])
    return drawn
