"""Whether a commit may be made: the decision of step 4 of the commit protocol as a pure function.

Epoch, claim and offsets are all compared with the plan; bases are assigned at the decision, never taken over from an
earlier try. An exhaustive search showed that each of these guards is needed (``docs/decisions/0001-one-commit-point.md``
says what happens without it).

An example: group orders has consumed ``[120, 180)`` of a queue, and one message of it waits for its first retry.

| position                                    | expect  | advance        | unchanged at the decision | reset meanwhile |
|---------------------------------------------|---------|----------------|---------------------------|-----------------|
| ``grp/orders``                              | 2       | 2              | 2                         | 3               |
| ``own/orders/OrderEvents/a/0``              | claim 7 | claim 7, ended | claim 7, renewed          | claim 7         |
| ``off/orders/OrderEvents/a/0``              | 120     | 180            | 120                       | 90              |
| ``max/SCHEDULE_TOPIC_XXXX/lake-a~orders/2`` |         | (see below)    | 40                        | 40              |

If nothing has changed, the commit is ``Decided``: the positions become those of *advance*, and ``max/...`` becomes 41, since
the retry copy got base 40. After a reset the commit is refused with StaleAttempt: "grp/orders was 2 and is 3;
off/orders/OrderEvents/a/0 was 120 and is 90". Then nothing is written, and no reader ever sees the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta

from rmq_store.commit.ctl import Action, Ctl, Produced, Proposal, WrittenFile
from rmq_store.commit.positions import (
    Claim,
    PositionKind,
    Positions,
    QueueRange,
    SubVersion,
    Tally,
    grp_id,
    kind_of,
    max_id,
    off_id,
    sub_id,
    total,
)
from rmq_store.errors import ClockSkew, EvidenceMismatch, RmqError, StaleAttempt, clause
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import day_of
from rmq_store.utils.redaction import reason_in_sentence

MAX_SKEW_MS = 60_000
MAX_RUN_AGE_MS = 24 * 3600 * 1000
MOST_DAYS_AHEAD = 2
"""The date of a request id may be at most this many days after the day of its commits: for time zones, and clocks that
are set back."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Now, in UTC ms, by the committing host and by the store."""

    own_ms: int
    store_ms: int


@dataclass(frozen=True, slots=True)
class Decided:
    """A commit as it is to be written."""

    ctl: Ctl
    positions: Mapping[str, int]
    """The ``txn`` actions, by application id."""
    updated_ms: Mapping[str, int]
    """Their ``lastUpdated``, UTC ms."""


def check_evidence(ctl: Ctl, tally_of_range: Callable[[QueueRange], Tally]) -> None:
    """Raise EvidenceMismatch unless every consumed range adds up, in counts and in hash sums (``docs/invariants.md``, P2)."""
    for consumed in ctl.consumed:
        answered, whole = total(consumed.tallies), tally_of_range(consumed.range)
        if answered != whole:
            raise EvidenceMismatch(
                f"group {ctl.group}: [{consumed.range.begin}, {consumed.range.end}) of {consumed.range.queue} does not "
                f"add up: {answered.count} offsets answered of {whole.count}, hash sum {answered.hash_sum:#x} instead of "
                f"{whole.hash_sum:#x}. Nothing was committed; this is a defect of the job, not of the data."
            )


def check_age(ctl: Ctl, started_ms: int, now_ms: int) -> None:
    """Raise StaleAttempt for a run that began (UTC ms) more than MAX_RUN_AGE_MS ago: its staged files may have been
    vacuumed, and the derived tables no longer look for a commit id of that age."""
    if now_ms - started_ms > MAX_RUN_AGE_MS:
        raise StaleAttempt(
            f"{ctl.action} {ctl.commit_id} began {(now_ms - started_ms) // 3_600_000} h ago; after "
            f"{MAX_RUN_AGE_MS // 3_600_000} h its staged files may have been vacuumed. Run the request again."
        )


def first_day(request_id: str) -> str:
    """The first UTC day, ``YYYY-MM-DD``, on which a request may have commits; "", which is before every day, if its id has no
    date."""
    try:
        return (date.fromisoformat(request_id[:10]) - timedelta(days=MOST_DAYS_AHEAD)).isoformat()
    except (ValueError, OverflowError):
        return ""


def check_day(ctl: Ctl) -> None:
    """Raise ClockSkew for a decided commit before the ``first_day`` of its request: the same request, run again, would not
    find this commit and would be done twice."""
    day = day_of(ctl.store_timestamp)
    if day < first_day(ctl.request_id):
        raise ClockSkew(
            f"the request id {ctl.request_id!r} begins with a date more than {MOST_DAYS_AHEAD} days after today, {day} in "
            "UTC: the same request, run again, would not find this commit. Nothing was written. Set the clock, or give the "
            "request an id that begins with today's date."
        )


def decide(proposal: Proposal, positions: Positions, clocks: Clocks, *, max_skew_ms: int = MAX_SKEW_MS) -> Decided:
    """Step 4 without its effects: compare the positions with the plan, assign bases, choose the store timestamp (UTC ms).

    Raises StaleAttempt when a position that the plan read has changed, and ClockSkew when the clocks differ by more than
    ``max_skew_ms``, or a produced queue has a message that is further ahead of this host's clock than that.
    """
    compare(proposal, positions)
    store_timestamp = _store_timestamp(proposal, positions, clocks, max_skew_ms)
    produced, ends = _with_bases(proposal.ctl.produced, positions, store_timestamp)
    advance = {app_id: positions.get(app_id) or 0 for app_id in proposal.begins} | dict(proposal.advance)
    updated_ms = dict.fromkeys(advance, store_timestamp)
    updated_ms.update(proposal.updated_ms)
    for queue, end in ends.items():
        advance[max_id(queue)] = end
        updated_ms[max_id(queue)] = store_timestamp
    files = tuple(WrittenFile(file.path, file.rows, file.size, file.sha256) for file in proposal.files)
    ctl = replace(
        proposal.ctl,
        produced=produced,
        files=files,
        store_timestamp=store_timestamp,
        read_version=positions.version,
    )
    return Decided(ctl, advance, updated_ms)


def decide_in_turn(proposals: Sequence[Proposal], positions: Positions, clocks: Clocks) -> list[Decided | RmqError]:
    """``decide`` for proposals that share an entry: one after another, each on the positions that those before it leave. Who
    is refused (StaleAttempt, ClockSkew) changes nothing for the others.

    All have one ``read_version``, so their commit ids order them: the proposals must be in that order.
    """
    outcomes: list[Decided | RmqError] = []
    for proposal in proposals:
        try:
            decided = decide(proposal, positions, clocks)
            check_day(decided.ctl)
        except (StaleAttempt, ClockSkew) as error:
            outcomes.append(error)
        else:
            outcomes.append(decided)
            positions = positions.advanced(positions.version, decided.positions, decided.updated_ms)
    return outcomes


_NAMED = 8
"""The most positions that an error names; an import that was overtaken has hundreds."""


def compare(proposal: Proposal, positions: Positions) -> None:
    """Raise StaleAttempt, which names the positions, when a position that the plan read has changed."""
    moved = _moved(proposal, positions)
    if moved:
        listed = "; ".join(_change(id_, proposal, positions) for id_ in sorted(moved)[:_NAMED])
        more = f"; and {len(moved) - _NAMED} more positions" if len(moved) > _NAMED else ""
        raise StaleAttempt(f"{proposal.ctl.action} {proposal.ctl.commit_id} was overtaken: {listed}{more}")


def _moved(proposal: Proposal, positions: Positions) -> set[str]:
    """The positions that differ from what the plan read. A subscription that another window recorded meanwhile does not count
    when it is the one that this commit records."""
    agreed = {
        app_id
        for app_id, value in proposal.advance.items()
        if kind_of(app_id) == PositionKind.SUBSCRIPTION and value == positions.get(app_id)
    }
    expect = proposal.expect.items()
    moved = {app_id for app_id, value in expect if not _same(app_id, value, positions.get(app_id))} - agreed
    new = {app_id for prefix in proposal.closed for app_id, _ in positions.prefixed(prefix)}
    removed = {app_id for app_id, offset in proposal.begins.items() if offset < (positions.get(app_id) or 0)}
    return moved | removed | (new - proposal.expect.keys()) | _left_behind(proposal, positions)


def _left_behind(proposal: Proposal, positions: Positions) -> set[str]:
    """The offsets before the MIN positions of the proposal that may not be there. An id of an offset ends with the parts of its
    queue, as that of its MIN position does."""
    if proposal.behind is None:
        return set()
    least = {
        id_.partition("/")[2]: value for id_, value in proposal.advance.items() if kind_of(id_) == PositionKind.MIN
    }
    offsets = positions.of_kind(PositionKind.OFFSET)
    return {id_ for id_, offset in offsets if offset < least.get(id_.split("/", 2)[2], 0)} - proposal.behind


def _change(app_id: str, proposal: Proposal, positions: Positions) -> str:
    now = _shown(app_id, positions.get(app_id))
    if app_id in proposal.begins:
        return f"{app_id} is {now}, and the group would be at {proposal.begins[app_id]}"
    return f"{app_id} was {_shown(app_id, proposal.expect.get(app_id))} and is {now}"


def _shown(app_id: str, value: int | None) -> str:
    if kind_of(app_id) == PositionKind.CLAIM:
        return f"claim {Claim.of(value).number}"
    if kind_of(app_id) == PositionKind.SUBSCRIPTION and (recorded := SubVersion.of(value)):
        return f"subscription version {recorded.version}"
    return str(value)


def overtaken(error: StaleAttempt, proposal: Proposal, positions: Positions, commits: Iterable[Ctl]) -> StaleAttempt:
    """The ``error`` of ``decide`` with the requests that moved the positions. ``commits``: the recent ones, in commit order."""
    moved = _moved(proposal, positions)
    newest = {app_id: ctl for ctl in commits for app_id in _positions_of(ctl) & moved}
    who = {
        f"{ctl.action} {ctl.request_id} of {ctl.actor.name} ({ctl.actor.source})"
        + (ctl.reason and f": {reason_in_sentence(ctl.reason)}")
        for ctl in newest.values()
    }
    return StaleAttempt(f"{clause(error)}. Moved by {'; '.join(sorted(who))}") if who else error


def _positions_of(ctl: Ctl) -> set[str]:
    """The epoch, the offsets, the subscription, the claims and the first offsets that a commit has touched."""
    if ctl.action in (Action.CLAIM, Action.RENEW, Action.RELEASE):
        return set(ctl.parameter("claims") or ())
    if ctl.action is Action.RETENTION:
        return set(ctl.parameter("removed") or ())
    offsets = {off_id(ctl.group or "", consumed.range.queue) for consumed in ctl.consumed}
    offsets |= {off_id(move.group, move.queue) for move in ctl.moved}
    groups = {move.group for move in ctl.moved} | ({ctl.group} if ctl.group else set())
    touches_subscription = ctl.group and (ctl.subscription or ctl.action is Action.DELETE)
    subscription = {sub_id(ctl.group or "")} if touches_subscription else set()
    return offsets | {grp_id(group) for group in groups} | subscription


def _same(app_id: str, expected: int | None, current: int | None) -> bool:
    """Claims are compared by number: a renewal moves only the end of the lease. An epoch of 0 equals an absent one: the
    group's first window writes it, and so may another first window of other queues. So does the first offset of a queue."""
    kind = kind_of(app_id)
    if kind == PositionKind.CLAIM:
        return Claim.of(expected).number == Claim.of(current).number
    if kind in (PositionKind.EPOCH, PositionKind.MIN):
        return (expected or 0) == (current or 0)
    return expected == current


def _store_timestamp(proposal: Proposal, positions: Positions, clocks: Clocks, max_skew_ms: int) -> int:
    """max(own clock, newest store timestamp of the produced queues). Raises ClockSkew when a clock cannot be right."""
    if abs(clocks.own_ms - clocks.store_ms) > max_skew_ms:
        raise ClockSkew(
            f"this host's clock ({clocks.own_ms} ms) and the store's ({clocks.store_ms} ms) differ by more than "
            f"{max_skew_ms} ms. Nothing was written. Set the clock and run the same request again."
        )
    born_here = {segment.queue for segment in proposal.ctl.produced if segment.base is None}
    newest, queue = max(((positions.updated_ms(max_id(q)), q) for q in born_here), default=(0, None))
    if queue is not None:
        check_not_ahead(queue, newest, clocks.own_ms, max_skew_ms)
    return max(clocks.own_ms, newest)


def check_not_ahead(queue: MessageQueue, newest_ms: int, own_ms: int, max_skew_ms: int = MAX_SKEW_MS) -> None:
    """Raise ClockSkew when the newest message of a queue (store timestamp, UTC ms) is more than ``max_skew_ms`` ahead of this
    host's clock (UTC ms)."""
    if newest_ms - own_ms > max_skew_ms:
        raise ClockSkew(
            f"{queue} holds a message of {newest_ms} ms, more than {max_skew_ms} ms ahead of this host's clock "
            f"({own_ms} ms). Nothing was written. One of the hosts that write here has a wrong clock: correct it. If "
            "this host's clock is right, that time has to come first; docs/limits.md, 'Clocks', says what else can be done."
        )


def _with_bases(
    segments: tuple[Produced, ...], positions: Positions, store_timestamp: int
) -> tuple[tuple[Produced, ...], dict[MessageQueue, int]]:
    """Segments with their bases, in part order, and the next offset of every queue that got some.

    A segment of a level queue is due as a whole: the commit's store timestamp plus the level's delay, as
    ``HookUtils#transformDelayLevelMessage`` says of one message (rules 11.2).
    """
    ends: dict[MessageQueue, int] = {}
    placed = []
    for segment in sorted(segments, key=lambda s: (s.queue, s.part, s.first_row)):
        if segment.base is None:
            base = ends.get(segment.queue, positions.max_offset(segment.queue))
            due = segment.deliver_at if segment.delay_ms is None else store_timestamp + segment.delay_ms
            segment = replace(
                segment,
                base=base,
                deliver_at=due,
                min_store_timestamp=store_timestamp,
                max_store_timestamp=store_timestamp,
            )
            ends[segment.queue] = base + segment.count
        placed.append(segment)
    return tuple(placed), ends
