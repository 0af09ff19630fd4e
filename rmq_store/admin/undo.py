"""Undo of a group's last operator action: its offsets go back to where they were before it.

An undo is a move like a reset, recorded with who, why and which action it undoes, and it begins a new pass. Only the last
action can be undone; an undo is one too, so an undo of it does the action again. ``docs/decisions/0022-undo.md`` says what
cannot be undone, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import NamedTuple, Self

from rmq_store.admin.move_sizes import not_kept
from rmq_store.admin.offset_moves import move_proposal, need_reason, next_epoch
from rmq_store.commit.ctl import Action, Actor, Ctl, Moved, Proposal, canonical_json
from rmq_store.commit.positions import ABSENT, PositionKind, Positions, del_id, ids_of, off_id
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.utils.redaction import name_in_sentence, reason_in_sentence
from rmq_store.utils.suggestions import listed
from rmq_store.utils.times import format_time
from rmq_store.window.shard_view import ShardView

ACTIONS = (Action.RESET, Action.CLONE, Action.UNDO, Action.DELETE, Action.REPLAY, Action.REDRIVE)
"""What operators do to a group."""
MOVES = tuple(action for action in ACTIONS if action is not Action.REDRIVE)
"""Those that move its offsets: each raises its epoch."""

_CANNOT = {
    Action.DELETE: (
        "a delete cannot be undone: retries of the group that waited are dropped. Its offsets are in offset_history; "
        "'rmq reset --queue ... --to-offset ...' sets them again"
    ),
    Action.REPLAY: (
        "another attempt of a replay cannot be undone: the number of an attempt is the replay's epoch. Finish it with its own "
        "request"
    ),
    Action.REDRIVE: (
        "a redrive cannot be undone: its copies are messages, which may be consumed already. They are in the group's retry "
        "topic, or in that of --to-topic, among other messages, and nothing takes back only them. "
        "'rmq sql \"SELECT * FROM redrives\"' shows where each one is, and of which request"
    ),
}


class ActionName(NamedTuple):
    """Which action of a group is meant. A request id alone may be that of several: of a reset, and of the undo of it."""

    action: str
    request_id: str

    @classmethod
    def of(cls, ctl: Ctl) -> Self:
        return cls(ctl.action, ctl.request_id)

    def __str__(self) -> str:
        return f"{self.action} {self.request_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoRequest:
    """An undo of an action in one shard."""

    group: str
    undone: Ctl
    """The commit of the action."""
    request_id: str
    actor: Actor
    reason: str
    force: bool = False
    """Also when windows were committed in its queues since."""
    dry_run: bool = False

    def __post_init__(self) -> None:
        need_reason("an undo", self.reason)

    @property
    def action(self) -> Action:
        return Action.UNDO

    @property
    def parameters(self) -> str:
        undone = self.undone
        return canonical_json(
            {"undoes": undone.request_id, "undoes_action": str(undone.action), "undoes_commit": undone.commit_id}
        )

    def moves(self, shard: ShardView, positions: Positions) -> tuple[Moved, ...]:
        """Raises WrongUse for an action that cannot be undone, and for one that is not the last, or after which windows were
        committed, unless the request has ``force``."""
        return undo_moves(shard, positions, self)

    def proposal(self, commit_id: str, positions: Positions, moves: Sequence[Moved]) -> Proposal:
        """The undo as a commit. One that leaves a queue without an offset is refused when any window came in between, also one
        that moved no queue of the action: it may be the group's first. ``closed`` shows what such a window begins."""
        proposal = move_proposal(commit_id, self, positions, moves)
        if all(move.to_offset != ABSENT for move in moves):
            return proposal
        prefixes = (ids_of(PositionKind.OFFSET, self.group), ids_of(PositionKind.BLOCKED, self.group))
        kept = {
            app_id: value
            for prefix in prefixes
            for app_id, value in positions.prefixed(prefix)
            if app_id not in proposal.expect
        }
        return replace(
            proposal,
            expect={**proposal.expect, **kept},
            advance={**proposal.advance, **kept},
            updated_ms={app_id: positions.updated_ms(app_id) for app_id in kept},
            closed=prefixes,
        )


def undo_moves(shard: ShardView, positions: Positions, request: UndoRequest) -> tuple[Moved, ...]:
    """The moves of an undo: each queue that the action moved goes back."""
    group, undone = request.group, request.undone
    if undone.action in _CANNOT:
        raise WrongUse(_CANNOT[undone.action])
    if not is_last_move(undone, positions):
        raise WrongUse(
            f"{undone.action} {undone.request_id} is not the last thing that moved offsets of group {group} in shard "
            f"{shard.name}: a cut-over, a hand-back or an import under another name came after it"
        )
    at = {move.queue: positions.get(off_id(group, move.queue)) for move in undone.moved}
    read = [move for move in undone.moved if at[move.queue] != _offset(move.to_offset)]
    if new := _without_start(shard, positions, undone, read):
        raise WrongUse(
            f"group {group} had no offset in {listed([str(queue) for queue in new], 3)} before {undone.action} "
            f"{undone.request_id}, and windows were committed in shard {shard.name} since: without an offset it would start at "
            f"the first message. Reset it there instead: 'rmq reset --shard {quote(shard.name)} ...'"
        )
    epoch = next_epoch(positions, group)
    moves = tuple(
        Moved(group, move.queue, at[move.queue], ABSENT if move.from_offset is None else move.from_offset, epoch)
        for move in undone.moved
    )
    if removed := not_kept(positions, [move for move in moves if move.to_offset != move.from_offset]):
        raise WrongUse(
            f"{undone.action} {undone.request_id} cannot be undone: it would go back to messages that are no longer kept, "
            f"in {listed(removed, 3)}. Reset it there instead: 'rmq reset --shard {quote(shard.name)} --to-min', or --queue "
            "and --to-offset for single queues"
        )
    if read and not request.force:  # last: what is refused before passes with no force
        raise WrongUse(_consumed_since(undone, read, at, shard.name))
    return moves


def _without_start(shard: ShardView, positions: Positions, undone: Ctl, read: Sequence[Moved]) -> list[MessageQueue]:
    """The queues that had no offset before the action, and for which the group's settings no longer choose a start: those that
    windows have ``read`` since; all of them, if the group's first window in the shard came after the action. That window took
    the action's offset for their start. If it came before the action, they are later queues with or without it.

    A window has the group's epoch, and each action raises it: so the log says which came first.
    """
    new = [move.queue for move in undone.moved if move.from_offset is None]
    group = undone.group or ""
    window = shard.first_window(group, positions.get(del_id(group)) or 0) if new else None
    if window is None or (window.epoch or 0) < (undone.epoch or 0):
        return [move.queue for move in read if move.from_offset is None]
    return new


def _offset(value: int) -> int | None:
    return None if value == ABSENT else value


def _consumed_since(undone: Ctl, read: Sequence[Moved], at: Mapping[MessageQueue, int | None], shard: str) -> str:
    """The refusal after windows: how many messages an undo would have consumed again, or skip."""
    again = skipped = 0
    for move in read:
        now, before = at[move.queue], move.from_offset
        if now is not None and before is not None:  # who had no offset before is refused already
            again += max(now - max(before, move.to_offset), 0)
            skipped += max(before - now, 0)
    return (
        f"windows were committed after {undone.action} {undone.request_id} in shard {shard}, in {len(read)} of its "
        f"{len(undone.moved)} queues. An undo would have {again:,} of their messages consumed again, and skip {skipped:,}. "
        "Give --force to undo it nevertheless"
    )


def last_action(commits: Iterable[Ctl]) -> Ctl | None:
    """The last of some commits of operators in one shard; None: there are none."""
    return max(commits, key=lambda ctl: (ctl.read_version, ctl.commit_id), default=None)


def chosen_actions(
    last: Mapping[str, Ctl], group: str, acted: Callable[[str, Ctl], bool], undoes: ActionName | None = None
) -> dict[str, Ctl]:
    """By shard the commit to undo: of the newest of the last actions (``last``, by shard) those shards that have it; empty
    where there is none.

    ``acted``: whether the request of a commit acted in a shard. One that did where it is not the last came before that shard's
    last, by the order of commits; only between others the clocks decide. ``undoes``: the action that is meant.
    Raises WrongUse when another one is the last.
    """
    followed = [
        ctl
        for ctl in last.values()
        if any(ActionName.of(other) != ActionName.of(ctl) and acted(shard, ctl) for shard, other in last.items())
    ]
    candidates = [ctl for ctl in last.values() if ctl not in followed] or [*last.values()]
    newest = max(candidates, key=lambda ctl: (ctl.store_timestamp, ctl.commit_id), default=None)
    if undoes is not None and (newest is None or ActionName.of(newest) != undoes):
        after = "it has none" if newest is None else f"{undone_sentence(newest)} came after it"
        raise WrongUse(f"{undoes} is not the last action of an operator on group {group}: {after}")
    if newest is None:
        return {}
    return {shard: ctl for shard, ctl in last.items() if ActionName.of(ctl) == ActionName.of(newest)}


def refuse_other_undo(
    request_id: str, made: Mapping[str, Ctl], undone: Mapping[str, Ctl | None], last: Mapping[str, Ctl]
) -> None:
    """Raise WrongUse for an undo that was committed in some shards and not in all, where its rest would not undo the same
    action: none of these shards has it, or another action came after it.

    ``made``: by shard the commit that it undid there. ``undone``: by shard that lacks the undo the commit of the same action;
    None: that never happened there. ``last``: by shard the group's last action.
    """
    first = next(iter(made.values()))
    what = f"request {request_id} undid {first.action} {first.request_id} in shard {', '.join(made)}"
    if not any(undone.values()):
        raise WrongUse(
            f"{what}, and shard {', '.join(undone)} does not have that action: there it has nothing to undo. Another undo, "
            "with a new id, takes back the group's last action there"
        )
    after = {shard: last[shard] for shard, ctl in undone.items() if ctl is not None and last[shard] != ctl}
    if after:
        sentences = "; ".join(f"in shard {shard} {undone_sentence(ctl)}" for shard, ctl in after.items())
        raise WrongUse(
            f"{what} and not in {', '.join(after)}, and another action came after that one: {sentences}. The rest of it is not "
            "done, and nothing was changed; make another undo, with a new id, which takes back the last action (--shard: only "
            "in one shard)"
        )


def is_last_move(ctl: Ctl, positions: Positions) -> bool:
    """Whether nothing has moved the group since the commit: each move raises its epoch."""
    return positions.epoch(ctl.group or "") == (ctl.epoch or 0)


def nothing_to_undo(group: str) -> str:
    """Why there is nothing to undo."""
    return f"group {group} has no action of an operator to undo: no reset, skip, clone or import of offsets"


def undone_sentence(undone: Ctl) -> str:
    """An action in words: what it was, its request, who did it, when and why. It is one line, and not long, whatever a user
    wrote."""
    request_id, name = name_in_sentence(undone.request_id), name_in_sentence(undone.actor.name)
    at = format_time(undone.store_timestamp)
    return f"{undone.action} {request_id} of {name} at {at} ({reason_in_sentence(undone.reason)})"
