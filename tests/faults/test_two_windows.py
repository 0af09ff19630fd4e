"""Windows started at the same time, in processes of their own: one commit per range, and the loser says who won (P2, P4)."""

from __future__ import annotations

from random import Random

import pytest

from rmq_store.commit.ctl import SCHEDULE_GROUP
from tests.faults.jobs import Ended, Job, Racer
from tests.faults.stores import GROUP, MESSAGES, QUEUES, TESTS, TOPIC, Lake
from tests.oracle.projection import Projection

SEEDS = range(10)


def started(*jobs: Job, then: str = "2.claimed") -> list[Racer]:
    """One process each, all of them stopped where the plan is made and the claim is not, and next at ``then``."""
    racers = [Racer(job, "1.planned", then) for job in jobs]
    assert [racer.wait() for racer in racers] == ["1.planned"] * len(racers)
    return racers


def race(first: Job, second: Job) -> tuple[Job, Ended, Ended]:
    """Let both go for the claim; whoever gets it waits until the other has ended. The winner, its end, the loser's."""
    racers = started(first, second)
    for racer in racers:
        racer.go()
    said = {racer.job: racer.wait() for racer in racers}
    (winner,) = [racer for racer in racers if said[racer.job] == "2.claimed"]
    (lost,) = [end for end in said.values() if isinstance(end, Ended)]
    return winner.job, winner.finish(), lost


def assert_each_range_once(lake: Lake, group: str) -> Projection:
    (found,) = lake.projections(group)
    ranges = [done for done in found.ranges if done.queue.topic == TOPIC]
    assert [(done.begin, done.end) for done in ranges] == [(0, MESSAGES // QUEUES)] * QUEUES
    assert lake.audit() == []
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_of_two_windows_of_a_group_one_commits_and_the_other_says_who_won(
    lake: Lake, windowed: Lake, seed: int
) -> None:
    jobs = [Job("consume", lake.folder, f"2026-01-0{n}-r{seed}") for n in (1, 2)]
    Random(seed).shuffle(jobs)
    winner, won, lost = race(*jobs)
    assert won == Ended(0, "committed")
    assert lost.exit_code == 3
    assert f"request {winner.request} of {TESTS.name}" in lost.said
    assert lake.commits("consume") == [winner.request]
    assert [assert_each_range_once(lake, GROUP)] == windowed.projections(GROUP)


@pytest.mark.parametrize("seed", range(3))
def test_two_windows_that_wait_for_nobody_still_commit_each_range_once(lake: Lake, windowed: Lake, seed: int) -> None:
    jobs = [Job("consume", lake.folder, f"2026-01-0{n}-r{seed}") for n in (1, 2)]
    Random(seed).shuffle(jobs)
    racers = started(*jobs, then="never")
    for racer in racers:
        racer.go()
    ends = {racer.job.request: racer.wait() for racer in racers}
    (winner,) = lake.commits("consume")
    assert ends.pop(winner) == Ended(0, "committed")
    (other,) = ends.values()
    # It depends on when the winner was through: the other one was refused, or found nothing left.
    assert isinstance(other, Ended)
    assert other == Ended(0, "empty") or (other.exit_code == 3 and winner in other.said)
    assert [assert_each_range_once(lake, GROUP)] == windowed.projections(GROUP)


def test_two_attempts_of_one_request_commit_it_once(lake: Lake, windowed: Lake) -> None:
    """The second takes the claim of the first over, and ends it for good."""
    first, second = started(*[Job("consume", lake.folder)] * 2)
    first.go()
    assert first.wait() == "2.claimed"
    second.go()
    assert second.wait() == "2.claimed"
    fenced = first.finish()
    done = second.finish()
    assert (fenced.exit_code, done.exit_code) == (3, 0)
    assert f"own/{GROUP}/{TOPIC}/" in fenced.said
    assert "was claim 1 and is claim 2" in fenced.said
    assert len(lake.commits("consume")) == 1
    assert lake.projections() == windowed.projections()


def test_of_two_deliveries_one_commits_and_the_other_says_who_won(lake: Lake) -> None:
    lake.consume()
    jobs = [Job("deliver", lake.folder, f"2026-01-01-d{n}") for n in (1, 2)]
    winner, won, lost = race(*jobs)
    assert won == Ended(0, "committed")
    assert lost.exit_code == 3
    assert f"request {winner.request} of {TESTS.name}" in lost.said
    assert lake.commits("deliver", SCHEDULE_GROUP) == [winner.request]
    assert lake.audit() == []


@pytest.mark.slow
def test_windows_of_different_groups_in_one_shard_all_commit(lake: Lake) -> None:
    groups = [f"group-{n}" for n in range(4)]
    racers = started(*(Job("consume", lake.folder, f"2026-01-01-{group}", group) for group in groups))
    for racer in racers:
        racer.go()
    for racer in racers:
        assert racer.wait() == "2.claimed"
    assert [racer.finish().exit_code for racer in racers] == [0, 0, 0, 0]
    for group in groups:
        assert lake.commits("consume", group) == [f"2026-01-01-{group}"]
        assert_each_range_once(lake, group)
