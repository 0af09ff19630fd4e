"""The console in Airflow's UI: a nav item "RocketMQ", a tab on each consume DAG, and metrics for Prometheus.

Airflow executes this file in each of its processes, so everything is imported when the first request comes. Who may read
is Airflow's decision (``rmq_access.py``); if that cannot be imported, every request is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.plugins_manager import AirflowPlugin

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

    from rmq_store.console.access import Access
    from rmq_store.console.reader import StoreReader


class LazyApp:
    """An application that is made when its first request comes."""

    def __init__(self, make: Callable[[], FastAPI]) -> None:
        self._make = make

    @cached_property
    def app(self) -> FastAPI:
        """The application itself."""
        return self._make()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def _reader() -> StoreReader:
    from rmq_store.airflow.hooks.rmq import RmqHook
    from rmq_store.console.reader import StoreReader

    hook = RmqHook()
    return StoreReader(lambda: hook.deployment.open_store())


def _console() -> FastAPI:
    from rmq_store.console.app import create_app

    return create_app(_reader(), _access())


def _metrics() -> FastAPI:
    from rmq_store.console.metrics import create_metrics_app
    from rmq_store.settings.environment import Environment

    return create_metrics_app(_reader(), lambda: Environment.read().metrics_token)


def _access() -> Access:
    """Airflow's permissions; nothing is allowed where its functions are not where this code knows them."""
    try:
        from rmq_access import ACCESS
    except ImportError:
        logging.getLogger(__name__).exception("The console refuses all requests: Airflow's permissions are unknown")
        from fastapi import HTTPException

        from rmq_store.console.access import Access

        def refuse() -> None:
            raise HTTPException(503, "the console does not know the permissions of this version of Airflow")

        return Access(dependency=refuse, may_edit=lambda request, dag_id: False)
    return ACCESS


class RmqConsole(AirflowPlugin):
    """Adds the console to Airflow."""

    name = "rmq_console"
    fastapi_apps: list[Any] = [  # noqa: RUF012  # as Airflow declares it
        {"app": LazyApp(_console), "url_prefix": "/rmq", "name": "RocketMQ console"},
        {"app": LazyApp(_metrics), "url_prefix": "/rmq-metrics", "name": "RocketMQ metrics"},
    ]
    # Addresses are relative to Airflow's base URL, which may have a path.
    react_apps: list[Any] = [  # noqa: RUF012
        {
            "name": "RocketMQ",
            "bundle_url": "rmq/console.js",
            "destination": "nav",
            "url_route": "rmq",
            "nav_top_level": True,
        },
    ]
    external_views: list[Any] = [  # noqa: RUF012
        {"name": "Offsets", "href": "rmq/?dag_id={DAG_ID}", "destination": "dag", "url_route": "rmq-offsets"},
        {
            "name": "RocketMQ (plain)",
            "href": "rmq/",
            "destination": "nav",
            "category": "browse",
            "url_route": "rmq-plain",
        },
    ]
