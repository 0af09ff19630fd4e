"""Tracks of a message in the lake, from the views. Every hop is read from the commit that made it, so few files are opened."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import duckdb

from rmq_store.admin.track import REDRIVEN, REMOVED, UNREAD, WAITING, Hop, Track, track_type
from rmq_store.commit.ctl import SCHEDULE_GROUP
from rmq_store.commit.positions import Outcome
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.lake.read.message_search import ALL_MESSAGES, MESSAGE_RELATIONS, Message, quoted
from rmq_store.lake.sql.sql import open_duckdb
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.message.message import MessageQueue
from rmq_store.message.message_const import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    MessageConst,
)
from rmq_store.message.properties import tags_code

_RELATIONS = ("consumed_ranges", "stored_offsets", *MESSAGE_RELATIONS, "outcome_ranges", "ctl", "positions")
_MOST_HOPS = 200
"""More than any chain has; a damaged one could have no end."""


class _Place(NamedTuple):
    shard: str
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int

    def where(self, prefix: str = "") -> str:
        """A SQL condition on the columns of a place, or with a prefix on those of an origin."""
        return (
            f"shard = {quoted(self.shard)} AND {prefix}topic = {quoted(self.topic)}"
            f" AND {prefix}broker_name = {quoted(self.broker_name)} AND {prefix}queue_id = {self.queue_id}"
        )

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> _Place:
        return cls(*(row[name] for name in cls._fields))


def track(store: LakeStore, message: Message) -> list[Track]:
    """What became of the message in each group that has an offset in its queue, or read it in a window, by group name."""
    place = _Place.of(message)
    shard, queue = store.shards(place.shard)[0], MessageQueue(*place[1:4])
    observed = {seen.group: seen.offset for seen in ShardLookup(shard).observed() if seen.queue == queue}
    with open_duckdb(store, _RELATIONS) as connection:
        tracks = _Tracker(connection, message, place, observed).tracks()
        connection.execute("DROP TABLE reached")  # another query may get the connection
        return tracks


class _Tracker:
    def __init__(
        self, connection: duckdb.DuckDBPyConnection, message: Message, place: _Place, observed: Mapping[str, int]
    ) -> None:
        self._connection = connection
        self._observed = observed
        self._message = message
        self._place = place
        # The queues of a hop: the message's own, level queues, retry queues, and dead-letter queues.
        connection.execute(
            f"""CREATE TEMP TABLE reached AS SELECT * FROM consumed_ranges
            WHERE shard = {quoted(place.shard)} AND (
                ({place.where()} AND begin_offset <= {place.queue_offset} AND end_offset > {place.queue_offset})
                OR topic IN ({quoted(SCHEDULE_TOPIC)}, {quoted(TIMER_TOPIC)})
                OR starts_with(topic, {quoted(RETRY_GROUP_TOPIC_PREFIX)})
                OR starts_with(topic, {quoted(DLQ_GROUP_TOPIC_PREFIX)}))"""
        )

    def tracks(self) -> list[Track]:
        place = self._place
        offsets = {
            row["group_name"]: row
            for row in self._rows(f"SELECT group_name, next_offset, held_by FROM stored_offsets WHERE {place.where()}")
        }
        groups = {row["group_name"] for row in self._reached(place)} | set(offsets)
        return [self._track(group, offsets.get(group, {})) for group in sorted(groups - {SCHEDULE_GROUP})]

    def _track(self, group: str, stored: Mapping[str, Any]) -> Track:
        hops = tuple(hop for _, hop in zip(range(_MOST_HOPS), self._hops(group, self._place, 0), strict=False))
        held_by, next_offset = stored.get("held_by", "lake"), stored.get("next_offset")
        type_ = track_type(self._place.queue_offset, held_by, next_offset, hops, self._observed.get(group))
        return Track(group, type_, held_by, next_offset, hops)

    def _hops(self, group: str, place: _Place, attempt: int) -> Iterator[Hop]:
        """The hops of the message at a place, pass by pass, each followed by those of the copy made there."""
        ranges = self._reached(place, group)
        if not ranges and place != self._place:
            yield Hop(*place[1:], attempt, Outcome.SKIPPED if self._is_behind(place, group) else UNREAD)
        for range_ in ranges:
            copy = self._copy(place, range_) if range_["retried"] + range_["dead"] else None
            outcome = self._outcome(place, range_, copy)
            yield Hop(
                *place[1:],
                attempt,
                outcome,
                pass_=range_["pass"],
                committed_at=range_["committed_at"],
                window_id=range_["window_id"],
                error_type=copy["error_type"] if copy else None,
                error_text=copy["error_text"] if copy else None,
            )
            if copy and copy["topic"].startswith(DLQ_GROUP_TOPIC_PREFIX):
                yield from self._sent_again(group, _Place.of(copy), attempt + 1)
            elif copy:
                yield from self._after_delay(group, _Place.of(copy), copy, attempt + 1)
            elif outcome is Outcome.RETRIED:
                yield Hop(*place[1:], attempt + 1, REMOVED)

    def _after_delay(self, group: str, waits_at: _Place, copy: Mapping[str, Any], attempt: int) -> Iterator[Hop]:
        delivery = next(iter(self._reached(waits_at, SCHEDULE_GROUP)), None)
        delivered = delivery and self._copy(waits_at, delivery)
        if delivered:
            yield from self._hops(group, _Place.of(delivered), attempt)
        elif delivery:
            yield Hop(*waits_at[1:], attempt, REMOVED)
        else:
            yield Hop(*waits_at[1:], attempt, WAITING, due_at=copy["deliver_at"])

    def _sent_again(self, group: str, dead_letter: _Place, attempt: int) -> Iterator[Hop]:
        """The hops of a redriven dead letter, from attempt 0 on. One in a named topic is another message."""
        for redrive in self._reached(dead_letter, group):
            yield Hop(*dead_letter[1:], attempt, REDRIVEN, committed_at=redrive["committed_at"])
            copy = self._copy(dead_letter, redrive)
            if copy and copy["topic"].startswith(RETRY_GROUP_TOPIC_PREFIX):
                yield from self._hops(group, _Place.of(copy), 0)

    def _is_behind(self, place: _Place, group: str) -> bool:
        """Whether the group's next offset is greater: then a place that it has not read was skipped by an operator."""
        offsets = self._rows(
            f"SELECT value FROM positions WHERE kind = 'off' AND {place.where()} AND group_name = {quoted(group)}"
        )
        return bool(offsets) and bool(offsets[0]["value"] > place.queue_offset)

    def _outcome(self, place: _Place, range_: Mapping[str, Any], copy: Mapping[str, Any] | None) -> Outcome:
        if copy:
            return Outcome.DEAD if copy["topic"].startswith(DLQ_GROUP_TOPIC_PREFIX) else Outcome.RETRIED
        # Also those of copies that retention has removed.
        if any(range_[name] for name in ("retried", "dead", "duplicate", "dropped", "lost", "skipped")):
            outcomes = self._rows(
                f"SELECT outcome FROM outcome_ranges WHERE {place.where()} AND begin_offset <= {place.queue_offset}"
                f" AND end_offset > {place.queue_offset} AND commit_id = {quoted(range_['commit_id'])}"
            )
            if outcomes:
                return Outcome(outcomes[0]["outcome"])
        if not range_["filtered"]:
            return Outcome.ACKED
        return Outcome.ACKED if range_["acked"] and self._is_selected(range_) else Outcome.FILTERED

    def _is_selected(self, range_: Mapping[str, Any]) -> bool:
        """Whether the subscription of the window selects the message: a success has no row of its own."""
        (ctl,) = self._rows(f"SELECT subscription FROM ctl WHERE commit_id = {quoted(range_['commit_id'])}")
        expressions: dict[str, str] = json.loads(ctl["subscription"] or "{}").get(range_["topic"], {})
        properties = self._message["properties"]
        code = tags_code(properties.get(MessageConst.TAGS) or "")
        return any(
            build_subscription_data(range_["topic"], expression, type_).matches(code, properties)
            for type_, expression in expressions.items()
        )

    def _copy(self, place: _Place, range_: Mapping[str, Any]) -> dict[str, Any] | None:
        """The copy that a window or a delivery made of the message at a place, None: it made none."""
        copies = self._rows(
            "SELECT shard, topic, broker_name, queue_id, queue_offset, deliver_at, error_type, error_text"
            f" FROM {ALL_MESSAGES} WHERE commit_id = {quoted(range_['commit_id'])} AND {place.where('origin_')}"
            f" AND origin_queue_offset = {place.queue_offset}"
        )
        return copies[0] if copies else None

    def _reached(self, place: _Place, group: str | None = None) -> list[dict[str, Any]]:
        of_group = "" if group is None else f" AND group_name = {quoted(group)}"
        return self._rows(
            f"SELECT * FROM reached WHERE {place.where()} AND begin_offset <= {place.queue_offset}"
            f" AND end_offset > {place.queue_offset}{of_group} ORDER BY read_version, commit_id"
        )

    def _rows(self, text: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._connection.sql(text).to_arrow_table().to_pylist()
        return rows
