"""Moves of a group's offsets as a table: from which offset to which, and how many messages more or fewer are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rmq_store.cli.output import Output
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


def show_moves(
    output: Output, reports: Sequence[MoveReport], before: Mapping[str, StateBefore], request: dict[str, Any]
) -> None:
    """Print the answer of a move. ``request``: its own keys of the JSON answer, like the group."""
    moves = []
    for report in reports:
        sizes = {size.queue: size for size in report.sizes}
        moves += [_move(report.shard, move, before[report.shard], sizes.get(move.queue)) for move in report.moves]
    more = sum(move["messages"] or 0 for move in moves)
    first = sum(move["messages"] is None and move["to_offset"] is not None for move in moves)
    status = overall(report.status for report in reports)
    request_id = reports[0].request_id
    is_dry = status == Status.DRY_RUN
    bytes_ = sum(move["bytes"] or 0 for move in moves)
    columns = [*_MOVE, "bytes"] if is_dry else list(_MOVE)
    notes = [f"shard {report.shard}: {note}" for report in reports for note in report.notes]
    for note in notes:
        output.note(note)
    output.table([move | {"messages": _messages_text(move)} for move in moves], columns)
    output.answer(
        {"status": status}
        | request
        | {"request_id": request_id, "moves": moves, "messages": more}
        | ({"bytes": bytes_} if is_dry else {})
        | {"notes": notes}
        | {"warnings": [warning for report in reports for warning in report.warnings]},
        f"in all: {_more_or_less(more)}" + (f", {first} queues had no offset" if first else ""),
        *([f"bytes of bodies: {bytes_:,}"] if is_dry else []),
        f"request: {request_id}",
    )


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
