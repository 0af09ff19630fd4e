"""Random histories, told to a world step by step; the steps are in ``steps.py``.

A step is a value, so a failing history is printed as the list of its steps and can be told again. ``Teller`` tells one to
a world; with a ``Ledger`` it is checked after every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from rmq_store.commit.ctl import Action
from rmq_store.errors import HeldByAnother, OffsetOutOfRange, StaleAttempt, WrongUse
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.message.message import MessageExt
from rmq_store.settings.settings import GroupSettings
from tests.contract.world import DAY, World, group
from tests.property.answers import Says
from tests.property.ledger import CLAIMS, Call, Group, Ledger, Wanted

GROUPS = ("billing", "ordered", "once", "prices", "radio@a", "radio@b")
TOPICS = ("Orders", "Bills")
STEPS = ("1.planned", "2.claimed", "3.staged", "4.decided")
SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
REFUSALS = (HeldByAnother, StaleAttempt, OffsetOutOfRange, WrongUse)
"""What may be said to somebody; any other error is a defect."""


class Killed(BaseException):
    """The process has died."""


# --- who tells -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cast:
    """The groups, by name: what each reads (per topic the expression) and its settings; and what listeners say."""

    groups: dict[str, dict[str, Any]]
    script: list[Says]

    def reads(self, name: str) -> dict[str, str]:
        """The clients of one group have one subscription."""
        reads: dict[str, str] = self.groups["radio@a" if name == "radio@b" else name]["reads"]
        return reads

    def settings(self, name: str) -> GroupSettings:
        options = {key: value for key, value in self.groups[name].items() if key != "reads"}
        kind = "SQL92" if name == "prices" else "TAG"
        reads = tuple(build_subscription_data(topic, text, kind) for topic, text in self.reads(name).items())
        return replace(group(name, **options), subscriptions=reads)

    def wanted(self, name: str) -> dict[str, Wanted]:
        return {topic: MATCHES[text] for topic, text in self.reads(name).items()}


@dataclass
class Teller:
    """One history in one world. ``did``: what every attempt came to, which must be the same in every engine."""

    world: World
    cast: Cast
    ledger: Ledger | None = None
    settings: dict[str, GroupSettings] = field(default_factory=dict)
    did: list[Any] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    finished: dict[str, tuple[Callable[[], Any], Any]] = field(default_factory=dict)
    replays: list[str] = field(default_factory=list)
    calls: list[list[Call]] = field(default_factory=list)
    tries: Counter[object] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name in self.cast.groups:
            self.introduce(self.cast.settings(name), name)

    def introduce(self, settings: GroupSettings, like: str) -> None:
        self.settings[settings.name] = settings
        if self.ledger:
            self.ledger.groups[settings.name] = Group(settings, self.cast.wanted(like))

    def new_request(self, what: str) -> str:
        self.requests[what] += 1
        return f"{DAY}-{what}-{self.requests[what]}"

    def numbers(self, n: int) -> range:
        self.messages += n
        return range(self.messages - n, self.messages)

    # --- listening ---

    def listener(self, name: str) -> Callable[[list[MessageExt], Any], Any]:
        """What says of a batch depends on its first message and how often it was seen, so it does not on the engine."""
        settings, lines = self.settings[name], self.cast.script

        def listen(msgs: list[MessageExt], context: Any) -> Any:
            queue, first = context.message_queue, msgs[0]
            seen = (name, queue, first.queue_offset)
            line = lines[(int(first.body or b"0") + first.reconsume_times + self.tries[seen]) % len(lines)]
            heard = tuple(m.queue_offset for m in msgs), tuple(m.reconsume_times for m in msgs)
            if settings.mode == "orderly":
                self.tries[seen] += 1
                status = SUSPEND if line.status in ("none", "raises") else line.status
                self.calls[-1].append(Call(queue, *heard, in_order=(line.auto_commit, status)))
                context.auto_commit = line.auto_commit
                if line.status == "raises":
                    raise RuntimeError("no database")
                return None if line.status == "none" else line.status
            verdicts = line.verdicts(len(msgs), settings.all_or_nothing)
            self.calls[-1].append(Call(queue, *heard, said=tuple((ok, line.level) for ok in verdicts)))
            return line.answer(len(msgs), context)

        return listen

    # --- attempts ---

    def attempt(self, what: str, job: Callable[[], Any]) -> Any:
        """Do something that may be refused, or die, and see that it has done what it says."""
        self.calls.append([])
        before = {ctl.commit_id for ctl in self.world.ctls()}
        report, refused, died = None, "", False
        try:
            report = job()
        except REFUSALS as error:
            refused = type(error).__name__
        except Killed:
            died = True
        heard = self.calls.pop()
        status = getattr(report, "status", "")
        new_ids = {ctl.commit_id for ctl in self.world.ctls() if ctl.action not in CLAIMS} - before
        assert (status == "committed") == (getattr(report, "commit_id", None) in new_ids), "a success is in the log"
        if self.ledger:
            new = [ctl for ctl in self.ledger.balance(heard) if ctl.action is not Action.IMPORT]
            if refused or (status and status != "committed"):
                assert new == [], "what was refused, or was nothing, has left nothing"
        self.did.append((what, refused or ("died" if died else _told(report))))
        return report

    def ask(self, what: str, key: str, job: Callable[[], Any], again: Callable[[], Any] | None = None) -> Any:
        """An attempt, and a request that is complete is remembered: who asks again moves nothing."""
        report = self.attempt(what, job)
        if report is not None and report.status == "committed" and getattr(report, "complete", True):
            self.finished[key] = again or job, report.commit_id
        return report

    def again(self, number: int) -> None:
        """One of the finished requests once more."""
        if not self.finished:
            return
        again, commit_id = [*self.finished.values()][number % len(self.finished)]
        before = len(self.world.ctls())
        self.calls.append([])
        report = again()
        assert self.calls.pop() == [], "nobody is asked"
        assert (report.status, report.commit_id, len(self.world.ctls())) == ("already_committed", commit_id, before)
        assert again() == report, "and the same answer every time"
        self.did.append(_told(report))

    def dying(self) -> Any:
        """A host whose process can be ended: from then on it makes no id, so it cannot even give back its claim."""
        host = self.world.another_host()
        alive = [True]

        def entropy(size: int) -> bytes:
            if not alive:
                raise Killed
            return host.entropy(size)

        def die() -> None:
            alive.clear()
            raise Killed

        return replace(host, entropy=entropy), die


def _told(report: Any) -> object:
    """What a report says that does not depend on the engine."""
    names = (
        "status",
        "complete",
        "consumed",
        "blocked",
        "delivered",
        "more",
        "next_due_ms",
        "letters",
        "moves",
        "sent",
        "waiting",
    )
    return [getattr(report, name) for name in names if hasattr(report, name)]


# --- filters and telling ---------------------------------------------------------------------------------------------

MATCHES: dict[str, Wanted] = {
    "*": lambda properties: True,
    "TagA": lambda properties: properties.get("TAGS") == "TagA",
    "TagA || TagB": lambda properties: properties.get("TAGS") in ("TagA", "TagB"),
    "price > 6 OR price IS NULL": lambda properties: int(properties["price"]) > 6,
    "TAGS = 'TagB' AND price BETWEEN 2 AND 8": lambda properties: (
        properties.get("TAGS") == "TagB" and 2 <= int(properties["price"]) <= 8
    ),
}
"""Every filter, and what it means in Python."""
TAGS = ("*", "TagA", "TagA || TagB")
SQL = tuple(expression for expression in MATCHES if expression not in TAGS)


def tell(world: World, cast: Cast, steps: Sequence[Any], *, checked: bool = True) -> Teller:
    teller = Teller(world, cast, Ledger(world) if checked else None)
    with printed([cast, *steps]):
        for step in steps:
            step.tell(teller)
    return teller


@contextmanager
def printed(steps: Sequence[Any]) -> Iterator[None]:
    """Name the history that failed, so that it can be told again."""
    try:
        yield
    except BaseException as error:
        error.add_note("the history:\n" + "\n".join(f"    {step!r}," for step in steps))
        raise
