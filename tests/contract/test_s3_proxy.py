"""The counting proxy in front of the real S3 server: signatures hold, contents are unchanged, every request is recorded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.s3_proxy import S3Proxy
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.request_counter import Kind
from tests.s3 import S3Root


@pytest.fixture
def proxy(s3_root: S3Root) -> Iterator[S3Proxy]:
    with S3Proxy(s3_root.env["AWS_ENDPOINT_URL"], delay_s=0) as running:
        yield running


def root_behind(proxy: S3Proxy, s3_root: S3Root) -> Root:
    return Root.parse(s3_root.uri, {**s3_root.env, "AWS_ENDPOINT_URL": proxy.endpoint})


def test_every_request_is_recorded_and_answered_as_by_the_server(proxy: S3Proxy, s3_root: S3Root) -> None:
    root = root_behind(proxy, s3_root)
    content = bytes(range(256)) * 4096
    assert root.create_exclusively("folder/a name", content)
    assert not root.create_exclusively("folder/a name", b"other")
    assert root.read("folder/a name") == content
    assert root.read("folder/a name", 2, 5) == bytes([2, 3, 4])
    assert root.size("folder/a name") == len(content)
    assert root.list("folder") == [("folder/a name", len(content))]
    with pytest.raises(FileNotFoundError):
        root.size("missing")
    names = [(request.kind, request.status) for request in proxy.requests if request.kind != Kind.LIST]
    assert names[:2] == [(Kind.PUT, 200), (Kind.PUT, 412)]
    assert names[-4:] == [(Kind.GET, 200), (Kind.GET, 206), (Kind.HEAD, 200), (Kind.HEAD, 404)]
    assert [request.key for request in proxy.requests if request.kind == Kind.LIST] == [""]
    assert proxy.requests[0].key == "stores/one/folder/a name"
    assert all(request.start_s <= request.end_s for request in proxy.requests)


def test_files_that_pyarrow_writes_in_chunks_arrive(proxy: S3Proxy, s3_root: S3Root) -> None:
    filesystem, folder = root_behind(proxy, s3_root).filesystem()
    content = bytes(range(256)) * 50_000
    with filesystem.open_output_stream(f"{folder}/file") as sink:
        sink.write(content)
    assert s3_root.root.read("file") == content
    assert {request.kind for request in proxy.requests} <= {Kind.PUT, Kind.POST, Kind.HEAD}


@pytest.mark.parametrize(("error", "is_printed"), [(ConnectionResetError(), False), (ValueError("a defect"), True)])
def test_a_client_that_goes_away_is_not_printed(
    proxy: S3Proxy, error: Exception, is_printed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise error
    except Exception:
        proxy._http.handle_error(None, ("127.0.0.1", 0))
    assert str(error) in capsys.readouterr().err if is_printed else not capsys.readouterr().err
