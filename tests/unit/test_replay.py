"""The name under which a replay consumes, and the way back from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmq_store.admin.clone import CloneRequest
from rmq_store.admin.replay import group_settings
from rmq_store.admin.reset import ResetRequest, ResetTo
from rmq_store.admin.set_offsets import SetOffsetsRequest
from rmq_store.commit.ctl import Actor
from rmq_store.consumer.replay_name import replay_group, replayed_group
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


ANA, MOVED = Actor("ana", "test"), "2026-11-20-move"


@pytest.mark.parametrize(
    "move",
    [
        lambda group: ResetRequest(group, "Orders", ResetTo.MIN, MOVED, ANA, "x"),
        lambda group: ResetRequest(group, "Orders", ResetTo.MAX, MOVED, ANA, "x", dry_run=True),
        lambda group: CloneRequest(group, "orders", MOVED, ANA, "x"),
        lambda group: SetOffsetsRequest(group, {}, "offsets.json", MOVED, ANA, "x"),
    ],
    ids=["reset", "skip", "clone", "import of offsets"],
)
@pytest.mark.parametrize("replayed", ["billing", "audit@a"])
def test_an_operator_moves_no_replay_group(move: Callable[[str], object], replayed: str) -> None:
    """Its epochs count its attempts, and it would read nothing more."""
    name = replay_group(replayed, REQUEST)
    with pytest.raises(
        WrongUse, match=f"{name}: it is a replay of {replayed}, .*'rmq replay --group {name} --reprocess"
    ):
        move(name)
    move(replayed)


def test_the_offsets_of_a_replay_group_are_cloned() -> None:
    CloneRequest("billing", replay_group("billing", REQUEST), MOVED, ANA, "x")


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


def test_a_group_that_the_settings_refuse_for_its_name_is_no_replay_of_another_one() -> None:
    settings = Settings("consumers.toml", (group("other"),), {"other-replay-0123456789": ["name is that of a replay"]})
    with pytest.raises(WrongUse, match="name is that of a replay"):
        group_settings(settings, "other-replay-0123456789")
