"""New files and folders have messages or secrets in them, so by default only their user may read them (``RMQ_UMASK``)."""

from __future__ import annotations

import os
import re

from rmq_store.errors import WrongUse
from rmq_store.settings.environment import Environment


def umask_of(environment: Environment | None = None) -> int:
    """The permissions that new files and folders do not get. Raises WrongUse for ``RMQ_UMASK`` that is no such number, or
    takes permissions from the user."""
    text = (Environment.read() if environment is None else environment).umask
    if not re.fullmatch("0?0[0-7]{2}", text):
        raise WrongUse(
            f"invalid RMQ_UMASK {text!r}: use three octal digits, 077 for private files, 007 to share with a group"
        )
    return int(text, 8)


def apply_umask() -> None:
    """Set the umask of this process, and of those that it starts. Only for a process of our own: not for a library."""
    os.umask(umask_of())
