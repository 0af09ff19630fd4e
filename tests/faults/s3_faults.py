"""A proxy in front of the real S3 server that answers chosen requests wrongly, and options under which waiting is short."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote

import pytest

from benchmarks.s3_proxy import Answer, ClientRequest, S3Proxy
from rmq_store.lake.table import s3, stage
from rmq_store.lake.table.request_counter import Kind


class Fault(StrEnum):
    """What happens to one request. The first ones happen before it takes effect."""

    SLOW_DOWN = "503 SlowDown"
    INTERNAL = "500 InternalError"
    CONFLICT = "409 ConditionalRequestConflict"
    TAKEN = "412 PreconditionFailed"
    FORBIDDEN = "403 AccessDenied"
    NO_BUCKET = "404 NoSuchBucket"
    REFUSED = "the connection is reset before the server has the request"
    PARTIAL = "the server gets half of the body, then the connection is reset"
    LOST = "the server does it, and the connection is reset"
    CUT = "the server does it, and the answer ends in the middle"
    HEADLESS = "the server does it, and the answer ends within its head"
    SILENT = "the server does it, and the answer does not come"
    SHORT = "the server does it, and the answer is half of it and says so in its Content-Length"


TRANSIENT = (
    Fault.SLOW_DOWN,
    Fault.INTERNAL,
    Fault.REFUSED,
    Fault.PARTIAL,
    Fault.LOST,
    Fault.CUT,
    Fault.HEADLESS,
    Fault.SILENT,
)
"""A client that tries again succeeds."""
FINAL = (Fault.FORBIDDEN, Fault.NO_BUCKET)
"""S3's own last word."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request, and its number since ``begin``, from 0 on."""

    number: int
    kind: Kind
    key: str
    target: str
    """The path and the query of the request, decoded."""

    def __str__(self) -> str:
        return f"{self.number} {self.kind} {self.key or 'bucket'}"


Decide = Callable[[Call], Fault | None]


def nth(number: int, fault: Fault) -> Decide:
    """Only this call fails."""
    return lambda call: fault if call.number == number else None


def first_of(kind: Kind, part: str, fault: Fault) -> Decide:
    """Only the first call of this kind fails that has ``part`` in its target."""
    found: list[Call] = []

    def decide(call: Call) -> Fault | None:
        if found or call.kind is not kind or part not in call.target:
            return None
        found.append(call)
        return fault

    return decide


def each_once(fault: Fault) -> Decide:
    """Of calls with the same target the first one of each kind fails."""
    seen: set[tuple[Kind, str]] = set()

    def decide(call: Call) -> Fault | None:
        if (call.kind, call.target) in seen:
            return None
        seen.add((call.kind, call.target))
        return fault

    return decide


def from_nth(number: int, fault: Fault) -> Decide:
    """This call fails, and each one behind it."""
    return lambda call: fault if call.number >= number else None


def first_line(head: bytes) -> bytes:
    """With its end."""
    return head[: head.index(b"\n") + 1]


class FaultyS3Proxy(S3Proxy):
    """``begin`` chooses which requests fail, and how. ``kept``: what of its head an answer has that ends within it."""

    def __init__(self, server: str) -> None:
        super().__init__(server, delay_s=0)
        self.calls: list[Call] = []
        self._decide: Decide = lambda call: None
        self._numbering = threading.Lock()
        self.kept: Callable[[bytes], bytes] = first_line

    def begin(self, decide: Decide = lambda call: None) -> None:
        """Count from 0 again. ``decide``: asked for each request; None: answer it as the server does."""
        with self._numbering:
            self.calls, self._decide = [], decide

    def forward(self, handler: BaseHTTPRequestHandler) -> None:
        request = ClientRequest.received(handler)
        with self._numbering:
            call = Call(len(self.calls), request.kind, request.key, unquote(request.target))
            self.calls.append(call)
            fault = self._decide(call)
        match fault:
            case None:
                answer = self.passed_on(request)
                self.record(request, answer)
                handler.wfile.write(answer.head + answer.content)
            case Fault.REFUSED:
                _reset(handler)
            case Fault.PARTIAL:
                self._pass_half_on(request)
                _reset(handler)
            case Fault.LOST:
                self.passed_on(request)
                _reset(handler)
            case Fault.CUT:
                answer = self.passed_on(request)
                whole = answer.head + answer.content
                kept = len(answer.head) + len(answer.content) // 2 if answer.content else len(answer.head) // 2
                handler.wfile.write(whole[:kept])
                _end(handler)
            case Fault.SHORT:
                answer = self.passed_on(request)
                handler.wfile.write(_half(answer))
            case Fault.HEADLESS:
                answer = self.passed_on(request)
                handler.wfile.write(self.kept(answer.head))
                _end(handler)
            case Fault.SILENT:
                self.passed_on(request)
                handler.connection.recv(1)  # until the client gives up
                _end(handler)
            case _:
                answer = _error(request, fault)
                handler.wfile.write(answer.head + answer.content)

    def _pass_half_on(self, request: ClientRequest) -> None:
        server = self.connected(request)
        try:
            if request.body and not request.is_chunked:
                server.endheaders(request.body[: len(request.body) // 2])
        finally:
            server.close()


def _error(request: ClientRequest, fault: Fault) -> Answer:
    status, code = fault.split()
    content = (
        b"" if request.method == "HEAD" else f"<Error><Code>{code}</Code><Message>a test</Message></Error>".encode()
    )
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(content)}\r\n\r\n"
    return Answer(int(status), head.encode(), content)


def _half(answer: Answer) -> bytes:
    """With half of the content, and the head of such an answer."""
    content = answer.content[: len(answer.content) // 2]
    length = b"Content-Length: %d\r\n"
    return answer.head.replace(length % len(answer.content), length % len(content)) + content


def _reset(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _end(handler)


def _end(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


@contextmanager
def short_waits(read_timeout_s: int = s3.READ_TIMEOUT_S) -> Iterator[None]:
    """Tries follow each other at once; what is tried, and how often, is unchanged. The clients are new: one that has tried
    very often tries no more. ``read_timeout_s``: how long an answer is waited for; 1 where a fault is SILENT."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(s3, "READ_TIMEOUT_S", read_timeout_s)
        patch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda self, context: 0)
        for retries in (s3.RETRIES, s3.put_if_absent.retry, stage.TRIES):
            patch.setattr(retries, "sleep", lambda seconds: None)
        s3.client.cache_clear()
        yield
    s3.client.cache_clear()
