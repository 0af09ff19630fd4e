"""Replay: the messages of a topic from a moment on, once more; ``rmq_store/replay.py`` says under which name."""

from __future__ import annotations

from collections.abc import Callable

from rmq_store.host import Host
from rmq_store.lake.engine import Engine
from rmq_store.lake.plan import ConsumeRequest, Plan
from rmq_store.lake.shard import Shard
from rmq_store.lake.store import LakeStore
from rmq_store.lake.window import WindowReport, consume_window
from rmq_store.replay import as_replay, group_settings, replay_group, replayed_group
from rmq_store.settings import GroupSettings

__all__ = ["group_settings", "replay", "replay_group", "replayed_group"]


def replay(
    store: LakeStore,
    shard: Shard,
    group: GroupSettings,
    topic: str,
    from_ms: int,
    request: ConsumeRequest,
    engine_of: Callable[[Plan], Engine],
    host: Host,
) -> WindowReport:
    """The next window of a replay; ``request.until_ms`` ends it. Raises WrongUse (a topic that the group does not read,
    an empty span of time) and the errors of ``consume_window``."""
    replaying, recorded, scope = as_replay(group, topic, from_ms, request)
    return consume_window(store, shard, replaying, recorded, engine_of, host, scope)
