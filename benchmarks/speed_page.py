"""The section "Last measured" of ``docs/speed.md``, from the JSON document of a run. This module reads no clock and no file."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from benchmarks.table import shown

HEADING = "## Last measured"


def with_last_run(page: str, run: Mapping[str, Any]) -> str:
    """The page with the section of this run (``table.document``), which is its last. Raises ValueError if it has none."""
    before, heading, _ = page.partition(HEADING + "\n")
    if not heading:
        raise ValueError(f"the page has no section {HEADING!r}")
    return before + last_run(run)


def last_run(run: Mapping[str, Any]) -> str:
    """The section, with a table for each scenario."""
    lines = [HEADING, "", *_about(run)]
    short_of = {row["key"]: row["short"] or row["key"] for row in run["measurements"]}
    for scenario, rows in groupby(run["measurements"], key=lambda row: row["scenario"]):
        lines += [
            "",
            f"### {_capitalized(scenario)}",
            "",
            "| what | median | min..max | unit | times as fast as | reach | met |",
        ]
        lines.append("|---|---|---|---|---|---|---|")
        lines += [_row(row, short_of) for row in rows]
    for scenario, error in run["failed"].items():
        lines += ["", f"Failed: {scenario}: {error}"]
    return "\n".join([*lines, ""])


def _about(run: Mapping[str, Any]) -> list[str]:
    """What was measured on, and with which sizes."""
    machine, options = run["machine"], run["options"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    gib = machine["memory_bytes"] / 2**30
    lines = [
        f"On {machine['day']}: {machine['cores']} cores, {gib:.0f} GiB, load {machine['load']:.1f} when it began.",
        f"Python {machine['python']}, {versions}.",
        f"Windows of {options['messages']:,} messages, {options['rounds']} rounds; {options['windows']:,} windows of growth.",
        "This section is generated:",
        "",
        "```",
        ".venv/bin/python -m benchmarks --json benchmarks/last_run.json",
        ".venv/bin/python -m benchmarks --write-docs docs/speed.md",
        "```",
    ]
    return lines if not options["quick"] else [*lines, "", "It was made with `--quick`: too small to say how fast."]


def _row(row: Mapping[str, Any], short_of: Mapping[str, str]) -> str:
    ratios = ", ".join(f"{shown(ratio)} {short_of[key]}" for key, ratio in row["ratios"].items())
    least, most = shown(row["min"]), shown(row["max"])
    cells = [
        ("peer: " if row["is_peer"] else "") + row["what"],
        shown(row["value"]),
        f"{least}..{most}" if least != most else "",
        row["unit"],
        ratios,
        row["target"] or "",
        {None: "", True: "yes", False: "no"}[row["met"]],
    ]
    return f"| {' | '.join(cells)} |"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
