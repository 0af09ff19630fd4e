"""The count of requests to S3. ``tests/contract/test_request_counter.py`` compares it with a proxy before a real server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from rmq_store.lake.table import request_counter, s3
from rmq_store.lake.table.request_counter import (
    Kind,
    RequestCounter,
    SerialChain,
    counted_requests,
    dollars,
    note_uncounted,
)


@pytest.mark.parametrize(
    ("spans_by_end", "length"),
    [
        ([], 0),
        ([(0, 1)], 1),
        ([(0, 1), (1, 2), (2, 3)], 3),
        ([(0, 2), (1, 3), (1, 4)], 1),
        ([(0, 1), (1, 2), (3, 4), (0, 9)], 3),
        ([(0, 1), (1, 3), (1, 3), (2, 4), (3, 4)], 3),
    ],
)
def test_the_longest_chain_of_requests_that_do_not_overlap(spans_by_end: list[tuple[int, int]], length: int) -> None:
    chain = SerialChain()
    for span in spans_by_end:
        chain.add(*span)
    assert chain.length == length


@pytest.mark.parametrize(
    ("counts", "usd"),
    [
        ({}, 0),
        ({Kind.GET: 1}, 0.000_000_4),
        ({Kind.GET: 1000, Kind.HEAD: 1000}, 0.0008),
        ({Kind.PUT: 1000, Kind.POST: 1000, Kind.LIST: 1000}, 0.015),
        ({Kind.DELETE: 1000}, 0),
    ],
)
def test_the_price_is_the_list_price_of_each_kind(counts: dict[Kind, int], usd: float) -> None:
    assert dollars(counts) == usd


def test_a_summary_has_the_kinds_that_occur_and_what_was_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = RequestCounter()
    assert counter.summary() == {}
    for kind, start_ns, end_ns in [(Kind.LIST, 0, 5), (Kind.GET, 5, 8), (Kind.GET, 6, 9), (Kind.PUT, 9, 20)]:
        monkeypatch.setattr(request_counter, "monotonic_ns", lambda end_ns=end_ns: end_ns)
        counter.add(kind, start_ns)
    complete = {"LIST": 1, "GET": 2, "PUT": 1, "total": 4, "serial": 3, "usd": 0.000_010_8}
    assert counter.summary() == complete
    counter.note_uncounted("a checkpoint")
    counter.note_uncounted("a checkpoint")
    assert counter.summary() == complete | {"uncounted": ["a checkpoint"]}


def client_that_gets(answer: Callable[[Any], AWSResponse], name: str) -> Any:
    """A boto3 client without a network: ``answer`` makes the answer to each request."""
    options = (("AWS_ACCESS_KEY_ID", "k"), ("AWS_REGION", "us-east-1"), ("AWS_SECRET_ACCESS_KEY", name))
    client: Any = s3.client(options, 1)
    client.meta.events.register_last("before-send.s3", lambda request, **_: answer(request))
    return client


def answered(status: int) -> Callable[[Any], AWSResponse]:
    no_headers: Any = {}
    raw: Any = SimpleNamespace(stream=lambda *_, **__: [])
    return lambda request: AWSResponse(request.url, status, no_headers, raw)


def test_each_operation_counts_as_its_kind_also_when_s3_refuses_it() -> None:
    client = client_that_gets(answered(200), "fine")
    of_object = {"Bucket": "b", "Key": "k"}
    with counted_requests() as counter:
        client.list_objects_v2(Bucket="b")
        client.head_bucket(Bucket="b")
        client.head_object(**of_object)
        client.put_object(**of_object, Body=b"x")
        client.delete_object(**of_object)
        client.delete_objects(Bucket="b", Delete={"Objects": [{"Key": "k"}]})
        with pytest.raises(ClientError):
            client_that_gets(answered(403), "refused").get_object(**of_object)
    client.head_object(**of_object)
    kinds = {"LIST": 1, "GET": 1, "HEAD": 2, "PUT": 1, "POST": 1, "DELETE": 1}
    assert kinds.items() <= counter.summary().items()
    assert counter.summary()["serial"] == counter.summary()["total"] == 7


@pytest.mark.parametrize(
    ("error", "total"),
    [
        (EndpointConnectionError(endpoint_url="http://s3"), None),
        (ReadTimeoutError(endpoint_url="http://s3"), 1),
    ],
    ids=["not connected", "no answer"],
)
def test_a_request_counts_once_it_was_sent(error: Exception, total: int | None) -> None:
    def fail(request: Any) -> AWSResponse:
        raise error

    with counted_requests() as counter, pytest.raises(type(error)):
        client_that_gets(fail, type(error).__name__).head_bucket(Bucket="b")
    assert counter.summary().get("total") == total


def test_requests_of_all_threads_count_in_every_count_that_is_under_way() -> None:
    client = client_that_gets(answered(200), "threads")
    with counted_requests() as outer:
        client.head_bucket(Bucket="b")
        with counted_requests() as inner, ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: client.head_bucket(Bucket="b"), range(40)))
            note_uncounted("a checkpoint")
    assert (outer.summary()["HEAD"], inner.summary()["HEAD"]) == (41, 40)
    assert outer.summary()["uncounted"] == inner.summary()["uncounted"] == ["a checkpoint"]
