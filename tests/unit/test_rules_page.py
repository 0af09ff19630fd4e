"""``docs/rocketmq-rules.md``: the rules of RocketMQ by number, and what points at them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "rocketmq-rules.md"
PLACES = ("rmq_store", "spark_jobs", "plugins", "dags", "demo", "benchmarks", "tests", "docs", "scripts")
SUFFIXES = {".py", ".sql", ".md", ".toml", ".yaml", ".sh"}

# "rules 9.1", "rules 9", "rules 9.1, 10.2 and 11.1". After the first number a whole one counts only before a comma or a
# bracket: in "rules 10.2 and 3 retries" the 3 is no section.
REFERENCE = re.compile(r"\brules (\d+(?:\.\d+)?(?:(?:,| and| to) (?:\d+\.\d+|\d+(?=[,;)])))*)")
LINE_BREAK = re.compile(r"\s*\n\s*(?:(?:#|--)\s+)?")
ANCHOR = re.compile(r'<a id="r([\d.]+)"></a>')
HEADING = re.compile(r"(#+) (\d+(?:\.\d+)?)\.? \S")


def texts() -> Iterator[tuple[Path, str]]:
    """Every text file of the project, by its path below the root."""
    for place in PLACES:
        for path in sorted((ROOT / place).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


def rules_named(text: str) -> set[str]:
    """The numbers that a text names as rules: ``{"9.1", "10.2"}``."""
    references = REFERENCE.findall(LINE_BREAK.sub(" ", text))
    return {number for reference in references for number in re.findall(r"[\d.]+", reference)}


def anchors() -> list[str]:
    return ANCHOR.findall(PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("(rules 9.1)", {"9.1"}),
        ("(rules 9, ``ProcessQueue``)", {"9"}),
        ("(rules 9.1, 10.2 and 11)", {"9.1", "10.2", "11"}),
        ("rules 11.1 to 11.3.", {"11.1", "11.3"}),
        ("rules 10.2 rows 4, 8 and 9", {"10.2"}),
        ("rules 10.2 and 3 retries", {"10.2"}),
        ("a comment (rules\n    # 7.8, 7.7)", {"7.8", "7.7"}),
        ("-- in SQL (rules 13.3,\n-- 13.5)", {"13.3", "13.5"}),
        ("the rules of section 4", set()),
    ],
)
def test_numbers_are_read_from_a_text(text: str, numbers: set[str]) -> None:
    assert rules_named(text) == numbers


def test_every_rule_that_a_file_names_is_on_the_page() -> None:
    known = set(anchors())
    named = {(path.as_posix(), number) for path, text in texts() for number in rules_named(text)}
    assert named  # the page itself says how a rule is named
    assert sorted((path, number) for path, number in named if number not in known) == []


def test_each_anchor_is_unique_and_stands_before_its_own_heading() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert len(anchors()) == len(set(anchors())) > 60
    for above, line in zip(["", *lines], lines, strict=False):
        anchor, heading = ANCHOR.fullmatch(above), HEADING.match(line)
        assert (anchor and anchor[1]) == (heading and heading[2]), line
        if heading:
            assert len(heading[1]) == 2 + heading[2].count("."), line


def test_every_link_inside_the_page_has_its_anchor() -> None:
    links = set(re.findall(r"\]\(#r([\d.]+)\)", PAGE.read_text(encoding="utf-8")))
    assert links
    assert links - set(anchors()) == set()


OTHER_DOCUMENT = re.compile(r'(?<!")\bS(?!3\b)\d+(?:\.\d+)*\b|\bdesign \d|\bE C\d|\bAppendix [A-E]\b')


def test_no_file_names_a_section_of_a_document_that_is_not_here() -> None:
    """Plain S3 is object storage. What a reader cannot open explains nothing."""
    assert OTHER_DOCUMENT.findall("as S9.1 and design 3 say of S3") == ["S9.1", "design 3"]
    references = {(path.as_posix(), match) for path, text in texts() for match in OTHER_DOCUMENT.findall(text)}
    assert {path for path, _ in references} == {"tests/unit/test_rules_page.py"}
