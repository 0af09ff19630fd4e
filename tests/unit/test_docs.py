"""The documents name files and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLACES = ("rmq_store", "spark_jobs", "dags", "plugins", "demo", "tests", "benchmarks", "docs", "scripts")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_that_a_document_names_are_there(document: Path) -> None:
    named = re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", document.read_text(encoding="utf-8"))
    missing = [
        name
        for name in named
        if not (ROOT / name).exists() and not (ROOT / "rmq_store" / name).exists() and name.split("/")[0] in _KNOWN
    ]
    assert missing == []


_KNOWN = {*PLACES, *(path.name for path in (ROOT / "rmq_store").iterdir() if path.is_dir())}


def test_tests_that_hold_a_promise_are_there() -> None:
    promised = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")))
    written = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    assert len(promised) > 15
    assert promised - written == set()
