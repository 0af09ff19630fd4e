"""What every engine promises of a listener that ends or doubles the process in the methods of its answer, its exception or
its context, which are called when these are read or dropped. See ``test_engines.py``."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_store.consumer.listener import ConsumeFailed
from rmq_store.errors import ListenerError
from rmq_store.message.message import MessageExt
from rmq_store.settings.settings import GroupSettings
from tests.contract.engines import LakeWorld, story
from tests.contract.world import DAY, World, group, orders, several

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

MODES: dict[str, tuple[GroupSettings, str]] = {
    "concurrently": (group(), "CONSUME_SUCCESS"),
    "arrow": (replace(group(), listener=f"{__name__}:Batches"), "CONSUME_SUCCESS"),
    "orderly": (group(mode="orderly", suspend_tries_per_window=1), "SUCCESS"),
}


WITH_A_MEANING = ("str", "str of a cause", "del of an error", "del", "del in the context", "number")
COMMITTED = {*((mode, place) for mode in MODES for place in WITH_A_MEANING)}
"""All else is no answer that could be read."""

COPIES: list[int] = []


def leave(*_: object) -> Any:
    os._exit(0)


def double(*_: object) -> Any:
    """Remember how the copy of this process ended: it is killed where it comes back to the test."""
    if copy := os.fork():
        COPIES.append(os.waitpid(copy, 0)[1])
    return "doubled"


def having(base: type[Any], then: Callable[..., Any], *methods: str) -> type[Any]:
    return type("Having", (base,), {**dict.fromkeys(methods, then), "__module__": __name__})


def raising(error: BaseException) -> None:
    raise error


def put(context: Any, name: str, value: Any) -> object:
    setattr(context, name, value)
    return None


def tables(then: Callable[..., Any]) -> dict[str, Callable[[Any, str], Any]]:
    """(context, success) -> what the listener does, by where it runs ``then``. A new object each time: one may be dropped."""

    def error(*methods: str) -> BaseException:
        exception: BaseException = having(Exception, then, *methods)("x")
        return exception

    return {
        "str": lambda context, ok: raising(error("__str__")),
        "str of a cause": lambda context, ok: raising(ConsumeFailed(0, error("__str__"))),
        "del of an error": lambda context, ok: raising(error("__del__")),
        "repr": lambda context, ok: having(object, then, "__repr__")(),
        "iter": lambda context, ok: having(list, then, "__iter__")([ok] * 3),
        "len": lambda context, ok: having(list, then, "__len__")([ok] * 3),
        "item": lambda context, ok: having(list, then, "__getitem__", "__iter__")([ok] * 3),
        "eq": lambda context, ok: having(str, then, "__eq__", "__hash__")("MAYBE"),
        "del": lambda context, ok: having(str, then, "__del__")(ok),
        "del in the context": lambda context, ok: (put(context, "group", having(str, then, "__del__")("g")), ok)[1],
        "number": lambda context, ok: (
            put(context, "delay_level_when_next_consume" if "CONSUME" in ok else "suspend_current_queue_time_millis",
                having(int, then, "__index__", "__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__add__", "__hash__")(1)),
            ok,
        )[1],
    }  # fmt: skip


PLACES = list(tables(leave))
NEVER_ASKED = {
    *((mode, place) for mode in MODES for place in ("eq", "number")),
    *(("orderly", place) for place in ("iter", "len", "item")),
}
"""Only what Python's own ``str``, ``int`` and ``list`` say is looked at."""


def consume_once(world: World, mode: str, place: str, then: Callable[..., Any]) -> None:
    """One window, which commits or says what is wrong."""
    settings, ok = MODES[mode]

    def listener(msgs: list[MessageExt], context: Any) -> Any:
        return tables(then)[place](context, ok)

    if (mode, place) not in COMMITTED:
        with pytest.raises(ListenerError, match="batch at offset 0: ") as told:
            world.consume(settings, f"{DAY}-1", listener)
        assert (told.value.__cause__, told.value.__context__) == (None, None)
        assert world.offset(orders(0)) is None
        return
    report = world.consume(settings, f"{DAY}-1", listener)
    assert report.status == "committed"
    assert {type(one.error_text) for one in report.blocked} <= {str, type(None)}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
@story
def test_what_is_read_and_dropped_of_a_listener_cannot_end_the_process(world: World, mode: str, place: str) -> None:
    world.fill(orders(0), several(3))
    consume_once(world, mode, place, leave)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
@story
def test_what_is_read_and_dropped_of_a_listener_cannot_double_the_window(world: World, mode: str, place: str) -> None:
    world.fill(orders(0), several(3))
    mine = os.getpid()
    COPIES.clear()
    try:
        consume_once(world, mode, place, double)
    finally:
        if os.getpid() != mine:
            os.kill(os.getpid(), signal.SIGKILL)
    assert all(os.WIFEXITED(copy) for copy in COPIES)
    assert bool(COPIES) is ((mode, place) not in NEVER_ASKED)


class Batches:
    columns = ("body",)
    then: Callable[..., Any] = leave
    place = ""

    def consume_batch(self, batch: pa.RecordBatch, context: Any) -> Any:
        return tables(Batches.then)[Batches.place](context, "CONSUME_SUCCESS")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("then", [leave, double])
def test_an_arrow_listener_can_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: Callable[..., Any], place: str
) -> None:
    world = LakeWorld(tmp_path)
    world.fill(orders(0), several(3))
    monkeypatch.setattr(Batches, "then", then)
    monkeypatch.setattr(Batches, "place", place)
    mine = os.getpid()
    COPIES.clear()
    try:
        consume_once(world, "arrow", place, then)
    finally:
        if os.getpid() != mine:
            os.kill(os.getpid(), signal.SIGKILL)
    assert all(os.WIFEXITED(copy) for copy in COPIES)
    assert bool(COPIES) is (then is double and ("arrow", place) not in NEVER_ASKED)
