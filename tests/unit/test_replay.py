"""The name under which a replay consumes, and the way back from it."""

from __future__ import annotations

import pytest

from rmq_store.admin.replay import group_settings, replay_group, replayed_group
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.message.validators import GROUP_MAX_LENGTH, group_problem
from rmq_store.settings.settings import GroupSettings, Settings
from rmq_store.window.consume_request import LIVE, Scope

REQUEST = "2026-11-20-replay-1"


def group(name: str) -> GroupSettings:
    return GroupSettings(name, "some.module:listen", (build_subscription_data("Orders", "*"),))


@pytest.mark.parametrize("name", ["g", "billing", "a-replay-0123456789", "%weird-name_", "g" * 102])
def test_a_replays_name_is_legal_and_says_which_group_it_replays(name: str) -> None:
    made = replay_group(name, REQUEST)
    assert made == replay_group(name, REQUEST) != replay_group(name, "2026-11-20-replay-2")
    assert group_problem(made) == group_problem(name)
    assert replayed_group(made) == name


@pytest.mark.parametrize("length", [103, GROUP_MAX_LENGTH])
def test_a_group_whose_replay_would_have_too_long_a_name_is_refused(length: int) -> None:
    with pytest.raises(WrongUse, match=rf"has {length} characters, a replay adds 18, and RocketMQ allows 120"):
        replay_group("g" * length, REQUEST)


def test_the_follow_up_of_a_replay_has_the_settings_of_its_group_and_reads_retries_only() -> None:
    settings = Settings("consumers.toml", (group("g" * 102), group("other-replay-0123456789")))
    name = replay_group("g" * 102, REQUEST)
    found, scope = group_settings(settings, name)
    assert (found.name, found.listener, scope) == (name, "some.module:listen", Scope(retries_only=True))
    assert group_settings(settings, "other-replay-0123456789") == (group("other-replay-0123456789"), LIVE)
