"""The generated section of docs/reliability.md. This module reads no clock and no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.faults.soak.report_text import COLUMNS, rows, sums

HEADING = "## Last soak"


def with_report(page: str, report: Mapping[str, Any]) -> str:
    """The page with the section of this report, which is its last. Raises ValueError if it has none."""
    before, heading, _ = page.partition(HEADING + "\n")
    if not heading:
        raise ValueError(f"the page has no section {HEADING!r}")
    return before + section(report)


def section(report: Mapping[str, Any]) -> str:
    """A table for each run."""
    lines = [
        HEADING,
        "",
        "This section is generated from `tests/faults/soak_report.json`:",
        "",
        "```",
        "make soak SECONDS=3600 SEED=1 SOAK_ARGS='--json tests/faults/soak_report.json'",
        ".venv/bin/python -m tests.faults.soak --write-docs",
        "```",
    ]
    for run in report["runs"]:
        lines += ["", *_of_run(run)]
    return "\n".join([*lines, ""])


def _of_run(run: Mapping[str, Any]) -> list[str]:
    return [
        f"### {run['seconds']:,} s, store {run['store']}, engine {run['engine']}, seed {run['seed']}",
        "",
        f"{run['processes']} processes at a time. {sums(run)}.",
        "",
        "| command | " + " | ".join(COLUMNS) + " |",
        "|---|" + "---:|" * len(COLUMNS),
        *(f"| {' | '.join(line)} |" for line in rows(run)),
        "",
        "| refused with | times |",
        "|---|---:|",
        *(f"| {kind} | {count:,} |" for kind, count in run["refused"].items()),
        "",
        "| the checker reports | times |",
        "|---|---:|",
        *(f"| {kind} | {count:,} |" for kind, count in run["problems"].items()),
        f"| defects | {len(run['defects'])} |",
    ]
