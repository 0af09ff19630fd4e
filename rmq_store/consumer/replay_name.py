"""The name of a replay's group. It follows from the replay's request, so the same request has the same one."""

from __future__ import annotations

import hashlib
import re

from rmq_store.errors import WrongUse
from rmq_store.message.validators import GROUP_MAX_LENGTH

_REPLAY_GROUP = re.compile(r"(?P<group>.+)-replay-[0-9a-f]{10}")


def replay_group(group: str, request_id: str) -> str:
    """The group name of a replay: valid in RocketMQ, and the same for the same request.

    Raises WrongUse when it would be longer than RocketMQ allows: a name cut short would not say which group it replays.
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
    """The group that a replay group replays, None for any other name."""
    matched = _REPLAY_GROUP.fullmatch(name)
    return matched["group"] if matched else None


def is_of_a_replay(name: str) -> bool:
    """Whether it is the name of a replay group, or of a client of one that is broadcasting (``group@client``)."""
    return replayed_group(name.partition("@")[0]) is not None
