"""Small stores in a folder, made through the real stages and the real commit.

``small_store`` is a healthy one with a bit of everything. ``Bench`` makes single commits by hand, also ones that no job would
make: what a commit records, what its rows say and where the positions go can each be given apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa

from rmq_store.admin.redrive import CAUSE as REDRIVE
from rmq_store.commit.ctl import (
    SCHEDULE_GROUP,
    Action,
    Actor,
    Consumed,
    Ctl,
    Moved,
    Observed,
    Produced,
    Proposal,
    StagedFile,
    canonical_json,
)
from rmq_store.commit.positions import (
    ABSENT,
    Outcome,
    QueueRange,
    Tally,
    del_id,
    grp_id,
    import_id,
    max_id,
    min_id,
    off_id,
    pas_id,
    red_id,
    tally,
)
from rmq_store.consumer.duplicates import key_parameters, key_tally
from rmq_store.consumer.listener import ConsumeConcurrentlyContext
from rmq_store.lake.commit.commit import Committed, commit
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.table import tables
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, stage
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.deliver import deliver
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.key_files import stage_keys
from rmq_store.lake.window.window import consume_window
from rmq_store.lake.window.window_keys import Keys, text_hashes
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, dlq_topic, retry_topic
from rmq_store.settings.settings import GroupSettings, load_settings
from rmq_store.utils.host import Host, day_of
from rmq_store.window.consume import WindowReport
from rmq_store.window.consume_request import ConsumeRequest
from rmq_store.window.deliver import CAUSE, DeliverReport

ALICE = Actor("alice", "test")
HOUR_MS = 3_600_000

SETTINGS = """
[[group]]
name = "shop"
listener = "tests.lake_fixtures:answer"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
[[group.subscription]]
topic = "Orders"
expression = "new || paid"
"""


def answer(messages: Sequence[MessageExt], context: ConsumeConcurrentlyContext) -> str:
    """The listener of the small store: the body says what happens."""
    (message,) = messages
    plan = json.loads(message.body or b"{}").get("plan")
    if plan == "poison":
        context.delay_level_when_next_consume = -1
    if plan == "raise":
        raise ValueError("no such customer")
    return "RECONSUME_LATER" if plan in ("poison", "later") else "CONSUME_SUCCESS"


def small_group() -> GroupSettings:
    return load_settings(SETTINGS, "tests").group("shop")


# --- rows and commits by hand ----------------------------------------------------------------------------------------


def message(queue: MessageQueue, offset: int, store_timestamp: int, **columns: Any) -> dict[str, Any]:
    """An imported message as a row of the commit log; commit, part and rel are filled in by ``Bench.produce``."""
    tags = ("new", "paid", "other")[offset % 3]
    place = (queue.queue_id << 32) + offset * 300
    row = {
        "topic": queue.topic,
        "broker_name": queue.broker_name,
        "queue_id": queue.queue_id,
        "queue_offset": offset,
        "commit_log_offset": place,
        "offset_msg_id": f"{place:032X}",
        "store_timestamp": store_timestamp,
        "unique_key": f"U{queue.queue_id}-{offset}",
        "keys": f"order-{offset}",
        "tags": tags,
        "tags_code": {"new": 108960, "paid": 3433164, "other": 106069776}[tags],
        "magic": -626843481,
        "store_size": 300,
        "stored_body_size": 40,
        "body_crc": 7,
        "sys_flag": 0,
        "flag": 0,
        "born_timestamp": store_timestamp - 5,
        "born_host": "10.0.0.1|5000",
        "store_host": "10.0.0.2|10911",
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "properties": [("KEYS", f"order-{offset}"), ("TAGS", tags)],
        "body": json.dumps({"order": offset, "plan": _plan(offset)}).encode(),
    }
    return row | columns


def _plan(offset: int) -> str:
    return {4: "later", 7: "poison", 9: "raise"}.get(offset % 12, "fine")


@dataclass(slots=True)
class Bench:
    """One shard, and commits to it by hand."""

    shard: Shard
    host: Host = field(default_factory=Host)

    def commit(
        self,
        ctl: Ctl,
        advance: Mapping[str, int],
        files: Sequence[StagedFile] = (),
        *,
        expect: Mapping[str, int | None] | None = None,
        updated_ms: Mapping[str, int] | None = None,
    ) -> Committed:
        """The real commit, except that evidence that does not add up is let through."""
        proposal = Proposal(ctl, expect or {}, advance, tuple(files), updated_ms or {})
        with mock.patch("rmq_store.lake.commit.commit.check_evidence"):
            return commit(self.shard, proposal, self.host, started_ms=self.host.now_ms())

    def ctl(self, action: Action, **values: Any) -> Ctl:
        return replace(Ctl(self.host.new_commit_id(), action, ALICE), **values)

    def stage_messages(self, commit_id: str, rows: Sequence[Mapping[str, Any]], **options: Any) -> StagedFile:
        table = pa.Table.from_pylist([dict(row) | {"commit_id": commit_id} for row in rows], schema=tables.MSG)
        name = f"{commit_id}-{self.host.new_commit_id()}"
        file = NewFile(kind="msg", name=name, rows=table, **options)
        return stage(self.shard.root, self.shard.commitlog.path, file)

    def import_messages(
        self,
        by_queue: Mapping[MessageQueue, Sequence[Mapping[str, Any]]],
        *,
        unindexed: Sequence[Mapping[str, Any]] = (),
        observed: Sequence[Observed] = (),
    ) -> Committed:
        """What an import makes: a file for each day, a run of rows per queue; ``unindexed`` rows are in no consume queue."""
        ctl = self.ctl(Action.IMPORT, request_id="2026-11-20-import")
        days = {day_of(message["store_timestamp"]) for several in by_queue.values() for message in several}
        files, produced = [], []
        for part, day in enumerate(sorted(days)):
            rows: list[dict[str, Any]] = []
            runs = []
            for queue, several in sorted(by_queue.items()):
                if messages := [one for one in several if day_of(one["store_timestamp"]) == day]:
                    runs.append((queue, len(rows), messages))
                    rows += [{**message, "part": part, "rel": rel} for rel, message in enumerate(messages, len(rows))]
            rows += [{**message, "part": part} for message in unindexed if day_of(message["store_timestamp"]) == day]
            files.append(self.stage_messages(ctl.commit_id, rows, store_day=day))
            produced += [
                Produced(
                    queue,
                    part,
                    len(messages),
                    first_row,
                    files[-1].path,
                    base=messages[0]["queue_offset"],
                    min_store_timestamp=min(m["store_timestamp"] for m in messages),
                    max_store_timestamp=max(m["store_timestamp"] for m in messages),
                )
                for queue, first_row, messages in runs
            ]
        advance = {max_id(queue): messages[-1]["queue_offset"] + 1 for queue, messages in by_queue.items()}
        advance |= {min_id(queue): m[0]["queue_offset"] for queue, m in by_queue.items() if m[0]["queue_offset"]}
        newest = {max_id(queue): messages[-1]["store_timestamp"] for queue, messages in by_queue.items()}
        end = sum(file.rows for file in files) if observed else 0
        if observed:
            advance[import_id(self.shard.name)] = end
        broker_name = self.shard.name if observed else "by hand"
        parameters = {"broker_name": broker_name, "range": [0, end], "messages": end, "fingerprint": [0, ""]}
        ctl = replace(ctl, parameters=canonical_json(parameters))
        ctl = replace(ctl, produced=tuple(produced), observed=tuple(observed))
        return self.commit(ctl, advance, files, updated_ms=newest)

    def move(
        self, group: str, queue: MessageQueue, from_offset: int | None, to_offset: int, reason: str = "again"
    ) -> Committed:
        """An operator's reset."""
        epoch = (self.shard.positions().get(grp_id(group)) or 0) + 1
        moved = Moved(group, queue, from_offset, to_offset, epoch)
        to = {"queues": None, "to": "offset", "topic": queue.topic, "value": to_offset}
        ctl = self.ctl(
            Action.RESET, group=group, epoch=epoch, moved=(moved,), reason=reason, request_id="2026-11-20-reset"
        )
        ctl = replace(ctl, parameters=canonical_json(to))
        return self.commit(ctl, {grp_id(group): epoch, off_id(group, queue): to_offset, pas_id(group, queue): epoch})

    def delete(self, group: str, queue: MessageQueue, from_offset: int, *, position: int = ABSENT) -> Committed:
        """A group's end; ``position``: what its offset becomes."""
        moved = Moved(group, queue, from_offset, ABSENT, 1)
        ctl = self.ctl(
            Action.DELETE, group=group, epoch=1, moved=(moved,), reason="old", request_id="2026-11-20-delete"
        )
        ctl = replace(ctl, parameters=canonical_json({"dead_letters": 0, "delayed": 0, "retries": 0}))
        return self.commit(ctl, {grp_id(group): 1, del_id(group): 1, off_id(group, queue): position})

    def window(
        self,
        group: str,
        queue: MessageQueue,
        begin: int,
        end: int,
        *,
        retried: Sequence[int] = (),
        dead: Sequence[int] = (),
        lost: Sequence[tuple[int, int]] = (),
        retried_rows: Sequence[int] | None = None,
        dead_rows: Sequence[int] | None = None,
        lost_rows: Sequence[tuple[int, int]] | None = None,
        tallies: Mapping[Outcome, Tally] | None = None,
        position: int | None = None,
        start_rule: str = "stored",
        queued: bool = True,
        keys: Sequence[str] | None = None,
        key_rows: Sequence[str] = (),
        key_group: str | None = None,
        key_epoch: int = 0,
    ) -> Committed:
        """A consumption window. The rows, the tallies and the new position follow from the outcomes unless given apart;
        ``queued`` False: the copies get no place in a queue. ``keys``: those that the group, which absorbs duplicates,
        says that it acked; ``key_rows``: those that have rows, with ``key_group`` (None: the group) and ``key_epoch``."""
        honest = tallies or _honest(begin, end, retried, dead, lost)
        consumed = Consumed(QueueRange(queue, begin, end), 0, honest, start_rule)
        ctl = self.ctl(Action.CONSUME, group=group, window_id=f"{group}-0-hand", request_id="2026-11-20-hand", epoch=0)
        ctl = replace(ctl, listener="tests:none")
        files, produced = self._copies(
            ctl,
            group,
            queue,
            retried if retried_rows is None else retried_rows,
            dead if dead_rows is None else dead_rows,
        )
        ranges = lost if lost_rows is None else lost_rows
        if ranges:
            files.append(self._stage_lost(ctl, group, queue, ranges))
        if key_rows:
            files.append(self._stage_keys(ctl, key_group or group, key_epoch, queue, key_rows))
        if keys is not None:
            ctl = replace(ctl, parameters=canonical_json(key_parameters(key_tally(keys))))
        ctl = replace(ctl, consumed=(consumed,), produced=produced if queued else ())
        advance = {grp_id(group): 0, off_id(group, queue): end if position is None else position}
        return self.commit(ctl, advance, files)

    def deliver(
        self, group: str, level_queue: int, begin: int, end: int, *, copies: Sequence[int], position: int | None = None
    ) -> Committed:
        """A delivery of a level queue of the group's lane, with a copy of each offset in ``copies``."""
        lane = MessageQueue(SCHEDULE_TOPIC, self.shard.lane(group), level_queue)
        target = MessageQueue(retry_topic(group), self.shard.local_broker, 0)
        stored = self.shard.positions().get(off_id(SCHEDULE_GROUP, lane))
        rule = "first_offset" if stored is None else "stored"
        consumed = Consumed(QueueRange(lane, begin, end), 0, _honest(begin, end, (), (), ()), rule)
        ctl = self.ctl(Action.DELIVER, group=SCHEDULE_GROUP, request_id="2026-11-20-deliver", epoch=0)
        ctl = replace(ctl, consumed=(consumed,))
        files = []
        if copies:
            rows = [_copy(target, SCHEDULE_GROUP, lane, offset, CAUSE) for offset in copies]
            files.append(self.stage_messages(ctl.commit_id, [{**r, "part": 0, "rel": n} for n, r in enumerate(rows)]))
            ctl = replace(ctl, produced=(Produced(target, 0, len(rows), 0, files[0].path),))
        advance = {grp_id(SCHEDULE_GROUP): 0, off_id(SCHEDULE_GROUP, lane): end if position is None else position}
        return self.commit(ctl, advance, files)

    def redrive(self, group: str, ranges: Sequence[tuple[int, int]], *, copies: Sequence[int]) -> Committed:
        """A redrive of some of the group's letters, with a copy of each offset in ``copies``."""
        letters = MessageQueue(dlq_topic(group), self.shard.local_broker, 0)
        target = MessageQueue(retry_topic(group), self.shard.local_broker, 0)
        consumed = tuple(
            Consumed(QueueRange(letters, begin, end), 0, _honest(begin, end, (), (), ()), REDRIVE)
            for begin, end in ranges
        )
        ctl = self.ctl(Action.REDRIVE, group=group, request_id="2026-11-20-redrive", epoch=0, consumed=consumed)
        rows = [_copy(target, group, letters, offset, REDRIVE) for offset in copies]
        file = self.stage_messages(ctl.commit_id, [{**row, "part": 0, "rel": n} for n, row in enumerate(rows)])
        ctl = replace(ctl, produced=(Produced(target, 0, len(rows), 0, file.path),))
        return self.commit(ctl, {red_id(group): 1}, [file])

    def _copies(
        self, ctl: Ctl, group: str, queue: MessageQueue, retried: Sequence[int], dead: Sequence[int]
    ) -> tuple[list[StagedFile], tuple[Produced, ...]]:
        lane = MessageQueue(SCHEDULE_TOPIC, self.shard.lane(group), 2)
        letters = MessageQueue(dlq_topic(group), self.shard.local_broker, 0)
        runs = [(lane, retried, "retry", 10_000), (letters, dead, "max_reconsume_times", None)]
        rows: list[dict[str, Any]] = []
        produced = []
        for target, offsets, cause, delay_ms in runs:
            if offsets:
                produced.append(Produced(target, 0, len(offsets), len(rows), "", delay_ms=delay_ms))
            copies = [_copy(target, group, queue, offset, cause) for offset in offsets]
            rows += [copy | {"part": 0, "rel": rel} for rel, copy in enumerate(copies, len(rows))]
        if not rows:
            return [], ()
        file = self.stage_messages(ctl.commit_id, rows)
        return [file], tuple(replace(segment, file=file.path) for segment in produced)

    def _stage_keys(self, ctl: Ctl, group: str, epoch: int, queue: MessageQueue, texts: Sequence[str]) -> StagedFile:
        column = pa.array(texts, pa.string())
        offsets = np.arange(len(texts))
        keys = Keys([queue], np.array([0, len(texts)]), offsets, pa.chunked_array([column]), text_hashes(column))
        path = self.shard.commitlog.path
        return stage_keys(self.shard.root, path, keys, commit_id=ctl.commit_id, group=group, epoch=epoch, attempt="1")

    def _stage_lost(self, ctl: Ctl, group: str, queue: MessageQueue, ranges: Sequence[tuple[int, int]]) -> StagedFile:
        rows = [
            {
                "commit_id": ctl.commit_id,
                "topic": queue.topic,
                "broker_name": queue.broker_name,
                "queue_id": queue.queue_id,
                "group_name": group,
                "pass": 0,
                "window_id": ctl.window_id,
                "begin_offset": begin,
                "end_offset": end,
                "outcome": "lost",
                "reason": "no message is there",
            }
            for begin, end in ranges
        ]
        table = pa.Table.from_pylist(rows, schema=tables.OUTCOME)
        path = self.shard.commitlog.path
        return stage(self.shard.root, path, NewFile(kind="outcome", name=ctl.commit_id, rows=table))


def _honest(
    begin: int, end: int, retried: Sequence[int], dead: Sequence[int], lost: Sequence[tuple[int, int]]
) -> dict[Outcome, Tally]:
    special = {Outcome.RETRIED: list(retried), Outcome.DEAD: list(dead)}
    special[Outcome.LOST] = [offset for first, last in lost for offset in range(first, last)]
    others = set(range(begin, end)).difference(*special.values())
    return {outcome: tally(offsets) for outcome, offsets in (special | {Outcome.ACKED: list(others)}).items()}


def _copy(target: MessageQueue, group: str, origin: MessageQueue, offset: int, cause: str) -> dict[str, Any]:
    return {
        "topic": target.topic,
        "broker_name": target.broker_name,
        "queue_id": target.queue_id,
        "group_name": group,
        "pass": 0,
        "origin_topic": origin.topic,
        "origin_broker_name": origin.broker_name,
        "origin_queue_id": origin.queue_id,
        "origin_queue_offset": offset,
        "cause": cause,
        "attempt": 1,
        "reconsume_times": 1,
        "properties": [("REAL_TOPIC", retry_topic(group)), ("REAL_QID", "0"), ("RETRY_TOPIC", origin.topic)],
        "body": b"{}",
    }


# --- whole stores ----------------------------------------------------------------------------------------------------


@contextmanager
def bench(path: Path, shard: str = "broker-a") -> Iterator[Bench]:
    """A new store with one empty shard."""
    store, _ = LakeStore.init(Root.parse(str(path)))
    yield Bench(store.create_shard(shard))


@dataclass(frozen=True, slots=True)
class SmallStore:
    """A healthy store and what its user does with it."""

    store: LakeStore
    host: Host = field(default_factory=Host)

    def bench(self, shard: str) -> Bench:
        return Bench(self.store.shards(shard)[0], self.host)

    def consume(self, shard: str, request_id: str) -> WindowReport:
        request = ConsumeRequest(request_id, ALICE, reason="a test")
        opened = self.store.shards(shard)[0]
        return consume_window(
            self.store, opened, small_group(), request, lambda plan: LocalEngine(self.host), self.host
        )

    def deliver(self, shard: str, request_id: str, *, later_ms: int = HOUR_MS) -> DeliverReport:
        """Deliver what is due ``later_ms`` from now."""
        now_ms = self.host.now_ms() + later_ms
        return deliver(self.store, self.store.shards(shard)[0], request_id, ALICE, self.host, now_ms=now_ms)

    def dispatch(self) -> None:
        for shard in self.store.shards():
            dispatch(shard, self.host)


def small_store(
    where: Path | Root, shards: Sequence[str] = ("broker-a", "broker-b"), per_queue: int = 24
) -> SmallStore:
    """Two shards with an imported topic of two queues, a delayed message, a group known only from its broker, and a log
    record without an entry. In the first shard the group ``shop`` has consumed: retries are waiting and delivered, one
    was retried again, letters are dead; an operator has moved an offset back and it was consumed again."""
    store, _ = LakeStore.init(where if isinstance(where, Root) else Root.parse(str(where)))
    made = SmallStore(store)
    for name in shards:
        store.create_shard(name)
        import_orders(made.bench(name), per_queue)
    made.dispatch()
    first = shards[0]
    made.consume(first, "2026-11-20-one")
    made.deliver(first, "2026-11-20-deliver")
    made.consume(first, "2026-11-20-two")
    queue = MessageQueue("Orders", first, 0)
    made.bench(first).move("shop", queue, per_queue, per_queue - 6)
    made.consume(first, "2026-11-20-three")
    return made


def import_orders(bench: Bench, per_queue: int) -> Committed:
    broker = bench.shard.name
    now_ms = bench.host.now_ms()
    queues = [MessageQueue("Orders", broker, queue_id) for queue_id in range(2)]
    # The second queue begins behind what the broker's retention removed.
    firsts = {queues[0]: 0, queues[1]: 3}
    by_queue = {
        queue: [message(queue, offset, now_ms - 1000 + offset) for offset in range(first, first + per_queue)]
        for queue, first in firsts.items()
    }
    delay = MessageQueue(SCHEDULE_TOPIC, broker, 15)
    properties = [("DELAY", "16"), ("REAL_TOPIC", "Orders"), ("REAL_QID", "1")]
    by_queue[delay] = [message(delay, 0, now_ms, properties=properties, deliver_at=now_ms + 1_800_000)]
    prepared = message(queues[0], 0, now_ms, sys_flag=4, queue_offset=0)
    seen = [Observed("elsewhere", queues[0], 5), Observed("elsewhere", queues[1], 3)]
    return bench.import_messages(by_queue, unindexed=[prepared], observed=seen)
