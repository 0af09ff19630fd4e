"""Replay: consume the messages of a topic from a time on again, under a group name of its own.

The live group's offsets do not move. The replay group's first window starts at the offsets that the time search gives, and
fixes the end of the replay. What fails is retried in the replay group's own retry topic and consumed by its follow-up
windows. The name follows from the request, so replays share nothing: they may run at the same time and in any order, and
each can be cleared alone.

The same request, run again, does nothing once it is complete. Another *attempt* repeats the replay: one commit moves its
offsets back to where it began and raises its epoch, and windows up to the bounds that this commit records follow: those of
the attempt before, or, of an interval (``interval_replay.py``), those that it has now. So an attempt is a pass, its number is
the epoch + 1, and a window of an earlier attempt cannot commit any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote

from rmq_store.admin.offset_moves import next_epoch
from rmq_store.commit.ctl import Action, Ctl, Moved, Proposal, canonical_json
from rmq_store.commit.positions import Positions, QueueRange, grp_id, off_id, pas_id
from rmq_store.consumer.replay_name import replay_group, replayed_group
from rmq_store.errors import WrongUse
from rmq_store.filter.subscription import SubscriptionData
from rmq_store.message.message import MessageQueue
from rmq_store.settings.settings import GroupSettings, Settings
from rmq_store.utils.times import format_time
from rmq_store.window.consume_request import (
    BOUNDS,
    ConsumeRequest,
    Scope,
    bounds_of,
    bounds_parameter,
    messages_remaining,
)
from rmq_store.window.ranges import blocked_offsets, left_behind


def refuse_replay(act: str, group: str) -> None:
    """Raise WrongUse for an act of an operator on a replay group: its epochs count its attempts, and after its first window it
    reads its messages only by another attempt, so a move would do nothing but show a lag. ``act``: "reset", "delete"."""
    if (base := replayed_group(group)) is not None:
        raise WrongUse(
            f"cannot {act} {group}: it is a replay of {base}, and its epochs count its attempts. 'rmq replay --group "
            f"{quote(group)} --reprocess REASON' consumes its messages again"
        )


def group_settings(settings: Settings, name: str) -> tuple[GroupSettings, Scope]:
    """The settings of a group, or of a replay group's follow-up windows: its retries only."""
    base = replayed_group(name)
    if base is not None and name not in {*(group.name for group in settings.groups), *settings.wrong}:
        return replace(settings.group(base), name=name), Scope(retries_only=True)
    return settings.group(name), Scope()


def known_settings(settings: Settings, name: str) -> GroupSettings | None:
    """The settings of a group or of a replay group, None when they do not know it. Raises WrongUse with its problems."""
    known = {group.name for group in settings.groups} | set(settings.wrong)
    return group_settings(settings, name)[0] if known & {name, replayed_group(name)} else None


def as_replay(
    group: GroupSettings, topic: str | None, from_ms: int, request: ConsumeRequest, name: str | None = None
) -> tuple[GroupSettings, ConsumeRequest, Scope]:
    """The arguments of ``consume_window`` for the next window of a replay. ``request.until_ms`` ends the replay. ``topic``:
    None is all topics of the group. ``name``: of the replay group; None: as the request says.

    Raises WrongUse for a replay group, a topic that the group does not read, an empty time range, or a group whose name is
    too long.
    """
    base = replayed_group(group.name)
    if base is not None:
        raise WrongUse(f"{group.name} is a replay itself: replay {base}, or run this replay again (--reprocess REASON)")
    subscriptions = _of_topic(group, topic)
    if not subscriptions:
        known = ", ".join(subscription.topic for subscription in group.subscriptions)
        raise WrongUse(f"group {group.name} does not read {topic}; it reads {known}")
    if request.until_ms is not None and request.until_ms <= from_ms:
        span = f"{format_time(from_ms)} to {format_time(request.until_ms)}"
        raise WrongUse(f"empty time range {span}: 'until' must be later than 'from'")
    if group.broadcasting and "@" not in group.name:
        raise WrongUse(
            f"group {group.name} is broadcasting: name the client whose messages are to be replayed, {group.name}@CLIENT"
        )
    name = name or replay_group(group.name, request.request_id)
    parameters = {**request.parameters, "replay_of": group.name, "from_ms": from_ms, "topic": topic}
    recorded = replace(request, parameters=parameters)
    return replace(group, name=name, subscriptions=subscriptions), recorded, Scope(from_ms=from_ms)


def _of_topic(group: GroupSettings, topic: str | None) -> tuple[SubscriptionData, ...]:
    return tuple(subscription for subscription in group.subscriptions if topic in (None, subscription.topic))


# --- another attempt -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a replay."""

    number: int
    topic: str | None
    """None: all topics of the group."""
    starts: dict[MessageQueue, int]
    """Per queue the first offset of the replay."""
    bounds: dict[MessageQueue, int]
    """Per queue the end of the replay, excluded."""
    begun: Ctl | None = None
    """The commit that began it, None: it is still to be made."""

    def extended(self, late: Sequence[QueueRange]) -> Attempt:
        """With what was stored in the time of the replay since: ``late``, behind the bounds. A queue in which the replay had
        nothing begins there."""
        begins = {range_.queue: range_.begin for range_ in late if not self._has(range_.queue)}
        ends = {range_.queue: range_.end for range_ in late}
        return replace(self, starts=self.starts | begins, bounds=self.bounds | ends)

    def _has(self, queue: MessageQueue) -> bool:
        return self.starts.get(queue) != self.bounds.get(queue)


Late = Callable[[Mapping[MessageQueue, int]], Sequence[QueueRange]]
"""What has come into the time of a replay behind its bounds."""


def first_window(name: str, commits: Sequence[Ctl]) -> Ctl:
    """The first window of a replay. Raises WrongUse for a group without one in this shard."""
    for ctl in commits:
        if ctl.action is Action.CONSUME and ctl.parameter("replay_of") and ctl.request_part == 1:
            return ctl
    raise no_replay(name)


def no_replay(name: str) -> WrongUse:
    """Of a group that has no window of a replay."""
    what = "is not a replay group" if replayed_group(name) is None else "has replayed nothing here"
    return WrongUse(f"{name} {what}: give the group name that 'rmq replay' printed")


def _attempts_begun(commits: Sequence[Ctl]) -> list[Ctl]:
    """The commits that began attempts after the first one, which its first window began."""
    return [ctl for ctl in commits if ctl.action is Action.REPLAY]


def newest_bounds(name: str, commits: Sequence[Ctl]) -> dict[MessageQueue, int]:
    """Where the newest attempt of a replay ends, by queue. ``commits``: those of the replay group in this shard, oldest first.
    Raises as ``first_window``."""
    begun = _attempts_begun(commits)
    return bounds_of(begun[-1] if begun and begun[-1].parameter(BOUNDS) else first_window(name, commits))


def unread_in_blocked(name: str, commits: Sequence[Ctl], positions: Positions) -> tuple[QueueRange, ...]:
    """What the newest attempt of a replay leaves unread in queues that are blocked now. ``commits``: as for ``newest_bounds``,
    which raises the same errors."""
    bounds = newest_bounds(name, commits)
    windows = [ctl for ctl in commits if ctl.action is Action.CONSUME]
    stops = blocked_offsets(positions, name, windows)
    if not stops:
        return ()
    begun = _attempts_begun(commits)
    newest = (begun[-1] if begun else first_window(name, commits)).request_id
    parts = [ctl for ctl in windows if ctl.request_id == newest]
    most = parts[0].parameter("max_messages") if parts else None
    return left_behind(stops, bounds, messages_remaining(most, parts))


def next_attempt(name: str, request: ConsumeRequest, commits: Sequence[Ctl], late: Late = lambda _: ()) -> Attempt:
    """The attempt of the request: the one that it began before, else the next, which repeats the newest one, with what came
    ``late``. ``commits``: those of the replay group in this shard, oldest first.

    Raises WrongUse for a missing reason, a group without a replay in this shard, or an earlier attempt that is not finished.
    """
    if not request.reason.strip():
        raise WrongUse("another attempt of a replay needs a reason; it is recorded permanently in the commit log")
    windows = [ctl for ctl in commits if ctl.action is Action.CONSUME]
    first = first_window(name, commits)
    begun = _attempts_begun(commits)
    of_request = next((ctl for ctl in begun if ctl.request_id == request.request_id), None)
    newest = begun[-1] if begun else first
    if of_request is None and not any(c.request_id == newest.request_id and c.request_complete for c in windows):
        raise WrongUse(
            f"attempt {len(begun) + 1} of {name} is not finished: finish it with its own request, {newest.request_id}, "
            "before you begin another one"
        )
    number = (begun.index(of_request) if of_request else len(begun)) + 2
    known = of_request or newest
    if known.action is Action.REPLAY and known.parameter(BOUNDS):
        starts, bounds = {move.queue: move.to_offset for move in known.moved}, bounds_of(known)
    else:  # the first attempt, and those that earlier versions have begun, which repeat it
        parts = [ctl for ctl in windows if ctl.request_id == first.request_id]
        of_first = [consumed.range for part in parts for consumed in part.consumed]
        # A queue may have come with a later part.
        starts = {range_.queue: range_.begin for range_ in reversed(of_first)}
        bounds = {range_.queue: range_.end for range_ in of_first}
        # It may have ended earlier, at messages that block their queues.
        if (most := first.parameter("max_messages")) is None:
            bounds = {queue: end for queue, end in bounds_of(first).items() if queue in starts}
        else:
            stops = {one.range.queue: bounds[one.range.queue] for part in parts for one in part.blocked}
            unread = left_behind(stops, bounds_of(first), messages_remaining(most, parts))
            bounds |= {range_.queue: range_.end for range_ in unread}
    attempt = Attempt(number, first.parameter("topic"), starts, bounds, of_request)
    if of_request is None:
        attempt = attempt.extended(late(bounds))
    if attempt.bounds == attempt.starts:
        raise WrongUse(f"{name} had no messages to replay: another attempt would do nothing")
    return attempt


def attempt_proposal(
    commit_id: str, name: str, attempt: Attempt, request: ConsumeRequest, positions: Positions
) -> Proposal:
    """The commit that begins an attempt: it moves the replay's offsets back to its start, raises its epoch and records where it
    ends."""
    grp = grp_id(name)
    epoch = next_epoch(positions, name)
    moves = tuple(
        Moved(name, queue, positions.get(off_id(name, queue)), start, epoch)
        for queue, start in sorted(attempt.starts.items())
    )
    expect: dict[str, int | None] = {grp: positions.get(grp)}
    advance = {grp: epoch}
    for move in moves:
        expect[off_id(name, move.queue)] = move.from_offset
        advance |= {off_id(name, move.queue): move.to_offset, pas_id(name, move.queue): epoch}
    ctl = Ctl(
        commit_id,
        Action.REPLAY,
        request.actor,
        reason=request.reason,
        request_id=request.request_id,
        group=name,
        epoch=epoch,
        parameters=canonical_json(
            {"attempt": attempt.number, "topic": attempt.topic, BOUNDS: bounds_parameter(attempt.bounds)}
        ),
        moved=moves,
    )
    return Proposal(ctl, expect, advance)


def as_attempt(
    group: GroupSettings, attempt: Attempt, request: ConsumeRequest
) -> tuple[GroupSettings, ConsumeRequest, Scope]:
    """The arguments of ``consume_window`` for the next window of an attempt. ``group``: the replay group's settings.

    Raises WrongUse when the group does not read the topic any more.
    """
    subscriptions = _of_topic(group, attempt.topic)
    if not subscriptions:
        raise WrongUse(f"group {group.name} does not read {attempt.topic} any more")
    recorded = replace(request, until_ms=None, max_messages=None, parameters={"attempt": attempt.number})
    return replace(group, subscriptions=subscriptions), recorded, Scope(bounds=attempt.bounds)
