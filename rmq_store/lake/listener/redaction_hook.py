"""The deployment's own function for the texts of listeners' errors (``RMQ_REDACTION``), called before they are stored.

It runs in the process of the task, after ``utils/redaction.py``. What it returns has the same limit of length.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from rmq_store.consumer.listener import Answer
from rmq_store.errors import WrongUse, is_stop
from rmq_store.settings.environment import Environment
from rmq_store.utils.redaction import cleaned

WITHHELD = "(withheld: the function of RMQ_REDACTION failed)"

Redact = Callable[[Answer], Answer]


def redaction_hook() -> Redact:
    """What to do with each answer before it is kept. Raises WrongUse when the function cannot be imported."""
    name = Environment.read().redaction
    if name is None:
        return _as_it_is
    function = _imported(name)

    def redact(answer: Answer) -> Answer:
        return answer if answer.error_text is None else replace(answer, error_text=_text(function, answer.error_text))

    return redact


def _as_it_is(answer: Answer) -> Answer:
    return answer


def _text(function: Callable[[str], Any], text: str) -> str:
    """A text that the function cannot redact is not stored."""
    try:
        result = function(text)
    except BaseException as error:
        if is_stop(error):
            raise
        return WITHHELD
    return cleaned(result) if isinstance(result, str) else WITHHELD


@cache
def _imported(name: str) -> Callable[[str], Any]:
    module, colon, path = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), path)
    except Exception as error:
        raise WrongUse(
            f"RMQ_REDACTION={name} cannot be imported ({type(error).__name__}): write module:function"
        ) from error
    if not colon or not callable(function):
        raise WrongUse(f"RMQ_REDACTION={name} is no function: write module:function")
    result: Callable[[str], Any] = function
    return result
