"""``rmq deliver`` and ``Store.deliver`` over several shards, of which some fail: all are tried."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import rmq_store
from rmq_store.cli import deliver as command
from rmq_store.cli.common import part_error
from rmq_store.errors import ClockSkew, HeldByAnother, LogDamaged, RmqError, Terminated, WrongUse
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.window import deliver as delivering
from tests.contract.rmq import ALL_DUE, TODAY, Rmq

REQUEST = f"{TODAY}-d"
DELIVER = ("deliver", "--now", ALL_DUE, "--request", REQUEST)
HELD, DAMAGED = partial(HeldByAnother, "another request has it"), partial(LogDamaged, "entry 3 is damaged")
REST = "the same request, run again, does the rest"


@pytest.fixture
def three(rmq: Rmq) -> Rmq:
    """A delayed message in each of the shards a, b and c."""

    def make() -> None:
        rmq("init")
        (rmq.folder / "later.jsonl").write_text(json.dumps({"body": "x", "delay_level": 1}))
        for shard in "abc":
            rmq.json("send", "-t", "Later", "--create", "--queues", "1", "--shard", shard, "--file", "later.jsonl")

    rmq.once("delayed messages in three shards", make)
    return rmq


Fail = Callable[..., None]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """``fail(a=error)``: the claim of the delivery in shard a raises it."""

    def failing(**errors: BaseException) -> None:
        def claim(shard: Any, *arguments: Any) -> Any:
            if shard.name in errors:
                raise errors[shard.name]
            return claimed(shard, *arguments)

        monkeypatch.setattr(delivering, "claimed", claim)

    return failing


def test_an_error_that_leaves_a_rest_shows_the_request_that_does_it(three: Rmq, fail: Fail) -> None:
    fail(b=DAMAGED())
    answer = three("deliver", "--now", ALL_DUE)
    assert answer.exit_code == 1
    assert f"{REST}" in answer.err
    assert f"(request {TODAY}-deliver-" in answer.err


@pytest.mark.parametrize(
    ("errors", "exit_code", "kind", "text"),
    [
        ({"a": HELD}, 3, "HeldByAnother", f"was done in shard b, c, and failed in shard a (HeldByAnother): {REST}"),
        ({"b": DAMAGED}, 1, "LogDamaged", f"was done in shard a, c, and failed in shard b (LogDamaged): {REST}"),
        (
            {"a": HELD, "b": DAMAGED},
            1,
            "LogDamaged",
            f"was done in shard c, and failed in shard a (HeldByAnother), b (LogDamaged): {REST}",
        ),
        (
            {"a": HELD, "b": DAMAGED, "c": partial(ClockSkew, "a clock is off")},
            1,
            "LogDamaged",
            f"The delivery failed in shard a (HeldByAnother), b (LogDamaged), c (ClockSkew): {REST}",
        ),
    ],
)
def test_an_error_in_a_shard_does_not_stop_the_others(
    three: Rmq, fail: Fail, errors: dict[str, partial[RmqError]], exit_code: int, kind: str, text: str
) -> None:
    fail(**{shard: error() for shard, error in errors.items()})
    answer = three(*DELIVER, "--json")
    document = answer.json()
    assert (answer.exit_code, document["status"], document["error"]) == (exit_code, "error", kind)
    assert text in document["message"]
    done = [shard for shard in "abc" if shard not in errors]
    assert (document["failed"], document["delivered"], "next_due_ms" in document) == (len(errors), len(done), False)
    status = [(one["shard"], one["status"], one.get("error")) for one in document["deliveries"]]
    assert status == [
        *((shard, "committed", None) for shard in done),
        *((shard, "error", error.func.__name__) for shard, error in errors.items()),
    ]
    fail()
    again = three.json(*DELIVER)
    assert (again["status"], again["failed"], again["delivered"]) == ("committed", 0, 3)
    assert three.json("audit")["audit"] == []


def test_the_text_names_each_shard_and_what_became_of_it(three: Rmq, fail: Fail) -> None:
    fail(a=HELD(), b=DAMAGED())
    answer = three(*DELIVER)
    assert answer.out.splitlines() == [
        "shard c: committed, 1 delivered",
        "shard a: error, HeldByAnother: another request has it",
        "shard b: error, LogDamaged: entry 3 is damaged. Restore it from a backup.",
    ]
    assert "The delivery was done in shard c, and failed in shard a (HeldByAnother), b (LogDamaged)" in answer.err


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_the_error_of_each_shard_is_put_into_words_once(
    three: Rmq, fail: Fail, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    calls: list[Exception] = []

    def counting(error: Exception, request_id: str) -> dict[str, Any]:
        calls.append(error)
        return part_error(error, request_id)

    monkeypatch.setattr(command, "part_error", counting)
    fail(a=HELD(), b=DAMAGED())
    assert three(*DELIVER, *options).exit_code == 1
    assert list(map(type, calls)) == [HeldByAnother, LogDamaged]


def test_a_shard_whose_log_is_gone_does_not_stop_the_others(three: Rmq) -> None:
    log = three.root / "a" / "commitlog" / "_delta_log"
    log.rename(log.with_name("away"))
    answer = three(*DELIVER, "--json")
    assert (answer.exit_code, answer.json()["delivered"]) == (1, 2)
    log.with_name("away").rename(log)
    again = three.json(*DELIVER)
    assert [one["status"] for one in again["deliveries"]] == ["committed", "already_committed", "already_committed"]


def test_the_error_of_the_only_shard_is_as_it_is(three: Rmq, fail: Fail) -> None:
    fail(a=HELD())
    answer = three(*DELIVER, "--shard", "a", "--json")
    assert (answer.exit_code, answer.json()["message"]) == (3, f"another request has it (request {REQUEST})")


@pytest.mark.parametrize("error", [Terminated(), KeyboardInterrupt(), WrongUse("no")])
def test_what_no_shard_can_do_better_ends_at_once(three: Rmq, fail: Fail, error: BaseException) -> None:
    fail(b=error)
    answer = three(*DELIVER, "--json")
    document = answer.json()
    assert answer.exit_code not in (0, 1)
    assert [one["shard"] for one in document["deliveries"]] == ["a"]
    fail()
    assert [one["status"] for one in three.json(*DELIVER)["deliveries"]] == [
        "already_committed",
        "committed",
        "committed",
    ]


def test_from_python_the_error_has_the_reports_of_the_other_shards(three: Rmq, fail: Fail) -> None:
    fail(b=HELD())
    with pytest.raises(HeldByAnother, match=r"was done in shard a, c, and failed in shard b") as held:
        rmq_store.open_store(three.root).deliver(now=4_000_000_000_000, request_id=REQUEST)
    assert [(one.shard, one.status, one.delivered) for one in held.value.reports] == [
        ("a", "committed", 1),
        ("c", "committed", 1),
    ]
