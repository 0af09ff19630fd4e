"""Apache RocketMQ messages in a lakehouse: kept, replayed and reprocessed by RocketMQ's consumer rules.

    import rmq_store

    store = rmq_store.open_store("var/store")

``docs/python.md`` shows what a program does with it. A name is imported from where it is defined when it is first used, so
``import rmq_store`` itself loads nothing (PEP 562). Inside the package each module imports from there, too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# For type checkers and editors: `X as X` says that the name is offered here.
# ruff: noqa: I001  (one import for each module)
if TYPE_CHECKING:
    from rmq_store.admin.dead_letters import (
        DeadLetterFilter as DeadLetterFilter,
        Place as Place,
    )
    from rmq_store.admin.offset_moves import MoveReport as MoveReport
    from rmq_store.admin.redrive import RedriveReport as RedriveReport
    from rmq_store.admin.redrive_edits import MessageEdits as MessageEdits
    from rmq_store.api import (
        ConsumeReport as ConsumeReport,
        Store as Store,
        consumer_group as consumer_group,
        create_store as create_store,
        open_store as open_store,
    )
    from rmq_store.commit.positions import Outcome as Outcome
    from rmq_store.commit.request import Status as Status
    from rmq_store.consumer.listener import (
        ConsumeConcurrentlyContext as ConsumeConcurrentlyContext,
        ConsumeConcurrentlyStatus as ConsumeConcurrentlyStatus,
        ConsumeFailed as ConsumeFailed,
        ConsumeOrderlyContext as ConsumeOrderlyContext,
        ConsumeOrderlyStatus as ConsumeOrderlyStatus,
    )
    from rmq_store.errors import (
        BadData as BadData,
        ClockSkew as ClockSkew,
        CommitOutcomeUnknown as CommitOutcomeUnknown,
        HeldByAnother as HeldByAnother,
        ListenerError as ListenerError,
        NothingThere as NothingThere,
        RmqError as RmqError,
        StaleAttempt as StaleAttempt,
        StoreUnusable as StoreUnusable,
        WrongUse as WrongUse,
    )
    from rmq_store.lake.broker.import_request import ImportReport as ImportReport
    from rmq_store.lake.window.consume_all import ConsumeAllReport as ConsumeAllReport
    from rmq_store.lake.window.consumption import Consumption as Consumption
    from rmq_store.lake.window.group_course import GroupReport as GroupReport
    from rmq_store.message.message import (
        MessageExt as MessageExt,
        MessageQueue as MessageQueue,
    )
    from rmq_store.producer.producer import Message as Message
    from rmq_store.producer.send import SendReport as SendReport
    from rmq_store.settings.settings import (
        GroupSettings as GroupSettings,
        Settings as Settings,
        read_settings as read_settings,
    )
    from rmq_store.window.consume import WindowReport as WindowReport
    from rmq_store.window.deliver import DeliverReport as DeliverReport
    from rmq_store.window.dry_run import ConsumePlan as ConsumePlan

_DEFINED_IN = {
    "DeadLetterFilter": "rmq_store.admin.dead_letters",
    "Place": "rmq_store.admin.dead_letters",
    "MoveReport": "rmq_store.admin.offset_moves",
    "MessageEdits": "rmq_store.admin.redrive_edits",
    "RedriveReport": "rmq_store.admin.redrive",
    "ConsumeReport": "rmq_store.api",
    "Store": "rmq_store.api",
    "consumer_group": "rmq_store.api",
    "create_store": "rmq_store.api",
    "open_store": "rmq_store.api",
    "Outcome": "rmq_store.commit.positions",
    "Status": "rmq_store.commit.request",
    "ConsumeConcurrentlyContext": "rmq_store.consumer.listener",
    "ConsumeConcurrentlyStatus": "rmq_store.consumer.listener",
    "ConsumeFailed": "rmq_store.consumer.listener",
    "ConsumeOrderlyContext": "rmq_store.consumer.listener",
    "ConsumeOrderlyStatus": "rmq_store.consumer.listener",
    "BadData": "rmq_store.errors",
    "ClockSkew": "rmq_store.errors",
    "CommitOutcomeUnknown": "rmq_store.errors",
    "HeldByAnother": "rmq_store.errors",
    "ListenerError": "rmq_store.errors",
    "NothingThere": "rmq_store.errors",
    "RmqError": "rmq_store.errors",
    "StaleAttempt": "rmq_store.errors",
    "StoreUnusable": "rmq_store.errors",
    "WrongUse": "rmq_store.errors",
    "ImportReport": "rmq_store.lake.broker.import_request",
    "ConsumeAllReport": "rmq_store.lake.window.consume_all",
    "Consumption": "rmq_store.lake.window.consumption",
    "GroupReport": "rmq_store.lake.window.group_course",
    "MessageExt": "rmq_store.message.message",
    "MessageQueue": "rmq_store.message.message",
    "Message": "rmq_store.producer.producer",
    "SendReport": "rmq_store.producer.send",
    "GroupSettings": "rmq_store.settings.settings",
    "Settings": "rmq_store.settings.settings",
    "read_settings": "rmq_store.settings.settings",
    "WindowReport": "rmq_store.window.consume",
    "DeliverReport": "rmq_store.window.deliver",
    "ConsumePlan": "rmq_store.window.dry_run",
}

__all__ = sorted(_DEFINED_IN)


def __getattr__(name: str) -> Any:
    if name not in _DEFINED_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_DEFINED_IN[name]), name)
    globals()[name] = value  # so that it is looked up once
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
