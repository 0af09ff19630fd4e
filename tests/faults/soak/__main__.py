"""The soak: processes over one store do random work, are killed and frozen, and afterwards nothing is lost or doubled.

    make soak SECONDS=60 SEED=1 [PROCESSES=3] [STORE=local|s3] [ENGINE=local|spark]

The seed decides which commands run and how each is disturbed. The machine decides how they interleave, so another run with the
same seed tries the same, and may end otherwise. Exit code 1: something was lost or doubled, or a defect was seen; then the
folder with the stores, the histories and the output of every command stays.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.reports import CHECKOUT, PAGE, parser_of, seed_of, with_section, write_report
from tests.faults.soak.page import section
from tests.faults.soak.report_text import shown
from tests.faults.soak.round import Round
from tests.faults.soak.runs import Runs
from tests.faults.soak.tally import Defect, Tally
from tests.faults.soak.world import worlds

REPORT = CHECKOUT / "tests" / "faults" / "soak_report.json"
ROUND_S = 300.0
"""A round has a store of its own, so that an hour needs no more space, and no longer checks, than five minutes."""
PHASE_S = 25.0
"""Work between two checks."""


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of("soak", __doc__, processes=3)
    parser.add_argument("--store", choices=("local", "s3"), default="local")
    parser.add_argument("--engine", choices=("local", "spark"), default="local")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    if options.write_docs:
        PAGE.write_text(with_section(PAGE.read_text("utf-8"), section(json.loads(REPORT.read_text("utf-8")))), "utf-8")
        return 0
    seed = seed_of(options)
    folder = options.folder / f"seed-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(
        f"soak with seed {seed}: {options.seconds:.0f} s, {options.processes} processes, store {options.store}",
        flush=True,
    )
    tally = Tally()
    began_s = time.monotonic()
    worked_s = _soak(options, seed, folder, tally)
    run: dict[str, Any] = {
        "seed": seed,
        "seconds": round(worked_s),
        "wall_seconds": round(time.monotonic() - began_s),
        "processes": options.processes,
        "store": options.store,
        "engine": options.engine,
        **tally.document(),
    }
    print(shown(run))
    write_report(options, run)
    again = f"make soak SECONDS={options.seconds:.0f} SEED={seed} PROCESSES={options.processes}"
    again += f" STORE={options.store} ENGINE={options.engine}"
    if tally.failed:
        print(f"FAILED. The stores and the output of every command are in {folder}\nThe same again: {again}")
        return 1
    shutil.rmtree(folder)
    print(f"Nothing lost, nothing doubled, no defect. The same again: {again}")
    return 0


def _soak(options: argparse.Namespace, seed: str, folder: Path, tally: Tally) -> float:
    """Round after round; returns the seconds of work, without the checks."""
    worked_s = 0.0
    with worlds(folder, options.store) as several:
        for number, world in enumerate(several, 1):
            one = Round(Runs(world, number, tally), f"{seed}-{number}", options.engine, options.processes)
            try:
                worked_s += _round(one, min(ROUND_S, options.seconds - worked_s))
            except BaseException as error:
                one.runs.stop()
                if not isinstance(error, Exception):
                    raise
                tally.defects.append(Defect("error of the soak", "", number, 0, "", repr(error)))
                raise
            if tally.failed or options.seconds - worked_s < 1:
                return worked_s
            shutil.rmtree(world.folder)
    raise AssertionError("worlds are endless")


def _round(one: Round, seconds: float) -> float:
    tally = one.runs.tally
    one.set_up()
    phases = max(round(seconds / PHASE_S), 1)
    worked_s = 0.0
    for phase in range(phases):
        began_s = time.monotonic()
        end_s = began_s + seconds / phases
        one.work(partial(_is_over, end_s))
        worked_s += time.monotonic() - began_s
        is_last = phase == phases - 1
        one.check(is_last=is_last or tally.failed)
        state = f"{one.runs.count} runs, {len(tally.defects)} defects"
        print(f"round {one.runs.round}, {phase + 1} of {phases}: {state}", flush=True)
        if tally.failed:
            break
        if not is_last:
            one.runs.world.make_old()
            one.damage()
    return worked_s


def _is_over(end_s: float) -> bool:
    return time.monotonic() >= end_s


if __name__ == "__main__":
    sys.exit(main())
