"""What is wrong with the answer of a command, and with the store that it leaves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rmq_store.errors import RmqError
from tests.faults.fuzz.command_line import Answer, run_command

_FINDINGS = frozenset({"audit", "doctor", "diff", "dispatch"})
"""Commands that end with 1 if they find something."""
_AS_IT_IS = frozenset({"csv", "json", "--raw"})
"""Forms of an answer that have texts as they are."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_OFFSET = re.compile(rb'"txn":\{"appId":"off/([^"]*)"')
_WITHOUT_COMMITS = frozenset({"status", "error", "message", "exit_code", "request_id", "requests"})
"""Keys of an error that reports no commit."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that must not happen."""

    what: str
    """Its kind, and for a defect its error: two failures with the same text are taken for the same."""
    command: str
    text: str


def _kinds(error: type[RmqError]) -> Iterator[str]:
    yield error.__name__
    for kind in error.__subclasses__():
        yield from _kinds(kind)


REFUSALS = frozenset(_kinds(RmqError)) | {"Stopped"}
"""Errors that a command may answer with; ``Stopped``: a listener raised KeyboardInterrupt."""


def failure_of(answer: Answer) -> Failure | None:
    """What is wrong with one answer, None if nothing is."""
    problem = _problem(answer)
    if problem is None:
        return None
    return Failure(problem, shown_line(answer.line), answer.shown())


def shown_line(line: tuple[str, ...]) -> str:
    """A command for a person, cut; the file of a case has all of it."""
    words = (word if re.fullmatch(r"[\w./:@%+=,-]+", word) else ascii(word) for word in ("rmq", *line))
    return " ".join(word if len(word) < 120 else f"{word[:120]}..." for word in words)


def _problem(answer: Answer) -> str | None:
    text = (answer.out + answer.err).decode("utf-8", "backslashreplace")
    message = str(answer.error.get("message", ""))
    if answer.raised:
        return answer.raised.split(" - ")[0][:200]
    if "out of memory" in message:
        return "out of memory"
    if "this is a defect" in text:
        of_warning = re.search(r"[^\n]{0,200}this is a defect", text)
        return f"defect: {answer.kind if answer.kind not in REFUSALS else of_warning and of_warning[0][-120:]}"
    if "Traceback (most recent call last)" in text:
        return "traceback"
    if answer.exit_code not in (0, 1, 2, 3, 130):
        return f"exit code {answer.exit_code}"
    if answer.kind and answer.kind not in REFUSALS:
        return f"error {answer.kind}"
    words = set(answer.line)
    if (
        answer.exit_code
        and not answer.kind
        and not (answer.exit_code == 1 and words & _FINDINGS)
        and not _is_report(answer)
    ):
        return f"exit code {answer.exit_code} without an error"
    if "--json" in answer.line and not answer.exit_code and not _is_json(answer.out):
        return "the answer is no JSON document"
    if not words & _AS_IT_IS and _CONTROL.search(text):
        return "control characters"
    return None


def _is_report(answer: Answer) -> bool:
    """``consume --all``, whose errors are those of its groups."""
    return "--all" in answer.line and "consume" in answer.line


def _is_json(out: bytes) -> bool:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        json.loads(out, parse_constant=refuse)
    except ValueError:
        return False
    return True


# --- the store --------------------------------------------------------------------------------------------------------


def entries(folder: Path) -> Mapping[Path, int]:
    """The entries of the commit logs of the store, with their sizes."""
    return {path: path.stat().st_size for path in folder.glob("store/*/commitlog/_delta_log/*.json")}


def moved_offset(answer: Answer, before: Mapping[Path, int], after: Mapping[Path, int]) -> Failure | None:
    """A command that failed, says of no commit, and has moved an offset."""
    if not answer.exit_code or answer.kind in ("", "Stopped", "CommitOutcomeUnknown"):
        return None
    if answer.error.keys() - _WITHOUT_COMMITS:
        return None
    for path in after.keys() - before.keys():
        if at := _OFFSET.search(path.read_bytes()):
            what = f"a failed command has moved an offset: {answer.kind}"
            return Failure(what, shown_line(answer.line), f"{at[1].decode()}: {answer.shown()}")
    return None


def store_failure(folder: Path) -> Failure | None:
    """What the audit says of the store, and whether its tables are those of its commit log."""
    for line in (("audit", "--full", "--json"), ("dispatch", "--check", "--json")):
        answer = run_command(folder, line, variables={"RMQ_SETTINGS": "none.toml"})
        if answer.exit_code:
            failure = failure_of(answer)
            what = failure.what if failure else f"{line[0]} after the commands: {answer.kind or _first(answer.out)}"
            return Failure(what, shown_line(line), answer.shown())
    return None


def _first(out: bytes) -> str:
    """The kind of the first finding."""
    try:
        document: Any = json.loads(out)
    except ValueError:
        return "no JSON"
    problems = document.get("problems") or document.get("audit") or document.get("differences") or [{}]
    return str(problems[0].get("problem") or problems[0].get("check") or problems[0].get("table") or "")
