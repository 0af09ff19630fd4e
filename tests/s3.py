"""A real S3 server for tests, on loopback."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.s3_proxy import S3Proxy
from benchmarks.s3_server import S3Server, s3_server_in
from rmq_store.lake.table.object_store import Root

__all__ = ["CountedRoot", "S3Root", "S3Server", "counted", "s3_root", "s3_server"]


@dataclass(frozen=True, slots=True)
class S3Root:
    """An empty ``s3://`` root of its own, and the environment that a process needs to use it."""

    uri: str
    env: Mapping[str, str]

    @property
    def root(self) -> Root:
        return Root.parse(self.uri, self.env)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server_in(tmp_path_factory.mktemp("s3proxy")) as server:
        yield server


@pytest.fixture
def s3_root(s3_server: S3Server) -> S3Root:
    return S3Root(f"s3://{s3_server.new_bucket()}/stores/one", dict(s3_server.env))


@pytest.fixture(params=["folder", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    """An empty place in a folder, and one in S3."""
    if request.param == "folder":
        return Root.parse(str(tmp_path / "store"))
    s3_root: S3Root = request.getfixturevalue("s3_root")
    return s3_root.root


@dataclass(frozen=True, slots=True)
class CountedRoot:
    """A root behind a proxy that records each request."""

    root: Root
    proxy: S3Proxy

    def of(self, path: str) -> list[str]:
        """The kinds of the requests for an object of the root, in the order of their arrival."""
        key = self.root.filesystem()[1].partition("/")[2] + f"/{path}"
        return [str(request.kind) for request in self.proxy.requests if request.key == key]


@contextmanager
def counted(s3_root: S3Root) -> Iterator[CountedRoot]:
    """The same root, with every request counted."""
    with S3Proxy(s3_root.env["AWS_ENDPOINT_URL"], delay_s=0) as proxy:
        yield CountedRoot(Root.parse(s3_root.uri, {**s3_root.env, "AWS_ENDPOINT_URL": proxy.endpoint}), proxy)
