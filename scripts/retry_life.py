"""Writes the diagram and the tables of ``docs/retry-life.md`` from the rules: ``python -m scripts.retry_life``.

Run it after a change of ``consumer/retry.py``, ``consumer/delay.py`` or ``consumer/timer.py``; a test checks the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmq_store.consumer.delay import CustomizedRetryPolicy, DelayLevels, ExponentialRetryPolicy, GroupRetryPolicy
from rmq_store.consumer.delay import GroupRetryPolicyType as PolicyType
from rmq_store.consumer.retry import DEFAULT_MAX_RECONSUME_TIMES, DELIVERED_EDITS, SendBack, property_edits, route
from rmq_store.message.message_const import SCHEDULE_TOPIC, MessageConst

PAGE = Path(__file__).resolve().parents[1] / "docs" / "retry-life.md"
GROUP = "orders"
LEVELS = DelayLevels()
EXPONENTIAL = GroupRetryPolicy(PolicyType.EXPONENTIAL, exponential=ExponentialRetryPolicy())
CUSTOMIZED = GroupRetryPolicy(PolicyType.CUSTOMIZED, customized=CustomizedRetryPolicy())

CASES: Mapping[str, Mapping[str, Any]] = {
    "fails": {},
    "fails, asks for a level": {"delay_level": 5},
    "fails, group has a retry_policy": {"policy": EXPONENTIAL},
    "fails, asks for a negative level": {"delay_level": -1},
    "fails, max_reconsume_times reached": {"reconsume_times": DEFAULT_MAX_RECONSUME_TIMES},
    "fails, group has no retry queue": {"retry_queue": None},
}
"""The cases of the diagram: arguments of ``route``, by their label."""


def send_back(**arguments: Any) -> SendBack:
    """``route`` of a group with RocketMQ's defaults, which ``arguments`` override."""
    defaults: dict[str, Any] = {
        "delay_level": 0,
        "reconsume_times": 0,
        "max_reconsume_times": -1,
        "retry_queue": 0,
        "levels": LEVELS,
    }
    return route(GROUP, **(defaults | arguments))


def diagram() -> Iterable[str]:
    """A flow chart: the listener, the cases and the topics that they lead to."""
    answers = {case: send_back(**arguments) for case, arguments in CASES.items()}
    topics = list(dict.fromkeys(answer.topic for answer in answers.values()))
    names = {topic: f"t{number}" for number, topic in enumerate(topics)}
    retry = next(answer.real_topic for answer in answers.values() if not answer.dead)
    yield "```mermaid"
    yield "flowchart TD"
    yield f'  topic["a topic of {GROUP}"] --> listener{{listener}}'
    yield '  listener -- succeeds --> done(["acked"])'
    for topic, name in names.items():
        yield f'  {name}["{topic}"]'
    for case, answer in answers.items():
        yield f'  listener -- "{case}" --> {names[answer.topic]}'
    for topic in topics:
        if any(answer.topic == topic and not answer.dead for answer in answers.values()):
            yield f'  {names[topic]} -- "due: rmq deliver" --> retry["{retry}"]'
    yield "  retry --> listener"
    yield "```"


def ladder() -> Iterable[str]:
    """Failure by failure, with the defaults: the delay of levels and of both kinds of policy, and the sum so far."""
    yield "| failure | reconsume_times of the copy | level | waits | in all | EXPONENTIAL | CUSTOMIZED |"
    yield "|---|---|---|---|---|---|---|"
    waited_ms = 0
    for times in range(DEFAULT_MAX_RECONSUME_TIMES + 1):
        answer = send_back(reconsume_times=times)
        if answer.dead:
            yield f"| {times + 1} | {answer.reconsume_times} | | dead: `{answer.topic}` | {_time(waited_ms)} | dead | dead |"
            continue
        delay_ms = answer.delay_ms or 0
        waited_ms += delay_ms
        policies = [
            send_back(reconsume_times=times, policy=policy).delay_ms or 0 for policy in (EXPONENTIAL, CUSTOMIZED)
        ]
        cells = [
            times + 1, answer.reconsume_times, answer.delay_level, _time(delay_ms), _time(waited_ms),
            *map(_time, policies),
        ]  # fmt: skip
        yield f"| {' | '.join(map(str, cells))} |"


def properties() -> Iterable[str]:
    """The properties of a message and of its copies, hop by hop."""
    message = {MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX: "7F...01", MessageConst.TAGS: "paid"}
    first = send_back()
    waiting = property_edits(first, "Orders", "0A...7B").apply(message)
    retried = DELIVERED_EDITS.apply(waiting)
    dead = property_edits(send_back(reconsume_times=DEFAULT_MAX_RECONSUME_TIMES), first.real_topic, "-").apply(retried)
    hops = {
        "the message": message,
        f"`{SCHEDULE_TOPIC}`": waiting,
        f"`{first.real_topic}`": retried,
        f"`{_dlq()}`": dead,
    }
    names = sorted(set().union(*hops.values()))
    yield f"| property | {' | '.join(hops)} |"
    yield f"|---|{'---|' * len(hops)}"
    for name in names:
        yield f"| `{name}` | {' | '.join(hop.get(name, '') for hop in hops.values())} |"


def _dlq() -> str:
    return send_back(reconsume_times=DEFAULT_MAX_RECONSUME_TIMES).topic


def _time(ms: int) -> str:
    hours, rest = divmod(ms // 1000, 3600)
    minutes, seconds = divmod(rest, 60)
    parts: Sequence[tuple[int, str]] = ((hours, "h"), (minutes, "m"), (seconds, "s"))
    return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"


BLOCKS: Mapping[str, Callable[[], Iterable[str]]] = {"diagram": diagram, "ladder": ladder, "properties": properties}


def renewed(page: str) -> str:
    """The page with every block generated again. Raises ValueError for a page that lacks a block."""
    for name, lines in BLOCKS.items():
        marks = re.compile(rf"(<!-- {name}: python -m scripts\.retry_life -->\n).*?(\n<!-- end -->)", re.DOTALL)
        parts = marks.split(page)
        if len(parts) != 4:
            raise ValueError(f"the page has {len(parts) // 3} blocks {name}")
        page = "".join([parts[0], parts[1], "\n".join(lines()), parts[2], parts[3]])
    return page


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
