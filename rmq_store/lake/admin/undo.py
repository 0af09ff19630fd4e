"""Undo of a group's last operator action in the lake, one commit per shard. ``rmq_store/admin/undo.py`` has the rules."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store.admin.offset_moves import MoveReport
from rmq_store.admin.undo import (
    ACTIONS,
    UndoRequest,
    chosen_actions,
    nothing_to_undo,
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
) -> list[MoveReport]:
    """Undo an action of a group, as ``actions_to_undo`` returns it. The same request, run again, finishes what it began.

    ``settings``: those of the group, None when there are none. Raises WrongUse (see ``UndoRequest.moves``), also where there
    is nothing to undo, and the errors of ``commit``.
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
    return move_in_all(requests, host, settings)


def actions_to_undo(
    shards: Sequence[Shard], group: str, request_id: str, undoes: str | None = None
) -> list[tuple[Shard, Ctl]]:
    """The commits that a request undoes, each with its shard: those that it has undone before, else the group's last action in
    the shards that have it. Empty: there is none.

    ``undoes``: the request of the action that is meant. Raises WrongUse when another one is the last.
    """
    for shard in shards:
        shard.commitlog.refresh()
    made = {shard.name: shard.ctls_of_request(request_id, group, Action.UNDO) for shard in shards}
    last = {shard.name: ctl for shard in shards if (ctl := last_action_in(shard, group)) is not None}
    if not any(made.values()):
        by_name = {shard.name: shard for shard in shards}

        def acted(shard: str, ctl: Ctl) -> bool:
            return bool(by_name[shard].ctls_of_request(ctl.request_id, group, ctl.action))

        chosen = chosen_actions(last, group, acted, undoes)
        return [(shard, chosen[shard.name]) for shard in shards if shard.name in chosen]
    undone_id = next(ctl.parameter("undoes") for ctls in made.values() for ctl in ctls)
    undone = []
    for shard in shards:
        commits = [ctl for action in ACTIONS for ctl in shard.ctls_of_request(undone_id, group, action)]
        undone += [(shard, ctl) for ctl in commits[:1] if made[shard.name] or last[shard.name] == ctl]
    return undone
