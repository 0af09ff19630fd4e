"""Undo of a group's last operator action in the lake, one commit per shard. ``rmq_store/admin/undo.py`` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rmq_store.admin.offset_moves import MoveReport
from rmq_store.admin.repeated_moves import refuse_overtaken
from rmq_store.admin.undo import (
    MOVES,
    ActionName,
    UndoRequest,
    chosen_actions,
    nothing_to_undo,
    refuse_other_undo,
)
from rmq_store.commit.ctl import Action, Actor, Ctl
from rmq_store.errors import WrongUse
from rmq_store.lake.admin.last_action import last_action_in
from rmq_store.lake.admin.offset_moves import move_in_all
from rmq_store.lake.table.shard import Shard
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host


def undo(
    undone: Sequence[tuple[Shard, Ctl]],
    group: str,
    host: Host,
    *,
    request_id: str,
    actor: Actor,
    reason: str,
    force: bool = False,
    dry_run: bool = False,
    settings: GroupSettings | None = None,
    among: Sequence[Shard] = (),
    every: Sequence[Shard] = (),
    finished: Callable[[MoveReport], None] | None = None,
) -> list[MoveReport]:
    """Undo an action of a group, as ``actions_to_undo`` returns it. The same request, run again, finishes what it began.

    ``settings``: those of the group, None when there are none. ``among``: the shards in which the action was looked for. Where
    it comes to one that did not have it, as it was still on its way, the undo goes no further. ``every``, ``finished``: see
    ``move_in_all``. Raises WrongUse (see ``UndoRequest.moves``), also where there is nothing to undo, and the errors of
    ``move_in_all``.
    """
    if not undone:
        raise WrongUse(nothing_to_undo(group))
    requests = [
        (
            shard,
            UndoRequest(
                group=group,
                undone=action,
                request_id=request_id,
                actor=actor,
                reason=reason,
                force=force,
                dry_run=dry_run,
            ),
        )
        for shard, action in undone
    ]
    _, request = requests[0]
    named = {shard.name for shard, _ in requests}
    beside = [(shard, _epoch_without(shard, request)) for shard in among if shard.name not in named]
    return move_in_all(requests, host, settings, every=every, beside=beside, finished=finished)


def _epoch_without(shard: Shard, request: UndoRequest) -> int:
    """The group's epoch in a shard in which the action to undo is not. Raises StaleAttempt where it is."""
    shard.commitlog.refresh()
    epoch = shard.positions().epoch(request.group)
    if shard.ctls_of_request(request.undone.request_id, request.group, request.undone.action):
        refuse_overtaken(request, epoch - 1, last_action_in(shard, request.group, MOVES), shard.name)
    return epoch


def actions_to_undo(
    shards: Sequence[Shard],
    group: str,
    request_id: str,
    undoes: ActionName | None = None,
    *,
    every: Sequence[Shard] = (),
) -> list[tuple[Shard, Ctl]]:
    """The commits that a request undoes in these shards, each with its shard: of the action that it has undone before, in any
    shard of the store, else of the group's last action, in the shards that have it. Empty: there is none.

    ``undoes``: the action that is meant. Raises WrongUse when another one is the last. ``every``: all shards of
    the store; none for a new request, which has undone nothing. Raises WrongUse where a request that has undone the action in
    another shard cannot undo the same one in these (``refuse_other_undo``).
    """
    by_name = {shard.name: shard for shard in (*every, *shards)}
    for shard in by_name.values():
        shard.commitlog.refresh()
    made = {
        name: commits[0]
        for name, shard in by_name.items()
        if (commits := shard.ctls_of_request(request_id, group, Action.UNDO))
    }
    if made:
        before = {
            name: commit
            for name, ctl in made.items()
            if (commit := by_name[name].ctl_of(ctl.parameter("undoes_commit")))
        }
        return _undone_again(shards, group, request_id, before)
    last = {shard.name: ctl for shard in shards if (ctl := last_action_in(shard, group)) is not None}

    def acted(shard: str, ctl: Ctl) -> bool:
        return bool(by_name[shard].ctls_of_request(ctl.request_id, group, ctl.action))

    chosen = chosen_actions(last, group, acted, undoes)
    return [(shard, chosen[shard.name]) for shard in shards if shard.name in chosen]


def _undone_again(
    shards: Sequence[Shard], group: str, request_id: str, made: Mapping[str, Ctl]
) -> list[tuple[Shard, Ctl]]:
    """``made``: by shard what the request has undone there."""
    action = next(iter(made.values()))
    rest = [shard for shard in shards if shard.name not in made]
    of_rest = {shard.name: shard.ctls_of_request(action.request_id, group, action.action) for shard in rest}
    undone = {name: next(iter(commits), None) for name, commits in of_rest.items()}
    if any(undone.values()) or len(rest) == len(shards):
        last = {shard.name: ctl for shard in rest if (ctl := last_action_in(shard, group)) is not None}
        refuse_other_undo(request_id, made, undone, last)
    known = {**undone, **made}
    return [(shard, ctl) for shard in shards if (ctl := known[shard.name]) is not None]
