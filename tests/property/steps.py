"""The steps of histories: what producers, consumers of every kind, operators and accidents may do to a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rmq_store.admin.clone import CloneRequest
from rmq_store.admin.dead_letters import DeadLetterFilter
from rmq_store.admin.reset import ResetRequest, ResetTo
from rmq_store.consumer.replay_name import replay_group
from rmq_store.producer.producer import Message
from rmq_store.window.consume_request import LIVE, ConsumeRequest, Scope
from tests.contract.world import ANA, DAY, HOUR, NOON, orders, said
from tests.property.histories import GROUPS, Teller

MINUTE = 60_000


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
        teller.ask("reset", request.request_id, lambda: teller.world.move(request))


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
class Undo:
    group: str
    force: bool

    def tell(self, teller: Teller) -> None:
        request_id = teller.new_request("undo")
        teller.ask("undo", request_id, lambda: teller.world.undo(request_id, group=self.group, force=self.force))


@dataclass(frozen=True)
class Redrive:
    group: str
    limit: int | None

    def tell(self, teller: Teller) -> None:
        request_id, nums = teller.new_request("redrive"), teller.settings[self.group].retry_queue_nums

        def job() -> Any:
            return teller.world.redrive(
                request_id, DeadLetterFilter(all=True), group=self.group, limit=self.limit, retry_queue_nums=nums
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
