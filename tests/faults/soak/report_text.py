"""The report of a run as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.faults.reports import text_table

COLUMNS = ("tried", "done", "killed", "frozen", "terminated", "refused", "again", "defect")


def rows(run: Mapping[str, Any]) -> list[list[str]]:
    """A line for each operation, and the sum."""
    operations: Mapping[str, Mapping[str, int]] = run["operations"]
    lines = [[kind, *(f"{counts[name]:,}" for name in COLUMNS)] for kind, counts in operations.items()]
    sums = [f"{sum(counts[name] for counts in operations.values()):,}" for name in COLUMNS]
    return [*lines, ["all", *sums]]


def shown(run: Mapping[str, Any]) -> str:
    """The table of operations, the sums of the checks, and the defects."""
    lines = text_table([["operation", *COLUMNS], *rows(run)])
    lines += ["", "refused: " + (", ".join(f"{kind} {count:,}" for kind, count in run["refused"].items()) or "none")]
    lines += [f"warning, {count} times, of {text}" for text, count in run["warnings"].items()]
    lines.append(sums(run))
    lines.append("checker: " + ", ".join(f"{kind} {count}" for kind, count in run["problems"].items()))
    for defect in run["defects"][:10]:
        lines += [
            "",
            f"DEFECT {defect['what']}: round {defect['round']}, operation {defect['number']}, {defect['disturbance']}",
            f"  {defect['command']}",
            f"  {defect['text']}",
        ]
    if len(run["defects"]) > 10:
        lines.append(f"... and {len(run['defects']) - 10} more defects, in the JSON report")
    return "\n".join(lines)


def sums(run: Mapping[str, Any]) -> str:
    """What was committed and called."""
    return (
        f"{run['rounds']} rounds, {run['checks']} checks, {run['commits']:,} commits, {run['windows']:,} windows, "
        f"{run['consumed']:,} offsets consumed, {run['messages']:,} messages stored, {run['calls']:,} calls of listeners, "
        f"{run['repeated_calls']:,} of them repeated"
    )
