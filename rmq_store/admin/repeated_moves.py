"""A move of offsets whose request was committed before, or that another move overtakes: what it may still do, and what it says.

A move is one commit per shard, so a request that was cut is committed in some shards only. Its repetition does the rest, as if
it had not been cut. It would not be as if where another move came in between: then the answer would show offsets that the
group has left already, or the rest would overwrite what another operator set meanwhile, and the shards would stand at moves of
different requests.

In a shard that has the request, the order of its log says what came after it. In one that lacks it, the times of the store
must: the logs of two shards have no common order.

While a move runs, the group's epoch in each of its shards says whether another move came: see ``refuse_overtaken``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rmq_store.admin.offset_moves import MoveRequest
from rmq_store.admin.undo import MOVES, UndoRequest, undone_sentence
from rmq_store.commit.ctl import Action, Ctl
from rmq_store.errors import StaleAttempt, WrongUse

MOVING = (*MOVES, Action.CUTOVER, Action.HAND_BACK, Action.IMPORT)
"""What moves offsets of a group without a window: operators' actions on it, and those on a broker that has it."""

_OF_BROKER = "a cut-over, a hand-back or an import under another name"


@dataclass(frozen=True, slots=True)
class Made:
    """The commit that a request made in a shard."""

    ctl: Ctl
    since: str | None = None
    """What has moved the group after it, in words; None: nothing."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the answer ``already_committed`` says besides the moves of the commit."""
        if self.since is None:
            return ()
        return (f"these are the moves of that time: {self.since} came after them",)


def came_after(ctl: Ctl, last_move: Ctl | None) -> str:
    """What has moved the group after a commit that is not its last move, in words. ``last_move``: the last of an operator in
    the shard, None: there is none."""
    return _moved_since(ctl.epoch or 0, last_move)


def _moved_since(epoch: int, last_move: Ctl | None) -> str:
    if last_move is None or (last_move.epoch or 0) <= epoch:
        return _OF_BROKER
    return undone_sentence(last_move)


def refuse_overtaken(request: MoveRequest, seen: int, last_move: Ctl | None, shard: str) -> None:
    """Raise StaleAttempt for a move of a group whose epoch in the shard is not ``seen`` any more: each move raises it, and a
    window does not.

    ``seen``: what it was when the shards were looked at; of an undo that of the action to undo. ``last_move``: the last of an
    operator in the shard as of now, None: there is none. A cut-over after an action to undo is left to ``undo_moves``.
    """
    by = _moved_since(seen, last_move)
    if not isinstance(request, UndoRequest):
        advice = "Look at that before you run it again"
    elif by == _OF_BROKER:
        return
    else:
        advice = "Run it again if that is to be undone"
    raise StaleAttempt(f"{_moved_while(request, shard)}: {by} came first. {advice}")


def overtaken_note(request: MoveRequest, seen: int, last_move: Ctl | None, shard: str) -> str:
    """What the answer of a move says that is committed, where ``refuse_overtaken`` would have refused it had the other move
    been seen: two that commit in different shards at the same moment do not see each other. The arguments are the same."""
    by = _moved_since(seen, last_move)
    return (
        f"{_moved_while(request, shard)}: {by} came too, and the shards may stand at moves of both. Look at the offsets"
    )


def _moved_while(request: MoveRequest, shard: str) -> str:
    running = str(request.action)
    if isinstance(request, UndoRequest):
        running += f" of {request.undone.action} {request.undone.request_id}"
    return f"group {request.group} was moved in shard {shard} while this {running} ran"


def first_time(made: Iterable[Made]) -> int:
    """When the store has committed the first part of a request (ms, UTC). ``made``: its commits, at least one."""
    return min(one.ctl.store_timestamp for one in made)


def later_move(first_ms: int, commits: Iterable[Ctl], group: str) -> Ctl | None:
    """Of the ``commits`` of a shard that lacks a request, the last move of the group, in the order of the log, that the store
    committed after ``first_ms``, the ``first_time`` of the request; None: there is none.

    By the times of the store, since the logs of two shards have no common order: a move that a clock far behind has dated
    before the request is not seen.
    """
    moves = [
        ctl
        for ctl in commits
        if ctl.store_timestamp > first_ms
        and ctl.action in MOVING
        and (ctl.group == group or any(move.group == group for move in ctl.moved))
    ]
    return max(moves, key=lambda ctl: (ctl.read_version, ctl.commit_id), default=None)


def refuse_rest(request_id: str, made: Mapping[str, Made], rest: Mapping[str, Ctl | None]) -> None:
    """Raise WrongUse for a request that is committed in some shards and not in all, where another move came after it.

    ``made``: by shard what it has committed there. ``rest``: by shard that lacks it what has moved the group there since, see
    ``later_move``; None: nothing.
    """
    after = [f"in shard {shard} {before.since}" for shard, before in made.items() if before.since]
    groups = {before.ctl.group for before in made.values()}
    after += [f"in shard {shard} {_sentence(move, groups)}" for shard, move in rest.items() if move]
    if rest and after:
        raise WrongUse(
            f"request {request_id} was committed in shard {', '.join(made)} and not in {', '.join(rest)}, and another move "
            f"came after it: {'; '.join(after)}. The rest of it is not done, and nothing was changed; make a new request, "
            "with a new id"
        )


def _sentence(move: Ctl, groups: Collection[str | None]) -> str:
    """What a later move was, and whose where it is of none of these groups, but of the source of a clone."""
    of_other = f", of group {move.group}" if move.action in MOVES and move.group not in groups else ""
    return f"{undone_sentence(move)}{of_other}"
