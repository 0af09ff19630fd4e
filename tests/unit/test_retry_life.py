"""The page about the retry life of a message says what the rules say."""

from __future__ import annotations

import pytest

from scripts.retry_life import PAGE, renewed


def test_the_page_is_what_the_rules_make() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page
    assert "flowchart TD" in page


def test_a_page_without_its_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="0 blocks diagram"):
        renewed("# nothing\n")
