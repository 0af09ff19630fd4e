"""The hook of the connection type ``rmq``."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from rmq_store.airflow.deployment import CONN_TYPE, Deployment, check_connection, variables_of
from rmq_store.utils.redaction import cleaned, secret_values

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from rmq_store.api import Store


class RmqHook(BaseHook):
    """
    Open the store that a connection names.

    Fields that the connection leaves empty come from the ``RMQ_*``, ``SPARK_REMOTE`` and ``AWS_*`` variables of Airflow's
    processes. The connection :attr:`default_conn_name` need not exist: all values are then those of the variables.

    :param rmq_conn_id: The id of a connection of the type ``rmq``.
    """

    conn_name_attr = "rmq_conn_id"
    default_conn_name = "rmq_default"
    conn_type = CONN_TYPE
    hook_name = "RocketMQ lakehouse"

    def __init__(self, rmq_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.rmq_conn_id = rmq_conn_id

    @cached_property
    def deployment(self) -> Deployment:
        """
        Return the store, settings and folders that the connection names, as paths and addresses.

        :raises WrongUse: when the connection has unknown fields or invalid values
        """
        try:
            connection = self.get_connection(self.rmq_conn_id)
        except AirflowNotFoundException:
            if not self._may_be_missing:
                raise
            connection = None
        return _deployment_of(connection)

    async def aread(self) -> Deployment:
        """Read the connection in an event loop, as triggers do, and return :attr:`deployment`."""
        if "deployment" not in self.__dict__:
            try:
                connection = await self.aget_connection(self.rmq_conn_id)
            except AirflowNotFoundException:
                if not self._may_be_missing:
                    raise
                connection = None
            self.__dict__["deployment"] = _deployment_of(connection)  # where the cached property keeps it
        return self.deployment

    def text_of(self, error: BaseException) -> str:
        """Return the error in words, without secrets and control characters."""
        return cleaned(f"{type(error).__name__}: {error}", self.secrets)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the texts that no log and no answer may contain."""
        read = self.__dict__.get(
            "deployment"
        )  # an error of reading the connection is reported without reading it again
        return secret_values(os.environ if read is None else read.variables)

    def get_conn(self) -> Store:
        """Return the store, as :func:`rmq_store.open_store` does, with Airflow's user as the actor."""
        from rmq_store.api import Store
        from rmq_store.commit.request import actor_of

        return Store(self.deployment.open_store(), actor_of(None))

    def test_connection(self) -> tuple[bool, str]:
        """Open the store and count its shards, for the button *Test* of the form."""
        try:
            store = self.deployment.open_store()
            return True, f"store {store.store_id} with {len(store.shard_names())} shards"
        except Exception as error:
            return False, self.text_of(error)

    @property
    def _may_be_missing(self) -> bool:
        return self.rmq_conn_id == self.default_conn_name


def _deployment_of(connection: Connection | None) -> Deployment:
    """None: the environment says all."""
    if connection is None:
        return Deployment.from_env()
    check_connection(connection.conn_type, connection.host, connection.schema, connection.port)
    extra = {name: value for name, value in connection.extra_dejson.items() if value is not None}
    variables = variables_of(connection.login, connection.password, extra)
    return Deployment.from_env(os.environ | variables, extra.get("engine") or None)
