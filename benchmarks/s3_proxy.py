"""A proxy on loopback in front of an S3 server: it records every request and makes each of them slower.

The ``Host`` header is forwarded unchanged, because signatures (SigV4) cover it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from rmq_store.lake.table import request_counter
from rmq_store.lake.table.request_counter import Kind, SerialChain

DELAY_S = 0.03
"""About the time to the first byte of a small object on S3 within a region."""

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "expect", "proxy-connection", "te", "upgrade"})
_OF_THE_ANSWER = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


@dataclass(frozen=True, slots=True)
class S3Request:
    """One request, as the client saw it."""

    kind: Kind
    key: str
    """The object; for a LIST or a HEAD of a bucket ""."""
    status: int
    """Of the answer."""
    start_s: float
    end_s: float
    """Seconds of a monotonic clock: the request is in [start_s, end_s)."""


def kind_of(method: str, target: str) -> Kind:
    """The kind of a path-style request. Raises ValueError for a method that S3 does not have."""
    _, key = _bucket_and_key(target)
    return Kind.LIST if method == "GET" and not key else Kind(method)


def serial(requests: Iterable[S3Request]) -> int:
    """The length of the longest chain in which each request begins after the one before it has ended."""
    chain = SerialChain()
    for request in sorted(requests, key=lambda request: request.end_s):
        chain.add(request.start_s, request.end_s)
    return chain.length


def by_kind(requests: Iterable[S3Request]) -> dict[Kind, int]:
    """The number of requests of each kind that occurs."""
    counts = Counter(request.kind for request in requests)
    return {kind: counts[kind] for kind in Kind if counts[kind]}


def dollars(requests: Iterable[S3Request]) -> float:
    """The price of the requests in US$, without transfer and storage."""
    return request_counter.dollars(by_kind(requests))


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A request with its whole body, as it came."""

    method: str
    target: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    is_chunked: bool
    start_s: float
    """When its headers had been read, in seconds of a monotonic clock."""

    @classmethod
    def received(cls, handler: BaseHTTPRequestHandler) -> Self:
        """Reads the body."""
        start_s = time.monotonic()
        is_chunked = "Transfer-Encoding" in handler.headers
        length = int(handler.headers.get("Content-Length", 0))
        body = _read_chunks(handler.rfile) if is_chunked else handler.rfile.read(length)
        return cls(handler.command, handler.path, tuple(handler.headers.items()), body, is_chunked, start_s)

    @property
    def kind(self) -> Kind:
        return kind_of(self.method, self.target)

    @property
    def key(self) -> str:
        """The object; for a LIST or a HEAD of a bucket ""."""
        return _bucket_and_key(self.target)[1]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it goes to the client."""

    status: int
    head: bytes
    """The status line, the headers and the empty line behind them."""
    content: bytes


class S3Proxy:
    """The proxy, running inside ``with``. ``requests`` has those that were answered, in the order of their ends."""

    def __init__(self, server: str, delay_s: float = DELAY_S) -> None:
        """``server``: the ``http://host:port`` of the real server. ``delay_s``: added to each request."""
        self.requests: list[S3Request] = []
        self.delay_s = delay_s
        self._address = urlsplit(server).netloc
        self._http = _Server(("127.0.0.1", 0), _handler_of(self))
        self._thread = threading.Thread(target=self._http.serve_forever, name="s3-proxy", daemon=True)

    @property
    def endpoint(self) -> str:
        """For ``AWS_ENDPOINT_URL``."""
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def forward(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request with the answer of the real server, and record it."""
        request = ClientRequest.received(handler)
        time.sleep(self.delay_s)
        answer = self.passed_on(request)
        # Recorded before the client can go on, so that its requests are complete when its call returns.
        self.record(request, answer)
        handler.wfile.write(answer.head + answer.content)

    def passed_on(self, request: ClientRequest) -> Answer:
        """The answer of the real server."""
        # A connection for each request: one that is kept may be closed by the server at the wrong moment.
        server = self.connected(request)
        try:
            server.endheaders(request.body or None, encode_chunked=request.is_chunked)
            answer = server.getresponse()
            content = answer.read()
        finally:
            server.close()
        head = [f"HTTP/1.1 {answer.status} {answer.reason}"]
        head += [f"{name}: {value}" for name, value in answer.getheaders() if name.lower() not in _OF_THE_ANSWER]
        # The answer to a HEAD has the length of the object and no content.
        size = answer.getheader("Content-Length", "0") if request.method == "HEAD" else len(content)
        head.append(f"Content-Length: {size}")
        return Answer(answer.status, "\r\n".join([*head, "", ""]).encode("latin-1"), content)

    def connected(self, request: ClientRequest) -> HTTPConnection:
        """A connection to the real server, on which the request begins: its line and its headers, not yet ended."""
        server = HTTPConnection(self._address)
        server.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers:
            if name.lower() not in _HOP_BY_HOP:
                server.putheader(name, value)
        server.putheader("Connection", "close")
        return server

    def record(self, request: ClientRequest, answer: Answer) -> None:
        self.requests.append(S3Request(request.kind, request.key, answer.status, request.start_s, time.monotonic()))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients are killed in the soak, and Python would print each connection that ends so."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # as Python has passed it


def _handler_of(proxy: S3Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _forward(self) -> None:
            proxy.forward(self)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward

        def log_message(self, format: str, *args: object) -> None:
            """``requests`` is the log."""

    return Handler


def _bucket_and_key(target: str) -> tuple[str, str]:
    bucket, _, key = urlsplit(target).path.removeprefix("/").partition("/")
    return bucket, unquote(key)


def _read_chunks(body: BufferedIOBase) -> bytes:
    """The content of a body in chunks (RFC 9112, 7.1), which is at its end afterwards. The client here is pyarrow."""
    content = b""
    while size := int(body.readline().partition(b";")[0], 16):
        content += body.read(size)
        body.readline()
    while body.readline().strip():
        pass  # trailers
    return content
