"""Each guard of the product has a test that fails without it (``tests/faults/mutants.py``)."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from hypothesis import settings

from rmq_store.errors import (
    ClockSkew,
    CommitOutcomeUnknown,
    EvidenceMismatch,
    HeldByAnother,
    StagedFileGone,
    StaleAttempt,
)
from tests.faults.guard import Guard
from tests.faults.guards import BUILDERS, EQUIVALENT, EXEMPT, GUARDS
from tests.faults.mutants import PROJECT, functions_of, mutants_of

REFUSALS = (StaleAttempt, EvidenceMismatch, StagedFileGone, ClockSkew, HeldByAnother, CommitOutcomeUnknown)
MODULES = [".".join(path.relative_to(PROJECT).with_suffix("").parts) for path in (PROJECT / "rmq_store").rglob("*.py")]


def refusing() -> set[str]:
    """The functions, as ``Guard.place``, that make one of the errors with which the commit protocol refuses."""
    names = {error.__name__ for error in REFUSALS} | set(BUILDERS)
    return {
        f"{module.partition('.')[2]}:{name}"
        for module in MODULES
        for name, function in functions_of(module).items()
        if name not in BUILDERS
        and any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
            for node in ast.walk(function)
        )
    }


def test_every_refusal_of_the_commit_protocol_is_in_the_table() -> None:
    listed = {guard.place for guard in GUARDS} | EXEMPT.keys()
    assert refusing() - listed == set(), (
        "add them to tests/faults/guards_of_commits.py, with the tests that must notice"
    )
    assert EXEMPT.keys() - refusing() == set()


def test_the_table_follows_the_code() -> None:
    """Each guard has mutants, and no two have one name."""
    names = [mutant.name for guard in GUARDS for mutant in mutants_of(guard)]
    assert len(names) == len(set(names))
    assert EQUIVALENT.keys() - set(names) == set()


def test_a_text_that_is_not_in_the_code_any_more_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"compare has 0 times the text 'no such text'"):
        mutants_of(Guard("commit.decide:compare", (), (("no such text", ""),)))
    with pytest.raises(ValueError, match="no such function"):
        mutants_of(Guard("commit.decide:no_such_function", ()))


def test_each_guard_that_is_left_out_is_noticed() -> None:
    """In a process of its own, since it forks. ``--hypothesis-profile=deep`` also runs those whose tests are slow."""
    deep = ["--deep"] if settings.get_current_profile_name() == "deep" else []
    run = subprocess.run(
        [sys.executable, "-m", "tests.faults.mutants", *deep],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
