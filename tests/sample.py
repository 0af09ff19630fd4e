"""``make test`` runs a quarter of the cases of each test, and a quarter of the slow tests of each folder, so that it keeps its
time while they grow.

Each commit has another quarter, so that all run in the course of some commits, and the same commit always has the same.
``make test CASES=all`` runs each, as does pytest without ``--sample`` (``docs/decisions/0027-a-part-of-the-cases.md``).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable

PART = 4
"""One of so many cases runs, rounded up: of one or more at least one."""


def sampled(cases: Iterable[tuple[str, str]], seed: str) -> set[str]:
    """The cases that run, of pairs of a group and the id of a case. A group: the cases of a test, or a folder's slow tests."""
    of_group: defaultdict[str, list[str]] = defaultdict(list)
    for group, case in cases:
        of_group[group].append(case)
    drawn: set[str] = set()
    for several in of_group.values():
        several.sort(key=lambda case: hashlib.blake2b(f"{seed} {case}".encode(), digest_size=8).digest())
        drawn.update(several[: -(-len(several) // PART)])
    return drawn
