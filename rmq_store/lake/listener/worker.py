"""The process of a listener: it loads the listener and calls it, as the task at the other end of a socket asks.

Requests and answers are JSON, one message each; rows and answers of rows are in shared memory. The process ends when the
socket does.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rmq_store.consumer.consume_orderly import orderly_call
from rmq_store.consumer.listener import ConsumeOrderlyStatus, Listener, load_listener
from rmq_store.errors import ListenerError
from rmq_store.lake.listener.calls import CallRules, RowsToConsume, calls_of
from rmq_store.lake.listener.shared_memory import Board, MappedRows
from rmq_store.lake.read.message_view import MessageViews
from rmq_store.message.message import MessageExt, MessageQueue
from rmq_store.utils.host import epoch_ms
from rmq_store.utils.process_limits import address_space, set_limit

MOST_REQUEST = 1 << 20
"""Bytes of a request or an answer."""

_MOST_AHEAD_MS = 100
"""So long an orderly listener is called for messages that were not asked for yet: the window's time may be over."""

_CLOSED = "the listener has closed the connection to the process of its task ({})"


def serve(channel: socket.socket, board: Board) -> None:
    """Answer requests until the other end is closed."""
    worker = _Worker(board)
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(channel, MOST_REQUEST, 1)
        except ConnectionResetError:  # the task was killed before it read the last answer
            return
        except OSError as error:
            sys.exit(_CLOSED.format(error))
        if not data:
            return
        request = json.loads(data)
        answer = worker.answer(request, fds)
        if answer is not None:
            try:
                channel.send(json.dumps({"request": request["request"]} | answer).encode())
            except OSError as error:
                sys.exit(_CLOSED.format(error))


class _Worker:
    """The state between requests."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._listener: Listener | None = None
        self._rows: MappedRows | None = None
        self._shared: dict[int, list[MessageExt]] = {}
        self._cpu_s: int | None = None

    def answer(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any] | None:
        """The answer; None for a request that has none."""
        operations: dict[str, Callable[[Mapping[str, Any], list[int]], dict[str, Any] | None]] = {
            "load": self._load,
            "ask": self._ask,
            "share": self._share,
            "call": self._call,
        }
        try:
            return operations[request["do"]](request, fds)
        except ListenerError as error:
            return {"error": str(error)}

    def _load(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        """Load the listener, in a new process after its environment and limits were set."""
        self._board.begin(request["request"], 0, 0)
        if (first := request.get("first")) is not None:
            os.environ.clear()
            os.environ.update(first["environment"])
            sys.path[:] = first["path"]
            os.chdir(first["folder"])
            set_limit(resource.RLIMIT_CORE, 0)
            if first["memory_mib"] is not None:
                set_limit(resource.RLIMIT_AS, address_space() + (first["memory_mib"] << 20))
            self._cpu_s = first["cpu_s"]
        self._limit_cpu()
        self._shared.clear()
        self._listener = listener = load_listener(request["listener"])
        return {"kind": str(listener.kind), "columns": listener.columns, "version": listener.version}

    # --- concurrent ---

    def _ask(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        if fds:
            self._rows = MappedRows(fds[0], request["size"])
        assert self._rows is not None
        self._run(request, self._rows.read(request["bytes"], MessageQueue(*request["queue"])))
        return {"kept": self._rows.is_kept()}

    def _run(self, request: Mapping[str, Any], rows: RowsToConsume) -> None:
        board, begin, end = self._board, request["begin"], request["end"]
        assert self._listener is not None
        board.begin(request["request"], begin, end)
        rules = CallRules(*request["rules"])
        self._limit_cpu()
        for judged, failed, answers in calls_of(self._listener, rules, rows, begin, end, request["batch"], epoch_ms):
            board.add(failed, answers)
            board.set_judged(judged)
            if board.is_full:
                return
            self._limit_cpu()

    # --- in order ---

    def _share(self, request: Mapping[str, Any], fds: list[int]) -> None:
        rows = MappedRows(fds[0], request["size"]).read(request["bytes"], MessageQueue(*request["queue"]))
        views = MessageViews(rows.queue, rows.offsets, rows.batch)
        self._shared[request["number"]] = views.messages(0, len(rows.offsets))

    def _call(self, request: Mapping[str, Any], fds: list[int]) -> dict[str, Any]:
        """Call the listener for batches of messages, until one is answered with something else than SUCCESS."""
        assert self._listener is not None
        queue, size = MessageQueue(*request["queue"]), request["batch"]
        for number in [number for number in self._shared if number < request["oldest"]]:
            del self._shared[number]
        messages = [one for number, begin, end in request["parts"] for one in self._shared[number][begin:end]]
        for message, times in zip(messages, request["times"], strict=True):
            message.reconsume_times = times
        call = orderly_call(self._listener, queue, request["group"])
        self._board.begin(request["request"], 0, 0)
        ends_at_ms = epoch_ms() + _MOST_AHEAD_MS
        for succeeded, begin in enumerate(range(0, len(messages), size), 1):
            self._limit_cpu()
            answer = call(messages[begin : begin + size])
            if answer.status is not ConsumeOrderlyStatus.SUCCESS or not answer.auto_commit:
                return {
                    "status": str(answer.status),
                    "auto_commit": answer.auto_commit,
                    "suspend_ms": answer.suspend_ms,
                    "error_type": answer.failed.error_type,
                    "error_text": answer.failed.error_text,
                }
            self._board.set_judged(succeeded)
            if epoch_ms() >= ends_at_ms:
                break
        return {"status": None}

    def _limit_cpu(self) -> None:
        """The next call may use so much CPU time; more ends the process with SIGXCPU."""
        if self._cpu_s is not None:
            used = resource.getrusage(resource.RUSAGE_SELF)
            set_limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + self._cpu_s)
