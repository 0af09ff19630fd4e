"""What the benchmarks and tests compute from recorded requests. ``tests/contract/test_s3_proxy.py`` has the proxy itself."""

from __future__ import annotations

import pytest

from benchmarks.s3_proxy import S3Request, by_kind, dollars, kind_of, serial
from rmq_store.lake.table.request_counter import Kind


def request(start_s: float, end_s: float, kind: Kind = Kind.GET) -> S3Request:
    return S3Request(kind, "key", 200, start_s, end_s)


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ([], 0),
        ([(0, 1)], 1),
        ([(0, 1), (1, 2), (2, 3)], 3),
        ([(0, 2), (1, 3), (1.5, 4)], 1),
        ([(0, 9), (0, 1), (1, 2), (3, 4)], 3),
        ([(3, 4), (0, 1), (1, 3)], 3),
    ],
)
def test_the_longest_chain_of_requests_that_do_not_overlap(spans: list[tuple[float, float]], length: int) -> None:
    assert serial(request(*span) for span in spans) == length


@pytest.mark.parametrize(
    ("method", "target", "kind"),
    [
        ("GET", "/bucket?list-type=2&prefix=store%2F", Kind.LIST),
        ("GET", "/bucket/?list-type=2", Kind.LIST),
        ("GET", "/bucket/store/store.json", Kind.GET),
        ("HEAD", "/bucket", Kind.HEAD),
        ("PUT", "/bucket/key?partNumber=1&uploadId=x", Kind.PUT),
        ("POST", "/bucket/key?uploads", Kind.POST),
        ("DELETE", "/bucket/key", Kind.DELETE),
    ],
)
def test_the_kind_of_a_request(method: str, target: str, kind: Kind) -> None:
    assert kind_of(method, target) == kind


def test_a_method_that_s3_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="PATCH"):
        kind_of("PATCH", "/bucket/key")


def test_the_price_is_the_list_price_of_each_kind() -> None:
    kinds = [Kind.LIST, Kind.PUT, Kind.POST, Kind.GET, Kind.HEAD, Kind.DELETE]
    requests = [request(0, 1, kind) for kind in kinds] * 1000
    assert dollars(requests) == pytest.approx(3 * 0.005 + 2 * 0.0004)
    assert by_kind(requests[:4]) == {Kind.LIST: 1, Kind.GET: 1, Kind.PUT: 1, Kind.POST: 1}
