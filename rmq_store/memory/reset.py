"""Resetting a group's offsets, in one commit; ``rmq_store/reset.py`` says where to."""

from __future__ import annotations

from rmq_store.host import Host
from rmq_store.memory.moves import move_offsets
from rmq_store.memory.shard import MemoryShard
from rmq_store.reset import ResetReport, ResetRequest


def reset(shard: MemoryShard, request: ResetRequest, host: Host) -> ResetReport:
    """Move the group's offsets of one topic. Raises WrongUse (unknown topic or queue, an offset outside the queue) and
    the errors of ``move_offsets``."""
    return move_offsets(shard, request, host)
