"""What every engine promises about one subscription per group and topic (rules 7.7). See ``test_engines.py``."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.admin.reset import ResetTo
from rmq_store.commit.claim import LEASE_S
from rmq_store.commit.ctl import Action, Ctl, Proposal
from rmq_store.commit.positions import ABSENT, SubVersion, sub_id
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.replay_name import replay_group
from rmq_store.errors import StaleAttempt, WrongUse
from rmq_store.message.message import MessageExt
from rmq_store.settings.settings import GroupSettings
from rmq_store.window.consume_request import ConsumeRequest, Scope
from tests.contract.engines import story
from tests.contract.world import ANA, BEN, DAY, HOUR, NOON, World, consumed, counts, fail, group, orders, said, several


def reader(version: int, expression: str = "*", name: str = "billing", **settings: Any) -> GroupSettings:
    return group(name, topics={"Orders": expression}, subscription_version=version, **settings)


def client(name: str, version: int, expression: str) -> GroupSettings:
    return reader(version, expression, f"audit@{name}", message_model=MessageModel.BROADCASTING)


def recorded(world: World, name: str = "billing") -> int | None:
    found = SubVersion.of(world.positions().get(sub_id(name)))
    return found and found.version


def refused(world: World, settings: GroupSettings, request_id: str, scope: Scope | None = None) -> str:
    """The error's text; nothing may have been written."""
    before = world.ctls()
    with pytest.raises(WrongUse) as caught:
        world.consume(settings, request_id, fail, scope=scope or Scope())
    assert world.ctls() == before
    return str(caught.value)


@story
def test_a_higher_version_is_accepted_and_a_lower_one_refused_with_both_subscriptions(world: World) -> None:
    world.fill(orders(0), [said(n, tag="TagA" if n % 2 else "TagB") for n in range(6)])
    world.consume(reader(1, "TagA"), f"{DAY}-1")
    assert recorded(world) == 1
    world.fill(orders(0), [said(n, tag="TagB") for n in range(6, 9)])
    world.clock.advance(60_000)
    newer = world.consume(reader(3, "TagB || TagC"), f"{DAY}-2", actor=BEN)
    assert (counts(newer), recorded(world)) == ({"acked": 3}, 3)
    world.fill(orders(0), several(2, first=9))
    assert refused(world, reader(1, "TagA"), f"{DAY}-3") == (
        "group billing: version 1 of its subscription (Orders: TAG 'TagA') is older than version 3 (Orders: TAG "
        "'TagB || TagC'), which is recorded in shard broker-a, last by request 2024-06-03-2 of ben (test) at "
        "2024-06-03T12:01:00.000Z. An older deployment still runs, or its settings are out of date: use the newer "
        "settings. To go back on purpose, give the older subscription a new number: subscription_version = 4."
    )
    assert consumed(world.consume(reader(4, "TagA"), f"{DAY}-4")) == {orders(0): (9, 11)}


@story
def test_one_version_with_two_texts_is_refused_and_the_same_text_is_not(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(reader(2, "TagA"), f"{DAY}-1")
    world.fill(orders(0), several(4, first=4))
    assert refused(world, reader(2, "TagB"), f"{DAY}-2") == (
        "group billing: version 2 of its subscription (Orders: TAG 'TagB') is not the one that shard broker-a has "
        "recorded under that number (Orders: TAG 'TagA'), last by request 2024-06-03-1 of ana (test) at "
        "2024-06-03T12:00:00.000Z. All members of a group need the same expression for a topic, otherwise they lose "
        "messages. If yours is the newer one, set subscription_version = 3; if not, use the recorded one."
    )
    more = group(topics={"Orders": "TagA", "Refunds": "*"}, subscription_version=2)
    assert "Orders: TAG 'TagA', Refunds: TAG '*'" in refused(world, more, f"{DAY}-2")
    assert counts(world.consume(reader(2, "TagA", max_messages=100), f"{DAY}-2")) == {"filtered": 4}


@story
def test_a_refusal_comes_before_it_is_known_whether_there_is_anything_to_read(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(reader(2), f"{DAY}-1")
    refused(world, reader(1), f"{DAY}-2")
    assert world.consume(reader(3), f"{DAY}-3").status == "empty"
    assert recorded(world) == 2


@story
def test_what_a_request_has_committed_is_said_to_any_deployment(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(reader(1), f"{DAY}-1")
    world.fill(orders(0), several(4, first=4))
    world.consume(reader(2), f"{DAY}-2")
    assert world.consume(reader(1), f"{DAY}-1").status == "already_committed"


@story
def test_a_running_window_of_an_older_deployment_is_fenced_by_a_newer_one(world: World) -> None:
    """Clients of a broadcasting group have offsets, an epoch and a claim of their own: all they share is the record."""

    world.fill(orders(0), several(4))
    world.consume(client("a", 1, "*"), f"{DAY}-1")
    world.fill(orders(0), several(4, first=4))

    def newer_comes(msgs: list[MessageExt], context: Any) -> str:
        world.consume(client("b", 2, "TagA"), f"{DAY}-3", actor=BEN)
        return "CONSUME_SUCCESS"

    with pytest.raises(StaleAttempt) as caught:
        world.consume(client("a", 1, "*"), f"{DAY}-2", newer_comes)
    told = str(caught.value)
    assert "sub/audit was subscription version 1 and is subscription version 2" in told
    assert told.endswith("Moved by consume 2024-06-03-3 of ben (test)")
    assert (recorded(world, "audit@a"), world.offset(orders(0), "audit@a")) == (2, 4)
    assert "request 2024-06-03-3 of ben (test)" in refused(world, client("a", 1, "*"), f"{DAY}-2")


@story
def test_two_deployments_do_not_fence_each_other_for_ever(world: World) -> None:
    world.fill(orders(0), several(4))

    def newer_takes_over(msgs: list[MessageExt], context: Any) -> str:
        world.clock.advance((LEASE_S + 1) * 1000)
        world.consume(reader(2), f"{DAY}-new")
        return "CONSUME_SUCCESS"

    with pytest.raises(StaleAttempt, match="sub/billing was None and is subscription version 2"):
        world.consume(reader(1), f"{DAY}-old", newer_takes_over)
    refused(world, reader(1), f"{DAY}-old")
    world.fill(orders(0), several(4, first=4))
    assert consumed(world.consume(reader(2), f"{DAY}-new-2")) == {orders(0): (4, 8)}


@story
def test_the_first_of_two_first_windows_decides_what_a_version_means(world: World) -> None:
    world.fill(orders(0), several(4))

    def another(msgs: list[MessageExt], context: Any) -> str:
        world.consume(client("b", 1, "TagA"), f"{DAY}-b")
        return "CONSUME_SUCCESS"

    with pytest.raises(StaleAttempt, match="sub/audit was None and is subscription version 1"):
        world.consume(client("a", 1, "*"), f"{DAY}-a", another)


@story
def test_two_windows_of_the_newer_deployment_do_not_fence_each_other(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(client("a", 1, "*"), f"{DAY}-1")
    world.fill(orders(0), several(4, first=4))

    def newer_too(msgs: list[MessageExt], context: Any) -> str:
        world.consume(client("b", 2, "*"), f"{DAY}-b")
        return "CONSUME_SUCCESS"

    assert counts(world.consume(client("a", 2, "*"), f"{DAY}-2", newer_too)) == {"acked": 4}
    assert recorded(world, "audit") == 2


@story
def test_a_queue_that_is_consumed_in_order_is_read_by_one_subscription_too(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(reader(2, mode="orderly"), f"{DAY}-1", lambda msgs, context: "SUCCESS")
    refused(world, reader(1, mode="orderly"), f"{DAY}-2")
    refused(world, reader(2, "TagA", mode="orderly"), f"{DAY}-2")


@story
def test_an_operators_move_leaves_the_recorded_subscription(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(reader(2), f"{DAY}-1")
    world.reset_to(ResetTo.MIN)
    assert recorded(world) == 2
    refused(world, reader(1), f"{DAY}-2")


@story
def test_a_replay_has_a_record_of_its_own_which_its_retries_do_not_change(world: World) -> None:
    world.fill(orders(0), several(4))
    world.fill(orders(0, "Refunds"), several(2))
    both = group(topics=("Orders", "Refunds"), subscription_version=2)
    world.consume(both, f"{DAY}-1")
    request = ConsumeRequest(f"{DAY}-replay", ANA)
    world.replay(both, "Orders", NOON - 2 * HOUR, request, fail)
    name = replay_group("billing", f"{DAY}-replay")
    assert (recorded(world), recorded(world, name)) == (2, 2)
    world.clock.advance(25 * HOUR)
    world.deliver(f"{DAY}-due")

    def follow_up(version: int) -> GroupSettings:
        return group(name, topics=("Orders", "Refunds"), subscription_version=version)

    told = refused(world, follow_up(1), f"{DAY}-f1", Scope(retries_only=True))
    assert "version 1 of its subscription is older than version 2 (Orders: TAG '*')" in told
    before = world.positions().get(sub_id(name))
    done = world.consume(follow_up(3), f"{DAY}-f2", scope=Scope(retries_only=True))
    assert (counts(done), world.positions().get(sub_id(name))) == ({"acked": 4}, before)
    (window,) = [ctl for ctl in world.ctls() if ctl.request_id == f"{DAY}-f2" and ctl.action is Action.CONSUME]
    assert (window.subscription, window.subscription_version) == (None, None)
    assert refused(world, follow_up(1), f"{DAY}-f3", Scope(retries_only=True)) == told


@story
def test_a_record_that_is_voided_is_as_if_it_had_never_been_there(world: World) -> None:
    world.fill(orders(0), several(4))
    world.consume(reader(9), f"{DAY}-1")
    ctl = Ctl(world.host.new_commit_id(), Action.IMPORT, ANA, request_id=f"{DAY}-void")
    world.commit(Proposal(ctl, {}, {sub_id("billing"): ABSENT}))
    world.fill(orders(0), several(4, first=4))
    assert world.consume(reader(1, "TagA"), f"{DAY}-2").status == "committed"
    assert recorded(world) == 1
