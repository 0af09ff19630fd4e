"""A listener's ``os._exit`` is refused for as long as any code of a listener may run, and given back behind it."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from rmq_store.consumer.listener_process import OwnProcess

REAL = os._exit


def test_blocks_in_each_other_refuse_until_the_last_one_ends() -> None:
    with OwnProcess():
        with OwnProcess(), pytest.raises(SystemExit):
            os._exit(0)
        with pytest.raises(SystemExit):
            os._exit(0)
    assert os._exit is REAL


def test_blocks_of_two_threads_may_end_in_any_order() -> None:
    first, second = ExitStack(), ExitStack()
    first.enter_context(OwnProcess())
    second.enter_context(OwnProcess())
    first.close()
    with pytest.raises(SystemExit):
        os._exit(0)
    second.close()
    assert os._exit is REAL
