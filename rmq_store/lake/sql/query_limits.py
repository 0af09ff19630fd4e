"""How much time, memory and disk one query of a user may take."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from rmq_store.settings.environment import Environment
from rmq_store.utils.numbers import parse_size
from rmq_store.utils.times import parse_duration

_LEAST_MEMORY: Final = 64 << 20
"""With less, DuckDB cannot run the views."""
_MOST_DEFAULT_MEMORY: Final = 4 << 30


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Each limit has an option of ``rmq sql`` and an environment variable. ``of_environment`` has the defaults."""

    timeout_ms: int
    """After this time the query is ended; 0: no limit."""
    memory_bytes: int
    """DuckDB's memory; and the answer, which comes on top, has at most as many bytes."""
    spill_bytes: int
    """What DuckDB may write to ``TMPDIR`` when the memory is not enough."""

    @classmethod
    def of_environment(
        cls,
        environment: Environment | None = None,
        *,
        timeout_ms: int | None = None,
        memory_bytes: int | None = None,
        spill_bytes: int | None = None,
    ) -> QueryLimits:
        """The given limits, and for None those of the environment. Raises WrongUse for a variable that is invalid."""
        variables = Environment.read() if environment is None else environment
        memory = variables.sql_memory
        default_memory = default_memory_bytes() if memory is None else parse_size(memory)
        return cls(
            parse_duration(variables.sql_timeout) if timeout_ms is None else timeout_ms,
            max(default_memory if memory_bytes is None else memory_bytes, _LEAST_MEMORY),
            parse_size(variables.sql_spill) if spill_bytes is None else spill_bytes,
        )


def default_memory_bytes() -> int:
    """Half of the machine's memory, at most 4 GiB."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2, _MOST_DEFAULT_MEMORY)
