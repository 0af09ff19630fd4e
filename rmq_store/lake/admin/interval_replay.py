"""Replays of intervals in the lake, shard by shard. ``rmq_store/admin/interval_replay.py`` has the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rmq_store.admin.interval_replay import IntervalReplay
from rmq_store.admin.replay import first_window, newest_bounds
from rmq_store.commit.ctl import Action, Ctl
from rmq_store.consumer.pull import cover
from rmq_store.lake.admin.replay import begin_attempt, check_attempt, late_ranges
from rmq_store.lake.read.segments import segments_of
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.window.consumption import has_windows
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from rmq_store.window.consume_request import ConsumeRequest, Scope


def begin_interval(
    shard: Shard, group: GroupSettings, interval: IntervalReplay, host: Host
) -> tuple[GroupSettings, ConsumeRequest, Scope]:
    """The arguments of ``consume_window``, to be called until its report is complete.

    With ``reprocess`` another attempt begins, unless this reason began one before: of what the interval has then, also what was
    imported since. Where the interval was not replayed yet, it is the first one. Without ``reprocess`` no other one begins,
    also not where the first one had a reason. Raises WrongUse (see ``next_attempt``) and the errors of ``commit``.
    """
    shard.commitlog.refresh()
    first = _first_window(shard, group, interval)
    if first is None or first.request_id == interval.request().request_id:
        return interval.arguments(group)
    if not interval.reprocess:
        return replace(interval, reprocess=first.reason).arguments(group)
    return begin_attempt(shard, *_attempt(group, interval), host, interval.from_ms)


def check_interval(shards: Sequence[Shard], group: GroupSettings, interval: IntervalReplay, host: Host) -> None:
    """Raise as ``begin_interval`` would where another attempt is to begin in any of these shards, before one begins it. Reads
    only."""
    for shard in shards:
        shard.commitlog.refresh()
    begin = [one for one in shards if _is_another_attempt(one, group, interval)]
    check_attempt(begin, *_attempt(group, interval), host, interval.from_ms)


def late_messages(shard: Shard, group: GroupSettings, interval: IntervalReplay) -> int:
    """How many messages the interval has in the shard that came after the newest attempt of its replay was bounded; 0 where it
    was not replayed yet. Reads only."""
    shard.commitlog.refresh()
    name = interval.name(group)
    if not has_windows(shard, name):
        return 0
    bounds = newest_bounds(name, shard.ctls_since(0, group=name))
    late = late_ranges(shard, group, bounds, interval.from_ms, interval.until_ms)
    segments = segments_of(shard, late)
    return sum(len(slice_) for range_ in late for slice_ in cover(range_, segments.get(range_.queue, ()))[0])


def _is_another_attempt(shard: Shard, group: GroupSettings, interval: IntervalReplay) -> bool:
    first = _first_window(shard, group, interval)
    return bool(interval.reprocess and first and first.request_id != interval.request().request_id)


def _first_window(shard: Shard, group: GroupSettings, interval: IntervalReplay) -> Ctl | None:
    """That of the interval's replay in the shard; None: it was not replayed there yet."""
    name = interval.name(group)
    if not has_windows(shard, name):
        return None
    return first_window(name, shard.ctls_since(0, group=name, action=Action.CONSUME))


def _attempt(group: GroupSettings, interval: IntervalReplay) -> tuple[GroupSettings, ConsumeRequest]:
    return replace(group, name=interval.name(group)), replace(interval.request(), parameters={})
