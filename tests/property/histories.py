"""Random histories: what producers, consumers of every kind, operators and accidents may do to a store, step by step.

A step is a value, so a failing history is printed as the list of its steps and can be told again. ``Teller`` tells one to
a world; with a ``Ledger`` it is checked after every step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from rmq_store.clone import CloneRequest
from rmq_store.errors import HeldByAnother, OffsetOutOfRange, StaleAttempt, WrongUse
from rmq_store.letters import Letters
from rmq_store.message import MessageExt
from rmq_store.plan import LIVE, ConsumeRequest, Scope
from rmq_store.producer import Message
from rmq_store.replay import replay_group
from rmq_store.reset import ResetRequest, ResetTo
from rmq_store.settings import GroupSettings
from rmq_store.store import Action
from rmq_store.subscription import build_subscription_data
from tests.contract.world import ANA, DAY, HOUR, NOON, World, group, orders, said
from tests.property.answers import Says
from tests.property.ledger import CLAIMS, Call, Group, Ledger, Wanted

GROUPS = ("billing", "ordered", "once", "prices", "radio@a", "radio@b")
TOPICS = ("Orders", "Bills")
STEPS = ("1.planned", "2.claimed", "3.staged", "4.decided")
SUSPEND = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
MINUTE = 60_000
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
        return self.groups["radio@a" if name == "radio@b" else name]["reads"]

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
    did: list[object] = field(default_factory=list)
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
    )
    return [getattr(report, name) for name in names if hasattr(report, name)]


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fill:
    """An import; ``gap``: offsets without a message before it. A broker's clock may step back."""

    topic: str
    queue_id: int
    tags: tuple[str | None, ...]
    gap: int = 0
    age_min: int = 60

    def tell(self, teller: Teller) -> None:
        world, queue = teller.world, orders(self.queue_id, self.topic)
        at = world.clock() - self.age_min * MINUTE
        rows = [
            said(n, tag=tag, at=at + n % 3 // 2 * 1000, **_properties(n))
            for n, tag in zip(teller.numbers(len(self.tags)), self.tags, strict=True)
        ]
        world.fill(queue, rows, world.positions().max_offset(queue) + self.gap if self.gap else None)


def _properties(n: int) -> dict[str, str]:
    """Every message has a price, some share a key."""
    return {"price": str(n % 10), **({"KEYS": f"k{n % 5}"} if n % 4 else {})}


@dataclass(frozen=True)
class Send:
    """``delays``: per message None, a level, or (above 100) ms."""

    topic: str
    delays: tuple[int | None, ...]

    def tell(self, teller: Teller) -> None:
        messages = []
        for n, delay in zip(teller.numbers(len(self.delays)), self.delays, strict=True):
            properties = _properties(n)
            keys = (properties.pop("KEYS"),) if "KEYS" in properties else ()
            how: dict[str, Any] = {} if delay is None else {"delay_ms" if delay > 100 else "delay_level": delay}
            messages.append(Message(self.topic, b"%d" % n, ("TagA", "TagB")[n % 2], keys, properties, **how))
        request_id = teller.new_request("send")

        def job() -> Any:
            return teller.world.send(messages, request_id, create_queues=2)

        teller.ask("send", request_id, job)


@dataclass(frozen=True)
class Consume:
    """``request``: the same number is the same request; every third one is capped."""

    group: str
    request: int
    scope: Scope = LIVE

    def job(self, teller: Teller, host: Any = None) -> tuple[str, Callable[[], Any]]:
        request_id = f"{DAY}-{self.group}-{self.request}"
        cap = 5 if self.request % 3 == 0 else None
        listener = teller.listener(self.group)
        settings = teller.settings[self.group]
        return request_id, lambda: teller.world.consume(
            settings, request_id, listener, host=host, max_messages=cap, scope=self.scope
        )

    def tell(self, teller: Teller, host: Any = None) -> Any:
        request_id, job = self.job(teller, host)
        return teller.ask(f"consume {request_id}", request_id, job, self.job(teller)[1])


@dataclass(frozen=True)
class Round:
    """A window of every group."""

    request: int

    def tell(self, teller: Teller) -> None:
        for name in GROUPS:
            Consume(name, self.request).tell(teller)


@dataclass(frozen=True)
class Deliver:
    after_s: int
    cap: int

    def tell(self, teller: Teller, host: Any = None) -> Any:
        teller.world.clock.advance(self.after_s * 1000)
        request_id = teller.new_request("deliver")

        def job(host: Any = None) -> Any:
            return teller.world.deliver(request_id, cap=self.cap, host=host)

        return teller.ask("deliver", request_id, lambda: job(host), job)


@dataclass(frozen=True)
class Reset:
    """``value``: per mille of the way from before the first message to behind the last, in time or offsets."""

    group: str
    topic: str
    to: ResetTo
    value: int
    one_queue: bool

    def tell(self, teller: Teller) -> None:
        queues = tuple(teller.world.positions().queues_of(self.topic))
        chosen = queues[self.value % len(queues) :][:1] if self.one_queue and queues else ()
        value: int | None = None
        if self.to is ResetTo.OFFSET:
            value = (
                max((teller.world.positions().max_offset(q) for q in chosen or queues), default=0) * self.value // 900
            )
        elif self.to is ResetTo.TIME:
            value = NOON - 2 * HOUR + (teller.world.clock() - NOON + 2 * HOUR) * self.value // 900
        request = ResetRequest(
            self.group, self.topic, self.to, teller.new_request("reset"), ANA, "again", value, chosen
        )
        teller.ask("reset", request.request_id, lambda: teller.world.reset(request))


@dataclass(frozen=True)
class Clone:
    group: str
    source: str
    topic: str | None

    def tell(self, teller: Teller) -> None:
        if self.group == self.source:
            return
        request = CloneRequest(self.group, self.source, teller.new_request("clone"), ANA, "go on there", self.topic)
        teller.ask("clone", request.request_id, lambda: teller.world.move(request))


@dataclass(frozen=True)
class Redrive:
    group: str
    limit: int | None

    def tell(self, teller: Teller) -> None:
        request_id, nums = teller.new_request("redrive"), teller.settings[self.group].retry_queue_nums

        def job() -> Any:
            return teller.world.redrive(
                request_id, Letters(all=True), group=self.group, limit=self.limit, retry_queue_nums=nums
            )

        teller.ask("redrive", request_id, job)


@dataclass(frozen=True)
class Replay:
    """One window of a new replay of ``billing``."""

    from_min: int

    def tell(self, teller: Teller) -> None:
        world, request_id = teller.world, teller.new_request("replay")
        name = replay_group("billing", request_id)
        base = teller.settings["billing"]
        (only,) = (s for s in base.subscriptions if s.topic == "Orders")
        teller.introduce(replace(base, name=name, subscriptions=(only,)), "billing")
        from_ms, listener = NOON - self.from_min * MINUTE, teller.listener(name)
        request = ConsumeRequest(request_id, ANA)

        def job() -> Any:
            return world.replay(base, "Orders", from_ms, request, listener)

        if teller.ask("replay", request_id, job) is not None:
            teller.replays.append(name)


@dataclass(frozen=True)
class FollowUp:
    """What comes after a replay: its retries, or (``again``) another attempt of it."""

    replay: int
    again: bool

    def tell(self, teller: Teller) -> None:
        if not teller.replays:
            return
        name = teller.replays[self.replay % len(teller.replays)]
        settings, listener = teller.settings[name], teller.listener(name)
        request_id = teller.new_request("more")
        if not self.again:

            def job() -> Any:
                return teller.world.consume(settings, request_id, listener, scope=Scope(retries_only=True))
        else:
            begin = ConsumeRequest(request_id, ANA, "mended")
            asked = teller.attempt("begin", lambda: teller.world.begin_attempt(settings, begin))
            if asked is None:
                return

            def job() -> Any:
                return teller.world.consume(asked[0], request_id, listener, scope=asked[2])

        teller.ask("again" if self.again else "follow up", request_id, job)


@dataclass(frozen=True)
class Trim:
    """Retention at the broker: the first readable offset moves up."""

    queue_id: int
    percent: int

    def tell(self, teller: Teller) -> None:
        queue, positions = orders(self.queue_id), teller.world.positions()
        if queue in positions.all_queues():
            least, most = positions.min_offset(queue), positions.max_offset(queue)
            teller.world.trim(queue, least + (most - least) * self.percent // 100)


@dataclass(frozen=True)
class Again:
    number: int

    def tell(self, teller: Teller) -> None:
        teller.again(self.number)


@dataclass(frozen=True)
class Crash:
    """The process dies at a step of a window or a delivery; who asks next finds what it left."""

    step: str
    victim: Consume | Deliver

    def tell(self, teller: Teller) -> None:
        host, die = teller.dying()
        with teller.world.at_step(self.step, die):
            self.victim.tell(teller, host)


@dataclass(frozen=True)
class Meanwhile:
    """While a window or a delivery is at a step, somebody else does something, perhaps after its lease has ended."""

    step: str
    slow: Consume | Deliver
    wait_s: int
    quick: tuple[Any, ...]

    def tell(self, teller: Teller) -> None:
        def happens() -> None:
            teller.world.clock.advance(self.wait_s * 1000)
            for step in self.quick:
                step.tell(teller)

        with teller.world.at_step(self.step, happens):
            self.slow.tell(teller, teller.world.another_host())


@dataclass(frozen=True)
class Race:
    """Two windows of a group that want the same messages, or a window and an operator."""

    group: str
    step: str
    wait_s: int
    other: Consume | Reset | Clone

    def tell(self, teller: Teller) -> None:
        Fill("Orders", 0, ("TagA", "TagB", "TagA")).tell(teller)
        mine, others = (Consume(self.group, 3 * teller.messages + n) for n in (1, 2))
        other = others if isinstance(self.other, Consume) else replace(self.other, group=self.group)
        Meanwhile(self.step, mine, self.wait_s, (other,)).tell(teller)


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
