"""The requests of the search of ``proposal_explorer.py`` about brokers: imports, cut-overs and hand-backs.

A broker's log is given: an import reads no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from rmq_store.broker_files.mapped_file_queue import MappedFileQueue
from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import (
    Action,
    Ctl,
    Observed,
    Produced,
    canonical_json,
)
from rmq_store.commit.positions import (
    Positions,
    cutover_id,
    diverged_id,
    import_id,
    max_id,
    min_id,
)
from rmq_store.errors import WrongUse
from rmq_store.lake.broker.common_log import CommonLog
from rmq_store.lake.broker.cutover import adopted_moves, cutover_proposal
from rmq_store.lake.broker.diverged_log import LogCut, moves_to_cuts
from rmq_store.lake.broker.hand_back import hand_back_proposal, handed_moves
from rmq_store.lake.broker.import_commit import ImportCommit, proposal_of
from rmq_store.lake.broker.import_job import ImportResult
from rmq_store.lake.broker.import_part import LogRead
from rmq_store.message.message import MessageQueue
from tests.faults.proposal_operations import ANA, Draft, Moment, Operation
from tests.faults.proposal_view import Snapshot

Log = tuple[MessageQueue, ...]
"""A broker's log: the queue of each message. A message is a byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Import(Operation):
    """An import of a broker's ``log``, whose groups have the ``observed`` offsets. ``trimmed``: how many messages of each queue
    the broker has removed before; ``continues``: the old name of the log, and the physical offset of the cut."""

    claims: ClassVar[bool] = True

    broker: str
    log: Log
    trimmed: int = 0
    observed: tuple[Observed, ...] = ()
    continues: tuple[str, int] | None = None

    def wish(self, view: Snapshot, now_ms: int) -> Wish | None:
        if view.parts(self.request_id, Action.IMPORT):
            return None
        _refuse_closed(view.stored, self.broker)
        log_name = self.continues[0] if self.continues else self.broker
        return Wish.of_whole(self.request_id, ANA, "~import", log_name)

    def draft(self, moment: Moment) -> Draft | None:
        view, name = moment.view, self.broker
        if view.parts(self.request_id, Action.IMPORT):
            return None
        _refuse_closed(view.stored, name)
        cut = self._cut(view)
        begin = (view.stored.get(import_id(name)) or 0) if cut is None else cut.common.end
        if begin >= len(self.log):
            return None
        begun = view.stored if cut is None else view.stored.advanced(view.stored.version, cut.advance, {})
        produced: list[Produced] = []
        advance: dict[str, int] = {}
        for n, queue in enumerate(sorted(set(self.log))):
            count, base = self.log[begin:].count(queue), self.trimmed + self.log[:begin].count(queue)
            if count:
                if self.trimmed and begun.get(max_id(queue)) is None:
                    advance[min_id(queue)] = base
                else:
                    assert base == begun.max_offset(queue), "as an import checks it"
                produced.append(
                    Produced(queue, 0, count, n, moment.file, base, min_store_timestamp=1, max_store_timestamp=1)
                )
                advance[max_id(queue)] = base + count
        ctl = Ctl(
            moment.commit_id,
            Action.IMPORT,
            ANA,
            request_id=self.request_id,
            parameters=canonical_json(
                {"broker_name": name, "range": [begin, len(self.log)]} | (cut.parameters if cut else {})
            ),
            produced=tuple(produced),
            moved=cut.moved if cut else (),
            observed=self.observed,
        )
        result = ImportResult(
            number=0,
            begin=begin,
            end=len(self.log),
            full=True,
            messages=0,
            files=(moment.staged(),),
            produced=tuple(produced),
        )
        read = LogRead(cast(MappedFileQueue, None), [result], begin, len(self.log), is_last=True)
        made = ImportCommit(ctl, {**(cut.advance if cut else {}), **advance}, has_new_configs=True)
        return Draft(proposal_of(made, read, name, view.stored), "import" if cut is None else "import that continues")

    def _cut(self, view: Snapshot) -> LogCut | None:
        if self.continues is None:
            return None
        old, end = self.continues
        if view.stored.get(import_id(self.broker)) is not None:
            raise WrongUse("imported before")
        _refuse_closed(view.stored, old)
        cuts = {
            MessageQueue(queue.topic, self.broker, queue.queue_id): self.log[:end].count(
                MessageQueue(queue.topic, self.broker, queue.queue_id)
            )
            for queue in view.stored.all_queues()
            if queue.broker_name == old
        }
        common = CommonLog(old, end, continues=True, messages=0, queues=0)
        return LogCut(old, self.broker, common, cuts, moves_to_cuts(view.stored, old, self.broker, cuts))


def _refuse_closed(positions: Positions, broker: str) -> None:
    """As ``diverged_log.refuse_closed``, which reads a store."""
    if positions.get(diverged_id(broker)) is not None or positions.get(cutover_id(broker)):
        raise WrongUse(f"{broker} is closed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutover(Operation):
    claims: ClassVar[bool] = True

    broker: str

    def wish(self, view: Snapshot, now_ms: int) -> Wish | None:
        if view.parts(self.request_id, Action.CUTOVER):
            return None
        _refuse_closed(view.stored, self.broker)
        return Wish.of_whole(self.request_id, ANA, "~import", self.broker)

    def draft(self, moment: Moment) -> Draft | None:
        positions = moment.view.stored
        if moment.view.parts(self.request_id, Action.CUTOVER):
            return None
        _refuse_closed(positions, self.broker)
        newest = [ctl for ctl in moment.view.ctls if ctl.parameter("broker_name") == self.broker and ctl.observed]
        moves = adopted_moves(positions, newest[-1].observed if newest else ())
        ctl = Ctl(
            moment.commit_id,
            Action.CUTOVER,
            ANA,
            request_id=self.request_id,
            parameters=canonical_json({"broker_name": self.broker}),
            moved=moves,
        )
        return Draft(cutover_proposal(ctl, positions, self.broker, (self.broker,)), "cutover")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandBack(Operation):
    claims: ClassVar[bool] = True

    broker: str

    def wish(self, view: Snapshot, now_ms: int) -> Wish | None:
        if view.parts(self.request_id, Action.HAND_BACK) or not view.stored.get(cutover_id(self.broker)):
            return None
        return Wish.of_whole(self.request_id, ANA, "~import", self.broker)

    def draft(self, moment: Moment) -> Draft | None:
        positions, log = moment.view.stored, (self.broker,)
        if moment.view.parts(self.request_id, Action.HAND_BACK) or not positions.get(cutover_id(self.broker)):
            return None
        moves = handed_moves(positions, log)
        observed = (Observed(m.group, m.queue, m.from_offset) for m in moves if m.from_offset is not None)
        ctl = Ctl(
            moment.commit_id,
            Action.HAND_BACK,
            ANA,
            request_id=self.request_id,
            parameters=canonical_json({"broker_name": self.broker}),
            moved=moves,
            observed=tuple(observed),
        )
        return Draft(hand_back_proposal(ctl, positions, self.broker, log), "hand-back")
