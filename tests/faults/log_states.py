"""The states of the searched log: who takes part, what each of them remembers, what must always hold, and what can be left out.

``log_explorer.py`` has the search.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rmq_store.commit.append import Append
from rmq_store.commit.positions import ABSENT
from tests.faults.log_decisions import Member, Numbers, Work
from tests.faults.log_entries import View

GUARDS = {
    # the decision
    "grp expected": "the epoch is among the positions that the plan expects",
    "off expected": "so is the offset",
    "own expected": "so is the number of the claim",
    "cmp expected": "so is the number of compactions",
    "files expected": "a compaction is decided only if the files that it removes are live",
    "delete closed": "a delete expects that its group has no offset but those that it has seen",
    "epoch raised": "an operator's action raises the group's epoch",
    "request check": "a request that is in the log is not run again",
    "request found by id": "it is looked up by its id, not by its ranges",
    "bases in sequence": "a window gets its bases after those of the windows before it in the entry",
    "new bases": "when one leaves the entry, the others are decided again",
    # another's entry at my name
    "newcomer compared": "another's entry at my name is compared with mine",
    "grp met": "by the epoch",
    "off met": "by the offsets",
    "max met": "by the ends of the queues that are produced to",
    "own met": "by the claims",
    "cmp met": "by the number of compactions",
    "files met": "by the files that both remove",
    "closed met": "by the closed prefix of a delete",
    # claims
    "claim": "a run takes a claim before it plans",
    "lease": "a claim that is held by another request is not taken before its lease is over",
    "claim number raised": "who takes a claim gives it a new number",
    "held left out": "a run plans only the queues of which it got the claim",
    # answers
    "silence is unknown": "no answer is no failure",
    "same name": "without an answer the bytes go to the same name again",
    "same bytes": "and they are the same bytes",
    "taken is read": "a name that is taken is read",
    "all or none": "no window leaves an entry whose name is not settled",
    "settled": "a failure is reported only when the name is settled",
    "taken, then absent": "a name that was taken and is absent is a reason to open again",
    "look after opening": "after an opening the writer looks for its commits",
    # time
    "young to walk": "an absent name is the end only in a young view",
    "young when created": "a success is reported only in a young view",
    "young when mine": "also if the name was read and is mine",
    "young when another's": "and it is another's only in a young view",
    "young while opening": "what a LIST has named is read only while the LIST is young",
    "behind an absent name": "what a parallel read brings from behind an absent name is dropped",
    "time of the answer": "the end of a view is as old as the answer that was absent",
    "time, not hint": "the time says whether a view is young, not the hint",
    # in a folder, whose hosts have clocks of their own
    "look before": "after a name was created or read, the entry before it is looked at",
    "look compared": "and it is the one that was read, not another one in a freed name",
    "newer checkpoint": "behind a checkpoint, and after an opening, a LIST is looked at for a newer one",
    # opening and clean-up
    "list": "an opening lists the checkpoints and the entries",
    "checkpoint before names": "what a checkpoint covers is never read by its name",
    "hint may be absent": "an absent hint does not mean an empty log",
    "checkpoint age": "entries are deleted behind a checkpoint of a certain age, whatever theirs is",
    "checkpoint read back": "and only if it is complete",
    "checkpoints go late": "a checkpoint is deleted only if a newer one has that age",
}


class Answer(NamedTuple):
    """To a read of ``name``: what it held, -1: absent; the end of the log at that moment, and the time since. To a PUT:
    ``name`` is 0, its name was created."""

    name: int
    entry: int
    end: int
    age: int = 0


class Writer(NamedTuple):
    """One process. ``view``, ``age``: the entries it has read, and the steps of time since it knew their end. ``listed``: the
    end according to the LIST while it reads up to there, else 0, and ``base`` the checkpoint from which it reads. ``append``:
    the entry on its way, at time 0. ``reported``: commit ids whose failure it has reported. ``answer``: in a folder, the last
    one, before the entry before the name is looked at."""

    name: str
    at: str = "start"
    view: View = ()
    age: int = 0
    listed: int = 0
    base: int = 0
    answer: Answer | None = None
    job: int = 0
    part: int = 1
    claims: int = 0
    own: Numbers = ()
    members: tuple[Member, ...] = ()
    entry: int = 0
    append: Append | None = None
    reported: tuple[str, ...] = ()


class Reader(NamedTuple):
    """``answers``: those of several reads at once, until all have come. ``base``: as of a writer."""

    view: View = ()
    age: int = 0
    listed: int = 0
    base: int = 0
    answers: tuple[Answer, ...] = ()


class Checkpoint(NamedTuple):
    version: int
    age: int
    complete: bool = True


class Maintainer(NamedTuple):
    """``target``: the version whose checkpoint it makes, -1: none yet."""

    rounds: int
    target: int = -1
    written: bool = False


class State(NamedTuple):
    """``log``: what was committed, from version 1 on. ``deleted``: names up to it are gone. ``again``: names that were created
    again after that, which are not in the log. ``flying``: PUTs on their way."""

    log: View
    deleted: int
    again: tuple[tuple[int, int], ...]
    flying: tuple[tuple[int, int], ...]
    checkpoints: tuple[Checkpoint, ...]
    hint: int
    writers: tuple[Writer, ...]
    readers: tuple[Reader, ...]
    maintainers: tuple[Maintainer, ...]
    others: tuple[tuple[str, ...], ...]
    losses: int
    late: int
    damages: int
    ticks: int
    ages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who takes part. ``jobs``: by writer the entries that it makes in turn, each with the works in it. ``losses``: PUTs that
    are lost or whose reply is; ``late``: PUTs that arrive later. ``others``: by actor its actions in turn. ``at_once``: how
    many names a reader asks for at a time. ``maintainers``: how many checkpoints each writes; ``slow``: its steps are apart.
    ``damages``: how many of them may be incomplete. ``hint``: where it points at first, -1: nowhere. ``folder``: clocks say
    nothing, an entry may go behind each checkpoint, and a PUT is never late, as its call returns when the name is there."""

    jobs: Mapping[str, tuple[tuple[Work, ...], ...]] = field(default_factory=dict)
    losses: int = 0
    late: int = 0
    ticks: int = 0
    others: tuple[tuple[str, ...], ...] = ()
    readers: int = 0
    at_once: int = 1
    maintainers: tuple[int, ...] = ()
    slow: bool = False
    damages: int = 0
    hint: int = 0
    gives_up: bool = False
    opens: bool = True
    claims: bool = False
    leases_end: bool = True
    offset: int = ABSENT
    known: bool = False
    view_trust: int = 1
    checkpoint_trust: int = 2
    folder: bool = False

    def first(self) -> State:
        return State(
            (), 0, (), (), (Checkpoint(0, self.checkpoint_trust),), self.hint,
            tuple(Writer(name) for name in self.jobs), (Reader(),) * self.readers,
            tuple(Maintainer(rounds) for rounds in self.maintainers), self.others,
            self.losses, self.late, self.damages, self.ticks,
        )  # fmt: skip


INVARIANTS = {
    "I1": "a range begins at the committed offset",
    "I2": "a base is the end of its queue",
    "I3": "a request is committed once",
    "I4": "nothing of a deleted group is committed, and no offset outlives its group",
    "I6": "nothing is committed that was planned before an operator's action",
    "I7": "a reported success is in the log",
    "I7a": "so is a request that a plan reports as committed already",
    "I7b": "a reported failure is not, and never will be",
    "I8": "two commits that share an id are ordered by the versions they were decided on",
    "I9": "after a reset the messages are not refused as consumed",
    "R1": "a view holds what the log holds",
    "R2": "where a view ends, the log ended when its end was read",
    "R3": "the log can be opened",
    "R4": "no writer takes the log for another one, as after a restore",
    "D": "a commit is in the log, and in a view, once",
    "C": "a row is live in one file",
    "G": "no name is created behind the end of the log",
}


class Violation(Exception):
    """An invariant does not hold."""
