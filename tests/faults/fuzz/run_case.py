"""Run a case to its end, or to its first failure."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.fuzz.cases import Case
from tests.faults.fuzz.command_line import run_command
from tests.faults.fuzz.judge import Failure, entries, failure_of, moved_offset, store_failure
from tests.faults.fuzz.starts import begin


@dataclass(slots=True)
class Result:
    """What a case has come to."""

    case: Case
    succeeded: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Commands by the kind of their error."""
    audits: int = 0
    failure: Failure | None = None


def run_case(case: Case, starts: Path, folder: Path) -> Result:
    """``folder``: for the case, does not exist, is removed again."""
    result = Result(case)
    begin(starts, case.start, folder, case.files, has_broker=case.has_broker)
    try:
        first = before = entries(folder)
        for line in case.commands:
            answer = run_command(folder, line, case.stdin, case.variables)
            after = entries(folder)
            if answer.exit_code == 0:
                result.succeeded += 1
            else:
                result.refused[answer.kind or "finding"] += 1
            result.failure = failure_of(answer) or moved_offset(answer, before, after)
            if result.failure is not None:
                return result
            before = after
        if before != first:
            result.audits += 1
            result.failure = store_failure(folder)
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)
