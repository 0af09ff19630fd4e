"""Moves of a group's offsets as a table: from which offset to which, and how many messages more or fewer are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmq_store.cli.common import COMMITTED
from rmq_store.cli.output import AnswerNotWritten, Output
from rmq_store.commit.positions import ABSENT
from rmq_store.commit.request import Status, overall

if TYPE_CHECKING:
    from rmq_store.admin.move_sizes import MoveSize, StateBefore
    from rmq_store.admin.offset_moves import MoveReport
    from rmq_store.commit.ctl import Moved
    from rmq_store.lake.table.shard import Shard
    from rmq_store.settings.settings import GroupSettings


def states_before(shards: Sequence[Shard], group: str, settings: GroupSettings | None) -> dict[str, StateBefore]:
    """The state of each shard by its name. ``settings``: those of the group, None when there are none."""
    from rmq_store.lake.admin.move_sizes import state_before

    return {shard.name: state_before(shard, group, settings) for shard in shards}


@contextmanager
def moving(
    answer: Callable[[Sequence[MoveReport]], dict[str, Any]], show: Callable[[dict[str, Any]], None]
) -> Iterator[Callable[[MoveReport], None]]:
    """For the time that a move runs; yields its ``finished``. Where an error ends it, what was done before is in the JSON of
    the error, as in that of a success, and as text above it.

    ``answer``: of reports, as JSON. ``show``: prints the table of such an answer.
    """
    ended: list[MoveReport] = []

    def finished(report: MoveReport) -> None:
        if report.status != Status.DRY_RUN:
            ended.append(report)

    COMMITTED.set(lambda: answer(ended) if ended else {})
    try:
        yield finished
    except BaseException:  # also Ctrl-C
        if ended:
            with suppress(AnswerNotWritten):  # the error says more
                show(answer(ended))
        raise


@dataclass(frozen=True, slots=True)
class Moves:
    """The answer of a move."""

    output: Output
    before: Mapping[str, StateBefore]
    """See ``states_before``."""
    request: dict[str, Any]
    """The request's own keys of the JSON answer, like the group."""

    def running(self) -> AbstractContextManager[Callable[[MoveReport], None]]:
        """See ``moving``."""
        return moving(self.answer, self._table)

    def show(self, reports: Sequence[MoveReport]) -> None:
        """Print it."""
        answer = self.answer(reports)
        is_dry = answer["status"] == Status.DRY_RUN
        more, moves = answer["messages"], answer["moves"]
        first = sum(move["messages"] is None and move["to_offset"] is not None for move in moves)
        for note in answer["notes"]:
            self.output.note(note)
        self._table(answer)
        self.output.answer(
            answer,
            f"in all: {_more_or_less(more)}" + (f", {first} queues had no offset" if first else ""),
            *([f"bytes of bodies: {answer['bytes']:,}"] if is_dry else []),
            f"request: {answer['request_id']}",
        )

    def answer(self, reports: Sequence[MoveReport]) -> dict[str, Any]:
        """As JSON. ``reports``: at least one."""
        moves = []
        for report in reports:
            sizes = {size.queue: size for size in report.sizes}
            moves += [
                _move(report.shard, move, self.before[report.shard], sizes.get(move.queue)) for move in report.moves
            ]
        status = overall(report.status for report in reports)
        answer = {"status": status, **self.request, "request_id": reports[0].request_id, "moves": moves}
        answer["messages"] = sum(move["messages"] or 0 for move in moves)
        if status == Status.DRY_RUN:
            answer["bytes"] = sum(move["bytes"] or 0 for move in moves)
        answer["notes"] = [f"shard {report.shard}: {note}" for report in reports for note in report.notes]
        answer["warnings"] = [warning for report in reports for warning in report.warnings]
        return answer

    def _table(self, answer: dict[str, Any]) -> None:
        columns = [*_MOVE, "bytes"] if answer["status"] == Status.DRY_RUN else list(_MOVE)
        self.output.table([move | {"messages": _messages_text(move)} for move in answer["moves"]], columns)


_MOVE = ("shard", "topic", "broker_name", "queue_id", "from_offset", "to_offset", "messages")


def _move(shard: str, move: Moved, before: StateBefore, size: MoveSize | None) -> dict[str, Any]:
    """``messages``: how many more will be read (negative: fewer); None where there was no offset to compare with. ``size``:
    that of a dry run, which is exact; without it offsets are counted, and ``bytes`` is None.

    ``observed_offset``: the offset that the last import read from the group's broker; None where the store has its own.
    """
    queue = move.queue
    observed = before.observed.get(queue) if move.from_offset is None else None
    start = before.start(move)
    to_offset = None if move.to_offset == ABSENT else move.to_offset
    known = start is not None and to_offset is not None
    more = before.readable(queue, start or 0) - before.readable(queue, to_offset or 0) if known else None
    values = (shard, queue.topic, queue.broker_name, queue.queue_id, move.from_offset, to_offset, more)
    row = dict(zip(_MOVE, values, strict=True)) | {"observed_offset": observed, "bytes": None, "direction": None}
    if size is None:
        return row
    return row | {"messages": size.more, "bytes": size.bytes, "direction": size.direction}


def _messages_text(move: dict[str, Any]) -> str:
    observed, messages = move["observed_offset"], move["messages"]
    if move["to_offset"] is None:
        return "has no offset any more, as before"
    start = move["from_offset"] if observed is None else observed
    if messages == 0 and start not in (None, move["to_offset"]):
        return f"as many to read (no message is kept between {start:,} and {move['to_offset']:,})"
    where = "" if observed is None else f" (from {observed:,}, its broker's offset)"
    if start is None and messages is not None:
        where = " (had no offset, it would start at the first message)"
    return _more_or_less(messages) + where


def _more_or_less(messages: int | None) -> str:
    if messages is None:
        return "had no offset"
    return "no change" if messages == 0 else f"{abs(messages):,} {'more' if messages > 0 else 'fewer'} to read"
