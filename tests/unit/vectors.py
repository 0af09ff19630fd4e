"""Reading the data that RocketMQ itself made (``tests/data/rocketmq``, described by its README)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tests.conformance.checks import read_lines

DATA = Path(__file__).resolve().parents[1] / "data" / "rocketmq"


def read(name: str) -> list[dict[str, Any]]:
    """The lines of ``vectors/NAME.jsonl.gz``."""
    return _lines(f"vectors/{name}")


def behaviour(name: str) -> list[dict[str, Any]]:
    """The lines of ``behaviour/NAME.jsonl.gz``."""
    return _lines(f"behaviour/{name}")


def expected(name: str) -> list[dict[str, Any]]:
    """The lines of ``expected/NAME.jsonl.gz``."""
    return _lines(f"expected/{name}")


@cache
def _lines(path: str) -> list[dict[str, Any]]:
    return read_lines(DATA / f"{path}.jsonl.gz")
