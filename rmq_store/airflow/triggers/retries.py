"""Wait in the triggerer for the retries of a group."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from rmq_store.admin.replay import group_settings
from rmq_store.airflow.hooks.rmq import RmqHook
from rmq_store.airflow.task import WORTH_A_RETRY
from rmq_store.commit.ctl import Actor
from rmq_store.errors import RmqError
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest

if TYPE_CHECKING:
    from rmq_store.airflow.deployment import Deployment
    from rmq_store.window.dry_run import Retries

LONGEST_S = 600
"""The longest sleep in seconds: an operator may deliver a retry before it is due."""


class RmqRetriesTrigger(BaseTrigger):
    """
    Fire once retries of a group are delivered and not consumed yet, or none is left, or they cannot be read.

    It does not deliver them: ``rmq_deliver_delayed`` does. It sleeps until the first one is due, and never less than
    ``poll_interval``: Airflow 3.3 can fail a task that goes on within seconds. The store is read in a thread, without a JVM.
    The event is empty, or has ``error``.

    :param group: The replay group.
    :param request_id: The request that consumes them next.
    :param poll_interval: The fewest seconds between two looks, also before the first one.
    :param rmq_conn_id: The connection of the store.
    """

    def __init__(
        self,
        group: str,
        request_id: str,
        poll_interval: float = 15,
        rmq_conn_id: str = RmqHook.default_conn_name,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.group = group
        self.request_id = request_id
        self.poll_interval = poll_interval
        self.rmq_conn_id = rmq_conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of this class and its arguments."""
        names = ("group", "request_id", "poll_interval", "rmq_conn_id")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the retries again and again; yield one event."""
        hook = RmqHook(self.rmq_conn_id)
        wait_s, payload = self.poll_interval, dict[str, Any]()
        while True:
            await asyncio.sleep(wait_s)
            try:
                retries = await asyncio.to_thread(look, await hook.aread(), self.group, self.request_id)
            except (*WORTH_A_RETRY, OSError) as error:
                wait_s = self.poll_interval
                self.log.warning("looking again in %s s: %s", wait_s, hook.text_of(error))
                continue
            except RmqError as error:
                payload = {"error": hook.text_of(error)}
                break
            if retries.read or not retries.left:
                break
            wait_s = next_look_s(retries, Host().now_ms(), self.poll_interval)
            self.log.info(
                "retries of %s: %s due, which rmq_deliver_delayed delivers, %s waiting; looking again in %s s",
                self.group,
                retries.due,
                retries.waiting,
                wait_s,
            )
        yield TriggerEvent(payload)  # type: ignore[no-untyped-call]


def look(deployment: Deployment, group: str, request_id: str) -> Retries:
    """The retries of the replay group in all shards."""
    from rmq_store.lake.admin.replay import plan_retries

    settings, scope = group_settings(deployment.settings(), group)
    request = ConsumeRequest(request_id, Actor("triggerer", "unverified"))
    deployment.find_listeners()
    return plan_retries(deployment.open_store(), settings, request, Host(), scope).retries


def next_look_s(retries: Retries, now_ms: int, least_s: float) -> float:
    """Seconds until the first one is due, in [``least_s``, ``LONGEST_S``]; ``least_s`` where some wait for their delivery."""
    if retries.due or retries.next_due_ms is None:
        return least_s
    return max(least_s, min((retries.next_due_ms - now_ms) / 1000, LONGEST_S))
