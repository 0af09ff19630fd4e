"""``behaviour/NAME.chains``, done again: the scripted consumers of ``NAME.groups`` in our own engine, on the messages that
they had, until nothing is due within the time that the real ones had.

A script acts on a message's property ``plan`` (README of the data), so what a message goes through follows from itself,
but for batches: their answer is one position or one status, and whoever shares a batch with a failing message fails with
it. The broker's batches were made by its pulls and cannot be had again. So in a group with batches each message is
answered, alone, as the batch that it was in is judged; that ``judge`` is right, and that the scripts answer as they did,
is what the check of the trace says.

An orderly group is compared up to its first dead letter of a message: a client sends one more at every try of the batch.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from rmq_store.broker_files.broker_json import parse, render
from rmq_store.broker_files.local_offsets import parse_local_offsets
from rmq_store.commit.ctl import SCHEDULE_GROUP
from rmq_store.consumer.consume_result import MessageModel
from rmq_store.consumer.delay import DelayLevels
from rmq_store.consumer.listener import Answer, ConsumeConcurrentlyContext, ConsumeOrderlyStatus
from rmq_store.consumer.start import ConsumeFromWhere
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.message.message_const import SCHEDULE_TOPIC, dlq_topic
from rmq_store.settings.settings import GroupSettings
from tests.conformance.behaviour import answers, orderly_status
from tests.conformance.broker_store import BROKER, BrokerStore, QueueKey
from tests.conformance.chains import check_chains, sent_as_new
from tests.conformance.checks import Line, Outcome, Outcomes, per_line, same
from tests.conformance.groups import (
    Offsets,
    broadcasting_clients,
    client_of,
    is_broadcasting,
    is_in_order,
    same_place,
    same_stored,
    subscription_of,
    topics_of,
    wants_any,
)
from tests.conformance.scripts import LEVEL_ON_FAILURE, SCRIPTS, script_named
from tests.contract.engines import MemoryWorld
from tests.contract.world import DAY, LISTENER, SHARD, Listen, World
from tests.oracle.memory.rows import MessageRow, Stored
from tests.oracle.memory.store import MemoryStore

TRIES = 10_000
"""In a window: as many as anybody needs, because a broker's consumer does not stop either."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One copy of a message: where to, with which DELAY, after how many failures."""

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
    clients = broadcasting_clients(store)
    for client in clients:
        yield from _broadcast(client, store, alone=len(clients) == 1)
    for name, found in sorted(of_group.items()):
        if is_broadcasting(group := groups[name]) or not wants_any(group, store):
            yield same(f"{name}: nothing is sent back", found, [])
            continue
        rerun = Rerun.in_memory(settings_of(group), store)
        lives = rerun.run(listener(group, found, store), span_ms)
        for chain in found:
            key = chain["uniqKey"]
            life, wanted = lives.pop(key, Life((), "acked")), life_of(chain, in_order=is_in_order(group))
            yield same(f"{name} {key} run again", up_to(wanted, life, store.levels, span_ms), wanted)
        yield same(f"{name} run again: nothing else fails", sorted(lives), [])
        if is_in_order(group):
            for (topic, queue_id), offset in rerun.offsets().items():
                yield same_stored(
                    f"{name} run again: stored of {topic} {queue_id}", group, store, (topic, queue_id), offset
                )


def check_groups(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    """Each can be set up here, reads topics that are there, and is known to the broker."""
    yield from per_line(_group)(lines, store)


def _group(group: Line, store: BrokerStore) -> Outcomes:
    name, script = group["group"], group["script"]
    yield same(f"script of {name} is known", script in SCRIPTS or bool(LEVEL_ON_FAILURE.match(script)), True)
    yield same(f"settings of {name}", settings_of(group).max_reconsume_times, group["maxReconsumeTimes"])
    yield same(f"{name} is a group of the broker", name in store.groups, True)
    yield same(f"{name} reads what is not there", sorted({*topics_of(group)} - store.topics.keys()), [])
    more = [number for number in (group["batchMax"], group["threads"]) if number < 1]
    yield same(f"batches and threads of {name} below 1", more, [])


def check_local_offsets(text: str, store: BrokerStore) -> Outcomes:
    """A broadcasting client's own file: read, rendered again, and what ours stores at the end, if there is one client."""
    offsets = _by_queue(text)
    yield same("rendered", render(parse(text)), text)
    for (topic, queue_id), offset in offsets.items():
        queue = MessageQueue(topic, BROKER, queue_id)
        yield same(f"{offset} is an offset of {queue}", 0 <= offset <= store.positions.max_offset(queue), True)
    clients = broadcasting_clients(store)
    said = [_stored_by(client, store, offsets) for client in clients]
    if said:  # the file does not say whose it is
        yield None if None in said else said[0]


def _stored_by(client: Line, store: BrokerStore, offsets: Offsets) -> Outcome:
    rerun = Rerun.in_memory(settings_of(client), store)
    rerun.run(script_named("always"), 0)
    return same_place("stored by a client here", client, store, rerun.offsets(), offsets)


def check_local_offsets_before(text: str, store: BrokerStore) -> Outcomes:
    """The ``.bak`` of the same: rendered again, and nowhere ahead of the file."""
    yield same("rendered", render(parse(text)), text)
    if store.local_offsets is None:
        raise FileNotFoundError(f"there is no behaviour/{store.name}.broadcast-offsets.json, only its .bak")
    now = _by_queue(store.local_offsets)
    for key, offset in _by_queue(text).items():
        yield same(f"{offset} of {key} is not ahead of {now.get(key)}", 0 <= offset <= now.get(key, -1), True)


def _by_queue(text: str) -> dict[QueueKey, int]:
    return {(queue.topic, queue.queue_id): offset for queue, offset in parse_local_offsets(text).items()}


def _broadcast(client: Line, store: BrokerStore, *, alone: bool) -> Outcomes:
    """One client of a broadcasting group: everything comes once, what fails is dropped. ``alone``: the client's own
    offset file, if there is one, is this one's."""
    rerun = Rerun.in_memory(settings_of(client), store)
    calls = [call for call in _calls_of(client, store) if call["client"] == client_of(client)]
    failed = {key for (key, _), answer in _judged(calls).items() if not answer.acked}
    said, heard = f"{client['group']} of {client['clientId']} run again", list[str]()
    answer = _as_its_batch(_judged(calls))

    def consume(msgs: list[MessageExt], context: ConsumeConcurrentlyContext) -> Any:
        heard.extend(message.msg_id for message in msgs)
        return answer(msgs, context)

    yield same(f"{said}: nothing is sent back", rerun.run(consume, 0), {})
    yield same(f"{said}: delivered", sorted(heard), sorted(m["msgId"] for call in calls for m in call["messages"]))
    yield same(f"{said}: dropped", rerun.dropped(), failed)
    if alone and store.local_offsets is not None:
        yield same_place(f"{said}: offsets", client, store, rerun.offsets(), _by_queue(store.local_offsets))


def _span_ms(chains: Sequence[Line]) -> int:
    moments = [delivery["at"] for chain in chains for delivery in chain["deliveries"]]
    return max(moments, default=0) - min(moments, default=0)


def life_of(chain: Line, *, in_order: bool = False) -> Life:
    """The chain in our words. A copy in the schedule topic is a hop; the one in the retry topic, the same copy again. What
    two members sent back of one message is the same hop."""
    hops = [
        Hop(copy["topic"], _level_of(copy, in_order=in_order), copy["reconsumeTimes"])
        for copy in chain["copies"]
        if not copy["topic"].startswith("%RETRY%")
    ]
    return Life(tuple(hops[:1] if in_order else dict.fromkeys(hops)), chain["final"])


def _level_of(copy: Line, *, in_order: bool) -> int:
    """Its DELAY. A dead letter that could not be sent back, but sent as a new message, has -1, as one in order has."""
    level = int(copy["properties"].get("DELAY", 0))
    return level if in_order else max(level, 0)


def up_to(stopped: Life, life: Life, levels: DelayLevels, span_ms: int) -> Life:
    """Of a life here what the broker's consumer, of which ``stopped`` is known, had the time for.

    A run of ``span_ms`` goes on with a message whose last copy was delivered and not consumed again, or was to be
    delivered after the broker stopped, though its waits together fit into the time.
    """
    waited_ms = sum(levels.delay_ms(hop.level) for hop in stopped.hops if hop.topic == SCHEDULE_TOPIC)
    if stopped.final == "retry topic" or (stopped.final == "waiting" and waited_ms <= span_ms):
        return Life(life.hops[: len(stopped.hops)], stopped.final)
    return life


Cuts = Mapping[MessageQueue, Sequence[tuple[int, int]]]
"""Per queue the offsets ``[begin, end)`` of its segments, in order."""


class Rerun:
    """One group in a world that holds the messages of its topics."""

    def __init__(
        self, settings: GroupSettings, world: World, levels: DelayLevels, queues: Sequence[MessageQueue]
    ) -> None:
        self._settings, self._world, self._levels = settings, world, levels
        self._name = settings.name
        self.queues = queues
        self._began_ms = world.clock.now_ms

    @classmethod
    def in_memory(cls, settings: GroupSettings, store: BrokerStore, cuts: Cuts | None = None) -> Rerun:
        """In a new world, whose clock begins when all of the store was there. ``cuts``: the segments of the queues, as
        no batch holds messages of two; None: each queue is one."""
        world = MemoryWorld()
        world.store = MemoryStore(store.levels, world.store_clock)
        world.shard = world.store.create_shard(SHARD)
        topics = {subscription.topic for subscription in settings.subscriptions}
        rows = {key: rows for key, rows in store.by_queue.items() if key[0] in topics}
        world.clock.now_ms = began_ms(store)
        queues = {MessageQueue(topic, SHARD, queue_id): of_queue for (topic, queue_id), of_queue in rows.items()}
        for queue, of_queue in queues.items():
            first = of_queue[0]["queue_offset"]
            for begin, end in cuts[queue] if cuts else [(first, first + len(of_queue))]:
                world.fill(queue, [_row(row) for row in of_queue[begin - first : end - first]], begin)
        return cls(settings, world, store.levels, list(queues))

    def run(self, listener: Listen, span_ms: int) -> dict[str, Life]:
        """Windows and deliveries until nothing more comes within the time: what became of each message that failed, by
        its unique key."""
        number = 0
        while True:
            number += 1
            self._world.consume(self._settings, f"{DAY}-window-{self._name}-{number}", listener)
            due = self._world.deliver(f"{DAY}-delivery-{self._name}-{number}")
            if due.delivered:
                continue
            if due.next_due_ms is None or due.next_due_ms - self._began_ms > span_ms:
                return self._lives()
            self._world.clock.now_ms = max(due.next_due_ms, self._world.clock.now_ms)

    def offsets(self) -> dict[QueueKey, int | None]:
        """What is stored for the group, per queue of its topics."""
        return {(queue.topic, queue.queue_id): self._world.offset(queue, self._name) for queue in self.queues}

    def dropped(self) -> set[str]:
        """The unique keys of what a broadcasting client gave up."""
        return {
            _key(message)
            for lost in self._world.outcomes(self._name)
            for message in self._world.stored(lost.range.queue)
            if lost.range.begin <= message.queue_offset < lost.range.end
        }

    def _lives(self) -> dict[str, Life]:
        hops: dict[str, list[Hop]] = defaultdict(list)
        final: dict[str, str] = {}
        for level in range(1, self._levels.max_level + 1):
            for copy in (lane := self._world.lane(level, self._name)):
                hops[_key(copy)].append(Hop(SCHEDULE_TOPIC, level, copy.row.reconsume_times))
                if copy.queue_offset >= (self._world.offset(lane[0].queue, SCHEDULE_GROUP) or 0):
                    final[_key(copy)] = "waiting"
        for letter in self._world.dead_letters(self._name):
            delay = int(letter.row.properties["DELAY"])
            hops[_key(letter)].append(Hop(dlq_topic(self._name), delay, letter.row.reconsume_times))
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


def began_ms(store: BrokerStore) -> int:
    """When everything was in the store."""
    found: int = max(row["store_timestamp"] for of_queue in store.by_queue.values() for row in of_queue) + 1
    return found


def settings_of(group: Line, **settings: Any) -> GroupSettings:
    """A group of the data; ``settings`` win. Without any its listener is the test's and gets one message a batch."""
    usual: dict[str, Any] = {
        "name": f"{group['group']}@{group['clientId']}" if is_broadcasting(group) else group["group"],
        "listener": LISTENER,
        "subscriptions": tuple(subscription_of(topic, group) for topic in topics_of(group)),
        "listener_process": False,  # the listener is a function of the running test
        "max_reconsume_times": group["maxReconsumeTimes"],
        "consume_message_batch_max_size": 1,
        "consume_from_where": ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        "message_model": MessageModel(group["model"]),
    }
    if is_in_order(group):
        usual |= {"mode": "orderly", "suspend_tries_per_window": TRIES}
    return GroupSettings(**(usual | settings))


# --- the listeners ---------------------------------------------------------------------------------------------------

Judged = Mapping[tuple[str, int], Answer]
"""By unique key and retries so far: what became of the message in its batch."""


def listener(group: Line, chains: Sequence[Line], store: BrokerStore) -> Listen:
    """The listener of a group, for one message a batch. ``chains``: the group's."""
    script = group["script"]
    if is_in_order(group):
        return script_named(script) if group["batchMax"] == 1 else _in_order_as_its_batch(_calls_of(group, store))
    knows = group["batchMax"] == 1 and (script in SCRIPTS or LEVEL_ON_FAILURE.match(script))
    said = script_named(script) if knows else _as_its_batch(_judged_in(chains))
    return _without_level(said, {(chain["uniqKey"], times) for chain in chains for times in sent_as_new(chain, store)})


def _without_level(listen: Listen, sent_as_new: Set[tuple[str, int]]) -> Listen:
    """What a client sends as a new message, because it could not send it back, asks for no level."""

    def consume(msgs: list[MessageExt], context: ConsumeConcurrentlyContext) -> Any:
        said = listen(msgs, context)
        if (msgs[0].msg_id, msgs[0].reconsume_times) in sent_as_new:
            context.delay_level_when_next_consume = 0
        return said

    return consume


def _calls_of(group: Line, store: BrokerStore) -> list[Line]:
    calls = (line for line in store.lines("trace") if line["group"] == group["group"])
    return sorted(calls, key=lambda line: line["at"])


def _judged(calls: Sequence[Line]) -> Judged:
    return {
        (message["msgId"], message["reconsumeTimes"]): answer
        for call in calls
        for message, answer in zip(call["messages"], answers(call, len(call["messages"])), strict=True)
    }


def _judged_in(chains: Sequence[Line]) -> Judged:
    return {
        (chain["uniqKey"], delivery["reconsumeTimes"]): answers(delivery, delivery["batchSize"])[
            delivery["positionInBatch"]
        ]
        for chain in chains
        for delivery in chain["deliveries"]
    }


def _as_its_batch(judged: Judged) -> Listen:
    def consume(msgs: list[MessageExt], context: ConsumeConcurrentlyContext) -> Any:
        (message,) = msgs
        answer = judged.get((message.msg_id, message.reconsume_times))
        if answer is None or answer.acked:
            return "CONSUME_SUCCESS"
        context.delay_level_when_next_consume = answer.delay_level
        return "RECONSUME_LATER"

    return consume


def _in_order_as_its_batch(calls: Sequence[Line]) -> Listen:
    """What the batches of the message with so many tries got, one after the other. Where nothing is committed by itself, a
    batch is finished or goes back with its last message; those before are kept until then."""
    said: dict[tuple[str, int], deque[tuple[str, bool]]] = defaultdict(deque)
    for call in calls:
        status, commits = orderly_status(call["returned"]), call.get("more", {}).get("autoCommit", True)
        for message in call["messages"]:
            is_kept = not commits and message is not call["messages"][-1]
            key = message["msgId"], message["reconsumeTimes"]
            said[key].append((ConsumeOrderlyStatus.SUCCESS if is_kept else status, commits))

    def consume(msgs: list[MessageExt], context: Any) -> str:
        (message,) = msgs
        status, context.auto_commit = said[message.msg_id, message.reconsume_times].popleft()
        return status

    return consume
