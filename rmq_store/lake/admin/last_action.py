"""The last action of an operator on a group, in a shard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rmq_store.admin.undo import ACTIONS, is_last_move, last_action
from rmq_store.commit.ctl import Action, Ctl
from rmq_store.lake.table.shard import Shard


def last_of_others(
    shards: Sequence[Shard], group: str, run_id: str, actions: Sequence[Action] = (*ACTIONS, Action.CONSUME)
) -> list[str]:
    """Of each shard with some, the group's last commit of these actions that is not of the run with this request id, nor of a
    request whose id begins with it and a slash: "reset ID in shard SHARD (COMMIT)". The same list as before says that no other
    request has come in between.
    """
    commits_of_others = []
    for shard in shards:
        shard.commitlog.refresh()
        commits = [ctl for action in actions for ctl in shard.ctls_since(0, group=group, action=str(action))]
        last = last_action(ctl for ctl in commits if not f"{ctl.request_id}/".startswith(f"{run_id}/"))
        if last is not None:
            commits_of_others.append(f"{last.action} {last.request_id} in shard {shard.name} ({last.commit_id})")
    return commits_of_others


def is_committed(shards: Iterable[Shard], request_id: str, group: str, action: Action) -> bool:
    """Whether the request is committed to its end in all of these shards, as of their snapshots: it does nothing more there."""
    commits = (shard.ctls_of_request(request_id, group, action) for shard in shards)
    return all(any(ctl.request_complete for ctl in of_shard) for of_shard in commits)


def last_action_in(shard: Shard, group: str, actions: Sequence[Action] = ACTIONS) -> Ctl | None:
    """The group's last commit of these actions in the shard; None: there is none. One that a clock far behind has dated is
    found only among all of its commits, which are read where the group's epoch shows that something came later than the newest
    by the clocks."""
    last = last_action(ctl for action in actions if (ctl := shard.last_ctl(group, action)) is not None)
    if last is None or is_last_move(last, shard.positions()):
        return last
    return last_action(ctl for ctl in shard.ctls_since(0, group=group) if ctl.action in actions)
