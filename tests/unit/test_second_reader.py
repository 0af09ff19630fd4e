"""The Delta library is called so that a call that never ends holds up nothing else."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import wait
from threading import Event, Thread, main_thread

import pytest

from rmq_store.errors import LogDamaged
from rmq_store.lake.table import second_reader
from rmq_store.lake.table.second_reader import in_time

SOON_S = 0.01


class Panic(BaseException):
    """As that of native code, which is no Exception either."""


@pytest.fixture
def endless() -> Iterator[Event]:
    """What an endless call waits for; it is set at last."""
    end = Event()
    yield end
    end.set()
    wait(second_reader._late)
    second_reader._late.clear()


def test_it_returns_and_raises_as_the_call() -> None:
    def damaged() -> None:
        raise LogDamaged("the log", "restore it.")

    assert in_time(lambda: 7) == 7
    with pytest.raises(LogDamaged, match=r"the log\. restore it"):
        in_time(damaged)


def test_a_call_that_does_not_end_is_an_error_and_no_other_is_made_until_it_has(endless: Event) -> None:
    with pytest.raises(OSError, match=r"the Delta library has not answered for 0\.01 s"):
        in_time(endless.wait, SOON_S)
    with pytest.raises(OSError, match="not called again in this process: an earlier call has not ended"):
        in_time(lambda: pytest.fail("it was called"))
    endless.set()
    wait(second_reader._late)
    assert in_time(lambda: 7) == 7


def test_a_panic_is_an_error() -> None:
    def panics() -> None:
        raise Panic("OS can't spawn worker thread")

    with pytest.raises(OSError, match="the Delta library has failed: OS can't spawn worker thread"):
        in_time(panics)


def test_where_no_thread_can_be_started_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refused)
    with pytest.raises(OSError, match="the Delta library was not called: can't start new thread"):
        in_time(lambda: pytest.fail("it was called"))


def test_a_signal_waits_for_the_end_of_the_call() -> None:
    ended = Event()

    def interrupted() -> None:
        signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
        Event().wait(0.1)  # for the main thread, if it does not wait
        ended.set()

    # What a shell starts in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_time(interrupted)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set()
