"""One request of a producer: the shards that its messages go to, and the parts that it is sent in.

The command line and ``rmq_store.Store`` send with this; ``send.py`` makes the commit of one part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rmq_store.commit.ctl import Actor
from rmq_store.commit.positions import Positions
from rmq_store.commit.request import part_id
from rmq_store.errors import WrongUse
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.send import send
from rmq_store.producer.producer import Message
from rmq_store.producer.send import SendReport, plan_send, queue_count, user_topics, would_send
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import did_you_mean, listed

NEW_SHARD = "local"
"""The shard that a store without any gets."""

PART_MESSAGES = 10_000
PART_BYTES = 64 * 1024 * 1024
"""One commit sends no more than this."""


# --- where the messages go -------------------------------------------------------------------------------------------


def messages_by_shard(
    store: LakeStore, messages: Sequence[Message], chosen: str | None = None, *, create: bool, dry_run: bool
) -> dict[str, list[Message]]:
    """The messages of each shard, in their order: that of the topic, ``chosen`` where several have it.

    ``create``: whether a topic that is not there may be made; unless it is a ``dry_run``, its shard is made too. Raises
    WrongUse for a topic that is not there or in several shards, and for a shard that is not there.
    """
    topics = dict.fromkeys(message.topic for message in messages)
    known = store.shard_names()
    positions = {shard.name: shard.positions() for shard in store.shards() if chosen in (None, shard.name)}
    names = {topic: _shard_of(positions, known, topic, chosen, create) for topic in topics}
    if not dry_run:
        for name in sorted(set(names.values()) - set(known)):
            store.create_shard(name)
    by_shard: dict[str, list[Message]] = {name: [] for name in names.values()}
    for message in messages:
        by_shard[names[message.topic]].append(message)
    return by_shard


def _shard_of(
    positions: Mapping[str, Positions], known: Sequence[str], topic: str, chosen: str | None, create: bool
) -> str:
    """The shard's name. ``positions``: of the shards that may be chosen; ``known``: all shards."""
    having = [name for name, there in positions.items() if queue_count(there, topic)]
    if len(having) > 1:
        raise WrongUse(f"topic {topic} is in shards {', '.join(having)}: choose with --shard")
    if having:
        return having[0]
    if chosen is not None and chosen not in known and not create:
        raise WrongUse(
            f"no shard {chosen}{did_you_mean(chosen, known)}; there are: {listed(known)} (--create makes it)"
        )
    if not create:
        topics = sorted({name for there in positions.values() for name in user_topics(there)})
        raise WrongUse(
            f"there is no topic {topic}{did_you_mean(topic, topics)}; known: {listed(topics)}. --create makes it"
        )
    if chosen is None and len(known) > 1:
        raise WrongUse(f"choose the shard of the new topic {topic} with --shard; there are: {listed(known)}")
    return chosen or (known[0] if known else NEW_SHARD)


# --- part after part -------------------------------------------------------------------------------------------------


def send_parts(
    store: LakeStore,
    by_shard: Mapping[str, Sequence[Message]],
    request_id: str,
    actor: Actor,
    host: Host,
    *,
    create_queues: int | None,
    dry_run: bool,
) -> Iterator[SendReport]:
    """Send part after part, a commit each. Each has an id of its own, so that the same request goes on where it stopped.

    ``create_queues``: how many queues a new topic gets. Raises the errors of ``send``.
    """
    for name, messages in by_shard.items():
        if dry_run and name not in store.shard_names():
            yield _in_new_shard(store, name, messages, request_id, host=host, create_queues=create_queues)
            continue
        (shard,) = store.shards(name)
        for number, part in enumerate(_parts(messages), 1):
            id_ = part_id(request_id, number)
            yield send(store, shard, part, id_, actor, host=host, create_queues=create_queues, dry_run=dry_run)


def _in_new_shard(
    store: LakeStore, name: str, messages: Sequence[Message], request_id: str, *, host: Host, create_queues: int | None
) -> SendReport:
    """A dry run for a shard that does not exist yet."""
    shard = Shard(store.root, name)
    empty = Positions(0, {})
    plan = plan_send(
        empty,
        shard.local_broker,
        shard.lane(""),
        messages,
        request_id,
        levels=store.levels,
        create_queues=create_queues,
        host=host,
    )
    return would_send(name, request_id, plan)


def _parts(messages: Sequence[Message]) -> Iterator[list[Message]]:
    part: list[Message] = []
    size = 0
    for message in messages:
        if part and (len(part) == PART_MESSAGES or size + len(message.body) > PART_BYTES):
            yield part
            part, size = [], 0
        part.append(message)
        size += len(message.body)
    yield part
