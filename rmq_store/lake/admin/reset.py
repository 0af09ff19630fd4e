"""Resetting a group's offsets, in one commit; ``rmq_store/admin/reset.py`` says where to."""

from __future__ import annotations

from rmq_store.admin.reset import ResetReport, ResetRequest, ResetTo
from rmq_store.lake.admin.moves import move_offsets
from rmq_store.lake.table.shard import Shard
from rmq_store.utils.host import Host

__all__ = ["ResetReport", "ResetRequest", "ResetTo", "reset"]


def reset(shard: Shard, request: ResetRequest, host: Host) -> ResetReport:
    """Move the group's offsets of one topic. Raises WrongUse (unknown topic or queue, an offset outside the queue) and
    the errors of ``move_offsets``."""
    return move_offsets(shard, request, host)
