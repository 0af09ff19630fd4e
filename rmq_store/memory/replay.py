"""Replay: the messages of a topic from a moment on, once more; ``rmq_store/replay.py`` says under which name."""

from __future__ import annotations

from rmq_store.consume import WindowReport
from rmq_store.host import Host
from rmq_store.memory.shard import MemoryShard
from rmq_store.memory.store import MemoryStore
from rmq_store.memory.window import consume_window
from rmq_store.plan import ConsumeRequest
from rmq_store.replay import as_replay
from rmq_store.settings import GroupSettings


def replay(
    store: MemoryStore,
    shard: MemoryShard,
    group: GroupSettings,
    topic: str,
    from_ms: int,
    request: ConsumeRequest,
    host: Host,
) -> WindowReport:
    """The next window of a replay; ``request.until_ms`` ends it.

    Raises WrongUse (a topic that the group does not read, an empty span of time) and the errors of ``consume_window``.
    """
    replaying, recorded, scope = as_replay(group, topic, from_ms, request)
    return consume_window(store, shard, replaying, recorded, host, scope)
