"""The soak itself: what it counts as a defect, and that a round of it works and finds what is wrong.

``make soak`` runs it for as long as one likes; here it has a few commands, so that it cannot rot.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.faults.reports import PAGE, with_section
from tests.faults.soak.__main__ import REPORT
from tests.faults.soak.answers import Ending, answer_of
from tests.faults.soak.disturbances import Disturbance, Kind, choose_disturbance
from tests.faults.soak.operations import DAY, Context, Operation, choose
from tests.faults.soak.page import section
from tests.faults.soak.round import Round
from tests.faults.soak.runs import Runs
from tests.faults.soak.tally import Tally
from tests.faults.soak.worker import At
from tests.faults.soak.world import World, worlds


def answered(
    folder: Path, exit_code: int, out: str = "", err: str = "", kind: str = "window plain", is_local: bool = True
) -> Ending:
    (folder / "out").write_text(out)
    (folder / "err").write_text(err)
    return answer_of(kind, exit_code, folder, was_killed=False, was_terminated=False, is_local=is_local).ending


def error(kind: str) -> str:
    return json.dumps({"status": "error", "error": kind})


def test_only_errors_that_the_design_allows_are_no_defects(tmp_path: Path) -> None:
    assert answered(tmp_path, 0, '{"status": "committed"}') is Ending.DONE
    assert answered(tmp_path, 3, error("HeldByAnother")) is Ending.REFUSED
    assert answered(tmp_path, 1, error("StoreUnusable"), is_local=False) is Ending.REFUSED
    assert answered(tmp_path, 1, error("StoreUnusable")) is Ending.DEFECT, "a folder always answers"
    assert answered(tmp_path, 2, error("WrongUse"), kind="reset") is Ending.REFUSED
    assert answered(tmp_path, 2, error("WrongUse"), kind="send") is Ending.DEFECT
    assert answered(tmp_path, 1, error("EvidenceMismatch")) is Ending.DEFECT
    assert answered(tmp_path, 1, '{"problems": [1]}', kind="audit") is Ending.DEFECT
    assert answered(tmp_path, 1, error("KeyError"), "KeyError: 1 - this is a defect") is Ending.DEFECT
    assert answered(tmp_path, 0, '{"status": "done"}', "Traceback (most recent call last):\n") is Ending.DEFECT
    assert answered(tmp_path, 0) is Ending.DEFECT
    assert answered(tmp_path, -9) is Ending.DEFECT, "killed by something else"
    assert answered(tmp_path, -11) is Ending.DEFECT


def test_of_several_groups_the_worst_error_counts(tmp_path: Path) -> None:
    groups = [{"group": "a", "error": "HeldByAnother"}, {"group": "b", "error": "BadData"}]
    assert answered(tmp_path, 1, json.dumps({"status": "error", "groups": groups})) is Ending.DEFECT
    assert answered(tmp_path, 3, json.dumps({"status": "error", "groups": groups[:1]})) is Ending.REFUSED


def test_a_seed_makes_the_same_commands_and_the_same_disturbances() -> None:
    def chosen(seed: str) -> list[tuple[Operation, Disturbance]]:
        contexts = (Context(Random(f"{seed}-{n}"), n, "broker", "backup", "local", 100) for n in range(200))
        return [(choose(context), choose_disturbance(context.rng)) for context in contexts]

    assert chosen("1") == chosen("1") != chosen("2")
    kinds = {operation.kind.split()[0] for operation, _ in chosen("1")}
    assert kinds >= {"window", "consume", "deliver", "send", "import", "reset", "redrive", "maintain"}
    assert {disturbance.kind for _, disturbance in chosen("1")} == set(Kind)


def test_the_page_has_the_table_of_the_committed_report() -> None:
    report = json.loads(REPORT.read_text("utf-8"))
    page = PAGE.read_text("utf-8")
    assert with_section(page, section(report)) == page
    for run in report["runs"]:
        assert run["defects"] == []
        assert set(run["problems"].values()) == {0}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with worlds(tmp_path, "local") as several:
        yield next(several)


@pytest.fixture
def round_(world: World) -> Iterator[Round]:
    one = Round(Runs(world, 1, Tally()), "a test", "local", processes=2)
    yield one
    one.runs.stop()


@pytest.mark.slow
def test_a_short_round_finds_nothing(round_: Round) -> None:
    round_.set_up()
    begun = round_.runs.count
    window = Operation("window plain", ("consume", "--group", "plain"), f"{DAY}-window")
    killed = round_.runs.alone(0, window, Disturbance(Kind.KILL, At(signal.SIGKILL, "3.staged", 1)))
    assert killed.answer.ending is Ending.KILLED
    round_.pending.append((0, window))
    round_.work(lambda: round_.runs.count > begun + 6)
    round_.runs.world.make_old()
    round_.damage()
    round_.check(is_last=True)
    tally = round_.runs.tally
    assert tally.defects == []
    assert not tally.failed
    assert tally.windows > 0
    assert tally.calls > 0
    assert tally.repeated_calls > 0, "the killed window has called the listener, and its next run again"


def test_a_round_whose_history_says_otherwise_fails(round_: Round) -> None:
    round_.set_up()
    window = Operation("window plain", ("consume", "--group", "plain"), f"{DAY}-window")
    assert round_.runs.alone(0, window).answer.ending is Ending.DONE
    for path in (round_.runs.world.history / "calls").iterdir():
        path.unlink()
    round_.check(is_last=True)
    assert round_.runs.tally.failed
    assert round_.runs.tally.problems["lost"] > 0
