"""The last action of an operator on a group, in a shard."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store.admin.undo import ACTIONS, is_last_move, last_action
from rmq_store.commit.ctl import Action, Ctl
from rmq_store.lake.table.shard import Shard


def last_action_in(shard: Shard, group: str, actions: Sequence[Action] = ACTIONS) -> Ctl | None:
    """The group's last commit of these actions in the shard; None: there is none. One that a clock far behind has dated is
    found only among all of its commits, which are read where the group's epoch shows that something came later than the newest
    by the clocks."""
    last = last_action(ctl for action in actions if (ctl := shard.last_ctl(group, action)) is not None)
    if last is None or is_last_move(last, shard.positions()):
        return last
    return last_action(ctl for ctl in shard.ctls_since(0, group=group) if ctl.action in actions)
