"""The section "Last measured" of ``docs/speed.md``, from the JSON document of a run. This module reads no clock and no file."""

from __future__ import annotations

from collections.abc import Mapping
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
    lines = [HEADING, "", *_ABOUT]
    short_of = {row["key"]: row["short"] or row["key"] for one in run["scenarios"] for row in one["measurements"]}
    for scenario in run["scenarios"]:
        lines += ["", f"### {_capitalized(scenario['title'])}", "", *_about(scenario)]
        if scenario["measurements"]:
            lines += ["", "| what | median | min..max | unit | times as fast as | reach | met |"]
            lines.append("|---|---|---|---|---|---|---|")
            lines += [_row(row, short_of) for row in scenario["measurements"]]
        if scenario["failed"]:
            lines += ["", f"Failed: {scenario['failed']}"]
    return "\n".join([*lines, ""])


_ABOUT = (
    "This section is generated. Each scenario is of the newest run that measured it:",
    "",
    "```",
    ".venv/bin/python -m benchmarks --only NAME --json benchmarks/last_run.json",
    ".venv/bin/python -m benchmarks --write-docs docs/speed.md",
    "```",
)


def _about(scenario: Mapping[str, Any]) -> list[str]:
    """What it was measured on, and with which sizes."""
    machine, sizes = scenario["machine"], scenario["options"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    gib = machine["memory_bytes"] / 2**30
    load = " to ".join(f"{load:.1f}" for load in scenario["loads"])
    lines = [
        f"On {machine['day']}: {machine['cores']} cores, {gib:.0f} GiB, load {load}. Sizes: {sizes['messages']:,} messages,",
        f"{sizes['rounds']} rounds, {sizes['windows']:,} windows. Python {machine['python']}, {versions}.",
    ]
    return lines if not sizes["quick"] else [*lines, "It was made with `--quick`: too small to say how fast."]


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
