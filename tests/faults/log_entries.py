"""What the entries of the searched log say: windows, claims, deletes and compactions, decided by the real functions.

One shard, groups with a message in each queue; a window consumes its queues' messages and produces one message into one
queue that all of them share. ``Contents`` plans and decides on the positions of a view; ``log_explorer.py`` has the store
around it, and the invariants.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from rmq_store.commit.claim import LEASE_S
from rmq_store.commit.positions import ABSENT, Claim, PositionKind, grp_id, ids_of, kind_of, off_id, own_queue_id
from tests.faults.log_decisions import (
    COMPACTIONS,
    LONG_AFTER_MS,
    MAX,
    MESSAGES,
    SMALL_FILE,
    SOURCES,
    Member,
    Numbers,
    Values,
    Work,
    conflicts,
    decided,
    number_of,
    taken,
)

View = tuple[int, ...]
"""The entries that were read, from version 1 on, by their numbers in ``Contents``."""


class Commit(NamedTuple):
    """One request's part of an entry. ``values``: the positions it writes, None: not touched. ``begins``, ``base``: what a
    window believes, where its ranges begin and the offset of its produced message. ``planned``, ``read``: versions at the
    plan and at the decision. ``complete``: nothing of the request was left over."""

    id: str
    kind: str
    request: str
    group: str
    values: tuple[int | None, ...]
    begins: Numbers = ()
    base: int = 0
    planned: int = 0
    read: int = 0
    complete: bool = True
    removes: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()


class Entry(NamedTuple):
    """The bytes of a name. ``copy`` tells bytes apart that say the same."""

    commits: tuple[Commit, ...]
    copy: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """An entry of those who were not overtaken, and who was."""

    commits: tuple[Commit, ...]
    members: tuple[Member, ...]
    overtaken: tuple[Member, ...]


class Contents:
    """Entries by number, and what they mean. Number 0 is the empty entry. ``without``: guards that are left out."""

    def __init__(
        self, works: Iterable[Work], without: frozenset[str], *, claims: bool, offset: int, known: bool
    ) -> None:
        works = tuple(works)
        self.without = without
        self.claims = claims
        groups = sorted({work.group for work in works})
        queues = {group: sorted({n for w in works for n in w.queues if w.group == group}) for group in groups}
        values = {MAX: 0}
        values |= {grp_id(group): 0 if known or offset != ABSENT else ABSENT for group in groups}
        offsets = {(group, n): off_id(group, SOURCES[n]) for group in groups for n in queues[group]}
        values |= dict.fromkeys(offsets.values(), offset)
        if claims:
            values |= {own_queue_id(group, SOURCES[n]): 0 for group in groups for n in queues[group]}
        if any(work.kind == "compaction" for work in works):
            values[COMPACTIONS] = 0
        self.ids = tuple(values)
        self._at = {app_id: n for n, app_id in enumerate(self.ids)}
        self._offset_at = {of: self._at[app_id] for of, app_id in offsets.items()}
        self._first: Values = tuple(values.values())
        self._entries: list[Entry] = [Entry(())]
        self._numbers: dict[Entry, int] = {Entry(()): 0}
        self._values: dict[View, Values] = {(): self._first}
        self._touches: dict[tuple[int, int], bool] = {}
        self.checked = frozenset(app_id for app_id in self.ids if self.has(f"{kind_of(app_id)} expected"))

    def has(self, guard: str) -> bool:
        return guard not in self.without

    # --- entries ---

    def number(self, entry: Entry) -> int:
        number = self._numbers.get(entry)
        if number is None:
            number = self._numbers[entry] = len(self._entries)
            self._entries.append(entry)
        return number

    def commits(self, number: int) -> tuple[Commit, ...]:
        return self._entries[number].commits

    def entry(self, number: int) -> Entry:
        return self._entries[number]

    def values(self, view: View) -> Values:
        """The positions after these entries."""
        values = self._values.get(view)
        if values is None:
            values = self.after(self.values(view[:-1]), self.commits(view[-1]))
            self._values[view] = values
        return values

    def after(self, values: Values, commits: Iterable[Commit]) -> Values:
        for commit in commits:
            values = tuple(old if new is None else new for old, new in zip(values, commit.values, strict=True))
        return values

    def value(self, values: Values, app_id: str) -> int:
        return values[self._at[app_id]]

    def offset(self, values: Values, group: str, n: int) -> int:
        return values[self._offset_at[group, n]]

    def offsets(self, values: Values, group: str) -> dict[str, int]:
        return {
            app_id: values[n] for app_id, n in self._at.items() if app_id.startswith(ids_of(PositionKind.OFFSET, group))
        }

    def files(self, view: View) -> frozenset[str]:
        """The files that are live after these entries."""
        live = {SMALL_FILE}
        for number in view:
            for commit in self.commits(number):
                live = (live - set(commit.removes)) | set(commit.adds)
        return frozenset(live)

    def holds(self, view: View, commit_id: str) -> bool:
        return any(commit.id == commit_id for number in view for commit in self.commits(number))

    def is_complete(self, view: View, request: str) -> bool:
        return any(
            c.request == request and c.complete and c.kind != "claim" for number in view for c in self.commits(number)
        )

    def share_ids(self, mine: Commit, other: Commit) -> bool:
        return any(one is not None and two is not None for one, two in zip(mine.values, other.values, strict=True))

    # --- others ---

    def of_other(self, action: str, view: View) -> int:
        """The entry that an operator or another producer makes on this view, which is the log."""
        values, moves = self.values(view), dict[str, int]()
        match action:
            case "produce":
                moves[MAX] = self.value(values, MAX) + 1
            case "unrelated":
                pass
            case _:
                to = {"reset": 0, "away": MESSAGES, "back": 0, "delete": ABSENT}[action]
                epoch = max(self.value(values, grp_id("g")), 0)
                offsets = self.offsets(values, "g")
                moves = {app_id: to for app_id, at in offsets.items() if action != "delete" or at != ABSENT}
                moves[grp_id("g")] = epoch + self.has("epoch raised")
        return self.number(Entry((self._commit(f"{action}{len(view)}", action, "", "g", moves),)))

    def _commit(self, id_: str, kind: str, request: str, group: str, moves: dict[str, int]) -> Commit:
        return Commit(id_, kind, request, group, tuple(moves.get(app_id) for app_id in self.ids))

    # --- plan ---

    def planned(self, work: Work, commit_id: str, view: View, own: Numbers) -> Member | str:
        """The request on this view, or why there is nothing to commit."""
        values = self.values(view)
        if self.has("request check") and self._is_done(work, view, values):
            return "already committed"
        epoch = number_of(self.value(values, grp_id(work.group)))
        offsets = tuple((n, self.offset(values, work.group, n)) for n in work.queues)
        if work.kind == "delete":
            return Member(work, commit_id, len(view), epoch, offsets)
        if work.kind == "compaction":
            number = self.value(values, COMPACTIONS)
            live = SMALL_FILE in self.files(view)
            return Member(work, commit_id, len(view), number, (), files=(SMALL_FILE,)) if live else "nothing to do"
        waiting = tuple((n, at) for n, at in offsets if at < MESSAGES)
        mine = dict(own) if self.claims and self.has("held left out") else dict(waiting)
        ranges = tuple((n, at) for n, at in waiting if n in mine)
        if not ranges:
            return "held" if waiting else "nothing to do"
        return Member(work, commit_id, len(view), epoch, ranges, own, len(ranges) < len(waiting))

    def _is_done(self, work: Work, view: View, values: Values) -> bool:
        if self.has("request found by id"):
            return self.is_complete(view, work.request)
        begins = tuple((n, max(self.offset(values, work.group, n), 0)) for n in work.queues)
        return any(c.kind == "window" and c.begins == begins for number in view for c in self.commits(number))

    # --- decide ---

    def decided(self, members: tuple[Member, ...], view: View) -> Decision:
        """Every member on the positions that those before it leave."""
        in_turn, closed = self.has("bases in sequence"), self.has("delete closed")
        outcomes = decided(members, self.checked, closed, in_turn, self.ids, self.values(view))
        commits = [
            None if moves is None else self._decided(member, view, dict(moves))
            for member, moves in zip(members, outcomes, strict=True)
        ]
        return Decision(
            tuple(commit for commit in commits if commit),
            tuple(member for member, commit in zip(members, commits, strict=True) if commit),
            tuple(member for member, commit in zip(members, commits, strict=True) if not commit),
        )

    def _decided(self, member: Member, view: View, moves: dict[str, int]) -> Commit | None:
        work = member.work
        commit = self._commit(member.commit_id, work.kind, work.request, work.group, moves)
        commit = commit._replace(planned=member.planned, read=len(view), complete=not member.rest)
        if work.kind == "window":
            return commit._replace(begins=tuple((n, max(at, 0)) for n, at in member.off), base=moves[MAX] - 1)
        if work.kind == "compaction":
            if self.has("files expected") and not set(member.files) <= self.files(view):
                return None
            return commit._replace(removes=member.files, adds=(f"big of {member.commit_id}",))
        return commit

    # --- claims ---

    def claimed(self, work: Work, claim_id: str, view: View, *, late: bool) -> tuple[Commit, Numbers] | None:
        """The claim on what the request gets of its queues, None if all of them are held. ``late``: after every lease."""
        values = self.values(view)
        wishes = [n for n in work.queues if self.offset(values, work.group, n) < MESSAGES]
        owns = {n: own_queue_id(work.group, SOURCES[n]) for n in wishes}
        current = tuple((n, self.value(values, owns[n])) for n in wishes)
        holders = tuple(self._holder(view, owns[n], at) if self.has("lease") else work.request for n, at in current)
        claims = taken(work.group, current, holders, work.request, LONG_AFTER_MS * late)
        if not claims:
            return None
        if not self.has("claim number raised"):
            claims = tuple((n, Claim(Claim.of(dict(current)[n]).number or 1, LEASE_S).packed()) for n, _ in claims)
        commit = self._commit(claim_id, "claim", work.request, work.group, {owns[n]: own for n, own in claims})
        return commit._replace(read=len(view)), claims

    def leased(self, work: Work, view: View) -> bool:
        """Whether a lease that may be over makes a difference."""
        values = self.values(view)
        return any(Claim.of(self.value(values, own_queue_id(work.group, SOURCES[n]))).lease_end_s for n in work.queues)

    def _holder(self, view: View, own: str, value: int) -> str | None:
        """The request that made the claim as it stands."""
        for number in reversed(view):
            for commit in self.commits(number):
                claim = commit.values[self._at[own]]
                if commit.kind == "claim" and claim is not None and Claim.of(claim).number == Claim.of(value).number:
                    return commit.request
        return None

    # --- does another's entry touch mine? ---

    def touches(self, mine: int, other: int) -> bool:
        """Whether the other entry makes a new decision of mine necessary."""
        key = mine, other
        if key not in self._touches:
            commits = self.commits(mine)
            ids = [id_ for id_ in self._ids_of(commits) if self.has(f"{kind_of(id_)} met")]
            deletes = [commit for commit in commits if commit.kind == "delete" and self.has("closed met")]
            closed = [ids_of(PositionKind.OFFSET, commit.group) for commit in deletes]
            removed = [path for commit in commits if self.has("files met") for path in commit.removes]
            others = self.commits(other)
            others_removed = [path for commit in others for path in commit.removes]
            self._touches[key] = conflicts(ids, closed, removed, self._ids_of(others), others_removed)
        return self._touches[key]

    def _ids_of(self, commits: Iterable[Commit]) -> list[str]:
        written = {
            id_ for commit in commits for id_, value in zip(self.ids, commit.values, strict=True) if value is not None
        }
        return sorted(written)
