"""The documents name files and tests that exist, and the site of them has every page."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from mkdocs.structure.pages import Page
from mkdocs.utils.yaml import yaml_load

from scripts import docs_site

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
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


def written_tests() -> set[str]:
    return {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize("document", ["invariants.md", "rocketmq-issues.md", "faults.md"])
def test_tests_that_hold_a_promise_are_there(document: str) -> None:
    promised = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / document).read_text(encoding="utf-8")))
    assert len(promised) > 15
    assert promised - written_tests() == set()


THREADS = """
334 617 1135 2166 2955 4909 9083 937 958 7074 4777 345 1440 2181 2705 7182 534 1600 4215 4219 3503 10263 4933 122 1732 3066
3120 10176 3401 6096 9328 10258 10518 10568 719 269 5035 290 513 951 1077 2661 3062 3105 4890 5445 5752 211 3310 2267 4470
2604 1382 1815 3171 7332 1380 1383 1384 1385 682 1452 1561 4384 4397 7121 4815 1236 1334 2436 6461 2722 2724 3318 1472 3327
652 5717 6163 10405 557 1229 1190 5441 281 417 1873 2089 5473 7717 556 1470 2732 3653 5315 8419 8420 81 190 551 4774
"""


def test_every_thread_has_one_row_and_every_row_a_test() -> None:
    page = (ROOT / "docs" / "rocketmq-issues.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if "`test_" in line and line.startswith("| ")]
    named = [number for row in rows for number in re.findall(r"#(\d+)", row[0])]
    assert sorted(named) == sorted(THREADS.split())
    assert {len(row) for row in rows} == {4}


def test_every_fault_has_one_row_and_every_row_a_test() -> None:
    page = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| F")]
    assert sorted(int(row[0].removeprefix("| F")) for row in rows) == list(range(1, 38))
    assert {len(row) for row in rows} == {4}
    assert [row[0] for row in rows if "`test_" not in row[3]] == []


PAGES = sorted((ROOT / "docs").rglob("*.md"))


def pages_of(navigation: Iterable[Any]) -> Iterator[str]:
    """The pages of a navigation of mkdocs, from top to bottom."""
    for entry in navigation:
        if isinstance(entry, str):
            yield entry
        else:
            for part in entry.values():
                yield from pages_of([part] if isinstance(part, str) else part)


def test_the_navigation_of_the_site_has_each_page_once() -> None:
    settings = yaml_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(pages_of(settings["nav"])) == [str(page.relative_to(ROOT / "docs")) for page in PAGES]


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.name)
def test_a_list_is_a_list_for_the_site_too(document: Path) -> None:
    """mkdocs reads a list, a table or a block of code as text unless an empty line is before it, and a list in a list only with
    four spaces."""
    text = re.sub(
        r"^( *)(```+).*?^ *\2$", r"\1code", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    wrong = []
    for before, line in itertools.pairwise(text.splitlines()):
        is_entry = re.match(r"[-*] |\d+\. ", line) is not None
        if is_entry and before.strip() and not re.match(r"[-*] |\d+\. |  ", before):
            wrong.append(f"no empty line before: {line}")
        if re.match(r" {1,3}([-*]|\d+\.) ", line):
            wrong.append(f"not four spaces: {line}")
        if line.startswith("|") and before.strip() and not before.startswith(("|", "<!--")):
            wrong.append(f"no empty line before: {line}")
    assert wrong == []


def test_a_page_without_pictures_says_how_to_make_them() -> None:
    assert docs_site.sections([]) == docs_site.NO_PICTURES
    assert docs_site.sections(["dead-letters-dark"]) == (
        "## Dead letters dark\n\n![dead-letters-dark](screens/dead-letters-dark.png)\n"
    )


@pytest.mark.parametrize(
    ("html", "is_refused"),
    [
        ('<script src="https://example.com/a.js"></script>', True),
        ("<link rel=stylesheet href=//example.com/a.css>", True),
        ('<script src="assets/a.js"></script>', False),
        ('<a href="https://example.com/">a link</a>', False),
    ],
)
def test_a_page_loads_nothing_from_other_hosts(html: str, is_refused: bool) -> None:
    page = Page("Start", File("start.md", None, "site", False), MkDocsConfig())
    with pytest.raises(PluginError, match=r"start\.md loads a file") if is_refused else nullcontext():
        assert docs_site.on_post_page(html, page=page, config=MkDocsConfig()) == html
