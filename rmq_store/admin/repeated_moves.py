"""A move of offsets whose request was committed before: what it may still do, and what its answer says.

A move is one commit per shard, so a request that was cut is committed in some shards only. Its repetition does the rest, as if
it had not been cut. It would not be as if where another move came in between: then the answer would show offsets that the
group has left already, and the shards would stand at moves of different requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rmq_store.admin.undo import undone_sentence
from rmq_store.commit.ctl import Ctl
from rmq_store.errors import WrongUse


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
    if last_move is None or (last_move.epoch or 0) <= (ctl.epoch or 0):
        return "a cut-over, a hand-back or an import under another name"
    return undone_sentence(last_move)


def refuse_rest(request_id: str, made: Mapping[str, Made | None]) -> None:
    """Raise WrongUse for a request that is committed in some shards and not in all, where another move came after it.

    ``made``: by shard what it has committed there, None: nothing.
    """
    rest = [shard for shard, before in made.items() if before is None]
    after = [f"in shard {shard} {before.since}" for shard, before in made.items() if before and before.since]
    if rest and after:
        first = ", ".join(shard for shard, before in made.items() if before)
        raise WrongUse(
            f"request {request_id} was committed in shard {first} and not in {', '.join(rest)}, and another move came after "
            f"it: {'; '.join(after)}. The rest of it is not done, and nothing was changed; make a new request, with a new id"
        )
