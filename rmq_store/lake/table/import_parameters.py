"""What the parameters of an import must be, so that whoever takes one apart finds what it expects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rmq_store.commit.ctl import Action, Ctl
from rmq_store.errors import BadData
from rmq_store.lake.table.shapes import Shape, has_shape

IMPORTS = (Action.IMPORT, Action.SALVAGE, Action.HAND_BACK)
"""A hand-back records what the broker has, as an import without messages does."""

_SHAPES: Mapping[str, Shape] = {
    "begun_again": [(str, int, int)],
    "broker_name": str,
    "configs_of": str | None,
    "continues": {
        "broker_name": str,
        "cuts": [(str, int, int)],
        "end": int,
        "lost_messages": int,
        "lost_queues": int,
    },
    "continues_of": str,
    "deleted": int,
    "end_note": str,
    "fingerprint": (int, str),
    "generations": [(str, int, [int])],
    "generations_of": str,
    "handed_back_by": str,
    "kv_store": bool,
    "last_records": (int, int, str),
    "messages": int,
    "offsets_file": str,
    "pop_groups": [(str, str)],
    "other_levels": [(int, int)],
    "queue_gaps": [(str, int, int, int, str)],
    "range": (int, int),
    "skipped": [(int, int, str)],
    "unlisted": (int, int),
    "without_entries": [(str, int, int, int | None, bool)],
}
"""Those that are taken apart. An import of an earlier version has fewer."""

_SHOWN = 100
"""So many characters of a value are shown."""


def misshaped(action: str, parameters: Mapping[str, Any]) -> str | None:
    """The parameter, in words, that an import cannot have; None: there is none, or it is the record of something else."""
    for name, shape in _SHAPES.items() if action in IMPORTS else ():
        if name in parameters and not has_shape(parameters[name], shape):
            text = json.dumps(parameters[name], ensure_ascii=False, separators=(",", ":"))
            return f'a parameter that an import cannot have: "{name}":{text[:_SHOWN]}'
    return None


def parameter_of_import(ctl: Ctl, name: str) -> Any:
    """A parameter that the import must have. Raises BadData when it has none."""
    value = ctl.parameter(name)
    if value is None:
        raise BadData(
            f"the record of commit {ctl.commit_id} (action {ctl.action}) lacks the parameter {name}: it was changed. Restore "
            "its file, or the shard, from a backup"
        )
    return value
