"""How a run of a command is disturbed, chosen at random from a seed."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from rmq_store.lake.commit.commit import STEPS
from tests.faults.soak.worker import LEASE_S, At

PLACES = (*STEPS, "entry")


class Kind(StrEnum):
    """What happens to the process."""

    NONE = "none"
    KILL = "kill"
    """SIGKILL."""
    FREEZE = "freeze"
    """SIGSTOP, and SIGCONT after its lease has ended."""
    TERMINATE = "terminate"
    """SIGTERM, as a scheduler does."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What happens to one run, and when."""

    kind: Kind = Kind.NONE
    at: At | None = None
    """At a step; None: after ``after_s``."""
    after_s: float = 0.0
    """Seconds after the start of the run."""
    frozen_s: float = 0.0
    """How long a frozen process sleeps."""
    is_taken_over: bool = False
    """Whether the same request is made again while the process is frozen."""

    def __str__(self) -> str:
        where = f"at {self.at.step} ({self.at.times})" if self.at else f"after {self.after_s:.2f} s"
        return str(self.kind) if self.kind is Kind.NONE else f"{self.kind} {where}"


def choose_disturbance(rng: Random) -> Disturbance:
    """About half of the runs are left alone."""
    kind = rng.choices((Kind.NONE, Kind.KILL, Kind.FREEZE, Kind.TERMINATE), weights=(50, 32, 12, 6))[0]
    after_s, at = rng.expovariate(2.0), None
    if kind in (Kind.KILL, Kind.FREEZE) and rng.random() < 0.65:
        number = signal.SIGKILL if kind is Kind.KILL else signal.SIGSTOP
        at = At(number, rng.choice(PLACES), rng.choices((1, 2, 3), weights=(5, 3, 2))[0])
    frozen_s = LEASE_S + rng.uniform(0.5, 2.5) if kind is Kind.FREEZE else 0.0
    return Disturbance(kind, at, after_s, frozen_s, kind is Kind.FREEZE and rng.random() < 0.5)
