"""Tell people how a group is doing, when a task or a run has failed or succeeded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from airflow.sdk import BaseNotifier

from rmq_store.airflow.arguments import check_switches, check_texts
from rmq_store.airflow.group_state import lag_of, rows_of
from rmq_store.airflow.hooks.rmq import RmqHook
from rmq_store.errors import RmqError
from rmq_store.utils.redaction import cleaned, secret_values

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rmq_store.lake.table.store import LakeStore

_MOST_ROWS = 5
_BLOCKED = """
SELECT topic, broker_name, queue_id, begin_offset, attempts, error_type, error_text FROM blocked
WHERE group_name = $group ORDER BY first_failed_at"""
_FINDINGS = """
SELECT problem, topic, broker_name, queue_id, begin_offset, end_offset FROM audit
WHERE group_name = $group OR group_name IS NULL ORDER BY topic, broker_name, queue_id, begin_offset"""


class RmqNotifier(BaseNotifier):
    """
    Send the lag of a group, its blocked queues and its audit findings, for callbacks such as ``on_failure_callback``.

    :param group: The consumer group.
    :param send: Gets the text. If it returns a notifier, such as those of the providers for mail, Slack or Apprise, that one is
        sent too; its templates are not rendered, because the text may have texts of messages.
    :param audit: Also compare all commits with their rows (the view ``audit``), which takes seconds.
    :param rmq_conn_id: The connection of the store.
    """

    def __init__(
        self,
        *,
        group: str,
        send: Callable[[str], BaseNotifier | None],
        audit: bool = True,
        rmq_conn_id: str = RmqHook.default_conn_name,
    ) -> None:
        check_switches(audit=audit)
        check_texts(rmq_conn_id=rmq_conn_id)
        super().__init__()
        self.group = group
        self.send = send
        self.audit = audit
        self.rmq_conn_id = rmq_conn_id

    def notify(self, context: Context) -> None:
        """Read the group and send the text. A store that cannot be read is what the text then says."""
        notifier = self.send("\n".join(self._lines(context)))
        if isinstance(notifier, BaseNotifier):
            notifier.notify(context)

    def _lines(self, context: Context) -> list[str]:
        hook = RmqHook(self.rmq_conn_id)
        instance = context.get("ti")
        lines = [f"{instance.dag_id} {instance.run_id} {instance.task_id}"] if instance else []
        try:
            lines += group_lines(hook.deployment.open_store(), self.group, audit=self.audit)
        except (RmqError, OSError) as error:
            lines.append(f"group {self.group}: the store cannot be read: {type(error).__name__}: {error}")
        secrets = {*hook.secrets, *secret_values(os.environ)}
        return [cleaned(line, sorted(secrets, key=len, reverse=True)) for line in lines]


def group_lines(store: LakeStore, group: str, *, audit: bool) -> Iterator[str]:
    """The lag, the blocked queues and, with ``audit``, the findings, a line each."""
    lag = lag_of(store, group)
    yield f"group {group}: " + ("no offset yet" if lag is None else f"lag {lag:,}")
    blocked = rows_of(store, _BLOCKED, group)
    if blocked:
        yield f"blocked queues: {len(blocked)}"
    for row in blocked[:_MOST_ROWS]:
        yield (
            f"- {row['topic']} {row['broker_name']}:{row['queue_id']} at offset {row['begin_offset']}, "
            f"{row['attempts']} attempts: {row['error_type']}: {row['error_text']}"
        )
    findings = rows_of(store, _FINDINGS, group) if audit else []
    if findings:
        yield f"audit findings: {len(findings)}"
    for row in findings[:_MOST_ROWS]:
        yield (
            f"- {row['problem']}: {row['topic']} {row['broker_name']}:{row['queue_id']} "
            f"[{row['begin_offset']}, {row['end_offset']})"
        )
