"""One entry on its way into the Delta log, without a store: what to do next, and what each answer means.

A commit is the creation, only if absent, of ``_delta_log/N.json``, where N follows the newest entry that the writer has read.
Answers get lost, and a PUT without an answer may land much later. So a name is settled only by *reading* it, and until it is
settled the same bytes go to the same name (``docs/decisions/0011-own-log.md``, which also says what each rule prevents).

A writer knows the log by a *view*: the entries that it has read, and the time at which it last knew where they end. An absent
name is the end of the log only in a young view. In an old one it may have been deleted by a clean-up, and even filled again
by a late PUT. Times are those of the store, UTC ms. In a folder they are those of the hosts, which may be wrong. There a look
at the entry before a name tells whether the name was ``freed``, as a clean-up deletes the oldest first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

VIEW_TRUST_MS = 3_600_000
"""How long a view is trusted. A clean-up deletes only what lies behind a checkpoint of twice that age."""


class Request(StrEnum):
    """What to ask the store next."""

    PUT = "put"
    """Create the name with the bytes, only if it is absent."""
    READ = "read"
    """Read the name."""
    REOPEN = "reopen"
    """Drop the view, and open the log from its newest checkpoint."""


class PutAnswer(StrEnum):
    CREATED = "created"
    TAKEN = "taken"
    SILENT = "silent"
    """No answer, or one that does not exclude that the bytes are written, now or later."""
    REFUSED = "refused"
    """The store has not written them, and will not."""


class NameState(StrEnum):
    """What a name holds."""

    ABSENT = "absent"
    MINE = "mine"
    """These bytes."""
    UNRELATED = "unrelated"
    """An entry that touches nothing of this one."""
    CONFLICTING = "conflicting"


class Verdict(StrEnum):
    COMMITTED = "committed"
    OVERTAKEN = "overtaken"
    """These bytes are not in the log and never will be. Decide again on the log as it is now."""
    REWOUND = "rewound"
    """The log ends before entries that were read: it is another log, for example a restored backup."""


def is_young(view_ms: int, now_ms: int) -> bool:
    """Whether a view whose end was known at ``view_ms`` is still trusted. A clock that was set back far is not."""
    return abs(now_ms - view_ms) < VIEW_TRUST_MS


@dataclass(frozen=True, slots=True)
class Append:
    """The bytes of one entry, and the name that they are tried under."""

    version: int
    """The number in the name: one more than that of the newest entry that was read."""
    view_ms: int
    """When it was last known where the log ends."""
    request: Request = Request.PUT
    unanswered: bool = False
    """A PUT under this name got no answer: it may have landed, or land later."""
    taken: bool = False
    """A PUT was told that the name is taken."""

    @property
    def settled(self) -> bool:
        """Whether no PUT of these bytes can be, or come, into the log: a failure may be reported."""
        return not (self.unanswered or self.taken)

    def put_answered(self, answer: PutAnswer, now_ms: int, *, freed: bool = False) -> Append | Verdict:
        """``freed``: a look after the answer has shown that a clean-up came by."""
        match answer:
            case PutAnswer.CREATED:
                # An old view may have found a name free that a clean-up had freed: then no reader sees this entry.
                if is_young(self.view_ms, now_ms) and not freed:
                    return Verdict.COMMITTED
                return replace(self, request=Request.REOPEN, unanswered=True)
            case PutAnswer.TAKEN:
                return replace(self, request=Request.READ, taken=True)
            case PutAnswer.SILENT:
                return replace(self, request=Request.READ, unanswered=True)
            case PutAnswer.REFUSED:
                return self

    def read_answered(self, state: NameState, now_ms: int, *, freed: bool = False) -> Append | Verdict:
        """Only a read settles a name, and only in a young view. ``freed``: as ``put_answered``."""
        if freed or not is_young(self.view_ms, now_ms):
            return replace(self, request=Request.REOPEN)
        match state:
            case NameState.MINE:
                return Verdict.COMMITTED
            case NameState.CONFLICTING:
                return Verdict.OVERTAKEN
            case NameState.UNRELATED:
                # Every PUT under this name is dead, so the bytes may go on, unchanged, to the next one.
                return Append(self.version + 1, self.view_ms)
            case NameState.ABSENT:
                # A name that was taken and is absent: the view is older than it seems.
                return replace(self, request=Request.REOPEN if self.taken else Request.PUT)

    def reopened(self, version: int, view_ms: int, *, committed: bool) -> Append | Verdict:
        """``version``: of the newest entry of the new view, ``committed``: whether that view holds these bytes' commits."""
        if committed:
            return Verdict.COMMITTED
        if version >= self.version:
            return Verdict.OVERTAKEN
        if version < self.version - 1:
            return Verdict.REWOUND
        return replace(self, view_ms=view_ms, request=Request.PUT, taken=False)
