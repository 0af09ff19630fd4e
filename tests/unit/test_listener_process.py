"""A listener's process: ``os._exit`` is refused while code of a listener may run, and given back; it ends with its task."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

import pytest

from rmq_store.consumer.listener_process import OwnProcess
from rmq_store.lake.listener.shared_memory import BOARD_BYTES, Board
from rmq_store.lake.listener.worker import serve

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


@pytest.mark.parametrize("unread", [[], [b"{}"]])
def test_a_process_ends_with_its_task_also_where_that_has_not_read_the_last_answer(unread: list[bytes]) -> None:
    memory = os.memfd_create("board")
    os.ftruncate(memory, BOARD_BYTES)
    task, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for answer in unread:
        channel.send(answer)
    task.close()
    with channel:
        serve(channel, Board(memory))
    os.close(memory)
