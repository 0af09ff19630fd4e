"""An index of positions by the parts of their application ids, so that looking at one group or topic costs what it has.

``off/orders/OrderEvents/broker-a/3`` is in ``index["off"]["orders"]["OrderEvents"]``, under its whole id. The parts are as
the id has them, encoded, and "" where an id has fewer. An index never changes: ``merged`` makes another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Txn = tuple[int, int]
"""The number of a position, and the ``lastUpdated`` of its ``txn`` (UTC ms, 0: unknown)."""
Txns = Mapping[str, Txn]
"""By application id."""
Index = Mapping[str, Mapping[str, Mapping[str, Txns]]]
"""By the kind and the two encoded parts after it: ``off``, group, topic; ``max``, topic, broker."""


def indexed(values: Mapping[str, int], updated_ms: Mapping[str, int]) -> Index:
    """The index of some positions: their numbers and ``lastUpdated`` by application id."""
    index: dict[str, dict[str, dict[str, dict[str, Txn]]]] = {}
    for app_id, value in values.items():
        kind, first, second = _place(app_id)
        txns = index.setdefault(kind, {}).setdefault(first, {}).setdefault(second, {})
        txns[app_id] = value, updated_ms.get(app_id, 0)
    return index


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The index ``old`` with the txns of ``new``. What has not changed is shared with ``old``, not copied."""
    changes = {
        key: value if isinstance(value, tuple) else merged(old.get(key, {}), value) for key, value in new.items()
    }
    return {**old, **changes}


def txn_of(index: Index, app_id: str) -> Txn | None:
    kind, first, second = _place(app_id)
    return index.get(kind, {}).get(first, {}).get(second, {}).get(app_id)


def under(index: Index, kind: str, first: str | None = None, second: str | None = None) -> Iterator[Txns]:
    """The txns under a kind, or under one or two encoded parts of it."""
    firsts = index.get(kind, {})
    several = firsts.values() if first is None else [firsts.get(first, {})]
    if second is None:
        return (txns for seconds in several for txns in seconds.values())
    return (seconds.get(second, {}) for seconds in several)


def _place(app_id: str) -> tuple[str, str, str]:
    kind, _, rest = app_id.partition("/")
    first, _, rest = rest.partition("/")
    return kind, first, rest.partition("/")[0]
