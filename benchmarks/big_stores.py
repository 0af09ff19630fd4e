"""Large stores, written directly as their files and log entries: the windows that would make them take hours.

What ``of_windows`` and ``of_queues`` make is consistent: ``rmq audit`` finds no contradiction in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

import rmq_store
from benchmarks.bench import ACTOR, DAY, group_of
from benchmarks.broker_log import TOPIC
from rmq_store.commit.ctl import Action, Consumed, Ctl, StagedFile, WrittenFile, canonical_json, lane
from rmq_store.commit.positions import (
    Claim,
    Outcome,
    QueueRange,
    grp_id,
    max_id,
    off_id,
    own_queue_id,
    sub_id,
    tally,
)
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.lake.commit.cursor import cursor_positions
from rmq_store.lake.commit.derived_tables import COMMITS, MOVES, QUEUES
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.table import tables
from rmq_store.lake.table.checkpoint import write_checkpoint
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import NewFile, derived, stage
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.lake.window.window import consume_window
from rmq_store.utils.host import Host, day_of, uuid7
from rmq_store.window.consume_request import ConsumeRequest

QUEUES_OF_TOPIC = 8
TEMPLATE = "template"
"""The group whose windows are real ones."""
_COMMITS_A_FILE = 10_000
"""Of a derived table, as its maintenance leaves them; and of an entry of the log."""
_DAY_MS = 86_400_000


GROUP = "group-0"
"""The first of ``group_name``."""


def group_name(number: int) -> str:
    return f"group-{number}"


def of_windows(folder: str, host: Host, *, windows: int, groups: int, failing: int, ctl_rows: int) -> None:
    """A store in which ``groups`` groups have made ``windows`` windows of one message, each with its claim; the message of
    ``failing`` of them failed and waits for its retry.

    ``ctl_rows``: of a file of the commit log; 1: as windows leave them, 256: as maintenance does. The copies of failed
    messages are in as few files.
    """
    of_queue = -(-windows // groups // QUEUES_OF_TOPIC)
    each = of_queue * QUEUES_OF_TOPIC
    shard = _sent(folder, [TOPIC], QUEUES_OF_TOPIC, of_queue)
    history = _History(shard, host, failing / (each * groups))
    total = 2 * each * groups
    first_ms = (host.now_ms() // _DAY_MS - 2) * _DAY_MS
    for begin in range(0, total, _COMMITS_A_FILE):
        ctls: list[Ctl] = []
        for number in range(begin, min(begin + _COMMITS_A_FILE, total)):
            round_, of_groups = divmod(number // 2, groups)
            offset, queue_id = divmod(round_, QUEUES_OF_TOPIC)
            now_ms = first_ms + number * (_DAY_MS - 1) // total
            history.add(ctls, group_name(of_groups), queue_id, offset, now_ms, is_window=number % 2 == 1)
        history.append(ctls, ctl_rows)
    _finish(shard, host)


def of_positions(folder: str, host: Host, *, groups: int, queues: int) -> None:
    """A store in which each group has an offset, and a claim that it released, in each queue of a topic.
    No commits led to them, which ``rmq audit`` reports."""
    shard = _sent(folder, [TOPIC], queues, 1)
    of_topic = shard.positions().queues_of(TOPIC)
    positions: dict[str, int] = {}
    for group in map(group_name, range(groups)):
        positions[grp_id(group)] = 0
        positions |= {off_id(group, queue): 1 for queue in of_topic}
        positions |= {own_queue_id(group, queue): Claim(1, 0).packed() for queue in of_topic}
    shard.commitlog.put([], positions, host=host)
    _History(shard, host, 0)  # its entry is the last one: a derived table needs one that has a commit
    _finish(shard, host)


def of_queues(folder: str, host: Host, *, topics: int, queues: int) -> None:
    """A store with ``queues`` queues in each of some topics, two messages in a queue; a group has consumed them all, in one
    window."""
    names = [f"{TOPIC}{number}" for number in range(topics)]
    shard = _sent(folder, names, queues, 2)
    group = replace(group_of(GROUP, "Named"), subscriptions=tuple(build_subscription_data(name, "*") for name in names))
    request = ConsumeRequest(f"{DAY}-queues", ACTOR)
    consume_window(LakeStore.open(shard.root), shard, group, request, lambda plan: LocalEngine(host), host=host)
    dispatch(shard, host, every_commit=True)
    _finish(shard, host)


def _sent(folder: str, topics: Sequence[str], queues: int, each: int) -> Shard:
    """The shard of a new store, with so many messages in each queue of each topic."""
    LakeStore.init(Root.parse(folder))
    store = rmq_store.open_store(folder, actor=ACTOR.name)
    for topic in topics:
        messages = [rmq_store.Message(topic, b"body", keys=(f"k{number}",)) for number in range(queues * each)]
        store.send(messages, create_queues=queues)
    return LakeStore.open(Root.parse(folder)).shards()[0]


def _finish(shard: Shard, host: Host) -> None:
    """A checkpoint of each log; the derived tables have everything."""
    for table in (shard.commitlog, shard.commits, shard.consumequeue, shard.offsets):
        table.refresh()
        if table is not shard.commitlog:
            table.put([], cursor_positions(shard), host=host)
        write_checkpoint(table)


class _History:
    """Commits of many groups, copied from the claim and the window of one group whose message failed."""

    def __init__(self, shard: Shard, host: Host, failing: float) -> None:
        """``failing``: the part of the windows that fail."""
        self._positions: dict[str, int] = {}
        """What the commits since the last entry set."""
        self._times: dict[str, int] = {}
        """When (UTC ms)."""
        self._shard = shard
        self._host = host
        self._failing = failing
        self._waiting: Counter[str] = Counter()
        self._windows = 0
        self._failed: list[tuple[Ctl, int]] = []
        store, group = LakeStore.open(shard.root), group_of(TEMPLATE, "AllFail")
        request = ConsumeRequest(f"{DAY}-template", ACTOR, max_messages=1)
        consume_window(store, shard, group, request, lambda plan: LocalEngine(host), host=host)
        dispatch(shard, host, every_commit=True)
        self._claim, self._window = (
            next(ctl for ctl in shard.ctls_since(0, group=TEMPLATE) if ctl.action is action)
            for action in (Action.CLAIM, Action.CONSUME)
        )
        self._copy: dict[str, Any] = shard.commitlog.read(
            [self._window.produced[0].file], tables.MSG.names
        ).to_pylist()[0]
        self.subscription = shard.positions().get(sub_id(TEMPLATE)) or 0
        self._queues = shard.positions().queues_of(TOPIC)
        self._claimed: dict[tuple[str, int], str] = {}

    def add(self, ctls: list[Ctl], group: str, queue_id: int, offset: int, now_ms: int, *, is_window: bool) -> None:
        """Add the group's claim, or its window of one message of a queue."""
        commit_id = uuid7(now_ms, len(ctls).to_bytes(10))
        common: dict[str, Any] = {
            "commit_id": commit_id,
            "group": group,
            "store_timestamp": now_ms,
            "request_id": f"{DAY}-{group}-{queue_id}-{offset}",
        }
        queue = self._queues[queue_id]
        if not is_window:
            claims = {"claims": {own_queue_id(group, queue): offset + 1}}
            parameters = canonical_json(json.loads(self._claim.parameters) | claims)
            ctls.append(
                replace(self._claim, **common, read_version=self._shard.commitlog.version, parameters=parameters)
            )
            self._claimed[group, queue_id] = commit_id
            return
        self._windows += 1
        fails = int(self._windows * self._failing) > int((self._windows - 1) * self._failing)
        consumed = Consumed(
            QueueRange(queue, offset, offset + 1),
            0,
            {Outcome.RETRIED if fails else Outcome.ACKED: tally([offset])},
            "stored" if offset else "lake_born_from_min",
        )
        ctl = replace(
            self._window,
            **common,
            read_version=self._shard.commitlog.version,
            parameters=canonical_json(json.loads(self._window.parameters) | {"claim": self._claimed[group, queue_id]}),
            window_id=f"{group}-0-{queue_id}-{offset}",
            consumed=(consumed,),
            produced=(),
            files=(),
        )
        ctls.append(ctl)
        self._set({off_id(group, queue): offset + 1, own_queue_id(group, queue): Claim(offset + 1, 0).packed()}, now_ms)
        if not offset:  # the first one of a queue
            self._set({grp_id(group): 0, sub_id(group): self.subscription}, now_ms)
        if fails:
            self._failed.append((ctl, len(ctls) - 1))

    def append(self, ctls: list[Ctl], ctl_rows: int) -> None:
        """An entry with these commits, and their rows in the derived tables."""
        shard, day = self._shard, day_of(ctls[0].store_timestamp)
        files = []
        for begin in range(0, len(self._failed), ctl_rows):
            files.append(self._copies(ctls, self._failed[begin : begin + ctl_rows], day))
        self._failed = []
        whole = tables.ctl_table(ctls)
        for begin in range(0, len(ctls), ctl_rows):
            rows = whole.slice(begin, ctl_rows)
            file = NewFile(kind="ctl", name=f"{ctls[begin].commit_id}-0", rows=rows, store_day=day)
            files.append(stage(shard.root, shard.commitlog.path, file))
        content = shard.commitlog.content(
            files,
            self._positions,
            self._times,
            operation="CONSUME",
            now_ms=ctls[-1].store_timestamp,
            commit_ids=[ctls[0].commit_id],
        )
        shard.commitlog.log.append(content, self._host, deadline_ms=self._host.now_ms())
        self._positions, self._times = {}, {}
        new = NewFile(kind="", name=self._host.new_commit_id(), rows=whole, stats=COMMITS.layout.stats, store_day=day)
        shard.commits.put([stage(shard.root, shard.commits.path, new)], {}, host=self._host)
        for kind in (QUEUES, MOVES):
            if kind_rows := [row for ctl in ctls for row in kind.rows(ctl)]:
                table, name = kind.table(shard), self._host.new_commit_id()
                derived_file = derived(shard.root, table.path, name, kind_rows, kind.layout, day)
                table.put([derived_file], {}, host=self._host)

    def _set(self, positions: Mapping[str, int], now_ms: int) -> None:
        self._positions |= positions
        self._times |= dict.fromkeys(positions, now_ms)

    def _copies(self, ctls: list[Ctl], failed: Sequence[tuple[Ctl, int]], day: str) -> StagedFile:
        """The copies of some failed messages in one file, which their windows then name."""
        name, (segment,) = f"{failed[0][0].commit_id}-00000", self._window.produced
        rows = []
        for row, (ctl, at) in enumerate(failed):
            (consumed,), group = ctl.consumed, str(ctl.group)
            queue = replace(segment.queue, broker_name=lane(self._shard.local_broker, group))
            ctls[at] = replace(
                ctl,
                produced=(
                    replace(
                        segment,
                        queue=queue,
                        first_row=row,
                        file=f"kind=msg/{name}.parquet",
                        base=self._waiting[group],
                        min_store_timestamp=ctl.store_timestamp,
                        max_store_timestamp=ctl.store_timestamp,
                        deliver_at=ctl.store_timestamp + 10_000,
                    ),
                ),
            )
            self._waiting[group] += 1
            self._set({max_id(queue): self._waiting[group]}, ctl.store_timestamp)
            rows.append(
                self._copy
                | {"commit_id": ctl.commit_id, "rel": row, "broker_name": queue.broker_name, "group_name": group}
                | {"origin_queue_id": consumed.range.queue.queue_id, "origin_queue_offset": consumed.range.begin}
                | {"window_id": ctl.window_id, "unique_key": f"{ctl.commit_id.upper()}"}
            )
        table = pa.Table.from_pylist(rows, schema=tables.MSG)
        new = NewFile(kind="msg", name=name, rows=table, store_day=day)
        file = stage(self._shard.root, self._shard.commitlog.path, new)
        for _, at in failed:
            ctls[at] = replace(ctls[at], files=(WrittenFile(file.path, file.rows, file.size, file.sha256),))
        return file
