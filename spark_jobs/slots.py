"""How many tasks a session runs at once, from its settings: a pure function, with no Spark in it."""

from __future__ import annotations

from collections.abc import Callable

UNBOUNDED_SLOTS = 64
"""With dynamic allocation and no ``maxExecutors``: executors come when tasks wait for them, so tasks are cut for this many."""


def planned_slots(setting: Callable[[str], str | None]) -> int | None:
    """How many slots the session is to have when its executors have come; None: only the running executors say it.

    With dynamic allocation, or just after its start, a session has fewer executors than it is going to have. A window that is
    cut for those would have too few tasks for the others.
    """

    def number(key: str) -> int | None:
        value = setting(key)
        return int(value) if value is not None and value.isdecimal() else None

    if parallelism := number("spark.default.parallelism"):
        return parallelism
    cores = number("spark.executor.cores")
    slots_each = max(1, (cores or 1) // (number("spark.task.cpus") or 1))
    most_cores = number("spark.cores.max")
    most = None if most_cores is None else max(1, most_cores // (number("spark.task.cpus") or 1))
    if setting("spark.dynamicAllocation.enabled") == "true":
        executors = number("spark.dynamicAllocation.maxExecutors")
        slots = UNBOUNDED_SLOTS if executors is None else executors * slots_each
        return slots if most is None else min(slots, most)
    instances = number("spark.executor.instances")
    return instances * slots_each if instances and most is None else most
