"""Replay: the messages of a topic from a moment on, once more, under a group name of its own.

The live group's offsets do not move. The replay group's first window starts where the time search says and ends at the
bounds that were resolved then; what fails is retried in its own retry topic, and consumed by its follow-up windows.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from rmq_store.errors import WrongUse
from rmq_store.plan import ConsumeRequest, Scope
from rmq_store.settings import GroupSettings, Settings
from rmq_store.validators import GROUP_MAX_LENGTH

_REPLAY_GROUP = re.compile(r"(?P<group>.+)-replay-[0-9a-f]{10}")


def replay_group(group: str, request_id: str) -> str:
    """The name under which a replay consumes: legal for RocketMQ, and the same for the same request.

    Raises WrongUse for a group whose replay would have a longer name than RocketMQ allows: cut short, it could not be
    told which group it replays.
    """
    suffix = f"-replay-{hashlib.sha256(request_id.encode()).hexdigest()[:10]}"
    longest = GROUP_MAX_LENGTH - len(suffix)
    if len(group) > longest:
        raise WrongUse(
            f"group {group} cannot be replayed under a name of its own: its name has {len(group)} characters, a replay "
            f"adds {len(suffix)}, and RocketMQ allows {GROUP_MAX_LENGTH}. Name a group of at most {longest} characters "
            "with the same subscriptions in the settings, and replay that one."
        )
    return group + suffix


def replayed_group(name: str) -> str | None:
    """The group that a replay group was made from, None for an ordinary name."""
    matched = _REPLAY_GROUP.fullmatch(name)
    return matched["group"] if matched else None


def group_settings(settings: Settings, name: str) -> tuple[GroupSettings, Scope]:
    """The settings of a group, or of a replay group's follow-up windows: its retries only."""
    base = replayed_group(name)
    if base is not None and name not in {group.name for group in settings.groups}:
        return replace(settings.group(base), name=name), Scope(retries_only=True)
    return settings.group(name), Scope()


def as_replay(
    group: GroupSettings, topic: str, from_ms: int, request: ConsumeRequest
) -> tuple[GroupSettings, ConsumeRequest, Scope]:
    """What ``consume_window`` has to be asked for the next window of a replay; ``request.until_ms`` ends it.

    Raises WrongUse: a topic that the group does not read, an empty span of time, a group whose name is too long.
    """
    wanted = tuple(subscription for subscription in group.subscriptions if subscription.topic == topic)
    if not wanted:
        known = ", ".join(subscription.topic for subscription in group.subscriptions)
        raise WrongUse(f"group {group.name} does not read {topic}; it reads {known}")
    if request.until_ms is not None and request.until_ms <= from_ms:
        raise WrongUse(f"nothing lies between --from {from_ms} and --until {request.until_ms}")
    name = replay_group(group.name, request.request_id)
    recorded = replace(request, parameters={"replay_of": group.name, "from_ms": from_ms, "topic": topic})
    return replace(group, name=name, subscriptions=wanted), recorded, Scope(from_ms=from_ms)
