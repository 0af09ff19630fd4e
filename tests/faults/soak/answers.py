"""What the answer of a command means for the soak."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class Ending(StrEnum):
    """How a run ended."""

    DONE = "done"
    KILLED = "killed"
    TERMINATED = "terminated"
    REFUSED = "refused"
    """An error that the design allows: the same request may be made again."""
    DEFECT = "defect"


AGAIN = frozenset({"HeldByAnother", "StaleAttempt"})
"""Errors after which the same request is made again."""
OF_S3 = frozenset({"StoreUnusable", "CommitOutcomeUnknown"})
"""The same where a store may give no answer. A folder always answers, so there they are defects."""
WRONG_USE = frozenset({"NothingThere", "WrongUse"})
"""Errors that depend on what is in the store: a group without offsets, a topic that does not exist yet."""
_MAY_BE_WRONG = frozenset({"reset", "undo", "redrive", "replay", "delete-group"})
"""Commands that are chosen without a look into the store."""
_BESIDE_WINDOWS = frozenset({("maintain", "StoreUnusable")})
"""Retention gives up when groups have begun, or were reset, at each of its tries."""
_TERMINATED = 143


@dataclass(frozen=True, slots=True)
class Answer:
    """How a run ended, and its error or its status."""

    ending: Ending
    kind: str
    text: str = ""
    """The error's message, or what makes it a defect."""
    warnings: tuple[str, ...] = ()
    """Errors after a commit, which do not fail the command."""

    @property
    def is_final(self) -> bool:
        """Whether the request needs no other run."""
        return self.ending is Ending.DONE or (self.ending is Ending.REFUSED and self.kind in WRONG_USE)


def answer_of(
    kind: str, exit_code: int, folder: Path, *, was_killed: bool, was_terminated: bool, is_local: bool
) -> Answer:
    """``kind``: of the operation. ``folder``: has the output of the run. ``was_...``: which signals it was sent.
    ``is_local``: whether the store is a folder."""
    out, err = ((folder / name).read_text(errors="replace") for name in ("out", "err"))
    if exit_code == -9 and was_killed:
        return Answer(Ending.KILLED, "SIGKILL")
    if "Traceback (most recent call last)" in out + err or "this is a defect" in out + err:
        return Answer(Ending.DEFECT, "traceback", (err or out)[-3000:])
    if (exit_code == _TERMINATED or exit_code == -15) and was_terminated:
        return Answer(Ending.TERMINATED, "SIGTERM")
    document = _document(out) or _document(err)
    if document is None:
        return Answer(Ending.DEFECT, f"exit code {exit_code} without an answer", (out + err)[-3000:])
    if exit_code == 0:
        return Answer(Ending.DONE, str(document.get("status", "")), warnings=tuple(_warnings(document)))
    error = _error(document)
    text = json.dumps(document)[:3000]
    if error in AGAIN or (error in OF_S3 and not is_local) or (kind, error) in _BESIDE_WINDOWS:
        return Answer(Ending.REFUSED, error, text)
    if error in WRONG_USE and (error == "NothingThere" or kind.split()[0] in _MAY_BE_WRONG):
        return Answer(Ending.REFUSED, error, text)
    return Answer(Ending.DEFECT, error or f"exit code {exit_code}", text)


def _document(text: str) -> dict[str, Any] | None:
    """The JSON answer, which is the last thing that a command prints."""
    begin = text.find("{")
    try:
        value = json.loads(text[begin:]) if begin >= 0 else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _warnings(value: Any) -> Iterator[str]:
    """The texts under every key ``warnings``."""
    if isinstance(value, dict):
        yield from map(str, value.get("warnings") or ())
        for item in value.values():
            yield from _warnings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _warnings(item)


def _error(document: dict[str, Any]) -> str:
    """The kind of the error. With several groups: the one that is worst for the soak."""
    if "error" in document:
        return str(document["error"])
    kinds = [str(one["error"]) for one in document.get("groups", ()) if isinstance(one, dict) and one.get("error")]
    return next((kind for kind in kinds if kind not in AGAIN | OF_S3 | WRONG_USE), kinds[0] if kinds else "")
