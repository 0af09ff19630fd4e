"""Plain English: what a user reads has the field's words, and a variable is a noun. ``CONTRIBUTING.md`` has the rule."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("rmq_store", "spark_jobs", "plugins", "dags", "demo", "scripts", "benchmarks")
PAGES = ("*.md", "docs/**/*.md", "rmq_store/lake/sql/views/*.sql")

BETTER = {
    r"anew": "again, from scratch",
    r"in vain|vain": "failed",
    r"(?<!dead )(?<!dead-)(?<!-)letters?(?!,? (?:and )?digits)": "dead letter",
    r"for good": "permanently",
    r"mend(?:s|ed|ing)?": "fix",
    r"minded": "handled",
    r"nobody|no one": "no consumer, no user, ...",
    r"somebody|someone": "another run, an operator, ...",
    r"is none of": "is not in",
    r"what stands in": "what is recorded in",
}
"""Retired words, as regular expressions, and what to say."""

NO_NOUNS = frozenset({"told", "said", "asked", "found", "wanted", "done", "left", "its"})
"""Participles that say nothing of a value: name it by what it is (``plan``, ``report``, ``queues``)."""


def sources() -> list[Path]:
    return [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]


def pages() -> list[Path]:
    return [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and texts that a person reads: of code its strings and comments, of a page all but its code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        words = re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        yield 1, " ".join(words.split())
        return
    # An option (`--letter`), a key of JSON ("letters") and what an f-string computes are names, not words.
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT) or "FSTRING_MIDDLE" in tokenize.tok_name[token.type]:
            words = re.sub(r"``[^`]*``|\{[^{}]*\}|^\w*[\"']\w+[\"']$", "", token.string)
            yield token.start[0], " ".join(words.split())


def retired(text: str) -> list[str]:
    words = "|".join(f"(?:{word})" for word in BETTER)
    return [match[0] for match in re.finditer(rf"\b(?:{words})\b", text, re.IGNORECASE)]


@pytest.mark.parametrize("path", [*sources(), *pages()], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_person_reads_has_no_retired_word(path: Path) -> None:
    assert [(line, words) for line, text in prose(path) if (words := retired(text))] == []


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Line numbers and names of the variables and parameters that ``path`` makes. ``left`` beside ``right`` is an operand;
    fields are not looked at, since a report's are keys of JSON."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    fields = {id(field.target) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
              for field in node.body if isinstance(field, ast.AnnAssign)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_variable_is_a_noun(path: Path) -> None:
    made = list(names(path))
    operands = {"left"} if "right" in {name for _, name in made} else set()
    assert [(line, name) for line, name in made if name in NO_NOUNS - operands] == []


def test_the_check_sees_strings_comments_and_names() -> None:
    assert retired("read it anew; the dead letters, a letter; nobody's") == ["anew", "letter", "nobody"]
    source = ROOT / "tests" / "unit" / "test_words.py"
    assert any("Plain English" in text for _, text in prose(source))
    assert {"CODE", "path", "words"} <= {name for _, name in names(source)}
