"""The progress of long work, in few lines."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Gets how much is finished, and of how much."""


def by_tenths(show: Progress) -> Progress:
    """Calls ``show`` only when another tenth is finished. Work that starts again, with a smaller count, is shown again."""
    last_count = last_tenth = 0

    def progress(count: int, total: int) -> None:
        nonlocal last_count, last_tenth
        if count < last_count:
            last_tenth = 0
        last_count = count
        tenth = 10 * count // total if total else 10
        if tenth > last_tenth:
            last_tenth = tenth
            show(count, total)

    return progress
