"""About how long windows would take: an estimate, with the sample of earlier windows that it comes from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from rmq_store.commit.ctl import Ctl
from rmq_store.utils.host import uuid7_ms

SAMPLED_WINDOWS = 10
"""An estimate comes from so many windows at most, the last ones of the group."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The windows from which a time is estimated."""

    group: str
    windows: int
    messages: int
    """Of all these windows."""
    per_s: float
    """Messages a second: the rate at which the median message of the sample was consumed."""
    slowest_per_s: float
    fastest_per_s: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """About how long the windows of a plan would take."""

    seconds: float
    messages: int
    sample: Sample

    def __str__(self) -> str:
        sample = self.sample
        last = "the last window" if sample.windows == 1 else f"the median of the last {sample.windows} windows"
        speed = f"{self.messages:,} messages at {_rate(sample.per_s)}/s"
        return f"{_about(self.seconds)}: {speed}, {last} of {sample.group}"


def sample_of(group: str, windows: Iterable[Ctl]) -> Sample | None:
    """The sample of these windows of the group, those without messages left out; None: there are no others.

    A window took from its claim to its commit. Rates are weighted by messages: a backfill is not estimated from windows of
    three messages, which mostly wait.
    """
    rates = []
    for ctl in windows:
        messages = sum(consumed.messages for consumed in ctl.consumed)
        if messages:
            rates.append((messages * 1000 / max(ctl.store_timestamp - uuid7_ms(ctl.commit_id), 1), messages))
    if not rates:
        return None
    rates.sort()
    reached = list(accumulate(messages for _, messages in rates))
    median, _ = rates[bisect_left(reached, reached[-1] / 2)]
    return Sample(group, len(rates), reached[-1], median, rates[0][0], rates[-1][0])


def estimate_of(messages: int, sample: Sample | None) -> Estimate | None:
    """How long so many messages would take; None where there is nothing to do or nothing to estimate it from."""
    return None if sample is None or not messages else Estimate(messages / sample.per_s, messages, sample)


def no_estimate(messages: int, windows: int) -> str:
    """Why there is no estimate for so many messages. ``windows``: how many of the group's last windows were looked at."""
    if not windows:
        return "no estimate: the group has no windows yet"
    if not messages:
        return "no estimate: there are no messages to read"
    last = "the last window had" if windows == 1 else f"the last {windows} windows had"
    return f"no estimate: {last} no messages"


def time_limit_notes(longest: Estimate | None, max_minutes: int | None) -> list[str]:
    """A sentence where the group's ``max_minutes`` probably ends a window before its plan does. ``longest``: the estimate of
    the window with the most messages."""
    if longest is None or max_minutes is None or longest.seconds <= max_minutes * 60:
        return []
    takes = f"a window of {longest.messages:,} messages takes {_about(longest.seconds)}"
    return [
        f"{takes}, and the group's max_minutes is {max_minutes}: it probably ends earlier than planned, and more windows follow"
    ]


def _about(seconds: float) -> str:
    return f"about {_duration(seconds)}"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "less than a second"
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.2g}"
