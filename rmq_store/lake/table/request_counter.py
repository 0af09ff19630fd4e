"""The requests to S3 that this process makes: how many of each kind, how many one after the other, and their list price.

Each attempt of a request counts, as S3 counts it. What other processes do is not seen, nor is what libraries do with
clients of their own: ``note_uncounted`` names it, so that a count never looks complete when it is not.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rmq_store.utils.host import monotonic_ns

if TYPE_CHECKING:
    from botocore.hooks import BaseEventHooks


class Kind(StrEnum):
    """The kinds of requests that have prices of their own."""

    LIST = "LIST"
    GET = "GET"
    HEAD = "HEAD"
    PUT = "PUT"
    POST = "POST"
    DELETE = "DELETE"


PRICES = {
    Kind.LIST: 0.005,
    Kind.PUT: 0.005,
    Kind.POST: 0.005,
    Kind.GET: 0.0004,
    Kind.HEAD: 0.0004,
    Kind.DELETE: 0.0,
}
"""US$ per 1,000 requests: S3 Standard, us-east-1, list price."""

_DIGITS = 7
"""Of a price in US$: one GET is 0.0000004."""


def dollars(counts: Mapping[Kind, int]) -> float:
    """The price of so many requests in US$, without transfer and storage."""
    return round(sum(PRICES[kind] * count for kind, count in counts.items()) / 1000, _DIGITS)


class SerialChain:
    """The longest chain of requests in which each begins after the one before it has ended."""

    def __init__(self) -> None:
        self.length = 0
        self._free_at = float("-inf")

    def add(self, start: float, end: float) -> None:
        """A request in ``[start, end)``, by any one clock. Requests are added in the order of their ends."""
        if start >= self._free_at:
            self.length, self._free_at = self.length + 1, end


class RequestCounter:
    """The requests that ended while it was counting. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Kind] = Counter()
        self._chain = SerialChain()
        self._uncounted: dict[str, None] = {}

    def add(self, kind: Kind, start_ns: int) -> None:
        """A request that ends now. ``start_ns``: ``monotonic_ns`` at its start."""
        with self._lock:  # the end is read inside, so that ends arrive in order
            self._counts[kind] += 1
            self._chain.add(start_ns, monotonic_ns())

    def note_uncounted(self, what: str) -> None:
        with self._lock:
            self._uncounted[what] = None

    def summary(self) -> dict[str, Any]:
        """As JSON: a number for each kind that occurs, ``total``, ``serial`` (the length of the longest chain in which each
        request begins after the one before it has ended), ``usd`` (list price) and, only where something was not counted,
        ``uncounted``. Empty when there was no request."""
        with self._lock:
            if not self._counts:
                return {}
            counts = {kind: self._counts[kind] for kind in Kind if self._counts[kind]}
            uncounted = {"uncounted": list(self._uncounted)} if self._uncounted else {}
            totals = {"total": sum(counts.values()), "serial": self._chain.length, "usd": dollars(counts)}
            return {str(kind): count for kind, count in counts.items()} | totals | uncounted


_COUNTING: tuple[RequestCounter, ...] = ()
_CHANGING = threading.Lock()


@contextmanager
def counted_requests() -> Iterator[RequestCounter]:
    """Count all requests of this process, of every thread and client, until the end of ``with``."""
    global _COUNTING
    counter = RequestCounter()
    with _CHANGING:
        _COUNTING = (*_COUNTING, counter)
    try:
        yield counter
    finally:
        with _CHANGING:
            _COUNTING = tuple(one for one in _COUNTING if one is not counter)


def note_uncounted(what: str) -> None:
    """Name work that makes requests which are not counted, for the counts that are under way."""
    for counter in _COUNTING:
        counter.note_uncounted(what)


def count_requests_of(events: BaseEventHooks) -> None:
    """Count every request of the boto3 client for S3 with these events. botocore announces each attempt before it is sent,
    and its answer in the same thread."""
    from botocore.exceptions import ConnectionError as NotConnected

    attempt = threading.local()

    def before_send(request: Any, **_: object) -> None:
        attempt.method, attempt.start_ns = request.method, monotonic_ns()

    def response_received(event_name: str, exception: Exception | None, **_: object) -> None:
        if isinstance(exception, NotConnected):  # S3 did not get it
            return
        operation = event_name.rpartition(".")[2]
        kind = Kind.LIST if operation.startswith("List") else Kind(attempt.method)
        for counter in _COUNTING:
            counter.add(kind, attempt.start_ns)

    events.register("before-send.s3", before_send)
    events.register("response-received.s3", response_received)
