"""Watch in the triggerer for messages that become due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from rmq_store.airflow.hooks.rmq import RmqHook
from rmq_store.errors import RmqError
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from rmq_store.airflow.deployment import Deployment
    from rmq_store.lake.table.shard import Shard
    from rmq_store.lake.table.store import LakeStore


class RmqDueTrigger(BaseEventTrigger):
    """
    Fire each time a retry or delayed message becomes due, for a DAG that delivers.

    It sleeps until the next due time, at most ``poll_interval``, since a message that is stored meanwhile may be due earlier.
    The store is read in a thread, without a JVM. What is due and not delivered fires once: if its delivery fails, the schedule
    of the DAG delivers it. The event has ``due``: the first due time of each shard (UTC ms).

    :param poll_interval: The most seconds between two looks at the store.
    :param rmq_conn_id: The connection of the store.
    """

    def __init__(self, poll_interval: float = 5, rmq_conn_id: str = RmqHook.default_conn_name) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.poll_interval = poll_interval
        self.rmq_conn_id = rmq_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of this class and its arguments."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"poll_interval": self.poll_interval, "rmq_conn_id": self.rmq_conn_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the store again and again; yield an event for what has become due. It does not end."""
        watched: _Watched | None = None
        fired: Mapping[str, int] = {}
        while True:
            hook = RmqHook(self.rmq_conn_id)
            wait_s = self.poll_interval
            try:
                if watched is None:
                    watched = _Watched(await hook.aread())
                first_due = await asyncio.to_thread(watched.first_due_ms)
                due, wait_s = looked(first_due, Host().now_ms(), self.poll_interval)
                is_new = not due.items() <= fired.items()
                fired = due
                if is_new:
                    yield TriggerEvent({"due": due})  # type: ignore[no-untyped-call]
            except (RmqError, OSError) as error:  # an error would end the trigger, and with it all later events
                text = hook.text_of(error)
                self.log.warning("looking again in %s s: %s", self.poll_interval, text)
                watched = None
            await asyncio.sleep(wait_s)


def looked(first_due: Mapping[str, int | None], now_ms: int, poll_s: float) -> tuple[dict[str, int], float]:
    """The shards with something due, and the seconds until the next look. ``first_due``: of each shard (UTC ms)."""
    times = {shard: due_ms for shard, due_ms in first_due.items() if due_ms is not None}
    due = {shard: due_ms for shard, due_ms in times.items() if due_ms <= now_ms}
    next_s = min(((due_ms - now_ms) / 1000 for due_ms in times.values() if due_ms > now_ms), default=poll_s)
    return due, min(next_s, poll_s)


class _Watched:
    """A store and its open shards: a shard that has not changed costs two looks at the ends of its logs, one of which shows
    whether it was restored."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._store: LakeStore | None = None
        self._shards: dict[str, Shard] = {}

    def first_due_ms(self) -> dict[str, int | None]:
        """When the first waiting message of each shard is due (UTC ms)."""
        from rmq_store.lake.window.deliver import first_due_ms

        if not all(shard.is_as_read() for shard in self._shards.values()):
            self._store, self._shards = None, {}
        store = self._store = self._store or self._deployment.open_store()
        names = store.shard_names()
        for name in names:
            if name not in self._shards:
                (self._shards[name],) = store.shards(name)
        return {name: first_due_ms(store, self._shards[name], Host()) for name in names}
