"""What the soak and the fuzz share: their options, the JSON report of several runs, and its section of docs/reliability.md."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

CHECKOUT = Path(__file__).parents[2]
PAGE = CHECKOUT / "docs" / "reliability.md"


def parser_of(name: str, description: str, *, processes: int) -> argparse.ArgumentParser:
    """The options of both. ``name``: the module below ``tests.faults``, and the folder below ``var``."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.faults.{name}", description=description.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to work")
    parser.add_argument("--seed", default="", help="any text; by default a new one, which is printed")
    parser.add_argument("--processes", type=int, default=processes, help="how many work at once")
    parser.add_argument("--folder", type=Path, default=CHECKOUT / "var" / name, help="for the stores")
    parser.add_argument("--json", type=Path, help="write the report here; several runs are one report by --add")
    parser.add_argument("--add", action="store_true", help="keep the runs that the file has")
    parser.add_argument("--write-docs", action="store_true", help="only write the table of docs/reliability.md again")
    return parser


def seed_of(options: argparse.Namespace) -> str:
    """The seed that was given, or a new one."""
    return options.seed or f"{Random().randrange(10**6)}"


def write_report(options: argparse.Namespace, run: dict[str, Any]) -> None:
    """Write the run where ``--json`` says, behind the runs that are there with ``--add``."""
    if options.json:
        runs = json.loads(options.json.read_text("utf-8"))["runs"] if options.add and options.json.exists() else []
        options.json.write_text(json.dumps({"runs": [*runs, run]}, indent=1) + "\n", "utf-8")


def with_section(page: str, section: str) -> str:
    """The page with this section, whose heading is its first line, in place of the one with the same heading. Raises
    ValueError if it has none."""
    heading = section.partition("\n")[0]
    pattern = re.compile(rf"^{re.escape(heading)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    if not pattern.search(page):
        raise ValueError(f"the page has no section {heading!r}")
    return pattern.sub(lambda match: section + ("\n" if match.end() < len(page) else ""), page)


def text_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a terminal: the first column to the left, numbers to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(text.ljust(width) if column == 0 else text.rjust(width) for column, (text, width) in enumerate(cells))
        for cells in (list(zip(line, widths, strict=True)) for line in lines)
    ]


def page_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """The same in Markdown."""
    head, *rest = (f"| {' | '.join(line)} |" for line in lines)
    return [head, "|---|" + "---:|" * (len(lines[0]) - 1), *rest]
