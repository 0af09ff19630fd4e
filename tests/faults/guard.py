"""A row of the list of guards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guard:
    """A function of ``rmq_store`` that refuses something, or decides what is safe."""

    place: str
    """``module:function``, below ``rmq_store``."""
    tests: tuple[str, ...]
    """Files, functions or cases, as pytest names them. The first that fails ends a mutant's run."""
    changes: tuple[tuple[str, str], ...] = ()
    """Texts of the function, each of which is there once, and what a mutant has instead."""
    deep: bool = False
    """Whether its tests are slow, so that its mutants run only on request."""

    @property
    def module(self) -> str:
        return f"rmq_store.{self.place.partition(':')[0]}"

    @property
    def function(self) -> str:
        return self.place.partition(":")[2]


def cases(file: str, *names: str) -> tuple[str, ...]:
    """Tests of a file."""
    return tuple(f"{file}::test_{name}" for name in names)
