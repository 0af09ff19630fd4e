"""The lines ``messageTrack`` in ``expected/NAME.admin``: which groups have consumed a message (rules 13.5)."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_store.admin.track import ConsumerConnection, TrackType, message_track_type
from rmq_store.consumer.consume_result import MessageModel
from tests.conformance.broker_store import BrokerStore
from tests.conformance.checks import Line, Outcomes, per_line, same
from tests.conformance.groups import subscription_of, topics_of

MOVES = ("directCommit", "reset", "resetOld", "resetQueue", "onlineReset", "clone")
"""Kinds of lines after which a group stands elsewhere."""


def check_tracks(lines: Sequence[Line], store: BrokerStore) -> Outcomes:
    moved: dict[str, int] = {
        line["group" if "group" in line else "to"]: n for n, line in enumerate(lines) if line["kind"] in MOVES
    }
    tracks = [(n, line) for n, line in enumerate(lines) if line["kind"] == "messageTrack"]
    readers = {group["group"]: _connection(group) for group in _scripted(store)} if tracks else {}
    for n, line in tracks:
        gone_on = {group for group, at in moved.items() if at > n}
        yield from _check_line([line], store, readers, gone_on)


def _message_track(
    line: Line, store: BrokerStore, scripted: dict[str, ConsumerConnection], gone_on: set[str]
) -> Outcomes:
    """Of the scripted groups it is known how they subscribe. Whether another group's consumers were there, and how they
    read, is the moment's affair: only its offset is compared, if it has not moved since (``gone_on``)."""
    topic, queue_id, offset = line["topic"], line["queueId"], line["queueOffset"]
    said = f"{topic} {queue_id} {offset}"
    row = store.messages.get((topic, queue_id, offset))
    if row is None:
        yield f"{said}: there is no such message"
        return
    readers = {group: connection for group, connection in scripted.items() if topic in connection.subscriptions}
    tracks = {track["group"]: track for track in line["tracks"]}
    known = readers.keys() | {group for group, *queue in store.lag if queue == [topic, queue_id]}
    yield same(f"{said}: readers without a track", sorted(readers.keys() - tracks.keys()), [])
    yield same(f"{said}: tracks of others", sorted(tracks.keys() - known), [])
    yield same(f"{said}: tracks", len(tracks), len(line["tracks"]))
    for group, track in tracks.items():
        wanted, is_online = TrackType(track["type"]), track["text"] is None
        if group not in readers:
            if group in gone_on or (wanted is TrackType.UNKNOWN and not is_online):  # asking it failed
                continue
            if wanted is TrackType.CONSUMED_BUT_FILTERED:
                wanted = TrackType.CONSUMED
        unknown = ConsumerConnection(MessageModel.CLUSTERING, {}, actively=wanted is TrackType.PULL)
        connection = None if wanted is TrackType.NOT_ONLINE else readers.get(group, unknown)
        stands = store.lag.get((group, topic, queue_id))
        found = message_track_type(
            connection, topic, row["tags"], offset, None if stands is None else stands["next_offset"]
        )
        yield same(f"{said} in {group}", (found, connection is not None), (wanted, is_online))


_check_line = per_line(_message_track)


def _scripted(store: BrokerStore) -> list[Line]:
    """Of a set without ``behaviour/`` nothing is known of its consumers."""
    try:
        return store.lines("groups")
    except FileNotFoundError:
        return []


def _connection(group: Line) -> ConsumerConnection:
    data = [subscription_of(topic, group) for topic in topics_of(group)]
    return ConsumerConnection(MessageModel(group["model"]), {each.topic: each for each in data})
