"""``vectors/names``: which names are allowed, what is made of them, and what a message may weigh (S14)."""

from __future__ import annotations

from rmq_store.errors import WrongUse
from rmq_store.message import dlq_topic, retry_topic
from rmq_store.validators import (
    NameProblem,
    check_body,
    group_problem,
    is_system_topic,
    may_be_sent_to,
    stored_group_problem,
    stored_topic_problem,
    topic_problem,
)
from tests.conformance.checks import Line, NotChecked, Outcomes, by_kind, refused, same

RULES = {
    "clientTopic": topic_problem,
    "clientGroup": group_problem,
    "brokerTopic": stored_topic_problem,
    "brokerGroup": stored_group_problem,
}
PROBLEMS = {"blank": NameProblem.BLANK, "illegal characters": NameProblem.CHARACTERS, "longer": NameProblem.LENGTH}
POP = ("isRetry", "popRetryV1", "popRetryV2", "parsedGroup", "parsedNormalTopic")


def problem_in(text: str) -> NameProblem | None:
    """The rule that RocketMQ's text speaks of; None for "ok"."""
    problem = next((problem for words, problem in PROBLEMS.items() if words in text), None)
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
    if any(key in row for key in POP):
        yield NotChecked(f"names ({', '.join(POP)}): there is no pop consumption")


def _check_message(row: Line) -> Outcomes:
    body = None if row["bodySize"] is None else bytes(row["bodySize"])
    if row["answer"] == "ok":
        check_body(body)
        yield None
    else:
        yield refused(f"a body of {row['bodySize']} bytes", WrongUse, lambda: check_body(body), "body")


check = by_kind(
    {
        None: _name,
        "checkMessage": _check_message,
        "perm": "no rule reads or writes permissions as text",
        "boundary": "no rule reads a boundary from text",
    }
)
