"""What was measured, and the one table that says so. No clock and no file in here."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

_COMPARE = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True, slots=True)
class Target:
    """What design 8 wants of a value: ``Target(">=", 3.0)``."""

    compare: str
    value: float

    def __post_init__(self) -> None:
        if self.compare not in _COMPARE:
            raise ValueError(f"{self.compare!r} is none of {', '.join(_COMPARE)}")

    def __str__(self) -> str:
        return f"{self.compare} {shown(self.value)}"

    def is_met(self, value: float) -> bool:
        return bool(_COMPARE[self.compare](value, self.value))


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row. ``value`` is the ``quantile`` of the samples, by default their median.

    ``key`` is unique in a run; ``peers`` are the keys of what did the same work in the same run; ``is_peer``: somebody
    else's way to do it, or a bound that nothing can beat, and then ``short`` is its name beside a ratio.
    """

    key: str
    what: str
    unit: str
    samples: tuple[float, ...]
    target: Target | None = None
    peers: tuple[str, ...] = ()
    is_peer: bool = False
    short: str = ""
    more_is_better: bool = True
    quantile: float = 0.5

    def __post_init__(self) -> None:
        if not self.samples or not all(math.isfinite(sample) for sample in self.samples):
            raise ValueError(f"{self.key}: no samples, or one that is no number: {self.samples}")

    @property
    def value(self) -> float:
        return at_quantile(self.samples, self.quantile)

    @property
    def is_met(self) -> bool | None:
        """None: nothing was asked for."""
        return None if self.target is None else self.target.is_met(self.value)

    def times_better_than(self, peer: Measurement) -> float:
        """How many times faster than the peer, by the values; below 1: slower."""
        if peer.unit != self.unit:
            raise ValueError(f"{self.key} is in {self.unit}, {peer.key} in {peer.unit}")
        return self.value / peer.value if self.more_is_better else peer.value / self.value


def at_quantile(samples: Sequence[float], quantile: float) -> float:
    """The median, or the smallest sample that at least this share of them does not exceed."""
    if quantile == 0.5:
        return statistics.median(samples)
    return sorted(samples)[max(math.ceil(quantile * len(samples)) - 1, 0)]


def shown(value: float) -> str:
    """Three digits that count."""
    if value == 0:
        return "0"
    digits = max(2 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{digits}f}"


@dataclass(frozen=True, slots=True)
class Section:
    """What one scenario measured; ``failed``: what stopped it, "" when nothing did."""

    title: str
    measurements: tuple[Measurement, ...] = ()
    failed: str = ""


def ratios(measurement: Measurement, of_key: Mapping[str, Measurement]) -> dict[str, float]:
    """Per peer that was measured, how many times faster this was."""
    found = (of_key.get(key) for key in measurement.peers)
    return {peer.key: measurement.times_better_than(peer) for peer in found if peer}


def _by_key(sections: Iterable[Section]) -> dict[str, Measurement]:
    return {measurement.key: measurement for section in sections for measurement in section.measurements}


def table(sections: Sequence[Section], caption: str) -> Table:
    """The table for people."""
    of_key = _by_key(sections)
    rows = Table(title="Speed", caption=caption, caption_justify="left", title_justify="left")
    rows.add_column("what", max_width=60)
    rows.add_column("median", justify="right", no_wrap=True)
    rows.add_column("min..max", justify="right", no_wrap=True)
    rows.add_column("n", justify="right")
    rows.add_column("unit")
    rows.add_column("times as fast as")
    rows.add_column("reach", no_wrap=True)
    rows.add_column("met")
    for section in sections:
        rows.add_section()
        rows.add_row(f"[bold]{section.title}[/bold]")
        for measurement in section.measurements:
            rows.add_row(*_cells(measurement, of_key), style="dim" if measurement.is_peer else "")
        if section.failed:
            rows.add_row(f"[red]failed: {section.failed}[/red]")
    return rows


def _cells(measurement: Measurement, of_key: Mapping[str, Measurement]) -> list[str]:
    samples = measurement.samples
    found = ratios(measurement, of_key)
    met = {None: "", True: "[green]yes[/green]", False: "[red]no[/red]"}[measurement.is_met]
    return [
        ("  peer: " if measurement.is_peer else "  ") + measurement.what,
        shown(measurement.value),
        f"{shown(min(samples))}..{shown(max(samples))}" if len(samples) > 1 else "",
        str(len(samples)),
        measurement.unit,
        ", ".join(f"{shown(ratio)} {of_key[key].short or key}" for key, ratio in found.items()),
        str(measurement.target or ""),
        met,
    ]


def document(sections: Sequence[Section], machine: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The same for machines: every sample, and where it was measured."""
    of_key = _by_key(sections)
    rows = [
        asdict(measurement)
        | {
            "scenario": section.title,
            "target": None if measurement.target is None else str(measurement.target),
            "value": measurement.value,
            "min": min(measurement.samples),
            "max": max(measurement.samples),
            "met": measurement.is_met,
            "ratios": ratios(measurement, of_key),
        }
        for section in sections
        for measurement in section.measurements
    ]
    failed = {section.title: section.failed for section in sections if section.failed}
    return {"machine": dict(machine), "options": dict(options), "measurements": rows, "failed": failed}
