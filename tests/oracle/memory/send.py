"""Sending messages to the lake's own queues, in one commit; ``rmq_store/producer/send.py`` has the rules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from rmq_store.commit.ctl import Action, Actor
from rmq_store.commit.request import Status
from rmq_store.errors import StaleAttempt
from rmq_store.producer.producer import BORN_HOST, Message, check_messages
from rmq_store.producer.send import (
    ATTEMPTS,
    Part,
    SendReport,
    plan_send,
    send_proposal,
    sent,
    sent_before,
    wait_s,
    would_send,
)
from rmq_store.utils.host import Host
from tests.oracle.memory.commit import commit
from tests.oracle.memory.rows import MessageRow
from tests.oracle.memory.shard import MemoryShard
from tests.oracle.memory.store import MemoryStore


def send(
    store: MemoryStore,
    shard: MemoryShard,
    messages: Sequence[Message],
    request_id: str,
    actor: Actor,
    host: Host,
    *,
    create_queues: int | None = None,
    dry_run: bool = False,
) -> SendReport:
    """Send the messages, all of them or none; see ``send`` of ``rmq_store/lake/window/send.py``."""
    started_ms = host.now_ms()
    check_messages(messages, started_ms)
    part = Part.alone(shard.name, messages)
    for attempt in count(1):
        if parts := shard.ctls_of_request(request_id, None, Action.SEND):
            return sent_before(shard.name, parts[0], part)
        positions = shard.positions()
        plan = plan_send(
            positions,
            shard.local_broker,
            shard.lane(""),
            messages,
            request_id,
            levels=store.levels,
            create_queues=create_queues,
            host=host,
        )
        if dry_run:
            break
        shard.on_step("1.planned")
        commit_id, born_ms = host.new_commit_id(), host.now_ms()
        rows = [
            MessageRow(one.message.body, one.properties, born_timestamp=born_ms, born_host=BORN_HOST)
            for one in plan.placed
        ]
        file = shard.stage(f"{commit_id}-00000", rows)
        shard.on_step("3.staged")
        try:
            proposal = send_proposal(commit_id, request_id, actor, positions, plan=plan, part=part, file=file)
            return sent(Status.COMMITTED, shard.name, commit(shard, proposal, host, started_ms=started_ms).ctl)
        except StaleAttempt:
            if attempt == ATTEMPTS:
                raise
            host.sleep(wait_s(attempt, host))
    return would_send(shard.name, request_id, plan)
