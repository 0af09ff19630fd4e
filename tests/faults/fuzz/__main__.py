"""The fuzz: random inputs of every kind, each answered or refused with an error of the project, and a whole store after it.

    make fuzz SECONDS=60 SEED=1 [PROCESSES=2]
    python -m tests.faults.fuzz --case KIND:SEED-NUMBER
    python -m tests.faults.fuzz --case var/fuzz/FILE.json

The seed decides every case, also by itself. Exit code 1: a command answered with a defect, a traceback, or not at all, took
too much memory, moved an offset though it failed, or left a store in which the audit finds something. Of each such failure the
smallest case is kept below ``var/fuzz``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from tests.faults.fuzz.cases import Case, case_from, case_of, document_of, name_of
from tests.faults.fuzz.judge import shown_line
from tests.faults.fuzz.run_case import Result
from tests.faults.fuzz.smallest import smallest
from tests.faults.fuzz.starts import make_starts
from tests.faults.fuzz.tally import Tally, section, shown
from tests.faults.fuzz.worker import Workers
from tests.faults.reports import CHECKOUT, PAGE, parser_of, seed_of, with_section, write_report
from tests.faults.soak.worker import PROCESSES

REPORT = CHECKOUT / "tests" / "faults" / "fuzz_report.json"
TRIES = 150
"""To make a case smaller."""
SMALLER_S = 60.0
"""No longer for all failures of a run."""


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("fuzz", __doc__, processes=2)
    parser.add_argument("--case", help="only this case: its name, or the file that a failure left")
    parser.add_argument("--kind", default="", help="only cases of this kind")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    if options.write_docs:
        report = json.loads(REPORT.read_text("utf-8"))
        PAGE.write_text(with_section(PAGE.read_text("utf-8"), section(report)), "utf-8")
        return 0
    seed = seed_of(options)
    folder = options.folder.resolve() / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "starts").mkdir(parents=True)
    workers = Workers(folder, 1 if options.case else options.processes)
    try:
        maker = PROCESSES.Process(target=make_starts, args=(folder / "starts",))
        maker.start()
        maker.join()
        if maker.exitcode:
            print("FAILED: the stores for the cases cannot be made")
            return 1
        return _replay(options.case, workers) if options.case else _fuzz(options, seed, workers)
    finally:
        workers.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _replay(name: str, workers: Workers) -> int:
    path = Path(name)
    case = case_from(path.read_text("utf-8")) if path.suffix == ".json" else case_of(name)
    print(
        f"{case.name}: begins with the store {case.start!r}, and has the files {', '.join(case.files) or 'of every case'}"
    )
    for line in case.commands:
        print(f"  {shown_line(line)}")
    (result,) = workers.results([case])
    print(f"{result.succeeded} succeeded, refused: {dict(result.refused)}")
    if result.failure is None:
        print("no failure")
        return 0
    print(f"FAILURE: {result.failure.what}\n  {result.failure.command}\n{result.failure.text}")
    return 1


def _fuzz(options: argparse.Namespace, seed: str, workers: Workers) -> int:
    print(f"fuzz with seed {seed}: {options.seconds:.0f} s, {options.processes} processes", flush=True)
    tally = Tally()
    began_s = time.monotonic()
    new: list[Result] = []
    for result in workers.results(_cases(seed, options.kind), _after(began_s + options.seconds)):
        if tally.add(result):
            new.append(result)
            print(f"{result.case.name}: {result.failure and result.failure.what}", flush=True)
    worked_s = time.monotonic() - began_s
    is_over = _after(time.monotonic() + SMALLER_S)
    for result in new:
        _keep(options.folder, result, workers, is_over, tally)
    run: dict[str, Any] = {"seed": seed, "seconds": round(worked_s), "processes": options.processes, **tally.document()}
    print(shown(run))
    write_report(options, run)
    print(f"The same again: make fuzz SECONDS={options.seconds:.0f} SEED={seed}")
    return 1 if tally.failures else 0


def _cases(seed: str, kind: str) -> Iterator[Case]:
    for number in count(1):
        name = name_of(seed, number)
        if not kind or name.startswith(f"{kind}:"):
            yield case_of(name)


def _after(end_s: float) -> Callable[[], bool]:
    return lambda: time.monotonic() >= end_s


def _keep(folder: Path, result: Result, workers: Workers, is_over: Callable[[], bool], tally: Tally) -> None:
    """Write the smallest case of a failure to a file. A case that was ended from outside is kept whole."""
    assert result.failure is not None
    what = result.failure.what

    def fails(case: Case) -> bool:
        (again,) = workers.results([case])
        return again.failure is not None and again.failure.what == what

    case = result.case
    if result.failure.command and not is_over():
        case = smallest(case, lambda smaller: not is_over() and fails(smaller), TRIES)
    path = folder / f"{re.sub(r'[^A-Za-z0-9]+', '-', case.name)}.json"
    path.write_text(json.dumps(document_of(case), indent=1) + "\n", "utf-8")
    shown_path = path.relative_to(CHECKOUT) if path.is_relative_to(CHECKOUT) else path
    tally.failures[what]["again"] = f".venv/bin/python -m tests.faults.fuzz --case {shown_path}"


if __name__ == "__main__":
    sys.exit(main())
