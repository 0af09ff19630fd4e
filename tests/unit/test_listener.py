from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rmq_store.consumer.call_listener import call_listener
from rmq_store.consumer.listener import (
    ACKED,
    NOT_REACHED,
    Answer,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFailed,
    ConsumeOrderlyStatus,
    Listener,
    ListenerKind,
    failure,
    judge,
    load_listener,
    quoted,
    status_of,
)
from rmq_store.errors import ListenerError, Terminated
from rmq_store.message.message import MessageExt, MessageQueue

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
QUEUE = MessageQueue("T", "broker-a", 0)


def context(**told: Any) -> ConsumeConcurrentlyContext:
    return ConsumeConcurrentlyContext(QUEUE, "g", **told)


def acked(answers: tuple[Answer, ...]) -> str:
    """One letter for each message: a(cked) or l(ater)."""
    return "".join("a" if answer.acked else "l" for answer in answers)


# --- what an answer means ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "ack_index", "wanted"),
    [
        (SUCCESS, 2_147_483_647, "aaaa"),
        (SUCCESS, 99, "aaaa"),
        (SUCCESS, 1, "aall"),
        (SUCCESS, 0, "alll"),
        (SUCCESS, -1, "llll"),
        (LATER, 1, "llll"),
        (LATER, -5, "llll"),
        (None, 1, "llll"),
        ("CONSUME_SUCCESS", 2, "aaal"),
        ([SUCCESS, LATER, SUCCESS, LATER], 0, "alal"),
        (("CONSUME_SUCCESS", None, "RECONSUME_LATER", SUCCESS), 2_147_483_647, "alla"),
    ],
)
def test_an_answer_is_read_as_rocketmq_reads_it(answer: Any, ack_index: int, wanted: str) -> None:
    assert acked(judge(answer, 4, context(ack_index=ack_index))) == wanted


def test_of_an_empty_batch_no_ack_index_is_wrong() -> None:
    assert judge(SUCCESS, 0, context(ack_index=-2_147_483_648)) == ()


def test_what_failed_carries_the_level_that_the_listener_asked_for() -> None:
    answers = judge([SUCCESS, LATER], 2, context(delay_level_when_next_consume=-1))
    assert answers == (ACKED, Answer(False, -1))


@pytest.mark.parametrize(
    ("answer", "told", "text"),
    [
        (SUCCESS, {"ack_index": -2}, "ack_index -2"),
        (SUCCESS, {"ack_index": "1"}, "ack_index must be a whole number, it is '1'"),
        (SUCCESS, {"delay_level_when_next_consume": 1.5}, "delay_level_when_next_consume must be a whole number"),
        (True, {}, "answered True"),
        (0, {}, "answered 0"),
        ("success", {}, "answered 'success'"),
        (ConsumeOrderlyStatus.SUCCESS, {}, "known are CONSUME_SUCCESS, RECONSUME_LATER"),
        ({"status": SUCCESS}, {}, "answered {'status'"),
        ([SUCCESS], {}, "1 statuses for 2 messages"),
        ([SUCCESS] * 3, {}, "3 statuses for 2 messages"),
        ([SUCCESS, 1], {}, "answered 1"),
        (b"xy", {}, "answered b'xy'"),
        (SUCCESS, {"ack_index": 2_147_483_648}, r"ack_index must be a number in \[-2147483648, 2147483647\]"),
        (LATER, {"delay_level_when_next_consume": 10**30}, "delay_level_when_next_consume must be a number in"),
        (LATER, {"delay_level_when_next_consume": -(2**31) - 1}, "it is -2147483649"),
        (LATER, {"delay_level_when_next_consume": 10**5000}, "it is a int that cannot be shown"),
    ],
)
def test_an_answer_without_a_meaning_is_quoted(answer: Any, told: dict[str, Any], text: str) -> None:
    with pytest.raises(ListenerError, match=text):
        judge(answer, 2, context(**told))


def test_an_exception_fails_the_batch_and_is_told_for_each_message() -> None:
    answers = judge(None, 3, context(delay_level_when_next_consume=5), ValueError("no such order"))
    assert answers == (Answer(False, 5, "ValueError", "no such order"),) * 3


def test_an_exception_at_a_message_leaves_the_ones_before_it_done() -> None:
    answers = judge(None, 4, context(), ConsumeFailed(2, ValueError("bad")))
    assert acked(answers) == "aall"
    assert answers[2] == Answer(False, 0, "ValueError", "bad")
    assert answers[3].error_type == NOT_REACHED
    assert "message 2 of the batch failed first" in str(answers[3].error_text)


def test_all_or_nothing_fails_the_ones_before_it_too() -> None:
    answers = judge(None, 4, context(), ConsumeFailed(2, ValueError("bad")), all_or_nothing=True)
    assert answers == (Answer(False, 0, "ValueError", "bad"),) * 4


def test_a_failing_index_can_be_told_without_a_cause() -> None:
    assert judge(None, 2, context(), ConsumeFailed(1, "full"))[1] == Answer(False, 0, "ConsumeFailed", "full")


@pytest.mark.parametrize("index", [-1, 2, True])
def test_a_failing_index_outside_the_batch_stops(index: int) -> None:
    with pytest.raises(ListenerError, match="ConsumeFailed"):
        judge(None, 2, context(), ConsumeFailed(index, "x"))


def test_errors_are_cut_cleaned_and_without_secrets() -> None:
    kind = type("C\n\x1b" + "c" * 100_000, (ValueError,), {})
    for error in (kind("é" * 5000 + "hidden"), ConsumeFailed(0, kind("hidden\x07 " + "é" * 5000))):
        (answer,) = judge(None, 1, context(), error, secrets=("hidden",))
        assert answer.error_type == ("C \\x1b" + "c" * 256)[:256]
        assert len(str(answer.error_text).encode()) in (4095, 4096)
        assert "hidden" not in str(answer.error_text)
        assert "\x07" not in str(answer.error_text)


def test_an_exception_without_a_text_is_still_recorded() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert judge(None, 1, context(), Mute())[0].error_type == "Mute"


@pytest.mark.parametrize("raised", [RuntimeError(), SystemExit(0), GeneratorExit()])
def test_a_text_that_cannot_be_had_is_no_end(raised: BaseException) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise raised

        __repr__ = __str__

    assert failure(Mute()) == Answer(False, 0, "Mute", "(its text cannot be read)")
    assert quoted(Mute()) == "a Mute that cannot be shown"
    assert quoted("x" * 198) == repr("x" * 198)
    assert quoted("x" * 199) == "'" + "x" * 196 + "..."
    assert ConsumeFailed(1, Mute()).args == ("(its text cannot be read)",)


class Strange(str):
    """Says of itself that it equals everything, or raises when it is asked."""

    def __new__(cls, text: str, says: Any = True) -> Strange:
        made = super().__new__(cls, text)
        made.says = says  # type: ignore[attr-defined]
        return made

    def __eq__(self, other: object) -> bool:
        if isinstance(self.says, BaseException):  # type: ignore[attr-defined]
            raise self.says  # type: ignore[attr-defined]
        return bool(self.says)  # type: ignore[attr-defined]

    __hash__ = str.__hash__


def test_a_status_is_known_by_its_type_and_text_and_never_by_its_own_equals() -> None:
    assert status_of(Strange("RECONSUME_LATER")) is LATER
    assert status_of(Strange("CONSUME_SUCCESS", SystemExit(0))) is SUCCESS
    with pytest.raises(ListenerError, match="answered 'MAYBE'"):
        status_of(Strange("MAYBE"))


class Short(list[Any]):
    """Says that it is longer than it is."""

    def __len__(self) -> int:
        return 4


def test_a_list_that_is_shorter_than_it_says_acks_nothing() -> None:
    with pytest.raises(ListenerError, match="statuses for 4 messages"):
        judge(Short([SUCCESS]), 4, context())


@pytest.mark.parametrize("raised", [ZeroDivisionError("no"), SystemExit(0), StopIteration()])
def test_an_answer_that_cannot_be_read_names_listener_queue_and_offset(raised: BaseException) -> None:
    def read(*_: Any) -> None:
        raise raised

    listener = Listener(ListenerKind.MESSAGE, lambda *_: None, None, "shop:Orders")
    with pytest.raises(ListenerError) as told:
        call_listener(listener, (QUEUE, 17), [], context, read)
    assert f"listener shop:Orders, {QUEUE}, batch at offset 17: its answer cannot be read" in str(told.value)
    assert (told.value.__cause__, told.value.__context__) == (None, None)


# --- calling -----------------------------------------------------------------------------------------------------------


def heard(function: Any, n: int = 4, **switches: Any) -> tuple[Answer, ...]:
    read = partial(judge, **switches)
    return call_listener(
        Listener(ListenerKind.MESSAGE, function, None, "test"), (QUEUE, 0), list(range(n)), context, read
    )


def test_a_listener_that_yields_keeps_what_it_said_before_it_failed() -> None:
    def consume(msgs: list[int], context: Any) -> Iterator[Any]:
        yield LATER
        yield SUCCESS
        raise KeyError("third")

    answers = heard(consume)
    assert acked(answers) == "lall"
    assert (answers[0].error_type, answers[2].error_type, answers[3].error_type) == (None, "KeyError", NOT_REACHED)
    assert acked(heard(consume, all_or_nothing=True)) == "llll"


def test_a_failure_after_the_last_status_fails_them_all() -> None:
    def consume(msgs: list[int], context: Any) -> Iterator[Any]:
        for _ in msgs:
            yield SUCCESS
        raise OSError("could not write the last of it")

    assert acked(heard(consume)) == "llll"


def test_a_listener_that_yields_may_name_the_failing_message_itself() -> None:
    def consume(msgs: list[int], context: Any) -> Iterator[Any]:
        yield LATER
        raise ConsumeFailed(2, "two")

    assert acked(heard(consume)) == "lall"


def test_a_listener_changes_its_context_and_is_heard() -> None:
    def consume(msgs: list[int], context: ConsumeConcurrentlyContext) -> Any:
        context.ack_index = 0
        return SUCCESS

    assert acked(heard(consume)) == "alll"


class AirflowTaskTimeout(BaseException):
    __module__ = "airflow.sdk.exceptions"


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Terminated, AirflowTaskTimeout])
@pytest.mark.parametrize("yields", [False, True])
def test_a_stopped_run_is_no_answer(stop: type[BaseException], yields: bool) -> None:
    def each(msgs: list[int]) -> Iterator[Any]:
        yield SUCCESS
        raise stop

    def consume(msgs: list[int], context: Any) -> Any:
        if yields:
            return each(msgs)
        raise stop

    with pytest.raises(stop):
        heard(consume)


class Odd(BaseException):
    pass


@pytest.mark.parametrize("raised", [SystemExit(0), SystemExit(), GeneratorExit(), Odd("x")])
def test_whatever_a_listener_raises_is_a_failure_as_rocketmq_catches_throwable(raised: BaseException) -> None:
    def consume(msgs: list[int], context: Any) -> Any:
        raise raised

    def each(msgs: list[int], context: Any) -> Iterator[Any]:
        yield SUCCESS
        raise raised

    assert [a.error_type for a in heard(consume)] == [type(raised).__name__] * 4
    assert acked(heard(each)) == "alll"


def test_a_listener_cannot_end_the_process() -> None:
    def consume(msgs: list[int], context: Any) -> Any:
        os._exit(7)

    real = os._exit
    assert heard(consume)[0] == Answer(False, 0, "SystemExit", "os._exit(7)")
    assert os._exit is real


FORKS = """
import os, sys
from rmq_store.consumer.call_listener import call_listener
from rmq_store.consumer.listener import Listener, ListenerKind

def fork(then):
    def consume(msgs, context):
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return then()
    return consume

def fail():
    raise ValueError("in the child")

for then in (lambda: "CONSUME_SUCCESS", fail, lambda: sys.exit(5), lambda: sys.exit(), lambda: os._exit(9)):
    listener = Listener(ListenerKind.MESSAGE, fork(then), None, "test")
    print(call_listener(listener, ("a queue", 0), [1], object, lambda answer, *_: answer), flush=True)
"""


def test_a_process_that_a_listener_forks_never_goes_on_with_the_window() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["1", "1", "5", "0", "9"]


def test_a_listener_that_empties_its_messages_is_judged_by_how_many_there_were() -> None:
    def consume(msgs: list[int], context: Any) -> Any:
        msgs.clear()
        return LATER

    assert acked(heard(consume)) == "llll"


def test_an_exception_is_gone_when_it_was_read_also_where_a_frame_of_its_traceback_holds_it() -> None:
    gone: list[str] = []

    class Told(Exception):
        def __del__(self) -> None:
            gone.append(str(self))

    def fail(error: Exception) -> Any:
        raise error

    def consume(msgs: list[int], context: Any) -> Any:
        try:
            fail(Told("cause"))
        except Told as cause:
            raise Told("effect") from cause

    gc.disable()
    try:
        heard(consume)
        assert sorted(gone) == ["cause", "effect"]
    finally:
        gc.enable()


def test_the_idempotency_key_is_the_same_for_a_retry_and_another_for_another_group() -> None:
    first = MessageExt("T", "broker-a", 0, 7, offset_msg_id="AB01")
    retry = MessageExt("T", "broker-a", 0, 3, offset_msg_id="CD02", properties={"ORIGIN_MESSAGE_ID": "AB01"})
    keys = {context().idempotency_key(message) for message in (first, retry)}
    assert keys == {"g:AB01"}
    assert ConsumeConcurrentlyContext(QUEUE, "h").idempotency_key(first) == "h:AB01"


# --- finding ----------------------------------------------------------------------------------------------------------


class Orders:
    version = 3

    def consume_message(self, msgs: list[Any], context: Any) -> Any:
        return SUCCESS


class Fast:
    columns = ("body", "keys")

    def consume_batch(self, batch: Any) -> Any:
        return [batch]


class Both(Orders, Fast):
    pass


class NeedsArguments:
    def __init__(self, url: str) -> None:
        pass


class NotCallable:
    consume_message = "later"


class Exits(Orders):
    def __init__(self) -> None:
        sys.exit(0)


class Tells(Orders):
    def __init__(self) -> None:
        raise Odd("a-secret-of-the-test")


class ExitsInC(Orders):
    def __init__(self) -> None:
        os._exit(0)


def consume_message(msgs: list[Any], context: Any) -> Any:
    return LATER


def consume_batch(batch: Any, context: Any) -> Any:
    return [batch, context]


def on_columns(batch: Any) -> Any:
    return [batch]


on_columns.columns = ["body"]  # type: ignore[attr-defined]


def one_argument(msgs: list[Any]) -> Any:
    return SUCCESS


class OneName(Fast):
    columns = "body"  # type: ignore[assignment]


class NoColumns(Fast):
    columns = ()  # type: ignore[assignment]


class OneTwice(Fast):
    columns = ("body", "keys", "body")  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def shop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module ``shop`` with the listeners of this file."""
    module = ModuleType("shop")
    vars(module).update(globals())
    del module.__file__
    module.ready = Fast()  # type: ignore[attr-defined]
    module.number = 5  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shop", module)


@pytest.mark.parametrize(
    ("name", "kind", "columns", "version"),
    [
        ("shop:Orders", ListenerKind.MESSAGE, None, "3"),
        ("shop:consume_message", ListenerKind.MESSAGE, None, ""),
        ("shop:Fast", ListenerKind.BATCH, ("body", "keys"), ""),
        ("shop:ready", ListenerKind.BATCH, ("body", "keys"), ""),
        ("shop:consume_batch", ListenerKind.BATCH, None, ""),
        ("shop:on_columns", ListenerKind.BATCH, ("body",), ""),
    ],
)
def test_a_listener_is_found_and_its_shape_recognised(
    name: str, kind: ListenerKind, columns: tuple[str, ...] | None, version: str
) -> None:
    found = load_listener(name)
    assert (found.kind, found.columns, found.name, found.version) == (kind, columns, name, version)


def test_without_a_version_it_is_the_digest_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "shop_file.py"
    monkeypatch.syspath_prepend(tmp_path)
    versions = []
    for status in (1, 2):
        file.write_text(f"def consume_message(msgs, context):\n    return {status}\n")
        monkeypatch.delitem(sys.modules, "shop_file", raising=False)
        versions.append(load_listener("shop_file:consume_message").version)
        assert versions[-1] == f"sha256:{sha256(file.read_bytes()).hexdigest()[:32]}"
    assert versions[0] != versions[1]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("1.2.0+g12", "1.2.0+g12"), (7, "7"), (None, ""), ('a"b, c\n', "a_b__c_"), ("x" * 500, "x" * 100)],
)
def test_a_version_is_one_short_word(monkeypatch: pytest.MonkeyPatch, version: Any, expected: str) -> None:
    monkeypatch.setattr(sys.modules["shop"].Orders, "version", version)
    assert load_listener("shop:Orders").version == expected


def test_what_an_import_says_names_no_secret() -> None:
    with pytest.raises(ListenerError, match=r"cannot be loaded: Odd: \*\*\*"):
        load_listener("shop:Tells", {"SOME_KEY": "a-secret-of-the-test"})
    assert load_listener("shop:Orders", {"SOME_KEY": "a-secret-of-the-test"}).secrets == ("a-secret-of-the-test",)
    assert "a-secret" not in repr(load_listener("shop:Orders", {"SOME_KEY": "a-secret-of-the-test"}))


def test_a_batch_listener_may_leave_the_context_out() -> None:
    assert load_listener("shop:Fast").call("batch", "context") == ["batch"]
    assert load_listener("shop:consume_batch").call("batch", "context") == ["batch", "context"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shop", "write it as module:attribute"),
        ("shop:", "write it as module:attribute"),
        ("no.such.module:x", "module no.such.module cannot be imported: ModuleNotFoundError"),
        ("shop:Missing", "shop has no attribute Missing"),
        ("shop:number", "is a int: neither a function nor an object"),
        ("shop:Both", "has both consume_message and consume_batch"),
        ("shop:NeedsArguments", r"NeedsArguments\(\) fails: TypeError"),
        ("shop:NotCallable", "its consume_message is a str and cannot be called"),
        ("shop:Orders.consume_message", r"must take \(msgs, context\), it takes \(self"),
        ("shop:one_argument", r"consume_message must take \(msgs, context\), it takes \(msgs"),
        ("shop:one_argument", r"\. A batch listener is named consume_batch, or has the attribute columns$"),
        ("shop:OneName", "columns must be a tuple of column names, it is 'body'"),
        ("shop:NoColumns", "columns must name at least one column"),
        (
            "shop:OneTwice",
            "columns must name each column once, it names body more often: it is \\('body', 'keys', 'body'\\)",
        ),
        ("shop:Exits", "cannot be loaded: SystemExit: 0"),
        ("shop:ExitsInC", r"cannot be loaded: SystemExit: os._exit\(0\)"),
    ],
)
def test_a_listener_that_cannot_be_used_is_refused_with_the_reason(name: str, text: str) -> None:
    with pytest.raises(ListenerError, match=text):
        load_listener(name)
