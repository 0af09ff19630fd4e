"""``docs/python.md`` as a program, and what it has to print."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
_BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def program_and_output() -> tuple[str, str]:
    """All blocks ``python`` in their order, and all blocks ``text``."""
    blocks = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    program, output = ("\n".join(text for kind, text in blocks if kind == wanted) for wanted in ("python", "text"))
    return program, output.replace("\n\n", "\n")
