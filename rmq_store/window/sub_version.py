"""One subscription per group: its version is the subVersion of RocketMQ's ``SubscriptionData`` (rules 7.7).

A broker keeps the expression with the newest subVersion for each topic, and answers an older one with
SUBSCRIPTION_NOT_LATEST; members of one group with different expressions silently lose messages. Here a window's commit
records the group's whole subscription in the position ``sub/<group>``, and the next window compares its own before it reads
anything:

| version          | text      | the window                                                           |
|------------------|-----------|----------------------------------------------------------------------|
| none is recorded | any       | runs and records it                                                  |
| higher           | any       | runs and records it; a window with the older one can no longer commit |
| the same         | the same  | runs                                                                 |
| the same         | another   | is refused: subscription_version must be raised                      |
| lower            | any       | is refused: it is from an older deployment                           |

All clients of a broadcasting group share one record, as a broker keeps one subscription for all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable

from rmq_store.commit.ctl import Ctl, canonical_json
from rmq_store.commit.decide import MAX_RUN_AGE_MS
from rmq_store.commit.positions import Positions, SubVersion, sub_id
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import SubscriptionData
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.times import format_time
from rmq_store.window.shard_view import ShardView


def subscription_text(subscriptions: Iterable[SubscriptionData]) -> str:
    """A subscription as canonical JSON, topic to type and expression. Ctl rows record this text; a version stands for it."""
    return canonical_json({s.topic: {s.expression_type: s.expression} for s in subscriptions})


def sub_version_of(version: int, text: str) -> SubVersion:
    """What the position ``sub/<group>`` records: the version, and the first 32 bits of the text's SHA-256."""
    return SubVersion(version, int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big"))


def next_sub_version(
    group: str,
    version: int,
    text: str | None,
    recorded: SubVersion | None,
    *,
    shard: str,
    recorder: Callable[[], Ctl | None],
) -> SubVersion | None:
    """What the commit of a window records of its subscription; None: nothing.

    ``version``: the group's ``subscription_version``. ``text``: see ``subscription_text``; None for a window that reads
    retries only, of which only the version is compared. ``recorded``: what the shard has recorded. ``recorder`` finds the
    newest window that recorded it, and is called only for the text of an error.

    Raises WrongUse for a lower version, and for another text of the same version.
    """
    current = None if text is None else sub_version_of(version, text)
    if recorded is None or version > recorded.version:
        return current or recorded
    if version == recorded.version and current in (None, recorded):
        return recorded
    window = recorder()
    own_text = "" if text is None else f" ({_listed(text)})"
    recorded_text = f" ({_listed(window.subscription)})" if window and window.subscription else ""
    by = f", last by {_named(window)}" if window else ""
    if version < recorded.version:
        raise WrongUse(
            f"group {group}: version {version} of its subscription{own_text} is older than version {recorded.version}"
            f"{recorded_text}, which is recorded in shard {shard}{by}. An older deployment still runs, or its settings are out "
            f"of date: use the newer settings. To go back on purpose, give the older subscription a new number: "
            f"subscription_version = {recorded.version + 1}."
        )
    raise WrongUse(
        f"group {group}: version {version} of its subscription{own_text} is not the one that shard {shard} has recorded under "
        f"that number{recorded_text}{by}. All members of a group need the same expression for a topic, otherwise they lose "
        f"messages. If yours is the newer one, set subscription_version = {version + 1}; if not, use the recorded one."
    )


def is_recorder(ctl: Ctl, recorded: SubVersion) -> bool:
    """Whether the window ran with this subscription."""
    if ctl.subscription is None or ctl.subscription_version is None:
        return False
    return sub_version_of(ctl.subscription_version, ctl.subscription) == recorded


def _named(ctl: Ctl) -> str:
    return f"request {ctl.request_id} of {ctl.actor.name} ({ctl.actor.source}) at {format_time(ctl.store_timestamp)}"


def _listed(text: str) -> str:
    """``Orders: TAG 'TagA || TagB', Refunds: TAG '*'``."""
    topics = json.loads(text).items()
    return ", ".join(f"{topic}: {type_} {text!r}" for topic, expression in topics for type_, text in expression.items())


def checked_subscription(
    shard: ShardView, positions: Positions, group: GroupSettings, text: str | None
) -> SubVersion | None:
    """What the commit of a window records of its subscription, by the table of ``sub_version.py``; None: nothing.

    ``text``: that of the subscription. Raises WrongUse for an older subscription than the recorded one, and for another one
    of the same version.
    """
    app_id = sub_id(group.name)
    recorded = SubVersion.of(positions.get(app_id))

    def recorder() -> Ctl | None:
        """The newest window that recorded it, perhaps of another client.

        First the log is read from the last write of the position on, less the longest that a run may take. Windows that
        only consume retries write the position too, so the whole log may be needed.
        """
        name = None if group.broadcasting else group.name
        for since_ms in (positions.updated_ms(app_id) - MAX_RUN_AGE_MS, 0):
            windows = [ctl for ctl in shard.windows_since(name, since_ms) if sub_id(ctl.group or "") == app_id]
            if recorded and (recorders := [ctl for ctl in windows if is_recorder(ctl, recorded)]):
                return recorders[-1]
        return None

    return next_sub_version(group.name, group.subscription_version, text, recorded, shard=shard.name, recorder=recorder)
