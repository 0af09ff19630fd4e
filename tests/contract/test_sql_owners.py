"""What SQL says of who owned which queue, from when until when, and why it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.claim import LEASE_S, Wish
from rmq_store.commit.ctl import Action, Ctl
from rmq_store.commit.positions import own_queue_id
from rmq_store.errors import HeldByAnother, ListenerError, StaleAttempt
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.shard import Shard
from rmq_store.utils.host import Host
from tests.contract.engines import LakeWorld
from tests.contract.test_engines_rebalance import ONE, TWO, share
from tests.contract.world import ANA, BEN, DAY, NOON, fail, orders, several

LEASE_MS = LEASE_S * 1000


@pytest.fixture
def lake(tmp_path: Path) -> LakeWorld:
    made = LakeWorld(tmp_path)
    for queue_id in range(2):
        made.fill(orders(queue_id), several(4))
    return made


def rows(lake: LakeWorld, columns: str, where: str = "TRUE") -> list[tuple[Any, ...]]:
    text = f"SELECT {columns} FROM queue_owners WHERE {where} ORDER BY claimed_at, commit_id, scope"
    return [tuple(row.values()) for row in query(lake.store, text).to_pylist()]


def test_a_window_owned_its_queues_until_its_commit(lake: LakeWorld) -> None:
    report = share(lake, "c2", ("c2",), "1", meanwhile=lambda: lake.clock.advance(5000))
    (claim,) = [ctl for ctl in lake.ctls() if ctl.action is Action.CLAIM]
    assert rows(lake, "*") == [
        (
            "broker-a", f"billing/Orders/broker-a/{n}", "billing", "Orders", "broker-a", n, 1, "c2", f"{DAY}-1", "ana",
            "test", NOON, NOON + 5000, "committed", "free", claim.commit_id, report.commit_id,
        )
        for n in range(2)
    ]  # fmt: skip


def test_a_run_that_fails_releases_what_it_owned(lake: LakeWorld) -> None:
    with pytest.raises(ListenerError):
        share(lake, "c1", TWO, "1", lambda msgs, context: "what?")
    release = lake.ctls()[-1]
    found = rows(lake, "queue_id, client_id, ended_by, ended_commit_id")
    assert (release.action, found) == (Action.RELEASE, [(0, "c1", "released", release.commit_id)])


def test_a_lease_that_ended_is_told_from_a_claim_that_was_taken_over(lake: LakeWorld) -> None:
    def dies() -> None:
        lake.clock.advance(LEASE_MS + 7000)
        with pytest.raises(StaleAttempt):
            share(lake, "c2", ("c2",), "2", meanwhile=second_attempt)

    def second_attempt() -> None:
        lake.clock.advance(1000)
        share(lake, "c2", ("c2",), "2", actor=BEN)

    with pytest.raises(StaleAttempt):
        share(lake, "c1", ONE, "1", meanwhile=dies)
    at = NOON + LEASE_MS + 7000
    found = rows(lake, "claim_number, request_id, actor, claimed_at, held_until, ended_by, reason", "queue_id = 0")
    assert found == [
        (1, f"{DAY}-1", "ana", NOON, NOON + LEASE_MS, "lease ended", "free"),
        (2, f"{DAY}-2", "ana", at, at + 1000, "taken over", "took over claim 1, whose lease ended 7 s ago"),
        (
            3, f"{DAY}-2", "ben", at + 1000, at + 1000, "committed",
            "took over claim 2 of an earlier attempt of this request",
        ),
    ]  # fmt: skip


def test_who_holds_a_queue_now_has_no_end_and_who_died_has(lake: LakeWorld) -> None:
    wish = Wish(f"{DAY}-1", ANA, "billing", queues=(own_queue_id("billing", orders(0)),), client_id="c1")
    with claimed(lake.shard, wish, lake.host):
        assert rows(lake, "ended_by, held_until") == [("lease ended", NOON + LEASE_MS)]
    host = Host()  # with a clock of today, as SQL has it
    lake.store_skew_ms = host.now_ms() - NOON
    with claimed(lake.shard, wish, host) as held:
        ends = {claim.lease_end_s * 1000 for claim in held.taken.claims.values()}
        assert rows(lake, "ended_by, held_until", "claim_number = 2") == [(None, ends.pop())]


def test_other_work_is_owned_as_a_whole(lake: LakeWorld) -> None:
    share(lake, "c1", ONE, "1", fail)
    lake.clock.advance(3_600_000)
    lake.deliver(f"{DAY}-d")
    assert rows(lake, "scope, group_name, topic, queue_id, client_id, ended_by", "topic IS NULL") == [
        ("~deliver", "CID_RMQ_SYS_SCHEDULE", None, None, None, "committed")
    ]


def test_naming_the_holder_of_a_queue_reads_the_commits_of_its_group_only(
    lake: LakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wish(group: str, number: int) -> Wish:
        return Wish(f"{DAY}-{number}", ANA, group, queues=(own_queue_id(group, orders(0)),))

    with ExitStack() as claims:
        for group in ("billing", "orders", "shipping"):
            claims.enter_context(claimed(lake.shard, wish(group, 1), lake.host))
        reads: list[str] = []
        shard = Shard(lake.shard.root, lake.shard.name)
        ctls_in = shard.ctls_in

        def counted(paths: Sequence[str]) -> list[Ctl]:
            reads.extend(paths)
            return ctls_in(paths)

        monkeypatch.setattr(shard, "ctls_in", counted)
        with (
            pytest.raises(HeldByAnother, match=f"request {DAY}-1 of ana"),
            claimed(shard, wish("orders", 2), lake.host),
        ):
            pass
        assert len(reads) == 1


def test_the_owners_of_one_group_are_worked_out_from_its_own_claims(lake: LakeWorld) -> None:
    with ExitStack() as claims:
        for group in ("billing", "orders", "shipping"):
            wish = Wish(f"{DAY}-1", ANA, group, queues=tuple(own_queue_id(group, orders(n)) for n in range(2)))
            claims.enter_context(claimed(lake.shard, wish, lake.host))
        select = "SELECT * FROM queue_owners WHERE group_name = 'orders'"
        plan = query(lake.store, f"EXPLAIN (ANALYZE, FORMAT json) {select}").column("explain_value")[0].as_py()
        operators = [one for root in json.loads(plan)["operator"] for one in operators_of(root)]
        assert [one["intermediate_rows"] for one in operators if one["type"] == "WINDOW"] == [2, 2]


def operators_of(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield root
    for child in root.get("children", ()):
        yield from operators_of(child)
