"""Wait until a group has caught up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from rmq_store.airflow.arguments import check_constants, check_switches, check_texts
from rmq_store.airflow.group_state import check_at_most, lag_of
from rmq_store.airflow.hooks.rmq import RmqHook
from rmq_store.airflow.links.console import RmqGroupLink
from rmq_store.airflow.task import log_line, translated
from rmq_store.airflow.triggers.lag import RmqLagTrigger
from rmq_store.settings.settings_values import check_group_name
from rmq_store.utils.arguments import check_types

if TYPE_CHECKING:
    from airflow.sdk import Context


class RmqLagSensor(BaseSensorOperator):
    """
    Wait until a group has at most so many messages to consume, retries included.

    A group that has no offset yet has no lag, and the sensor waits, also for one that nothing names yet. A name that no group
    can have fails at once. It returns the lag.

    :param group: The consumer group. (templated)
    :param at_most: The lag to wait for.
    :param rmq_conn_id: The connection of the store. Without one of the default id, the ``RMQ_*`` variables name the store.
    :param deferrable: Wait in the triggerer, which takes no slot of a worker. Give the task ``retries`` then: Airflow can
        fail a task that was deferred for a few seconds only.
    """

    template_fields: Sequence[str] = ("group",)
    operator_extra_links = (RmqGroupLink(),)
    ui_color = "#fdebd8"

    def __init__(
        self,
        *,
        group: str,
        at_most: int = 0,
        rmq_conn_id: str = RmqHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        check_constants(at_most=at_most)
        check_at_most(at_most)
        check_texts(rmq_conn_id=rmq_conn_id)
        check_switches(deferrable=deferrable)
        super().__init__(**kwargs)
        self.group = group
        self.at_most = at_most
        self.rmq_conn_id = rmq_conn_id
        self.deferrable = deferrable

    @cached_property
    def hook(self) -> RmqHook:
        """Return the hook, which has not read the connection yet."""
        return RmqHook(self.rmq_conn_id)

    def poke(self, context: Context) -> PokeReturnValue:
        """Return whether the lag is small enough, and the lag."""
        with translated(self.hook):
            check_types(str, group=self.group)
            check_group_name(self.group)
            lag = lag_of(self.hook.deployment.open_store(), self.group)
        log_line(f"lag of group {self.group}: {lag}, waiting for {self.at_most}", self.hook)
        return PokeReturnValue(is_done=lag is not None and lag <= self.at_most, xcom_value=lag)

    def execute(self, context: Context) -> Any:
        """Look once, then wait here or in the triggerer."""
        if not self.deferrable:
            return super().execute(context)
        look = self.poke(context)
        if look.is_done:
            return look.xcom_value
        self.defer(
            trigger=RmqLagTrigger(
                group=self.group,
                at_most=self.at_most,
                poll_interval=self.poke_interval,
                rmq_conn_id=self.rmq_conn_id,
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )
        raise AssertionError("defer raises")

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """Return the lag of the trigger's event, or raise its error."""
        if "error" in event:
            raise AirflowException(event["error"]) if event["retry"] else AirflowFailException(event["error"])
        log_line(f"lag of group {self.group}: {event['lag']}", self.hook)
        return event["lag"]
