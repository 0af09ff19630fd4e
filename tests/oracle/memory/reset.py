"""Resetting a group's offsets, in one commit; ``rmq_store/admin/reset.py`` says where to."""

from __future__ import annotations

from rmq_store.admin.reset import ResetReport, ResetRequest
from rmq_store.utils.host import Host
from tests.oracle.memory.moves import move_offsets
from tests.oracle.memory.shard import MemoryShard


def reset(shard: MemoryShard, request: ResetRequest, host: Host) -> ResetReport:
    """Move the group's offsets of one topic. Raises WrongUse (unknown topic or queue, an offset outside the queue) and
    the errors of ``move_offsets``."""
    return move_offsets(shard, request, host)
