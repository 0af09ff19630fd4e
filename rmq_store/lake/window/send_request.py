"""One request of a producer: the shards that its messages go to, and the parts that it is sent in.

The command line and ``rmq_store.Store`` send with this; ``send.py`` makes the commit of one part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile

from rmq_store.commit.ctl import Action, Actor, Ctl
from rmq_store.commit.positions import Positions
from rmq_store.commit.request import part_id
from rmq_store.errors import WrongUse
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore, check_shard_name
from rmq_store.lake.window.send import send
from rmq_store.producer.producer import Message
from rmq_store.producer.send import (
    CREATE_MAKES_IT,
    Part,
    SendReport,
    is_same,
    no_such_topic,
    other_messages,
    parts_of,
    plan_send,
    queue_count,
    user_topics,
    whole_of,
    would_send,
)
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import did_you_mean, listed

_SHARD_OPTION = "(--shard, from Python shard=)"
NEW_SHARD = "local"
"""The shard that a store without any gets."""

PART_MESSAGES = 10_000
PART_BYTES = 64 * 1024 * 1024
"""One commit sends no more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRequest:
    """A request, and where its messages go."""

    request_id: str
    by_shard: Mapping[str, Sequence[Message]]
    """The messages of each shard, in their order."""
    shards: Mapping[str, Shard]
    """The shards that are there, of those that were looked at."""
    earlier: Mapping[str, Sequence[Ctl]]
    """What earlier attempts have committed in each shard, part by part; empty for an id that is new."""


# --- where the messages go -------------------------------------------------------------------------------------------


def placed_request(
    store: LakeStore,
    messages: Sequence[Message],
    request_id: str,
    chosen: str | None = None,
    *,
    is_new: bool,
    create: bool,
) -> SendRequest:
    """The request with its messages in the shards where an earlier attempt has sent them, else in those of their topics,
    ``chosen`` where several have a topic.

    ``is_new``: the id was made now, so no shard has it. ``create``: whether a topic that is not there may be made. Nothing is
    written. Raises WrongUse for a topic that is not there or in several shards, and for a shard that is not there.
    """
    every = store.shards()
    shards = {shard.name: shard for shard in every if not is_new or chosen in (None, shard.name)}
    earlier = {} if is_new else {name: _sent_in(shard, request_id) for name, shard in shards.items()}
    known = [shard.name for shard in every]
    positions = {name: shard.positions() for name, shard in shards.items() if chosen in (None, name)}
    before = _shards_before(earlier)
    topics = dict.fromkeys(message.topic for message in messages)
    names = {topic: before.get(topic) or _shard_of(positions, known, topic, chosen, create) for topic in topics}
    by_shard: dict[str, list[Message]] = {name: [] for name in names.values()}
    for message in messages:
        by_shard[names[message.topic]].append(message)
    return SendRequest(request_id=request_id, by_shard=by_shard, shards=shards, earlier=earlier)


def _sent_in(shard: Shard, request_id: str) -> list[Ctl]:
    """The commits of the request in the shard, the first one of each part. Where the first part records the whole, all do: a
    commit without it is of a user who gave an earlier version the id of a part."""
    of_parts = (shard.ctls_of_request(part_id(request_id, number), None, Action.SEND)[:1] for number in count(1))
    ctls = [ctl for several in takewhile(bool, of_parts) for ctl in several]
    return [ctl for ctl in ctls if whole_of(ctl) or not whole_of(ctls[0])]


def _shards_before(earlier: Mapping[str, Sequence[Ctl]]) -> Mapping[str, str]:
    """The shard of each topic in an earlier attempt. The topic may be in others since; ``--shard`` is no part of a request. The
    place of a part is where it is looked for: its record names another shard if folders were renamed since."""
    places: dict[str, str] = {}
    recorded: dict[str, str] = {}
    for name, ctls in earlier.items():
        for ctl in ctls:
            places = dict.fromkeys(ctl.parameter("topics"), name) | places
            if whole := whole_of(ctl):
                recorded = dict(whole.shards) | recorded
    return recorded | places


def _shard_of(
    positions: Mapping[str, Positions], known: Sequence[str], topic: str, chosen: str | None, create: bool
) -> str:
    """The shard's name. ``positions``: of the shards that may be chosen; ``known``: all shards."""
    having = [name for name, there in positions.items() if queue_count(there, topic)]
    if len(having) > 1:
        raise WrongUse(f"topic {topic} is in shards {', '.join(having)}: choose one of them {_SHARD_OPTION}")
    if having:
        return having[0]
    if chosen is not None and chosen not in known and not create:
        raise WrongUse(
            f"no shard {chosen}{did_you_mean(chosen, known)}; there are: {listed(known)} ({CREATE_MAKES_IT})"
        )
    if not create:
        topics = sorted({name for there in positions.values() for name in user_topics(there)})
        raise no_such_topic(topic, topics)
    if chosen is None and len(known) > 1:
        raise WrongUse(f"choose the shard of the new topic {topic} {_SHARD_OPTION}; there are: {listed(known)}")
    if chosen is not None:
        check_shard_name(chosen)
        return chosen
    return known[0] if known else NEW_SHARD


# --- part after part -------------------------------------------------------------------------------------------------


def send_parts(
    store: LakeStore, request: SendRequest, actor: Actor, host: Host, *, create_queues: int | None, dry_run: bool
) -> Iterator[SendReport]:
    """Send part after part, a commit each. Each has an id of its own, so that the same request goes on where it stopped.

    ``create_queues``: how many queues a new topic gets. Unless it is a ``dry_run``, a shard that is not there is made. Raises
    WrongUse, before anything is sent, when the id was used for other messages, and the errors of ``send``.
    """
    commits = _commits_of(request)
    _refuse_other_messages(request, commits)
    made = {name: store.create_shard(name) for name in request.by_shard if name not in request.shards and not dry_run}
    shards = {**request.shards, **made}
    for one in commits:
        if shard := shards.get(one.shard):
            yield send(
                store,
                shard,
                one.messages,
                one.request_id,
                actor,
                host,
                create_queues=create_queues,
                dry_run=dry_run,
                part=one.part,
            )
        else:
            yield _in_new_shard(store, one, host, create_queues)


@dataclass(frozen=True, slots=True)
class _Commit:
    """What one commit sends."""

    shard: str
    request_id: str
    messages: Sequence[Message]
    part: Part


def _commits_of(request: SendRequest) -> list[_Commit]:
    by_shard = {name: list(_parts(messages)) for name, messages in request.by_shard.items()}
    parts = iter(parts_of(by_shard))
    return [
        _Commit(name, part_id(request.request_id, number), messages, next(parts))
        for name, several in by_shard.items()
        for number, messages in enumerate(several, 1)
    ]


def _refuse_other_messages(request: SendRequest, commits: Sequence[_Commit]) -> None:
    """Raise WrongUse when the id of the request, or of one of its commits, was used for something else."""
    earlier = [ctl for ctls in request.earlier.values() for ctl in ctls]
    for ctl in earlier:
        of_id = [one.part for one in commits if one.request_id == ctl.request_id]
        if of_id and not any(is_same(ctl, part) for part in of_id):
            raise other_messages(request.request_id, earlier)
    looked_up = {(name, ctl.request_id) for name, ctls in request.earlier.items() for ctl in ctls}
    looked_up |= {(name, request.request_id) for name in request.earlier}
    for one in commits:
        if one.shard not in request.earlier or (one.shard, one.request_id) in looked_up:
            continue
        if ctls := request.shards[one.shard].ctls_of_request(one.request_id, None, Action.SEND):
            raise other_messages(one.request_id, ctls)


def _in_new_shard(store: LakeStore, one: _Commit, host: Host, create_queues: int | None) -> SendReport:
    """A dry run for a shard that does not exist yet."""
    shard = Shard(store.root, one.shard)
    empty = Positions(0, {})
    plan = plan_send(
        empty,
        shard.local_broker,
        shard.lane(""),
        one.messages,
        one.request_id,
        levels=store.levels,
        create_queues=create_queues,
        host=host,
    )
    return would_send(one.shard, one.request_id, plan)


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
