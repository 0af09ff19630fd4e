"""``kill -9`` at every numbered step of ``lake/commit/commit.py``: the same request again ends in the same projection (P5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.claim import LEASE_S
from rmq_store.commit.ctl import SCHEDULE_GROUP, Ctl
from rmq_store.commit.positions import Outcome
from rmq_store.errors import HeldByAnother
from rmq_store.lake.commit.commit import STEPS
from rmq_store.lake.sql.sql import query
from tests.faults.answers import Clock, set_clock
from tests.faults.jobs import Job, killed_after_put, killed_at
from tests.faults.stores import BROKER, GROUP, REQUEST, TESTS, Lake, copied, write_broker
from tests.oracle.projection import Projection

COMMITTED_BEFORE = STEPS.index("5.put")
"""From this step on the log shows the commit."""


@dataclass(frozen=True)
class Story:
    """A job on a store that is ready for it, and what an undisturbed run of it leaves."""

    ready: Lake
    job: Job
    group: str | None
    counts: Callable[[Any], object]
    left: tuple[list[Projection], list[dict[str, object]]] = ([], [])

    def at(self, folder: Path) -> tuple[Lake, Job]:
        lake = copied(self.ready, folder)
        return lake, replace(self.job, folder=lake.folder)


def told(story: Story, tmp: Path) -> Story:
    lake, job = story.at(tmp / f"undisturbed-{story.job.kind}")
    assert job.run().status == "committed"
    return replace(story, left=left(lake))


def left(lake: Lake) -> tuple[list[Projection], list[dict[str, object]]]:
    """The projections, and the broker's messages, which belong to no group."""
    columns = "queue_id, queue_offset, commit_log_offset, store_timestamp, body"
    messages = query(lake.store, f"SELECT {columns} FROM messages WHERE broker_name = '{BROKER}' ORDER BY ALL")
    return lake.projections(), messages.to_pylist()


@pytest.fixture(scope="module")
def stories(imported: Lake, windowed: Lake, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Story]:
    tmp = tmp_path_factory.mktemp("stories")
    window = Job("consume", imported.folder)
    deliver = Job("deliver", imported.folder, "2026-01-01-d1")
    redrive = Job("redrive", imported.folder, "2026-01-01-again")
    more = Job("import", imported.folder, "2026-01-01-more", broker=write_broker(tmp / "broker", 60))
    return {
        "consume": told(Story(imported, window, GROUP, lambda report: report.counts()), tmp),
        "deliver": told(Story(windowed, deliver, SCHEDULE_GROUP, lambda report: report.delivered), tmp),
        "redrive": told(Story(windowed, redrive, GROUP, lambda report: report.letters), tmp),
        "import": told(Story(windowed, more, None, lambda report: (report.messages, report.end)), tmp),
    }


def test_these_are_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n  killed at each of: {', '.join(STEPS)}")
    assert len(set(STEPS)) == len(STEPS)
    assert [step.split(".")[0] for step in STEPS] == sorted(step.split(".")[0] for step in STEPS)


def assert_as_if_undisturbed(story: Story, lake: Lake, job: Job, committed_before: bool) -> None:
    report = job.run()
    assert report.status == ("already_committed" if committed_before else "committed")
    again = job.run()
    assert again.status == "already_committed"
    assert story.counts(again) == story.counts(report)
    assert lake.commits(job.kind, story.group).count(job.request) == 1
    assert left(lake) == story.left
    assert lake.audit() == []


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["consume", "deliver", "redrive", "import"])
def test_a_rerun_after_a_kill_is_an_undisturbed_run(
    stories: dict[str, Story], kind: str, step: str, tmp_path: Path
) -> None:
    story = stories[kind]
    lake, job = story.at(tmp_path / "lake")
    assert killed_at(job, step)
    assert_as_if_undisturbed(story, lake, job, STEPS.index(step) >= COMMITTED_BEFORE)


@pytest.mark.parametrize(("number", "what"), [(1, "claim"), (2, "commit"), (3, "consumequeue"), (4, "offsets")])
def test_a_rerun_after_a_kill_between_a_write_and_its_answer_is_an_undisturbed_run(
    stories: dict[str, Story], number: int, what: str, tmp_path: Path
) -> None:
    story = stories["consume"]
    lake, job = story.at(tmp_path / "lake")
    assert killed_after_put(job, number), what
    assert_as_if_undisturbed(story, lake, job, number >= 2)


def test_a_process_may_die_at_every_step_one_after_the_other(stories: dict[str, Story], tmp_path: Path) -> None:
    story = stories["consume"]
    lake, job = story.at(tmp_path / "lake")
    for step in STEPS[: COMMITTED_BEFORE + 1]:
        assert killed_at(job, step)
    assert_as_if_undisturbed(story, lake, job, committed_before=True)


# --- the claim that a killed process leaves --------------------------------------------------------------------------


@pytest.fixture
def orphaned(lake: Lake) -> Lake:
    """A store whose group is claimed by a process that is dead."""
    assert killed_at(Job("consume", lake.folder), "2.claimed")
    return lake


def claims(lake: Lake) -> list[Ctl]:
    return lake.shard.ctls_since(0, group=GROUP, action="claim")


def test_the_same_request_takes_the_claim_over_at_once(orphaned: Lake) -> None:
    report = orphaned.consume()
    assert (report.status, report.counts()[Outcome.DEAD] > 0) == ("committed", True)
    first, second = claims(orphaned)
    assert (first.reason, second.reason) == ("free", "took over claim 1 of an earlier attempt of this request")


def test_another_request_is_told_who_holds_the_claim_until_its_lease_has_ended(
    orphaned: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    later = replace(orphaned, host=set_clock(monkeypatch, clock))
    with pytest.raises(HeldByAnother, match=rf"request {REQUEST} of {TESTS.name}"):
        later.consume("2026-01-02-r2")
    clock.ms += (LEASE_S - 30) * 1000
    with pytest.raises(HeldByAnother, match=REQUEST):
        later.consume("2026-01-02-r2")
    clock.ms += 60_000
    assert later.consume("2026-01-02-r2").status == "committed"
    assert [claim.request_id for claim in claims(orphaned)] == [REQUEST, "2026-01-02-r2"]
    assert claims(orphaned)[-1].reason.startswith("took over claim 1, whose lease ended ")
    assert later.audit() == []


def test_the_request_that_lost_its_claim_finds_nothing_left_to_do(
    orphaned: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    later = replace(orphaned, host=set_clock(monkeypatch, clock))
    clock.ms += 2 * LEASE_S * 1000
    assert later.consume("2026-01-02-r2").status == "committed"
    assert later.consume().status == "empty"
    assert later.commits("consume") == ["2026-01-02-r2"]
