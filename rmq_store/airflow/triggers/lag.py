"""Wait in the triggerer until a group has caught up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from rmq_store.airflow.group_state import lag_of
from rmq_store.airflow.hooks.rmq import RmqHook
from rmq_store.airflow.task import WORTH_A_RETRY
from rmq_store.errors import RmqError


class RmqLagTrigger(BaseTrigger):
    """
    Fire once the lag of a group is at most so many messages, or cannot be read.

    The lag is read in a thread, without a JVM. The event has ``lag``, or ``error`` and whether waiting can help, ``retry``.

    :param group: The consumer group.
    :param at_most: The lag to wait for.
    :param poll_interval: Seconds between two looks.
    :param rmq_conn_id: The connection of the store.
    """

    def __init__(
        self,
        group: str,
        at_most: int = 0,
        poll_interval: float = 60,
        rmq_conn_id: str = RmqHook.default_conn_name,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.group = group
        self.at_most = at_most
        self.poll_interval = poll_interval
        self.rmq_conn_id = rmq_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of this class and its arguments."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "group": self.group,
                "at_most": self.at_most,
                "poll_interval": self.poll_interval,
                "rmq_conn_id": self.rmq_conn_id,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the lag again and again; yield one event."""
        hook = RmqHook(self.rmq_conn_id)
        try:
            deployment = await hook.aread()
            while True:
                lag = await asyncio.to_thread(lambda: lag_of(deployment.open_store(), self.group))
                if lag is not None and lag <= self.at_most:
                    payload: dict[str, Any] = {"lag": lag}
                    break
                self.log.info("lag of group %s: %s, waiting for %s", self.group, lag, self.at_most)
                await asyncio.sleep(self.poll_interval)
        except RmqError as error:
            text = hook.text_of(error)
            payload = {"error": text, "retry": isinstance(error, WORTH_A_RETRY)}
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]
