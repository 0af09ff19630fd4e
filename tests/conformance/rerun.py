"""``behaviour/NAME.chains``, done again: the scripted consumers of ``NAME.groups`` in our own engine, on the messages that
they had, until nothing is due within the time that the real ones had.

A script acts on a message's property ``plan`` (README of the data), so what a message goes through follows from itself,
but for batches: their answer is one position or one status, and whoever shares a batch with a failing message fails with
it. The broker's batches were made by its pulls and cannot be had again. So in a group with batches each message is
answered, alone, as the batch that it was in is judged; that ``judge`` is right is what the check of the trace says.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.listener import ConsumeConcurrentlyContext
from rmq_store.consumer.start import ConsumeFromWhere
from rmq_store.memory.rows import MessageRow, Stored
from rmq_store.memory.store import MemoryStore
from rmq_store.message import SCHEDULE_TOPIC, MessageExt, MessageQueue, dlq_topic
from rmq_store.settings import GroupSettings
from rmq_store.store import SCHEDULE_GROUP
from rmq_store.subscription import SubscriptionData, build_subscription_data
from tests.conformance.behaviour import NO_PLAN, ORDERLY_SCRIPTS, answers, check_chains
from tests.conformance.broker_store import BrokerStore
from tests.conformance.checks import Line, NotChecked, Outcomes, same
from tests.contract.engines import MemoryWorld
from tests.contract.world import DAY, LISTENER, SHARD, Listen

ALWAYS = "always"
LEVEL_ON_FAILURE = re.compile(r"level (\d+) on failure\b")


@dataclass(frozen=True, slots=True)
class Hop:
    """One copy of a message: where to, after how many failures."""

    topic: str
    level: int
    reconsume_times: int


@dataclass(frozen=True, slots=True)
class Life:
    """What a message went through in a group: its copies, and the end."""

    hops: tuple[Hop, ...]
    final: str


def check(chains: Sequence[Line], store: BrokerStore) -> Outcomes:
    """Every chain: as it is stored, hop by hop, and what becomes of the same message here."""
    yield from check_chains(chains, store)
    of_group: dict[str, list[Line]] = {line["group"]: [] for line in store.lines("groups")}
    groups = {line["group"]: line for line in store.lines("groups")}
    for chain in chains:
        of_group[chain["group"]].append(chain)
    span_ms = _span_ms(chains)
    for name, found in sorted(of_group.items()):
        if why := not_rerun(groups[name]):
            yield NotChecked(f"run again: {why}")
            continue
        lives = Rerun(groups[name], store).run(script(groups[name], found), span_ms)
        for chain in found:
            key = chain["uniqKey"]
            yield same(f"{name} {key} run again", lives.pop(key, Life((), "acked")), _life(chain))
        yield same(f"{name} run again: nothing else fails", sorted(lives), [])


def not_rerun(group: Line) -> str | None:
    """Why a group cannot be run again, None when it can."""
    if group["script"] in ORDERLY_SCRIPTS:
        return "an orderly group"
    if group["model"] == MessageModel.BROADCASTING:
        return "a broadcasting group"
    return None


def _span_ms(chains: Sequence[Line]) -> int:
    moments = [delivery["at"] for chain in chains for delivery in chain["deliveries"]]
    return max(moments) - min(moments)


def _life(chain: Line) -> Life:
    """The chain in our words. A copy in the schedule topic is a hop; the one in the retry topic, the same copy again."""
    hops = [
        Hop(copy["topic"], int(copy["properties"].get("DELAY", 0)), copy["reconsumeTimes"])
        for copy in chain["copies"]
        if not copy["topic"].startswith("%RETRY%")
    ]
    return Life(tuple(hops), chain["final"])


class Rerun:
    """One group in a memory world that holds the messages of its topic."""

    def __init__(self, group: Line, store: BrokerStore) -> None:
        self._name: str = group["group"]
        self._world = MemoryWorld()
        self._world.store = MemoryStore(store.levels, self._world.store_clock)
        self._world.shard = self._world.store.create_shard(SHARD)
        topics = [group["topic"]] if isinstance(group["topic"], str) else group["topic"]
        rows = {key: rows for key, rows in store.by_queue.items() if key[0] in topics}
        self._began_ms = self._world.clock.now_ms = (
            max(row["store_timestamp"] for of in rows.values() for row in of) + 1
        )
        for (topic, queue_id), of_queue in rows.items():
            queue = MessageQueue(topic, SHARD, queue_id)
            self._world.fill(queue, [_row(row) for row in of_queue], of_queue[0]["queue_offset"])
        self._settings = GroupSettings(
            group["group"],
            LISTENER,
            tuple(_subscription(topic, group) for topic in topics),
            max_reconsume_times=group["maxReconsumeTimes"],
            consume_message_batch_max_size=1,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )

    def run(self, listener: Listen, span_ms: int) -> dict[str, Life]:
        """Windows and deliveries until nothing more comes within the time: what became of each message that failed, by
        its unique key."""
        number = 0
        while True:
            number += 1
            self._world.consume(self._settings, f"{DAY}-window-{number}", listener)
            due = self._world.deliver(f"{DAY}-delivery-{number}")
            if due.delivered:
                continue
            if due.next_due_ms is None or due.next_due_ms - self._began_ms > span_ms:
                return self._lives()
            self._world.clock.now_ms = max(due.next_due_ms, self._world.clock.now_ms)

    def _lives(self) -> dict[str, Life]:
        hops: dict[str, list[Hop]] = defaultdict(list)
        final: dict[str, str] = {}
        for level in range(1, self._world.store.levels.max_level + 1):
            for copy in (lane := self._world.lane(level, self._name)):
                hops[_key(copy)].append(Hop(SCHEDULE_TOPIC, level, copy.row.reconsume_times))
                if copy.queue_offset >= (self._world.offset(lane[0].queue, SCHEDULE_GROUP) or 0):
                    final[_key(copy)] = "waiting"
        for letter in self._world.dead_letters(self._name):
            hops[_key(letter)].append(Hop(dlq_topic(self._name), 0, letter.row.reconsume_times))
            final[_key(letter)] = "dead"
        return {
            key: Life(tuple(sorted(found, key=lambda hop: hop.reconsume_times)), final.get(key, "acked"))
            for key, found in hops.items()
        }


def _key(copy: Stored) -> str:
    return copy.row.properties["UNIQ_KEY"]


def _row(row: dict[str, Any]) -> MessageRow:
    return MessageRow(
        row["body"],
        row["properties"],
        row["reconsume_times"],
        row["store_timestamp"],
        row["offset_msg_id"],
        row["born_timestamp"],
        row["born_host"],
        row["flag"],
        row["sys_flag"],
    )


def _subscription(topic: str, group: Line) -> SubscriptionData:
    if "sql" in group:
        return build_subscription_data(topic, group["sql"], "SQL92")
    return build_subscription_data(topic, group["subscription"])


# --- the scripts -----------------------------------------------------------------------------------------------------


def script(group: Line, chains: Sequence[Line]) -> Listen:
    """The listener of a group, for one message a batch. ``chains``: the group's."""
    if group["batchMax"] > 1 or group["script"] == ALWAYS:
        return _as_its_batch(chains)
    level = LEVEL_ON_FAILURE.match(group["script"])
    return _by_plan(int(level[1]) if level else None)


def _as_its_batch(chains: Sequence[Line]) -> Listen:
    judged = {
        (chain["uniqKey"], delivery["reconsumeTimes"]): answers(delivery, delivery["batchSize"])[
            delivery["positionInBatch"]
        ]
        for chain in chains
        for delivery in chain["deliveries"]
    }

    def consume(msgs: list[MessageExt], context: ConsumeConcurrentlyContext) -> Any:
        (message,) = msgs
        answer = judged.get((message.msg_id, message.reconsume_times))
        if answer is None or answer.acked:
            return "CONSUME_SUCCESS"
        context.delay_level_when_next_consume = answer.delay_level
        return "RECONSUME_LATER"

    return consume


def _by_plan(level: int | None) -> Listen:
    """``level``: what every failure asks for, whatever its plan says."""

    def consume(msgs: list[MessageExt], context: ConsumeConcurrentlyContext) -> Any:
        (message,) = msgs
        plan = message.get_property("plan") or NO_PLAN
        later = re.fullmatch(r"later(\d+)", plan)
        times_to_fail = int(later[1]) if later else int(plan != NO_PLAN)
        if message.reconsume_times >= times_to_fail:
            return "CONSUME_SUCCESS"
        asked = re.fullmatch(r"level(\d+)", plan)
        context.delay_level_when_next_consume = level or (-1 if plan == "dlq" else int(asked[1]) if asked else 0)
        if plan.startswith("throw"):
            raise RuntimeError("scripted")
        return None if plan.startswith("null") else "RECONSUME_LATER"

    return consume
