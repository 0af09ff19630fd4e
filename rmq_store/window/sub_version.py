"""One subscription per group and topic, by its version (S7.7, the subVersion of RocketMQ's ``SubscriptionData``).

A broker keeps of each topic the expression with the newest subVersion and answers an older one with
SUBSCRIPTION_NOT_LATEST: members of one group that name different expressions silently lose messages. Here a window's
commit records the group's whole subscription in ``sub/<group>``, and who comes with another one is told before he runs:

| version        | text      | the window                                             |
|----------------|-----------|--------------------------------------------------------|
| none is stored | any       | runs and records it                                    |
| higher         | any       | runs and records it; windows of the older one are stale |
| the same       | the same  | runs                                                   |
| the same       | another   | is refused: raise subscription_version                 |
| lower          | any       | is refused: an older deployment                        |

All clients of a broadcasting group share one record: they read the same messages by one expression, each at offsets of
its own, as a broker keeps one subscription for all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable

from rmq_store.commit.ctl import Ctl, canonical_json
from rmq_store.commit.positions import SubVersion
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import SubscriptionData
from rmq_store.utils.times import format_time


def subscription_text(subscriptions: Iterable[SubscriptionData]) -> str:
    """Topic to type and expression, as canonical JSON: what a ctl row says, and what a version stands for."""
    return canonical_json({s.topic: {s.expression_type: s.expression} for s in subscriptions})


def sub_version_of(version: int, text: str) -> SubVersion:
    return SubVersion(version, int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big"))


def next_sub_version(
    group: str,
    version: int,
    text: str | None,
    recorded: SubVersion | None,
    shard: str,
    recorder: Callable[[], Ctl | None],
) -> SubVersion | None:
    """What the window records, None for nothing. ``text`` None: it reads no topic, only its version is compared.

    ``recorder``: asked only for the text of an error, the newest window that recorded what is ``recorded``. Raises
    WrongUse: a lower version, or the same one with another text.
    """
    mine = None if text is None else sub_version_of(version, text)
    if recorded is None or version > recorded.version:
        return mine or recorded
    if version == recorded.version and mine in (None, recorded):
        return recorded
    by = recorder()
    ours = "" if text is None else f" ({_listed(text)})"
    theirs = f" ({_listed(by.subscription)})" if by and by.subscription else ""
    who = f", last by {_named(by)}" if by else ""
    if version < recorded.version:
        raise WrongUse(
            f"group {group}: version {version} of its subscription{ours} is older than version {recorded.version}{theirs}, "
            f"which is recorded in shard {shard}{who}. An older deployment still runs, or its settings are out of date: "
            f"use the newer ones; to go back on purpose give the older subscription a new number, "
            f"subscription_version = {recorded.version + 1}."
        )
    raise WrongUse(
        f"group {group}: version {version} of its subscription is{ours}, but under the same number shard {shard} has "
        f"recorded another one{theirs}{who}. A group has one expression for a topic, else its members lose messages: "
        f"if yours is the newer one, set subscription_version = {version + 1}; if not, take the recorded one."
    )


def is_recorder(ctl: Ctl, recorded: SubVersion) -> bool:
    """Whether the window recorded this subscription."""
    if ctl.subscription is None or ctl.subscription_version is None:
        return False
    return sub_version_of(ctl.subscription_version, ctl.subscription) == recorded


def _named(ctl: Ctl) -> str:
    return f"request {ctl.request_id} of {ctl.actor.name} ({ctl.actor.source}) at {format_time(ctl.store_timestamp)}"


def _listed(text: str) -> str:
    """``Orders: TAG 'TagA || TagB', Refunds: TAG '*'``."""
    topics = json.loads(text).items()
    return ", ".join(f"{topic}: {type_} {expression!r}" for topic, said in topics for type_, expression in said.items())
