"""A group's listener as the tasks of a window call it: in a process of its own, or in this one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import numpy as np

from rmq_store.consumer.consume_orderly import OrderlyAnswer, OrderlyCall, orderly_call
from rmq_store.consumer.listener import Answer, Listener, ListenerKind, load_listener, refuse_unlisted
from rmq_store.errors import ListenerError
from rmq_store.filter.subscription import SubscriptionData
from rmq_store.lake.listener.calls import CallRules, Rows, RowsToConsume, calls_of
from rmq_store.lake.listener.listener_process import InItsProcess
from rmq_store.lake.listener.processes import Limits
from rmq_store.lake.listener.redaction_hook import redaction_hook
from rmq_store.lake.read.filter import filter_columns
from rmq_store.lake.read.slice_reader import MESSAGE_COLUMNS
from rmq_store.lake.table import tables
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.settings.environment import Environment
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.process_end import code_of_user_runs_here
from rmq_store.window.consume import refuse_batches_in_order


class TaskListener(Protocol):
    """A listener that a task calls."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> ListenerKind: ...

    @property
    def columns(self) -> tuple[str, ...] | None: ...

    @property
    def version(self) -> str:
        """See ``Listener``."""
        ...

    @property
    def deaths_of_task(self) -> int | None:
        """How many messages ended its process in this task; None: a call returned, or it has no process of its own."""
        ...

    def ask(self, rows: RowsToConsume) -> tuple[Rows, Sequence[Answer]]:
        """Call it for all rows: the numbers of those that failed, ascending, and their answers. Raises ListenerError."""
        ...

    def in_order(self, queue: MessageQueue, *, ahead: bool) -> OrderlyCall:
        """The call for batches of messages of the queue, which are MessageViews. ``ahead``: whether the listener may be called
        for the next messages of a record batch as soon as it has succeeded."""
        ...

    @property
    def is_ahead(self) -> bool:
        """Whether it was called for messages that were not asked for yet: the queue goes on to them."""
        ...


@contextmanager
def opened_listener(group: GroupSettings, now_ms: Callable[[], int]) -> Iterator[TaskListener]:
    """The group's listener, loaded, for one task. ``now_ms``: the clock of the task, which may raise to stop it.

    Raises ListenerError when it cannot be loaded, does not fit the group's mode, or is not allowed here
    (``RMQ_LISTENER_PACKAGES``).
    """
    refuse_unlisted(group.listener, Environment.read().listener_packages)
    rules = CallRules(group.name, group.consume_message_batch_max_size, group.consume_timeout_ms, group.all_or_nothing)
    if not has_process(group):
        code_of_user_runs_here()
        yield _checked(group, InThisProcess(load_listener(group.listener), rules, now_ms))
        return
    with InItsProcess.opened(
        group.listener, rules, limits_of(group), group.listener_environment or (), now_ms
    ) as listener:
        yield _checked(group, listener)


def has_process(group: GroupSettings) -> bool:
    """Whether the listener gets a process of its own: not if the settings say so, and not for a function of the program that
    was started, which no other process can import. Only Linux has what it needs."""
    return group.listener_process and sys.platform == "linux" and not group.listener.startswith("__main__:")


def limits_of(group: GroupSettings) -> Limits:
    """Of the group's settings. A call takes no longer than ``consume_timeout``, if they say nothing else."""
    timeout_s = group.listener_timeout or group.consume_timeout * 60
    return Limits(timeout_s, group.listener_memory, group.listener_cpu)


def _checked(group: GroupSettings, listener: TaskListener) -> TaskListener:
    refuse_batches_in_order(group, listener.kind)
    refuse_unknown_columns(listener)
    return listener


def refuse_unknown_columns(listener: TaskListener | Listener) -> None:
    """Raise ListenerError for a listener that names a column which no message has."""
    if unknown := [name for name in listener.columns or () if name not in tables.MSG.names]:
        raise ListenerError(
            f"listener {listener.name}: unknown columns {', '.join(unknown):.200}; known columns are "
            f"{', '.join(MESSAGE_COLUMNS)}"
        )


def listener_kind(group: GroupSettings, now_ms: Callable[[], int]) -> ListenerKind:
    """Load the group's listener, and say what it takes. Raises as ``opened_listener``."""
    with opened_listener(group, now_ms) as listener:
        return listener.kind


def columns_for(listener: TaskListener, subscription: SubscriptionData) -> list[str] | None:
    """The columns that the listener and the filter need; None: all."""
    if listener.columns is None:
        return None
    return [*dict.fromkeys([*listener.columns, *filter_columns(subscription)])]


class InThisProcess:
    """A listener that is called here: nothing limits it."""

    def __init__(self, listener: Listener, rules: CallRules, now_ms: Callable[[], int]) -> None:
        self._listener, self._rules, self._now_ms = listener, rules, now_ms
        self.name, self.kind, self.columns = listener.name, listener.kind, listener.columns
        self.version = listener.version
        self.is_ahead = False
        self.deaths_of_task: int | None = None
        self._redact = redaction_hook()

    def ask(self, rows: RowsToConsume) -> tuple[Rows, Sequence[Answer]]:
        """See ``TaskListener``."""
        count = len(rows.offsets)
        size = count if self.kind is ListenerKind.BATCH else self._rules.batch_max_size
        failed: list[Rows] = []
        answers: list[Answer] = []
        for _, of_call, answers_of_call in calls_of(self._listener, self._rules, rows, 0, count, size, self._now_ms):
            if len(of_call):
                failed.append(of_call)
                answers += map(self._redact, answers_of_call)
        return np.concatenate(failed) if len(failed) > 1 else failed[0] if failed else (), answers

    def in_order(self, queue: MessageQueue, *, ahead: bool) -> OrderlyCall:
        """See ``TaskListener``."""
        call = orderly_call(self._listener, queue, self._rules.group)

        def redacted(messages: Sequence[MessageExt]) -> OrderlyAnswer:
            answer = call(messages)
            return replace(answer, failed=self._redact(answer.failed))

        return redacted
