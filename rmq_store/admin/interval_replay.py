"""Replay of an interval: what a run of Airflow's backfill does, for all topics of a group.

Each interval is a replay of its own, named after its run: the intervals of a backfill share no offset, so they run at once
and in any order, and each is repeated alone. A run stays the same when it is cleared, and when a later backfill takes it over.
``docs/decisions/0023-backfill.md`` says why the name of the backfill is not in it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from rmq_store.admin.replay import as_replay
from rmq_store.commit.ctl import Actor
from rmq_store.consumer.replay_name import replay_group
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume_request import ConsumeRequest, Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalReplay:
    """A replay of what was stored in ``[from_ms, until_ms)`` (UTC ms)."""

    run_id: str
    """The request id of the run, which names the replay group."""
    actor: Actor
    from_ms: int
    until_ms: int
    reprocess: str = ""
    """Why the interval is to be replayed once more. The same reason is the same attempt. Empty: it is replayed once."""

    def name(self, group: GroupSettings) -> str:
        """The replay group. Raises WrongUse when it would be too long."""
        return replay_group(group.name, self.run_id)

    def request(self) -> ConsumeRequest:
        """The request of the windows: that of the run, with ``reprocess`` one for each reason."""
        suffix = f"/reprocess-{hashlib.sha256(self.reprocess.encode()).hexdigest()[:10]}" if self.reprocess else ""
        return ConsumeRequest(
            self.run_id + suffix,
            self.actor,
            self.reprocess,
            until_ms=self.until_ms,
            parameters={"until_rule": "data_interval_end"},
        )

    def arguments(self, group: GroupSettings) -> tuple[GroupSettings, ConsumeRequest, Scope]:
        """The arguments of ``consume_window`` for the first attempt. Raises as ``as_replay``."""
        return as_replay(group, None, self.from_ms, self.request(), self.name(group))
