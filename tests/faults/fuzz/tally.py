"""What a fuzz has tried, counted, and the report of it as text and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faults.fuzz.cases import KINDS
from tests.faults.fuzz.run_case import Result
from tests.faults.reports import page_table, text_table

COLUMNS = ("tried", "commands", "succeeded", "refused", "audits", "defects")
HEADING = "## Last fuzz"


@dataclass(slots=True)
class Tally:
    """Counts by kind of case. ``tried`` and ``defects`` are cases, the others commands."""

    counts: dict[str, Counter[str]] = field(default_factory=lambda: {kind: Counter() for kind in KINDS})
    refused: Counter[str] = field(default_factory=Counter)
    """Commands by the kind of their error."""
    failures: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The first of each kind, by what it is, with how often it was seen."""

    def add(self, result: Result) -> bool:
        """Count a case; returns whether its failure is a new one."""
        refused = sum(result.refused.values())
        self.counts[result.case.kind].update(
            tried=1,
            commands=result.succeeded + refused,
            succeeded=result.succeeded,
            refused=refused,
            audits=result.audits,
        )
        self.refused.update(result.refused)
        failure = result.failure
        if failure is None:
            return False
        self.counts[result.case.kind]["defects"] += 1
        is_new = failure.what not in self.failures
        entry = {
            "what": failure.what,
            "case": result.case.name,
            "command": failure.command,
            "text": failure.text,
            "times": 0,
        }
        self.failures.setdefault(failure.what, entry)["times"] += 1
        return is_new

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "kinds": {kind: {name: counts[name] for name in COLUMNS} for kind, counts in self.counts.items()},
            "refused": dict(sorted(self.refused.items())),
            "failures": list(self.failures.values()),
        }


def rows(run: Mapping[str, Any]) -> list[list[str]]:
    """A line for each kind, and the sum."""
    kinds: Mapping[str, Mapping[str, int]] = run["kinds"]
    lines = [[kind, *(f"{counts[name]:,}" for name in COLUMNS)] for kind, counts in kinds.items()]
    return [*lines, ["all", *(f"{sum(counts[name] for counts in kinds.values()):,}" for name in COLUMNS)]]


def shown(run: Mapping[str, Any]) -> str:
    """The report for a terminal."""
    lines = text_table([["kind", *COLUMNS], *rows(run)])
    lines += ["", "refused: " + (", ".join(f"{kind} {count:,}" for kind, count in run["refused"].items()) or "none")]
    for failure in run["failures"]:
        lines += ["", f"FAILURE, {failure['times']} times: {failure['what']}", f"  {failure['command']}"]
        lines += [f"  {line}" for line in failure["text"].splitlines()[:30]]
        lines += [f"  the same again: {failure['again']}"] if "again" in failure else []
    return "\n".join(lines)


def section(report: Mapping[str, Any]) -> str:
    """The generated section of docs/reliability.md: a table for each run."""
    lines = [
        HEADING,
        "",
        "This section is generated from `tests/faults/fuzz_report.json`:",
        "",
        "```",
        "make fuzz SECONDS=300 SEED=1 FUZZ_ARGS='--json tests/faults/fuzz_report.json'",
        ".venv/bin/python -m tests.faults.fuzz --write-docs",
        "```",
    ]
    for run in report["runs"]:
        refused = [[kind, f"{count:,}"] for kind, count in run["refused"].items()]
        lines += ["", f"### {run['seconds']:,} s, seed {run['seed']}", "", f"{run['processes']} processes.", ""]
        lines += [*page_table([["kind of case", *COLUMNS], *rows(run)]), ""]
        lines += page_table([["commands refused with", "times"], *refused])
    return "\n".join([*lines, ""])
