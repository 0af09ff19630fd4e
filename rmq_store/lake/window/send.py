"""Sending messages to the lake's own queues, in one commit; ``rmq_store/producer/send.py`` has the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pyarrow as pa

from rmq_store.commit.ctl import Action, Actor, StagedFile
from rmq_store.commit.request import Status
from rmq_store.errors import StaleAttempt
from rmq_store.lake.commit.commit import commit, reached
from rmq_store.lake.commit.cursor import refuse_other_history
from rmq_store.lake.commit.dispatch import follow_up
from rmq_store.lake.table import tables
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.table.store import LakeStore
from rmq_store.log.record import MESSAGE_MAGIC_V1
from rmq_store.message.message_const import MessageConst
from rmq_store.message.sys_flag import body_crc
from rmq_store.producer.producer import BORN_HOST, Message, Placed, check_messages
from rmq_store.producer.send import (
    ATTEMPTS,
    Part,
    SendPlan,
    SendReport,
    plan_send,
    send_proposal,
    sent,
    sent_before,
    wait_s,
    would_send,
)
from rmq_store.utils.host import Host


def send(
    store: LakeStore,
    shard: Shard,
    messages: Sequence[Message],
    request_id: str,
    actor: Actor,
    host: Host,
    *,
    create_queues: int | None = None,
    dry_run: bool = False,
    part: Part | None = None,
) -> SendReport:
    """Send the messages, all of them or none. They become visible together, in the given order per queue.

    ``request_id`` begins with its UTC date, at most two days ahead; the same id with the same messages is the same
    request and is sent once. ``create_queues``: how many queues a new topic gets; None: a new topic is refused.
    ``dry_run``: only report where the messages would go. ``part``: what they are of a request of several calls; None: all of
    it. ``send_request.py`` makes it, and looks for the request in all shards; here it is looked for in this one.

    All messages of a call are in memory: send many in parts of some thousands, each with a request id of its own. ::

        store = LakeStore.open(Root.parse("var/store"))
        shard = store.create_shard("local")
        orders = [Message("Orders", b'{"price": 7}', tags="new", keys=("o-1",), properties={"region": "eu"})]
        send(store, shard, orders, "2026-11-20-orders-1", actor_of(), Host(), create_queues=4)

    Raises WrongUse (a message that client or broker would refuse, an unknown topic or queue, a request that sent other
    messages), and the errors of ``commit``; StaleAttempt only when other sends to the topic won all attempts.
    """
    started_ms = host.now_ms()
    check_messages(messages, started_ms)
    part = part or Part.alone(shard.name, messages)
    for attempt in count(1):
        shard.commitlog.refresh()
        if parts := shard.ctls_of_request(request_id, None, Action.SEND):
            return sent_before(shard.name, parts[0], part)
        refuse_other_history(shard, shard.consumequeue)
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
        reached("1.planned")
        commit_id = host.new_commit_id()
        file = _staged(shard, plan, commit_id, host.now_ms())
        reached("3.staged")
        try:
            proposal = send_proposal(commit_id, request_id, actor, positions, plan=plan, part=part, file=file)
            committed = commit(shard, proposal, host, started_ms=started_ms)
        except StaleAttempt:
            if attempt == ATTEMPTS:
                raise
            host.sleep(wait_s(attempt, host))
            continue
        warnings = follow_up(shard, host)
        reached("7.dispatched")
        return replace(sent(Status.COMMITTED, shard.name, committed.ctl), warnings=warnings)
    return would_send(shard.name, request_id, plan)


def _staged(shard: Shard, plan: SendPlan, commit_id: str, born_ms: int) -> StagedFile:
    rows = [_row(rel, one) for rel, one in enumerate(plan.placed)]
    table = pa.Table.from_pylist(rows, schema=tables.MSG)
    constant = {
        "commit_id": commit_id,
        "part": 0,
        "magic": MESSAGE_MAGIC_V1,
        "sys_flag": 0,
        "flag": 0,
        "born_timestamp": born_ms,
        "born_host": BORN_HOST,
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
    }
    for name, value in constant.items():
        column = pa.repeat(pa.scalar(value, tables.MSG.field(name).type), len(rows))
        table = table.set_column(table.schema.get_field_index(name), tables.MSG.field(name), column)
    path, name = shard.commitlog.path, f"{commit_id}-00000"
    return stage(shard.root, path, NewFile(kind="msg", name=name, rows=table))


def _row(rel: int, placed: Placed) -> dict[str, object]:
    message, queue = placed.message, placed.queue
    return {
        "rel": rel,
        "topic": queue.topic,
        "broker_name": queue.broker_name,
        "queue_id": queue.queue_id,
        "unique_key": placed.properties[MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX],
        "keys": placed.properties.get(MessageConst.KEYS),
        "tags": message.tags,
        "tags_code": placed.tags_code,
        "stored_body_size": len(message.body),
        "body_crc": body_crc(message.body),
        "properties": list(placed.properties.items()),
        "body": message.body,
    }
