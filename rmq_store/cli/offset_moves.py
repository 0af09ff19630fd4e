"""Moves of a group's offsets as a table: from which offset to which, and how many messages more or fewer are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rmq_store.cli.output import Output
from rmq_store.commit.ctl import is_born_here
from rmq_store.commit.request import Status
from rmq_store.message.message_const import retry_topic

if TYPE_CHECKING:
    from rmq_store.admin.offset_moves import MoveReport
    from rmq_store.commit.ctl import Moved
    from rmq_store.commit.positions import Positions
    from rmq_store.lake.table.shard import Shard
    from rmq_store.message.message import MessageQueue
    from rmq_store.settings.settings import GroupSettings


class StateBefore(NamedTuple):
    """A shard before a move."""

    positions: Positions
    observed: Mapping[MessageQueue, int]
    """The group's offsets that the last import read from a running broker."""
    later_queues_start_at_min: bool
    """Whether the group starts at the first message of a queue that is newer than the group."""

    def first_start(self, group: str, queue: MessageQueue) -> int | None:
        """The offset from which the group would start without a committed one; None where its settings decide."""
        if queue in self.observed:
            return self.observed[queue]
        is_later = self.later_queues_start_at_min and is_born_here(queue.broker_name)
        return self.positions.min_offset(queue) if is_later or queue.topic == retry_topic(group) else None

    def readable(self, queue: MessageQueue, offset: int) -> int:
        """The offset, limited to the readable range."""
        return min(max(offset, self.positions.min_offset(queue)), self.positions.max_offset(queue))


def states_before(shards: Sequence[Shard], group: str, settings: GroupSettings | None) -> dict[str, StateBefore]:
    """The state of each shard by its name. ``settings``: those of the group, None when there are none."""
    from rmq_store.lake.window.plan import ShardLookup
    from rmq_store.window.shard_view import observed_offsets

    at_min = settings is None or settings.later_queues_start_at_min
    states = {}
    for shard in shards:
        positions = shard.positions()
        states[shard.name] = StateBefore(positions, observed_offsets(ShardLookup(shard), positions, group), at_min)
    return states


def show_moves(
    output: Output, reports: Sequence[MoveReport], before: Mapping[str, StateBefore], request: dict[str, Any]
) -> None:
    """Print the answer of a move. ``request``: its own keys of the JSON answer, like the group."""
    moves = [_move(report.shard, move, before[report.shard]) for report in reports for move in report.moves]
    more = sum(move["messages"] or 0 for move in moves)
    first = sum(move["messages"] is None for move in moves)
    statuses = {report.status for report in reports}
    status = Status.COMMITTED if Status.COMMITTED in statuses else reports[0].status
    request_id = reports[0].request_id
    output.table([move | {"messages": _messages_text(move)} for move in moves], list(_MOVE))
    output.answer(
        {"status": status}
        | request
        | {"request_id": request_id, "moves": moves, "messages": more}
        | {"warnings": [warning for report in reports for warning in report.warnings]},
        f"in all: {_more_or_less(more)}" + (f", {first} queues had no offset" if first else ""),
        f"request: {request_id}",
    )


_MOVE = ("shard", "topic", "broker_name", "queue_id", "from_offset", "to_offset", "messages")


def _move(shard: str, move: Moved, before: StateBefore) -> dict[str, Any]:
    """``messages``: how many more will be read (negative: fewer); None where there was no offset to compare with.

    ``observed_offset``: the offset that the last import read from the group's broker; None where the store has its own.
    """
    queue = move.queue
    observed = before.observed.get(queue) if move.from_offset is None else None
    start = before.first_start(move.group, queue) if move.from_offset is None else move.from_offset
    more = None if start is None else before.readable(queue, start) - before.readable(queue, move.to_offset)
    values = (shard, queue.topic, queue.broker_name, queue.queue_id, move.from_offset, move.to_offset, more)
    return dict(zip(_MOVE, values, strict=True)) | {"observed_offset": observed}


def _messages_text(move: dict[str, Any]) -> str:
    observed, messages = move["observed_offset"], move["messages"]
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
