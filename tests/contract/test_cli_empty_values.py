"""``rmq`` with an empty value, such as of a variable that is not set: it selects nothing, and never more than without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract.rmq import Rmq

REDRIVE = ["redrive", "-g", "orders", "--reason", "r"]
RESET = ["reset", "-g", "orders", "-t", "OrderEvents", "--to-min", "--reason", "r"]
SEND = ["send", "-t", "Notes", "--create", "body"]
IMPORT = ["import-store", "--broker", "broker-b"]

REFUSED = [
    ([*REDRIVE, "--key", ""], "a key (--key) is empty"),
    ([*REDRIVE, "--key", "k", "--key", " "], "a key (--key) is empty"),
    ([*REDRIVE, "--original-topic", ""], "the original topic (--original-topic) is empty"),
    ([*REDRIVE, "--where", ""], "the SQL92 expression (--where) is empty"),
    ([*REDRIVE, "--letter", ""], "invalid dead letter ''"),
    ([*REDRIVE, "--all", "--shard", ""], "no shard "),
    ([*REDRIVE, "--all", "--actor", ""], "the actor is blank"),
    ([*RESET, "--queue", ""], "'' is not a queue"),
    ([*RESET, "--shard", ""], "no shard "),
    (["reset", "-g", "orders", "-t", "", "--to-min", "--reason", "r"], "there is no topic "),
    (["reset", "-g", "", "-t", "OrderEvents", "--to-min", "--reason", "r"], "there is no group ''"),
    (["clone", "--from", "orders", "--to", "elsewhere", "-t", "", "--reason", "r"], "has no offsets of topic "),
    (["undo", "-g", "", "--reason", "r"], "there is no group ''"),
    (["consume", "-g", "orders", "--clients", ""], "invalid list of client ids ''"),
    (["consume", "--all", "--exclude", ""], "no group that matches ''"),
    (["messages", "-t", "OrderEvents", "--key", ""], "the key (--key) is empty"),
    ([*SEND, "--shard", ""], "invalid shard name ''"),
    ([*SEND, "--shard", "shards"], "a shard cannot have the name 'shards': the store has a folder of its own with it"),
    ([*SEND, "--shard", "_probe"], "a shard cannot have the name '_probe'"),
    ([*SEND, "--shard", "", "--dry-run"], "invalid shard name ''"),
    ([*IMPORT, "--shard", ""], "invalid shard name ''"),
]


@pytest.mark.parametrize(("arguments", "says"), REFUSED, ids=[" ".join(arguments[:1]) for arguments, _ in REFUSED])
def test_an_empty_value_is_refused_and_selects_nothing(
    imported: Rmq, broker_store: Callable[[str], Path], arguments: list[str], says: str
) -> None:
    if arguments[0] == "import-store":
        arguments = [*arguments, str(broker_store("market-clean"))]
    before = sorted(imported.root.rglob("*"))
    answer = imported(*arguments)
    assert (answer.exit_code, says in answer.err) == (2, True), answer
    assert sorted(imported.root.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments",
    [
        [*RESET[:-1], "\udcff"],
        [*RESET, "--actor", "\udcff"],
        [*REDRIVE, "--all", "--actor", "\udcff"],
        [*REDRIVE, "--key", "\udcff"],
        ["replay", "-g", "orders-replay-0123456789", "--reprocess", "\udcff"],
        ["consume", "-g", "orders", "--actor", "\udcff"],
    ],
)
def test_a_value_that_is_no_utf_8_is_refused_since_a_commit_cannot_record_it(
    imported: Rmq, arguments: list[str]
) -> None:
    answer = imported(*arguments)
    assert (answer.exit_code, "contains an unpaired surrogate" in answer.err) == (2, True), answer
