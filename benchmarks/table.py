"""Measurements, and the table and the JSON document that show them. This module reads no clock and no file."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any

from rich.table import Table

_COMPARE = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a value (docs/speed.md), such as ``Target(">=", 3.0)``."""

    compare: str
    value: float

    def __post_init__(self) -> None:
        if self.compare not in _COMPARE:
            raise ValueError(f"invalid comparison {self.compare!r}: expected one of {', '.join(_COMPARE)}")

    def __str__(self) -> str:
        return f"{self.compare} {shown(self.value)}"

    def is_met(self, value: float) -> bool:
        return bool(_COMPARE[self.compare](value, self.value))


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of the table."""

    key: str
    """Unique in a run."""
    what: str
    unit: str
    samples: tuple[float, ...]
    _: KW_ONLY
    target: Target | None = None
    peers: tuple[str, ...] = ()
    """The keys of other ways to do the same work, measured in the same run."""
    is_peer: bool = False
    """Another way to do the work, or a bound that no way can beat."""
    short: str = ""
    """The name of a peer beside a ratio."""
    more_is_better: bool = True
    quantile: float = 0.5
    """The quantile of the samples that is the row's value."""

    def __post_init__(self) -> None:
        if not self.samples or not all(math.isfinite(sample) for sample in self.samples):
            raise ValueError(f"{self.key}: samples must be finite numbers, at least one: {self.samples}")

    @property
    def value(self) -> float:
        return at_quantile(self.samples, self.quantile)

    @property
    def is_met(self) -> bool | None:
        """None: there is no target."""
        return None if self.target is None else self.target.is_met(self.value)

    def times_better_than(self, peer: Measurement) -> float:
        """How many times faster than the peer this is, by the values; below 1: slower."""
        if peer.unit != self.unit:
            raise ValueError(f"{self.key} is in {self.unit}, {peer.key} in {peer.unit}")
        return self.value / peer.value if self.more_is_better else peer.value / self.value


def at_quantile(samples: Sequence[float], quantile: float) -> float:
    """The median for 0.5, else the smallest sample that at least this share of the samples does not exceed."""
    if quantile == 0.5:
        return statistics.median(samples)
    return sorted(samples)[max(math.ceil(quantile * len(samples)) - 1, 0)]


def shown(value: float) -> str:
    """The number with three significant digits."""
    if value == 0:
        return "0"
    digits = max(2 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{digits}f}"


@dataclass(frozen=True, slots=True)
class Section:
    """The measurements of one scenario."""

    title: str
    measurements: tuple[Measurement, ...] = ()
    failed: str = ""
    """The error that stopped it, "" if none did."""
    loads: tuple[float, ...] = ()
    """The machine's load average when it began and when it ended."""


def ratios(measurement: Measurement, of_key: Mapping[str, Measurement]) -> dict[str, float]:
    """For each peer that was measured, how many times faster this was."""
    peers = (of_key.get(key) for key in measurement.peers)
    return {peer.key: measurement.times_better_than(peer) for peer in peers if peer}


def _by_key(sections: Iterable[Section]) -> dict[str, Measurement]:
    return {measurement.key: measurement for section in sections for measurement in section.measurements}


def table(sections: Sequence[Section], caption: str) -> Table:
    """The table that is printed."""
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
    ratio_of = ratios(measurement, of_key)
    met = {None: "", True: "[green]yes[/green]", False: "[red]no[/red]"}[measurement.is_met]
    return [
        ("  peer: " if measurement.is_peer else "  ") + measurement.what,
        shown(measurement.value),
        f"{shown(min(samples))}..{shown(max(samples))}" if len(samples) > 1 else "",
        str(len(samples)),
        measurement.unit,
        ", ".join(f"{shown(ratio)} {of_key[key].short or key}" for key, ratio in ratio_of.items()),
        str(measurement.target or ""),
        met,
    ]


def document(sections: Sequence[Section], machine: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The same as a JSON document, with every sample, and for each scenario the machine and the sizes."""
    of_key = _by_key(sections)
    return {
        "scenarios": [
            {
                "title": section.title,
                "machine": dict(machine),
                "options": dict(options),
                "loads": list(section.loads),
                "failed": section.failed,
                "measurements": [_document_of(measurement, of_key) for measurement in section.measurements],
            }
            for section in sections
        ]
    }


def _document_of(measurement: Measurement, of_key: Mapping[str, Measurement]) -> dict[str, Any]:
    return asdict(measurement) | {
        "target": None if measurement.target is None else str(measurement.target),
        "value": measurement.value,
        "min": min(measurement.samples),
        "max": max(measurement.samples),
        "met": measurement.is_met,
        "ratios": ratios(measurement, of_key),
    }


def with_scenarios(document: Mapping[str, Any], newer: Mapping[str, Any], titles: Sequence[str]) -> dict[str, Any]:
    """The document with the scenarios of a newer one in place of the same ones. ``titles``: of all that there are, in order;
    others are left out."""
    of_title = {scenario["title"]: scenario for one in (document, newer) for scenario in one["scenarios"]}
    return {"scenarios": [of_title[title] for title in titles if title in of_title]}
