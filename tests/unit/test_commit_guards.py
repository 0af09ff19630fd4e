"""What each guard of the commit protocol is for.

One guard is taken away at a time (or the set of guards that cover each other), and the shortest story is told in which
the log then says something wrong. The log is the memory engine's, which conflicts as delta-rs does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest

from rmq_store.commit import decide as rules
from rmq_store.commit.ctl import Action, Actor, Consumed, Ctl, Moved, Produced, Proposal, StagedFile, canonical_json
from rmq_store.commit.decide import Clocks, Decided, decide
from rmq_store.commit.positions import Claim, Outcome, QueueRange, grp_id, max_id, off_id, own_id, tally
from rmq_store.errors import EvidenceMismatch, StaleAttempt
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host
from tests.oracle.memory import commit as memory_commit
from tests.oracle.memory.commit import commit
from tests.oracle.memory.rows import MessageRow
from tests.oracle.memory.shard import Conflict, MemoryShard

NOW = 1_717_416_000_000
ANA, BEN = Actor("ana", "cli"), Actor("ben", "cli")
Q, Q1 = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1)
DLQ = MessageQueue("%DLQ%g", "lake-s", 0)
GRP, OFF, OWN = grp_id("g"), off_id("g", Q), own_id("g")


def a_ctl(commit_id: str = "c1", action: Action = Action.CONSUME, **said: Any) -> Ctl:
    return Ctl(commit_id, action, ANA, **({"group": "g"} | said))


@dataclass
class Log:
    """A log with one group, and runs that are stopped between their steps. ``without_txn``: kinds of positions that a
    window's commit leaves out (a mutant)."""

    without_txn: tuple[str, ...] = ()
    shard: MemoryShard = field(default_factory=lambda: MemoryShard("s", lambda: NOW))
    ids: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        begun = {GRP: 0, OFF: 0, off_id("g", Q1): 0}
        self.do(a_ctl(action=Action.IMPORT, group=None), {max_id(Q): 10, max_id(Q1): 10} | begun)

    def do(self, ctl: Ctl, advance: dict[str, int], expect: dict[str, int | None] | None = None) -> None:
        """Somebody's whole commit, at once."""
        proposal = Proposal(replace(ctl, commit_id=f"c{next(self.ids)}"), expect or {}, advance)
        self.put(self.decide(proposal), proposal, mutated=False)

    def decide(self, proposal: Proposal) -> Decided:
        return decide(proposal, self.shard.positions(), Clocks(NOW, NOW))

    def put(self, decided: Decided, proposal: Proposal, *, mutated: bool = True) -> None:
        kept = {
            app_id: value
            for app_id, value in decided.positions.items()
            if not (mutated and app_id.startswith(self.without_txn))
        }
        self.shard.put(replace(decided, positions=kept or {decided.ctl.commit_id: 0}), proposal.files)

    def finish(self, proposal: Proposal, decided: Decided | None = None) -> None:
        """Steps 4 to 6, from a decision that was already made on."""
        decided = decided or self.decide(proposal)
        while True:
            try:
                return self.put(decided, proposal)
            except Conflict:
                decided = self.decide(proposal)

    def claim(self, actor: Actor = ANA) -> Claim:
        claim = Claim(Claim.of(self.shard.positions().get(OWN)).number + 1, NOW // 1000 + 120)
        said = canonical_json({"claims": {OWN: claim.number}, "claim": claim.number})
        self.do(replace(a_ctl(action=Action.CLAIM, parameters=said), actor=actor), {OWN: claim.packed()})
        return claim

    def plan(
        self, begin: int, end: int, claim: Claim | None = None, request: str = "w", queue: MessageQueue = Q
    ) -> Proposal:
        """A window over ``[begin, end)`` that failed its first message, planned from the newest positions."""
        positions, number = self.shard.positions(), next(self.ids)
        off = off_id("g", queue)
        expect = {GRP: positions.get(GRP), off: positions.get(off)}
        advance = {GRP: positions.get(GRP) or 0, off: end}
        if claim:
            expect[OWN], advance[OWN] = claim.packed(), Claim(claim.number, 0).packed()
        file = self.shard.stage(f"f{number}", [MessageRow(b"failed")])
        ctl = a_ctl(
            f"c{number}",
            request_id=request,
            epoch=positions.get(GRP) or 0,
            parameters=canonical_json({"claim": claim and claim.number}),
            consumed=(Consumed(QueueRange(queue, begin, end), 0, {Outcome.DEAD: tally(range(begin, end))}),),
            produced=(Produced(DLQ, 0, 1, 0, file.path),),
        )
        return Proposal(ctl, expect, advance, (file,))

    def reset(self, to: int, queue: MessageQueue = Q, *, raises_epoch: bool = True) -> None:
        positions, off = self.shard.positions(), off_id("g", queue)
        epoch = (positions.get(GRP) or 0) + raises_epoch
        moved = Moved("g", queue, positions.get(off), to, epoch)
        self.do(a_ctl(action=Action.RESET, epoch=epoch, moved=(moved,)), {GRP: epoch, off: to})

    def wrong(self) -> set[str]:
        """The invariants that the log violates."""
        found: set[str] = set()
        at: dict[MessageQueue, int] = {}
        ends: dict[MessageQueue, int] = {}
        epoch, newest_claim = 0, 0
        requests: set[str] = set()
        for ctl in self.shard.ctls():
            for moved in ctl.moved:
                at[moved.queue], epoch = moved.to_offset, epoch + 1
            if ctl.action is Action.CLAIM:
                newest_claim = ctl.parameter("claim")
            if ctl.action is not Action.CONSUME:
                continue
            (consumed,) = ctl.consumed
            if consumed.range.begin != at.get(consumed.range.queue, 0):
                found.add("I1 overlap")
            at[consumed.range.queue] = consumed.range.end
            if ctl.request_id in requests:
                found.add("I3 committed twice")
            requests.add(ctl.request_id)
            if (ctl.epoch or 0) < epoch:
                found.add("I6 operator ignored")
            if ctl.parameter("claim") is not None and ctl.parameter("claim") < newest_claim:
                found.add("fenced attempt committed")
            (produced,) = ctl.produced
            if produced.base != ends.get(produced.queue, 0):
                found.add("I2 base")
            ends[produced.queue] = (produced.base or 0) + produced.count
        return found


Story = Callable[[Log], None]


def operator_moves_away_and_back(log: Log) -> None:
    run = log.plan(0, 5, log.claim())
    log.reset(3)
    log.reset(0)
    log.finish(run)


def operator_moves_another_queue_after_the_decision(log: Log) -> None:
    run = log.plan(0, 5, log.claim())
    decided = log.decide(run)
    log.reset(4, Q1)
    log.finish(run, decided)


def silent_operator_moves_away_and_back(log: Log) -> None:
    run = log.plan(0, 5, log.claim())
    log.reset(3, raises_epoch=False)
    log.reset(0, raises_epoch=False)
    log.finish(run)


def taken_over_before_the_decision(log: Log) -> None:
    run = log.plan(0, 5, log.claim())
    log.claim(BEN)
    log.finish(run)


def taken_over_after_the_decision(log: Log) -> None:
    run = log.plan(0, 5, log.claim())
    decided = log.decide(run)
    log.claim(BEN)
    log.finish(run, decided)


def another_request_commits_first(log: Log) -> None:
    run = log.plan(0, 5, log.claim(), "slow")
    log.finish(log.plan(0, 7, log.claim(BEN), "quick"))
    log.finish(run)


def another_request_commits_after_the_decision(log: Log) -> None:
    run = log.plan(0, 5, log.claim(), "slow")
    decided = log.decide(run)
    log.finish(log.plan(0, 7, log.claim(BEN), "quick"))
    log.finish(run, decided)


def two_runs_without_a_claim(log: Log) -> None:
    run = log.plan(0, 5, None, "slow")
    log.finish(log.plan(0, 7, None, "quick"))
    log.finish(run)


def the_request_is_committed_by_a_later_attempt_and_reset(log: Log) -> None:
    run = log.plan(0, 5, log.claim(), "w")
    log.finish(log.plan(0, 5, log.claim(BEN), "w"))
    log.reset(0)
    log.finish(run)


def another_group_writes_to_the_same_queue_after_the_decision(log: Log) -> None:
    run = log.plan(0, 5)
    decided = log.decide(run)
    file = log.shard.stage("other", [MessageRow(b"other")])
    other = Proposal(a_ctl("o", group="h", produced=(Produced(DLQ, 0, 1, 0, file.path),),
                     consumed=(Consumed(QueueRange(Q1, 0, 0), 0, {}),), request_id="o"), {}, {}, (file,))  # fmt: skip
    log.finish(other)
    log.finish(run, decided)


STORIES: list[Story] = [
    operator_moves_away_and_back,
    operator_moves_another_queue_after_the_decision,
    taken_over_before_the_decision,
    taken_over_after_the_decision,
    another_request_commits_first,
    another_request_commits_after_the_decision,
    two_runs_without_a_claim,
    the_request_is_committed_by_a_later_attempt_and_reset,
    another_group_writes_to_the_same_queue_after_the_decision,
]

ALL_COMPARES = ("grp/", "off/", "own/")

GUARDS = [
    # not compared,          not in the commit,        story,                                    what the log then says
    (("grp/",), (), operator_moves_away_and_back, "I6 operator ignored"),
    (("grp/",), (), operator_moves_another_queue_after_the_decision, "I6 operator ignored"),
    ((), ("grp/",), operator_moves_another_queue_after_the_decision, "I6 operator ignored"),
    (("own/",), (), taken_over_before_the_decision, "fenced attempt committed"),
    ((), ("own/",), taken_over_after_the_decision, "fenced attempt committed"),
    (("own/", "off/"), (), another_request_commits_first, "I1 overlap"),
    (("off/",), (), two_runs_without_a_claim, "I1 overlap"),
    ((), ("own/", "off/", "grp/", "max/"), another_request_commits_after_the_decision, "I1 overlap"),
    (ALL_COMPARES, (), the_request_is_committed_by_a_later_attempt_and_reset, "I3 committed twice"),
    ((), ("max/",), another_group_writes_to_the_same_queue_after_the_decision, "I2 base"),
]

COVERED = [
    # one guard alone that others cover
    (("off/",), (), another_request_commits_first),
    ((), ("off/",), another_request_commits_after_the_decision),
    ((), ("own/",), another_request_commits_after_the_decision),
    (("own/",), (), the_request_is_committed_by_a_later_attempt_and_reset),
]


def case(row: tuple[Any, ...]) -> Any:
    """A row of these tables with a readable name."""
    compares, txns, story = row[:3]
    gone = [f"{kind}compare" for kind in compares] + [f"{kind}txn" for kind in txns]
    return pytest.param(*row, id=f"without {' and '.join(gone)}: {story.__name__}")


def remove_compares(monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]) -> None:
    kept = rules._same
    monkeypatch.setattr(rules, "_same", lambda app_id, *values: app_id.startswith(kinds) or kept(app_id, *values))


def told(log: Log, story: Story) -> set[str]:
    with suppress(StaleAttempt):
        story(log)
    return log.wrong()


@pytest.mark.parametrize("story", STORIES)
def test_with_all_guards_the_log_says_nothing_wrong(story: Story) -> None:
    assert told(Log(), story) == set()


@pytest.mark.parametrize(("compares", "txns", "story", "violation"), [case(row) for row in GUARDS])
def test_a_guard_that_is_taken_away_is_missed(
    monkeypatch: pytest.MonkeyPatch, compares: tuple[str, ...], txns: tuple[str, ...], story: Story, violation: str
) -> None:
    remove_compares(monkeypatch, compares)
    assert violation in told(Log(without_txn=txns), story)


@pytest.mark.parametrize(("compares", "txns", "story"), [case(row) for row in COVERED])
def test_a_guard_that_others_cover_is_not_missed_alone(
    monkeypatch: pytest.MonkeyPatch, compares: tuple[str, ...], txns: tuple[str, ...], story: Story
) -> None:
    remove_compares(monkeypatch, compares)
    assert told(Log(without_txn=txns), story) == set()


def test_a_reset_that_raised_no_epoch_would_be_ignored() -> None:
    log = Log()
    silent_operator_moves_away_and_back(log)
    assert log.wrong() == {"I6 operator ignored"}


def test_bases_kept_from_a_first_try_would_be_given_twice() -> None:
    log = Log()
    run = log.plan(0, 5)
    first_try = log.decide(run)
    another_group_writes_to_the_same_queue_after_the_decision(log)
    late = replace(first_try, ctl=replace(first_try.ctl, read_version=log.shard.positions().version))
    log.put(late, run)
    assert "I2 base" in log.wrong()


def test_every_commit_of_a_group_conflicts_with_every_other_even_on_other_queues() -> None:
    log = Log()
    one, other = log.plan(0, 5), log.plan(0, 5, queue=Q1)
    first, second = log.decide(one), log.decide(other)
    log.put(first, one)
    with pytest.raises(Conflict, match="grp/g"):
        log.put(second, other)


# --- the guards around the decision ----------------------------------------------------------------------------------


class Unanswered(MemoryShard):
    """Its first put takes effect, but its answer says that it did not."""

    def put(self, decided: Decided, files: tuple[StagedFile, ...]) -> None:  # type: ignore[override]
        super().put(decided, files)
        if len(self.ctls()) == 2:
            raise Conflict("no answer")


class Phantom(MemoryShard):
    """Its second put (the first is the log's own beginning) is answered as a success, but nothing is there."""

    puts = 0

    def put(self, decided: Decided, files: tuple[StagedFile, ...]) -> None:  # type: ignore[override]
        self.puts += 1
        if self.puts != 2:
            super().put(decided, files)


HOST = Host(now_ms=lambda: NOW, entropy=lambda n: bytes(n))


def test_a_commit_whose_answer_was_lost_is_found_by_its_id() -> None:
    log = Log(shard=Unanswered("s", lambda: NOW))
    run = log.plan(0, 5)
    assert commit(log.shard, run, HOST, started_ms=NOW).ctl.commit_id == run.ctl.commit_id
    assert log.wrong() == set()


def test_without_looking_for_its_id_it_would_be_reported_as_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(shard=Unanswered("s", lambda: NOW))
    run = log.plan(0, 5)
    monkeypatch.setattr(Unanswered, "ctl_of", lambda self, commit_id: None)
    with pytest.raises(StaleAttempt):
        commit(log.shard, run, HOST, started_ms=NOW)
    assert log.shard.ctls()[-1].commit_id == run.ctl.commit_id


def test_a_success_that_is_not_in_the_log_is_no_success() -> None:
    log = Log(shard=Phantom("s", lambda: NOW))
    run = log.plan(0, 5)
    commit(log.shard, run, HOST, started_ms=NOW)
    assert log.shard.ctls()[-1].commit_id == run.ctl.commit_id
    assert log.shard.puts == 3  # type: ignore[attr-defined]


def test_without_the_evidence_a_window_that_forgot_messages_would_be_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    run = log.plan(0, 5)
    forgetful = Consumed(QueueRange(Q, 0, 5), 0, {Outcome.ACKED: tally([0, 1, 3, 4])})
    run = replace(run, ctl=replace(run.ctl, consumed=(forgetful,)))
    with pytest.raises(EvidenceMismatch):
        commit(log.shard, run, HOST, started_ms=NOW)
    assert log.shard.positions().get(OFF) == 0
    monkeypatch.setattr(memory_commit, "check_evidence", lambda ctl, tally_of_range: None)
    commit(log.shard, run, HOST, started_ms=NOW)
    assert log.shard.positions().get(OFF) == 5


def test_a_claim_is_known_by_its_commit_and_not_by_its_number() -> None:
    """Two hosts take claim 1 from the same free state: by the number, both would hold it."""
    log = Log()
    free = log.shard.positions().get(OWN)
    claims = [
        Proposal(replace(a_ctl(action=Action.CLAIM), commit_id=commit_id), {OWN: free}, {OWN: Claim(1, 9).packed()})
        for commit_id in ("mine", "theirs")
    ]
    mine, theirs = (log.decide(claim) for claim in claims)
    log.put(mine, claims[0])
    with pytest.raises(Conflict):
        log.put(theirs, claims[1])
    assert Claim.of(log.shard.positions().get(OWN)).number == 1
    with pytest.raises(StaleAttempt):
        log.decide(claims[1])
