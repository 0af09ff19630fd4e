"""``vectors/names``: which names are allowed, what is made of them, and what a message may weigh (rules 14)."""

from __future__ import annotations

import re

from rmq_store.errors import WrongUse
from rmq_store.log.consume_queue import BoundaryType
from rmq_store.message.message_const import (
    dlq_topic,
    pop_normal_topic,
    pop_retry_group,
    pop_retry_topic_v1,
    pop_retry_topic_v2,
    retry_topic,
)
from rmq_store.message.perm_name import is_readable, is_valid, is_writeable, perm_text
from rmq_store.message.validators import (
    NameProblem,
    check_body,
    group_problem,
    is_system_group,
    is_system_topic,
    may_be_sent_to,
    stored_group_problem,
    stored_topic_problem,
    topic_problem,
)
from tests.conformance.checks import Line, Outcomes, by_kind, refused, same

RULES = {
    "clientTopic": topic_problem,
    "clientGroup": group_problem,
    "brokerTopic": stored_topic_problem,
    "brokerGroup": stored_group_problem,
}
PROBLEMS = {
    r"is blank\.?": NameProblem.BLANK,
    r"contains illegal characters, allowing only \S+": NameProblem.CHARACTERS,
    r"longer than \w+ max length:? \d+\.?": NameProblem.LENGTH,
}
"""How RocketMQ's texts end; before that they may hold the name."""
POP_TOPIC = "tt"
"""The topic of the pop retry topics in the vectors; the name is their group."""


def problem_in(text: str) -> NameProblem | None:
    """The rule that RocketMQ's text speaks of; None for "ok"."""
    problem = next((problem for end, problem in PROBLEMS.items() if re.search(rf"{end}\Z", text)), None)
    assert (problem is None) == (text == "ok"), text
    return problem


def _name(row: Line) -> Outcomes:
    name = row["name"]
    for key, rule in RULES.items():
        yield same(f"{key} of {name!r}", rule(name), problem_in(row[key]))
    if name is None:
        return
    yield same(f"{name!r} is a system topic", is_system_topic(name), row["systemTopic"])
    yield same(f"the client creates {name!r}", not is_system_topic(name), row["clientSystemTopic"] == "ok")
    yield same(f"{name!r} may be sent to", may_be_sent_to(name), not row["notAllowedSend"])
    yield same(f"the client sends to {name!r}", may_be_sent_to(name), row["clientSendTopic"] == "ok")
    yield same("retry topic", retry_topic(name), row["retryTopic"])
    yield same("dead-letter topic", dlq_topic(name), row["dlqTopic"])
    yield same(f"{name!r} is a group of RocketMQ's own", is_system_group(name), row["isRetry"])
    yield same("pop retry topic, first form", pop_retry_topic_v1(POP_TOPIC, name), row["popRetryV1"])
    yield same("pop retry topic, second form", pop_retry_topic_v2(POP_TOPIC, name), row["popRetryV2"])
    yield same(f"the group in {name!r}", pop_retry_group(name), row.get("parsedGroup"))
    if "parseError" not in row:
        yield same(f"the topic in {name!r}", pop_normal_topic(name), row["parsedNormalTopic"])


def _check_message(row: Line) -> Outcomes:
    body = None if row["bodySize"] is None else bytes(row["bodySize"])
    if row["answer"] == "ok":
        check_body(body)
        yield None
    else:
        yield refused(f"a body of {row['bodySize']} bytes", WrongUse, lambda: check_body(body), "body")


def _perm(row: Line) -> Outcomes:
    perm = row["perm"]
    found = perm_text(perm), is_readable(perm), is_writeable(perm), is_valid(perm)
    yield same(f"permissions {perm}", found, (row["text"], row["readable"], row["writeable"], row["valid"]))


def _boundary(row: Line) -> Outcomes:
    yield same(f"boundary {row['text']!r}", BoundaryType.of(row["text"]).name, row["type"])


check = by_kind(
    {
        None: _name,
        "checkMessage": _check_message,
        "perm": _perm,
        "boundary": _boundary,
    }
)
