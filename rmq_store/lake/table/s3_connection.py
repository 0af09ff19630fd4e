"""The connections of our clients of S3: an answer that ends within its head is an error, not an empty answer.

``http.client`` takes the end of a connection for the end of the headers. What is left of such an answer has no Content-Length,
so nothing seems to be missing: a list is empty, a file has no bytes. TLS does not show it either, as urllib3 accepts a
connection that ends without TLS's own goodbye.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, BinaryIO

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_END_OF_HEAD = (b"\r\n", b"\n")
_CUT = "the answer ended within its head"


def refuse_cut_heads(client: S3Client) -> None:
    """Let the connections that this client will make, also by a proxy, raise an error for an answer that ends within its head.
    botocore makes ConnectionClosedError of it, as of an answer that did not begin.

    botocore has no setting for it. Only this client is changed: the dict is its session's own, which its pool managers share.
    """
    session = client._endpoint.http_session  # type: ignore[attr-defined]
    session._pool_classes_by_scheme.update(http=_Pool, https=_TlsPool)


class _WholeHeads:
    """What the connections do otherwise than botocore's."""

    response_class: Callable[..., Any]

    def getresponse(self) -> Any:
        """Raises HTTPException when the answer ends within its head."""
        # botocore sets it at each request, and again where it has read the status line itself.
        self.response_class = functools.partial(_with_whole_head, self.response_class)
        return super().getresponse()  # type: ignore[misc]

    def _consume_headers(self, fp: BinaryIO) -> None:
        """Read what follows the line ``100 Continue``. botocore's own loop never ends where the connection does."""
        while (line := fp.readline()) not in _END_OF_HEAD:
            if not line:
                raise HTTPException(_CUT)


class _Connection(_WholeHeads, AWSHTTPConnection):  # type: ignore[misc]  # as botocore's own class
    pass


class _TlsConnection(_WholeHeads, AWSHTTPSConnection):  # type: ignore[misc]  # as botocore's own class
    pass


class _Pool(AWSHTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(AWSHTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def _with_whole_head(response_class: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A response whose ``begin``, which reads the head, raises HTTPException unless the head ends with its empty line."""
    response = response_class(*args, **options)

    def begin_and_check(**options: Any) -> None:
        del response.begin  # what follows is the method again, and the response no longer refers to itself
        stream = response.fp
        response.fp = head = _Head(stream)
        try:
            response.begin(**options)
        finally:
            if response.fp is head:  # None after an error in the status line
                response.fp = stream
        if head.last_line not in _END_OF_HEAD:
            raise HTTPException(_CUT)

    response.begin = begin_and_check
    return response


class _Head:
    """The stream of an answer while its head is read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.last_line = b""

    def readline(self, limit: int = -1) -> bytes:
        self.last_line = self._stream.readline(limit)
        return self.last_line

    def close(self) -> None:
        self._stream.close()
