"""The parameters that the record of an action on offsets has: the modules of ``admin/`` that make its request say which."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import NoneType
from typing import Any

from rmq_store.admin.reset import ResetTo
from rmq_store.admin.set_offsets import FILE
from rmq_store.commit.ctl import Action, canonical_json
from rmq_store.lake.table.shapes import Shape, has_shape
from rmq_store.window.consume_request import BOUNDS

_RESET: Mapping[str, Shape] = {"queues": list | None, "to": str, "topic": str}
_RESETS: Mapping[str, Mapping[str, Shape]] = {
    ResetTo.TIME: {**_RESET, "value": int},
    ResetTo.OFFSET: {**_RESET, "value": int},
    ResetTo.MIN: {**_RESET, "value": NoneType},
    ResetTo.MAX: {**_RESET, "value": NoneType},
    FILE: {"offsets": str, "to": str, "value": str},
}
_SHAPES: Mapping[str, Mapping[str, Shape]] = {
    Action.CLONE: {"source": str, "topic": str | None},
    Action.DELETE: {"dead_letters": int, "delayed": int, "retries": int},
    Action.REPLAY: {"attempt": int, "topic": str | None},
    Action.UNDO: {"undoes": str, "undoes_action": str, "undoes_commit": str},
}
_SOMETIMES: Mapping[str, Mapping[str, Shape]] = {Action.REPLAY: {BOUNDS: [(str, str, int, int)]}}
"""Attempts of earlier versions have none: they repeat the first one."""

_SHOWN = 100
"""So many characters of a value are shown."""


def wrong_parameters(action: str, text: str, parameters: Mapping[str, Any]) -> str | None:
    """What is wrong, in words, with the parameters of an action of ``MOVES``; None: nothing. ``parameters``: those of the
    ``text``, of which other statements read only the usual form."""
    if text != canonical_json(parameters):
        return "parameters in a form in which no commit has them"
    always = _shapes(action, parameters)
    if always is None:
        return f"a reset to {_text(parameters.get('to'))}, which none has"
    sometimes = _SOMETIMES.get(action, {})
    for name in sorted(always.keys() | parameters.keys()):
        shape = always.get(name) or sometimes.get(name)
        if name not in parameters:
            return f"no parameter {name}"
        if shape is None or not has_shape(parameters[name], shape):
            return f'a parameter that it cannot have: "{name}":{_text(parameters[name])}'
    return None


def _shapes(action: str, parameters: Mapping[str, Any]) -> Mapping[str, Shape] | None:
    if action != Action.RESET:
        return _SHAPES[action]
    to = parameters.get("to")
    return _RESETS.get(to) if isinstance(to, str) else None


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))[:_SHOWN]
