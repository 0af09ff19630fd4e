"""The generated section of docs/reliability.md. This module reads no clock and no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.faults.reports import page_table
from tests.faults.soak.report_text import COLUMNS, rows, sums

HEADING = "## Last soak"


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
        *page_table([["command", *COLUMNS], *rows(run)]),
        "",
        *page_table([["refused with", "times"], *([kind, f"{count:,}"] for kind, count in run["refused"].items())]),
        "",
        *page_table(
            [
                ["the checker reports", "times"],
                *([kind, f"{count:,}"] for kind, count in run["problems"].items()),
                ["defects", f"{len(run['defects'])}"],
            ]
        ),
    ]
