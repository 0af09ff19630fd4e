"""Mutants of the real guards: each is the product with one guard left out, and a test has to fail with it.

``tests/faults/guards.py`` names the guards: functions of ``rmq_store``, and the tests that must notice. A function's
mutants are made from its source:

- each ``raise`` is left out;
- of a condition ``a or b``, or ``a and b``, that leads to a ``raise``, one part is left out;
- each text of ``Guard.changes`` is replaced. A text that is not in the function any more is an error.

The tests are collected once. The mutants of a function run in a fork of that process, one after another: the function gets
the mutant's code, and the tests run up to the first that fails. A mutant with which all pass survives. The last fork runs the
tests that failed, without a mutant: they must pass. The process itself runs none, since the Delta library does not work in a
fork of a process that has used it.

``python -m tests.faults.mutants`` runs all but the slow ones, ``--deep`` all, ``--guard decide`` some, ``--list`` shows them.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import inspect
import json
import os
import resource
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.runner import runtestprotocol

from tests.faults.guard import Guard
from tests.faults.guards import CONTROL, EQUIVALENT, GUARDS

PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A function whose module has ``new`` instead of the text at ``[begin, end)``, in characters."""

    guard: Guard
    what: str
    """What is changed."""
    begin: int
    end: int
    new: str

    @property
    def name(self) -> str:
        """It has no number of a line, so that it stays when the code around it changes."""
        return f"{self.guard.place}: {' '.join(self.what.split()):.200}"

    def code(self) -> types.CodeType:
        """The function's code."""
        text = source_of(self.guard.module)
        changed = text[: self.begin] + self.new + text[self.end :]
        module = compile(changed, str(source_file(self.guard.module)), "exec")
        return next(code for code in _codes(module) if code.co_qualname == self.guard.function)


def source_file(module: str) -> Path:
    return PROJECT / (module.replace(".", "/") + ".py")


@cache
def source_of(module: str) -> str:
    return source_file(module).read_text()


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


# --- which mutants there are -----------------------------------------------------------------------------------------


def mutants_of(guard: Guard) -> list[Mutant]:
    """All mutants of a guard, in the order of its lines. Raises ValueError when the source has not what ``guard`` names."""
    text = source_of(guard.module)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    function = functions_of(guard.module).get(guard.function)
    if function is None:
        raise ValueError(f"{guard.place}: there is no such function")

    def span(node: ast.stmt | ast.expr) -> tuple[int, int]:
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[(node.end_lineno or 0) - 1]
        return begin, end + (node.end_col_offset or 0)

    mutants = []
    for node in ast.walk(function):
        if isinstance(node, ast.Raise) and node.exc is not None:
            begin, end = span(node)
            mutants.append(Mutant(guard, f"no {text[begin:end]}", begin, end, f"if False: {text[begin:end]}"))
        if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise):
            for part, without in _parts(node.test):
                begin, end = span(part)
                what = f"if {ast.unparse(node.test)}, without {text[begin:end]}"
                mutants.append(Mutant(guard, what, begin, end, f"({without} ({text[begin:end]}))"))
    first, last = span(function)
    for old, new in guard.changes:
        if text.count(old, first, last) != 1:
            raise ValueError(f"{guard.place} has {text.count(old, first, last)} times the text {old!r}")
        begin = text.index(old, first)
        mutants.append(Mutant(guard, f"{old} -> {new}", begin, begin + len(old), new))
    if not mutants:
        raise ValueError(f"{guard.place}: it raises nothing, so name what to change")
    return sorted(mutants, key=lambda one: (one.begin, one.end, one.new))


@cache
def functions_of(module: str) -> dict[str, ast.FunctionDef]:
    """The functions and methods of a module by qualified name; what is defined in a function belongs to it."""

    def inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                yield prefix + child.name, child
            elif isinstance(child, ast.ClassDef):
                yield from inside(child, f"{prefix}{child.name}.")

    return dict(inside(ast.parse(source_of(module)), ""))


def _parts(condition: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """The parts of ``or`` and ``and``, each with the text that leaves it out when it stands before it."""
    for node in ast.walk(condition):
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                yield value, "False and" if isinstance(node.op, ast.Or) else "True or"


# --- a mutant's run --------------------------------------------------------------------------------------------------

_MOST_CPU_S = 120
"""Against a mutant that never ends."""

Report = Callable[[Mutant, str | None, float], None]
"""Called with a mutant, the test that failed with it, or None, and the CPU seconds that it took."""


@dataclass
class Runs:
    """A pytest plugin that runs mutants instead of the tests: those of a guard in one process."""

    guards: Sequence[Sequence[Mutant]]
    processes: int
    report: Report
    _running: list[tuple[Sequence[Mutant], int, int]] = field(default_factory=list)
    _failed: set[str] = field(default_factory=set)
    """Tests that failed with a mutant."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.freeze()  # so that a fork does not copy what it only looks at
        for mutants in self.guards:
            while len(self._running) >= self.processes:
                self._wait()
            tests = mutants[0].guard.tests
            self._start(mutants, [item for test in tests for item in session.items if _is_of(item.nodeid, test)])
        while self._running:
            self._wait()
        self._start((), [item for item in session.items if item.nodeid in self._failed])
        self._wait()
        gc.unfreeze()
        return True

    def _start(self, mutants: Sequence[Mutant], items: Sequence[pytest.Item]) -> None:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            _run(mutants, items, write)
        os.close(write)
        self._running.append((mutants, child, read))

    def _wait(self) -> None:
        mutants, child, read = self._running.pop(0)
        with os.fdopen(read) as pipe:
            answers = [json.loads(line) for line in pipe]
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if not mutants:
            if code or answers != [None]:
                raise RuntimeError(f"without a mutant, a test fails or does not end: {answers}")
            return
        if code:
            where = mutants[len(answers)].name if len(answers) < len(mutants) else answers[-1]
            raise RuntimeError(f"the tests ended with {code}, or not within {_MOST_CPU_S} s of CPU time: {where}")
        for mutant, (failed, cpu_s) in zip(mutants, answers, strict=True):
            self._failed |= {failed} if failed else set()
            self.report(mutant, failed, cpu_s)


def _is_of(item: str, test: str) -> bool:
    """Whether a test that was collected belongs to a file, a function or one of its cases."""
    return item == test or item.startswith((f"{test}::", f"{test}["))


def _first_failure(items: Sequence[pytest.Item]) -> str | None:
    """Run tests up to the first that fails; its name. Fixtures of the session stay."""
    for item in items:
        if any(report.failed for report in runtestprotocol(item, log=False, nextitem=item.session)):  # type: ignore[arg-type]
            return item.nodeid
    return None


def _run(mutants: Sequence[Mutant], items: Sequence[pytest.Item], answers: int) -> NoReturn:
    """Run tests in this process with each mutant, and write a line for each: the first test that failed, and the CPU seconds.
    Without mutants: one line with the first test that failed."""
    code = 70
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S))
    try:
        with os.fdopen(answers, "w", buffering=1) as pipe:
            if not mutants:
                print(json.dumps(_first_failure(items)), file=pipe)
            for mutant in mutants:
                function = _function(mutant.guard)
                before, began_s = function.__code__, time.process_time()
                function.__code__ = mutant.code()
                failed = _first_failure(items)
                function.__code__ = before
                print(json.dumps([failed, time.process_time() - began_s]), file=pipe)
        code = 0
    finally:
        os._exit(code)


def _function(guard: Guard) -> Any:
    """The function itself, below its decorators."""
    *classes, name = guard.function.split(".")
    holder: Any = importlib.import_module(guard.module)
    for one in classes:
        holder = getattr(holder, one)
    function: Any = vars(holder)[name]
    return inspect.unwrap(getattr(function, "fget", function))


def survivors(guards: Sequence[Guard] = GUARDS, *, processes: int = 1, verbose: bool = False) -> tuple[int, list[str]]:
    """How many mutants were run, and those with which all their tests pass. Raises RuntimeError when tests cannot run.

    Call it in a process of its own, with one thread."""
    by_guard = [[one for one in mutants_of(guard) if one.name not in EQUIVALENT] for guard in guards]
    total = sum(map(len, by_guard))
    control = mutants_of(CONTROL)
    alive: list[str] = []
    ran = 0

    def report(mutant: Mutant, failed: str | None, cpu_s: float) -> None:
        nonlocal ran
        if mutant in control:
            if failed:
                raise RuntimeError(f"{failed} fails when it is run again, and not because of a mutant")
            return
        ran += 1
        if failed is None:
            alive.append(mutant.name)
        if verbose:
            print(f"{mutant.name}\n    {cpu_s:.2f} s: {failed or 'SURVIVED'}", file=sys.__stderr__, flush=True)

    tests = dict.fromkeys(test for guard in (CONTROL, *guards) for test in guard.tests)
    with tempfile.TemporaryDirectory() as folder:
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", f"{folder}/t"]
        runs = Runs([control, *(mutants for mutants in by_guard if mutants)], processes, report)
        code = pytest.main([*options, *tests], plugins=[runs])
    if ran < total:
        raise RuntimeError(f"the mutants were not run: pytest ended with {code}")
    return ran, alive


# --- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    description = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutants", description=description)
    parser.add_argument("--guard", action="append", default=[], help="a part of a guard's place; repeatable")
    parser.add_argument("--deep", action="store_true", help="run also those whose tests are slow")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="show which test fails with each mutant")
    parser.add_argument("--list", action="store_true", help="show the mutants, run none")
    options = parser.parse_args(arguments)
    chosen = [one for one in GUARDS if not options.guard or any(part in one.place for part in options.guard)]
    if not options.deep:
        chosen = [one for one in chosen if not one.deep]
    if options.list:
        print(*(mutant.name for guard in chosen for mutant in mutants_of(guard)), sep="\n")
        return 0
    number, alive = survivors(chosen, processes=options.processes, verbose=options.verbose)
    print(*(f"survived: {name}" for name in alive), f"{number} mutants, {number - len(alive)} noticed", sep="\n")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
