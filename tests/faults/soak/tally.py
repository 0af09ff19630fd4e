"""What a soak has done, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.faults.independent.checker import Report
from tests.faults.independent.problems import Kind as ProblemKind
from tests.faults.soak.answers import Answer, Ending


@dataclass(frozen=True, slots=True)
class Defect:
    """Something that must not happen, and how it came about."""

    what: str
    command: str
    round: int
    number: int
    """Of the operation in its round; 0: a check."""
    disturbance: str
    text: str


@dataclass(slots=True)
class Tally:
    """Counts by operation."""

    tried: Counter[str] = field(default_factory=Counter)
    """Runs, those included that make a request again."""
    again: Counter[str] = field(default_factory=Counter)
    """Runs that make a request again."""
    frozen: Counter[str] = field(default_factory=Counter)
    endings: dict[str, Counter[str]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    """By command and kind of error."""
    examples: dict[str, str] = field(default_factory=dict)
    """An answer of each key of ``refused``."""
    warnings: Counter[str] = field(default_factory=Counter)
    """By command and text."""
    defects: list[Defect] = field(default_factory=list)
    rounds: int = 0
    checks: int = 0
    commits: int = 0
    windows: int = 0
    consumed: int = 0
    messages: int = 0
    calls: int = 0
    repeated_calls: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    """Of the checker, by kind."""

    def add(self, kind: str, answer: Answer) -> None:
        """The end of one run."""
        self.endings.setdefault(kind, Counter())[str(answer.ending)] += 1
        if answer.ending is Ending.REFUSED:
            self.refused[f"{kind}: {answer.kind}"] += 1
            self.examples.setdefault(f"{kind}: {answer.kind}", answer.text)
        self.warnings.update(f"{kind}: {text[:200]}" for text in answer.warnings)

    def add_report(self, report: Report, *, is_last: bool) -> None:
        """A check of the store; the counts are those of the last check of a round."""
        self.checks += 1
        for problem in report.problems:
            self.problems[str(problem.kind)] += 1
        if is_last:
            self.rounds += 1
            self.commits += report.commits
            self.windows += report.windows
            self.consumed += report.consumed
            self.messages += report.messages
            self.calls += report.calls
            self.repeated_calls += report.repeated_calls

    @property
    def failed(self) -> bool:
        return bool(self.defects or sum(self.problems.values()))

    def document(self) -> dict[str, Any]:
        """As JSON."""
        kinds = sorted(self.tried)
        return {
            "operations": {
                kind: {
                    "tried": self.tried[kind],
                    "again": self.again[kind],
                    "frozen": self.frozen[kind],
                    **{str(ending): self.endings.get(kind, Counter())[str(ending)] for ending in Ending},
                }
                for kind in kinds
            },
            "refused": dict(sorted(self.refused.items())),
            "examples": dict(sorted(self.examples.items())) if self.failed else {},
            "warnings": dict(self.warnings.most_common(20)),
            "rounds": self.rounds,
            "checks": self.checks,
            "commits": self.commits,
            "windows": self.windows,
            "consumed": self.consumed,
            "messages": self.messages,
            "calls": self.calls,
            "repeated_calls": self.repeated_calls,
            "problems": {str(kind): self.problems[str(kind)] for kind in ProblemKind},
            "defects": [
                {
                    "what": one.what,
                    "command": one.command,
                    "round": one.round,
                    "number": one.number,
                    "disturbance": one.disturbance,
                    "text": one.text,
                }
                for one in self.defects
            ],
        }
