"""Finds the files of a set, and checks each by its folder and kind.

The layout is that of ``tests/data/rocketmq``, described by its README: ``vectors/KIND``, ``expected/NAME.KIND`` and
``behaviour/NAME.KIND`` beside ``stores/NAME``. Nothing here knows a NAME.
"""

from __future__ import annotations

import importlib
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from demo.archives import unpack
from tests.conformance.broker_store import BrokerStore
from tests.conformance.checks import NotChecked, Outcomes, read_lines, shown

Check = Callable[[], Outcomes]

LINES, ARCHIVE = (".jsonl.gz", ".jsonl"), (".tar.gz", ".tgz", ".tar")
FIRST_FAILURES = 5

VECTORS = {
    "allocation": "allocation:check",
    "allocation-order": "allocation:check_order",
    "concurrent-result": "concurrent_result:check",
    "damaged": "records:check_damaged",
    "delays": "delays:check",
    "ids": "ids:check",
    "local-offset-store": "local_offset_store:check",
    "names": "names:check",
    "offset-files": "offset_files:check",
    "orderly-result": "orderly_result:check",
    "process-queue": "process_queue:check",
    "properties": "properties:check",
    "records": "records:check_records",
    "retry-policies": "delays:check_policies",
    "sql92": "sql92:check",
    "start-offsets": "start_offsets:check",
    "tags": "tags:check",
}
"""Kind -> module:function of this package, which takes the lines."""

EXPECTED = {
    "acknowledged": "recovery:check_acknowledged",
    "admin": "admin:check",
    "commitlog": "messages:check_commit_log",
    "get": "pulls:check_get",
    "keys": "keys:check",
    "messages": "messages:check_messages",
    "pull": "pulls:check_pull",
    "queues": "queues:check_queues",
    "recovery": "recovery:check_recovery",
    "timesearch": "queues:check_time_search",
}
"""Kind -> function which takes the lines and the store of that NAME."""

BEHAVIOUR = {
    "chains": "rerun:check",
    "groups": "rerun:check_groups",
    "sent": "behaviour:check_sent",
    "trace": "behaviour:check_trace",
}
"""As EXPECTED."""

LOCAL_OFFSETS = re.compile(r"(?P<name>.+)\.broadcast-offsets(?P<bak>\.bak)?\.json")
"""The text of a broadcasting client's offset file, or of the one before."""

REQUESTS = ("-requests", ".requests")
"""``behaviour/NAME-requests``: single requests to a broker of which there is no store."""


@dataclass(slots=True)
class FileReport:
    """What became of one file. ``failures``: the first ones. ``not_checked``: reason -> how often. ``note``: why there is
    nothing to count."""

    name: str
    passed: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    not_checked: Counter[str] = field(default_factory=Counter)
    note: str = ""
    unknown: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether everything in it was checked and passed."""
        return not (self.failed or self.not_checked or self.unknown)

    def lines(self) -> Iterator[str]:
        """What is printed."""
        if self.note:
            yield f"{self.name}: {self.note}"
            return
        if not (self.passed or self.failed) and len(self.not_checked) == 1:
            yield f"{self.name}: not checked yet: {next(iter(self.not_checked))}"
            return
        left = f", {self.not_checked.total()} not checked yet" if self.not_checked else ""
        yield f"{self.name}: {self.passed} passed, {self.failed} failed{left}"
        yield from (f"    {failure}" for failure in self.failures)
        if self.failed > len(self.failures):
            yield f"    and {self.failed - len(self.failures)} more"
        yield from (f"    not checked yet, {count} times: {reason}" for reason, count in self.not_checked.items())

    def document(self) -> dict[str, Any]:
        """The same for ``--json``."""
        return {
            "name": self.name,
            "passed": self.passed,
            "failed": self.failed,
            "failures": self.failures,
            "not_checked": dict(self.not_checked),
            "note": self.note,
            "unknown": self.unknown,
            "seconds": round(self.seconds, 3),
        }


class Conformance:
    """One set of files, ``data``. Stores are unpacked and imported below ``work``, each once, when a file asks for it."""

    def __init__(self, data: Path, work: Path) -> None:
        self._files: dict[str, Path] = {}
        for path in sorted(path for path in data.rglob("*") if path.is_file()):
            whole = path.relative_to(data).as_posix()
            name = whole.removesuffix(_suffix(path, (*LINES, *ARCHIVE)))
            self._files[whole if name in self._files else name] = path
        self._stores = _Stores(data, work)

    def names(self, only: str = "*") -> list[str]:
        """The files whose name fits the pattern; a name is the path without its last suffixes."""
        return [name for name in self._files if fnmatchcase(name, only)]

    def parts(self, name: str) -> tuple[Any, ...]:
        """What the check of a file of lines is made of: the function, the lines, the store if it takes one."""
        folder, _, stem = name.rpartition("/")
        of_store, _, kind = stem.rpartition(".")
        lines = read_lines(self._files[name])
        if folder == "vectors":
            return function_named(VECTORS[stem]), lines
        if stem.endswith(REQUESTS):
            return function_named("requests:check"), lines
        return function_named({**EXPECTED, **BEHAVIOUR}[kind]), lines, self._stores.named(of_store)

    def report(self, name: str) -> FileReport:
        """Check one file."""
        began = time.perf_counter()
        report = FileReport(name)
        check = self._check_of(name, self._files[name], report)
        if check is not None:
            _count(report, check)
        report.seconds = time.perf_counter() - began
        return report

    def _check_of(self, name: str, path: Path, report: FileReport) -> Check | None:
        """What to run for a file; None, with a note in the report: nothing."""
        folder, _, stem = name.rpartition("/")
        of_store, _, kind = stem.rpartition(".")
        is_lines = bool(_suffix(path, LINES))
        match folder:
            case "vectors" if is_lines and stem in VECTORS:
                return _bound(VECTORS[stem], lambda: (read_lines(path),))
            case "stores" if _suffix(path, ARCHIVE):
                return _bound("stores:check", lambda: (self._stores.named(stem),))
            case "expected" if is_lines and of_store and kind in EXPECTED:
                return _bound(EXPECTED[kind], lambda: (read_lines(path), self._stores.named(of_store)))
            case "behaviour" if is_lines and of_store and kind in BEHAVIOUR:
                return _bound(BEHAVIOUR[kind], lambda: (read_lines(path), self._stores.named(of_store)))
            case "behaviour" if is_lines and stem.endswith(REQUESTS):
                return _bound("requests:check", lambda: (read_lines(path),))
            case "behaviour" if local := LOCAL_OFFSETS.fullmatch(path.name):
                text = path.read_text(encoding="utf-8")
                check = "rerun:check_local_offsets_before" if local["bak"] else "rerun:check_local_offsets"
                return _bound(check, lambda: (text, self._stores.named(local["name"])))
            case "" if path.suffix == ".md":
                report.note = "text, nothing to check"
            case _:
                report.note, report.unknown = "unknown file", True
        return None


def run(data: Path, only: str = "*") -> Iterator[FileReport]:
    """Check every file below ``data`` whose name fits the pattern."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as work:
        conformance = Conformance(data, Path(work))
        for name in conformance.names(only):
            yield conformance.report(name)


def function_named(name: str) -> Callable[..., Outcomes]:
    """``module:function`` of this package.

    :raises ModuleNotFoundError: there is no such module.
    """
    module, _, attribute = name.partition(":")
    found: Callable[..., Outcomes] = getattr(importlib.import_module(f"tests.conformance.{module}"), attribute)
    return found


# --- what a check works on -----------------------------------------------------------------------------------------


class _Stores:
    """The stores of the set by name; each is unpacked when the first file asks for it."""

    def __init__(self, data: Path, work: Path) -> None:
        self._data = data
        self._work = work
        self._opened: dict[str, BrokerStore] = {}

    def named(self, name: str) -> BrokerStore:
        """:raises FileNotFoundError: the set has no such store."""
        if name not in self._opened:
            archive = _there(self._data / "stores", name, ARCHIVE)
            folder = unpack(archive, self._work / "files" / name)
            local = self._data / "behaviour" / f"{name}.broadcast-offsets.json"
            self._opened[name] = BrokerStore(
                name,
                folder,
                self._work / "lake" / name,
                self._lines_of(name),
                local.read_text(encoding="utf-8") if local.exists() else None,
            )
        return self._opened[name]

    def _lines_of(self, name: str) -> Callable[[str], list[Any]]:
        return lambda kind: read_lines(_there(self._data / "behaviour", f"{name}.{kind}", LINES))


def _suffix(path: Path, suffixes: Sequence[str]) -> str:
    """The one that the file's name ends with, "" for none."""
    return next((suffix for suffix in suffixes if path.name.endswith(suffix)), "")


def _there(folder: Path, stem: str, suffixes: Sequence[str]) -> Path:
    """:raises FileNotFoundError: there is no file of that name, with any of the suffixes."""
    found = (path for suffix in suffixes if (path := folder / f"{stem}{suffix}").exists())
    first = next(found, None)
    if first is None:
        raise FileNotFoundError(f"there is no {folder.name}/{stem}{suffixes[0]} to check it against")
    return first


def _bound(function: str, arguments: Callable[[], Sequence[Any]]) -> Check:
    """The check of a file; a module of this package that is not there yet is one reason not to check it."""

    def check() -> Outcomes:
        try:
            found = function_named(function)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith("tests.conformance."):
                raise
            yield NotChecked(f"no rule: there is no {error.name}")
            return
        yield from found(*arguments())

    return check


def _count(report: FileReport, check: Check) -> None:
    """Whatever happens is a result of this file: the others are still checked."""
    try:
        for outcome in check():
            if outcome is None:
                report.passed += 1
            elif isinstance(outcome, NotChecked):
                report.not_checked[str(outcome)] += 1
            else:
                _failed(report, outcome)
    except Exception as error:
        _failed(report, f"stopped by {type(error).__name__}: {shown(str(error))}")
    if not (report.passed or report.failed or report.not_checked):
        _failed(report, "nothing in it to check")


def _failed(report: FileReport, failure: str) -> None:
    report.failed += 1
    if len(report.failures) < FIRST_FAILURES:
        report.failures.append(failure.encode(errors="backslashreplace").decode())  # half a character cannot be printed
