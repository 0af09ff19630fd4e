"""An answer of S3 that ends within its head is no answer: nothing is empty, older or damaged because of it."""

from __future__ import annotations

import itertools
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from benchmarks.s3_proxy import ClientRequest
from rmq_store.commit.append import PutAnswer
from rmq_store.errors import StoreUnusable
from rmq_store.lake.table import s3, s3_connection
from rmq_store.lake.table.object_store import TAIL_BYTES, Root
from rmq_store.lake.table.request_counter import Kind
from tests.faults.operations import Answer, World, made_world, run
from tests.faults.s3_faults import Fault, FaultyS3Proxy, first_line, first_of, nth, short_waits
from tests.s3 import S3Root, S3Server

QUEUES = "SELECT topic, queue_id, min_offset, max_offset FROM queues ORDER BY ALL"


@pytest.fixture(autouse=True)
def _short_waits() -> Iterator[None]:
    with short_waits():
        yield


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultyS3Proxy]:
    with FaultyS3Proxy(s3_server.endpoint) as running:
        yield running


# --- commands --------------------------------------------------------------------------------------------------------


@pytest.fixture
def _through_the_proxy(s3_server: S3Server, proxy: FaultyS3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (dict(s3_server.env) | {"AWS_ENDPOINT_URL": proxy.endpoint}).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return made_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def place(s3_server: S3Server, world: World) -> str:
    """The bucket of the world's place."""
    bucket = s3_server.new_bucket()
    shutil.copytree(world.place, s3_server.data / bucket, dirs_exist_ok=True)
    return f"s3://{bucket}"


def lists_of_shards(proxy: FaultyS3Proxy) -> int:
    return sum(call.kind is Kind.LIST and "/shards/" in call.target for call in proxy.calls)


def rows(answer: Answer) -> Any:
    """Without what it costs."""
    return answer.exit_code, {name: value for name, value in answer.document.items() if name != "requests"}


@pytest.mark.usefixtures("_through_the_proxy")
@pytest.mark.parametrize(
    "words", [("audit",), ("lag",), ("sql", "SELECT count(*) n FROM messages")], ids=lambda words: words[0]
)
def test_a_store_is_not_empty_because_a_list_of_its_shards_was_cut(
    proxy: FaultyS3Proxy, place: str, words: Sequence[str]
) -> None:
    proxy.begin()
    expected = run(f"{place}/store", *words)
    lists = lists_of_shards(proxy)
    proxy.begin(first_of(Kind.LIST, "/shards/", Fault.HEADLESS))
    answer = run(f"{place}/store", *words)
    assert lists_of_shards(proxy) == lists + 1
    assert rows(answer) == rows(expected)
    assert answer.exit_code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("_through_the_proxy")
def test_a_backup_has_all_shards_although_a_list_of_them_was_cut(proxy: FaultyS3Proxy, place: str) -> None:
    reports = []
    for name, fault in (("whole", None), ("cut", Fault.HEADLESS)):
        proxy.begin(first_of(Kind.LIST, "/shards/", fault) if fault else lambda call: None)
        backup = f"{place}/backup-{name}"
        report = run(f"{place}/store", "backup", backup)
        assert report.exit_code == 0, report
        proxy.begin()
        reports.append(run(backup, "sql", "SELECT shard, count(*) n FROM messages GROUP BY ALL ORDER BY ALL").document)
    assert reports[0] == reports[1]
    assert reports[0]["rows"]


@pytest.mark.slow
@pytest.mark.usefixtures("_through_the_proxy")
def test_an_import_has_all_messages_although_a_consume_queue_file_was_cut(
    s3_server: S3Server, proxy: FaultyS3Proxy, broker_store: Callable[[str], Path]
) -> None:
    bucket = s3_server.new_bucket()
    skip = shutil.ignore_patterns("timerwheel")  # 38 MB, which an import does not read
    shutil.copytree(broker_store("market-clean"), s3_server.data / bucket / "broker", ignore=skip)
    found = []
    for name, fault in (("whole", None), ("cut", Fault.HEADLESS)):
        root = f"s3://{bucket}/{name}"
        assert run(root, "init").exit_code == 0
        proxy.begin(first_of(Kind.GET, "consumequeue/PaymentFlow/0/", fault) if fault else lambda call: None)
        report = run(root, "import-store", f"s3://{bucket}/broker", "--broker", "q", "--engine", "local")
        assert report.exit_code == 0, report
        assert any("consumequeue/PaymentFlow/0/" in call.target for call in proxy.calls)
        proxy.begin()
        found.append((report.document["messages"], run(root, "sql", QUEUES).document))
    assert found[0] == found[1]
    assert any(row["topic"] == "PaymentFlow" and row["max_offset"] for row in found[0][1]["rows"])


@pytest.mark.slow
@pytest.mark.usefixtures("_through_the_proxy")
def test_a_query_of_a_large_file_says_to_run_it_again(proxy: FaultyS3Proxy, world: World, place: str) -> None:
    """Arrow's own client takes such an answer for no bytes. What it cannot decode is an error, and no file is to blame."""
    query = ("sql", "SELECT topic, queue_offset, md5(body) FROM messages ORDER BY ALL")
    expected = run(f"{place}/store", *query)
    (large,) = [file for file in (world.place / "store").rglob("*.parquet") if file.stat().st_size > TAIL_BYTES]
    proxy.begin()
    run(f"{place}/store", *query)
    calls = [call for call in proxy.calls if call.key.endswith(large.name)]
    assert calls, "Arrow reads the large file"
    for call in calls:
        proxy.begin(nth(call.number, Fault.HEADLESS))
        answer = run(f"{place}/store", *query)
        if answer.exit_code == 0:  # Arrow tries again where the connection had been used before
            assert answer.document == expected.document, call
            continue
        assert answer.error == StoreUnusable.__name__
        assert "run the query again" in answer.message
        assert not re.search("corrupt|damage|restore|backup", answer.message)


# --- calls -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def root(proxy: FaultyS3Proxy, s3_root: S3Root) -> Root:
    return Root.parse(s3_root.uri, {**s3_root.env, "AWS_ENDPOINT_URL": proxy.endpoint})


KEPT: dict[str, Callable[[bytes], bytes]] = {
    "a part of the status line": lambda head: head[:11],
    "the status line without its end": lambda head: first_line(head)[:-2],
    "the status line": first_line,
    "a part of a header": lambda head: head[: len(first_line(head)) + 5],
    "a part of the Content-Length": lambda head: head[: head.index(b"Content-Length: ") + 18],
    "all but the end of the empty line": lambda head: head[:-1],
    "all but the empty line": lambda head: head[:-2],
}


def test_what_is_read_is_whole(proxy: FaultyS3Proxy, root: Root) -> None:
    content = bytes(12_345)
    root.replace("name", content)
    reads: dict[str, tuple[Callable[[], Any], Any]] = {
        "size": (lambda: root.size("name"), len(content)),
        "read": (lambda: root.read("name"), content),
        "list": (root.list, [("name", len(content))]),
    }
    for (place, kept), (name, (read, expected)) in itertools.product(KEPT.items(), reads.items()):
        proxy.kept = kept
        proxy.begin(nth(0, Fault.HEADLESS))
        assert read() == expected, (name, place)
        assert len(proxy.calls) == 2, (name, place)


@pytest.mark.parametrize("kept", [KEPT["a part of a header"], KEPT["a part of the Content-Length"]])
def test_an_object_that_a_cut_answer_was_about_is_the_callers_own(
    proxy: FaultyS3Proxy, root: Root, kept: Callable[[bytes], bytes]
) -> None:
    """The second try is answered with 412: the first one has created the object."""
    proxy.kept = kept
    proxy.begin(nth(0, Fault.HEADLESS))
    assert root.create_exclusively("name", b"mine") is True
    assert [call.kind for call in proxy.calls] == [Kind.PUT, Kind.PUT, Kind.HEAD]
    assert root.create_exclusively("name", b"other") is False


def test_a_cut_answer_to_an_entry_of_a_log_is_none(proxy: FaultyS3Proxy, root: Root) -> None:
    for place, kept in KEPT.items():
        proxy.kept = kept
        proxy.begin(lambda call: Fault.HEADLESS if call.kind is Kind.PUT else None)
        assert root.put_once(place, b"1").answer is PutAnswer.SILENT
        assert root.read(place) == b"1"
        assert root.put_once(place, b"2").answer is PutAnswer.SILENT, "also of a 412, which says TAKEN"
        assert root.read(place) == b"1"


def test_a_large_file_appears_as_a_whole(proxy: FaultyS3Proxy, root: Root) -> None:
    content = bytes(range(256)) * 100_000
    cuts = {0, 2, 5}
    proxy.begin(lambda call: Fault.HEADLESS if call.number in cuts else None)
    root.write_file("large", pa.py_buffer(content))
    assert root.read("large") == content


# --- answers byte for byte -------------------------------------------------------------------------------------------

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
DATE = b"Date: Wed, 25 Nov 2026 20:00:00 GMT\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\n" + DATE + b"Content-Length: 0\r\n\r\n"
TAKEN = b"HTTP/1.1 412 Precondition Failed\r\n" + DATE + b"Content-Length: 0\r\n\r\n"


def is_whole(head: bytes) -> bool:
    return head.endswith((b"\r\n\r\n", b"\n\n"))


@contextmanager
def server_that_answers(answer_to: Callable[[str], bytes], early: bytes = CONTINUE) -> Iterator[str]:
    """The endpoint of a server. ``answer_to``: its answer to a request with this method. ``early``: what it sends to
    ``Expect: 100-continue``; it reads no body then, unless that is a whole ``100 Continue``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            ClientRequest.received(self)
            answer = answer_to(self.command)
            self.wfile.write(answer)
            self.close_connection = not is_whole(answer)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

        def handle_expect_100(self) -> bool:
            self.wfile.write(early)
            goes_on = early.startswith(b"HTTP/1.1 100") and is_whole(early)
            self.close_connection = not goes_on
            return goes_on

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def test_an_error_that_breaks_off_in_its_chunks_is_no_answer() -> None:
    """Half of "it is not there". The request is made again."""
    head, absent = b"HTTP/1.1 404 Not Found\r\n" + DATE, b"<Error><Code>NoSuchKey</Code></Error>"
    half = head + b"Transfer-Encoding: chunked\r\n\r\n60\r\n<Error><Co"
    whole = head + b"Content-Length: %d\r\n\r\n" % len(absent) + absent
    reads: tuple[Callable[[Root], Any], ...] = (
        lambda root: root.look_at("name")[0],
        lambda root: root.read("name"),
        lambda root: root.read("name", 3, 9),
        lambda root: root.tail("name", 9),
    )
    for read in reads:
        answers = [half, whole]
        with server_that_answers(lambda _, rest=answers: rest.pop(0)) as endpoint, suppress(FileNotFoundError):  # type: ignore[misc]
            assert read(root_of(endpoint)) is None
        assert answers == []


def root_of(endpoint: str) -> Root:
    return Root.parse("s3://b", {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"})


def client_of(endpoint: str) -> Any:
    """It does not try again."""
    env = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    return s3.client(s3.options_from(env), 1)


OBJECT = {"Bucket": "b", "Key": "k"}


@pytest.mark.parametrize("end", [b"\r\n", b"\n"], ids=["CRLF", "LF"])
def test_a_whole_answer_without_a_body_is_one(end: bytes) -> None:
    heads = {
        "DELETE": b"HTTP/1.1 204 No Content\r\n",
        "GET": b"HTTP/1.1 304 Not Modified\r\n",
        "HEAD": b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n",
        "PUT": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n",
    }
    with server_that_answers(lambda method: (heads[method] + DATE + b"\r\n").replace(b"\r\n", end)) as endpoint:
        client = client_of(endpoint)
        assert client.delete_object(**OBJECT)["ResponseMetadata"]["HTTPStatusCode"] == 204
        with pytest.raises(ClientError) as unchanged:
            client.get_object(**OBJECT, IfNoneMatch='"e"')
        assert s3.code_of(unchanged.value) == "304"
        assert client.head_object(**OBJECT)["ContentLength"] == 7
        assert client.put_object(**OBJECT, Body=b"1")["ResponseMetadata"]["HTTPStatusCode"] == 200


def put_a_file(early: bytes) -> Any:
    """boto3 asks before it sends the body of a file."""
    with server_that_answers(lambda method: WHOLE, early) as endpoint:
        client = client_of(endpoint)
        connection = client._endpoint.http_session._pool_classes_by_scheme["http"].ConnectionCls
        assert connection._consume_headers.__module__ == s3_connection.__name__, "botocore's own may not end"
        return client.put_object(**OBJECT, Body=BytesIO(b"content"), IfNoneMatch="*")


@pytest.mark.parametrize("headers", [b"", b"Connection: keep-alive\r\n"], ids=["alone", "with a header"])
def test_the_body_is_sent_after_100_continue(headers: bytes) -> None:
    answer = put_a_file(b"HTTP/1.1 100 Continue\r\n" + headers + b"\r\n")
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_an_early_answer_is_the_answer() -> None:
    with pytest.raises(ClientError) as refusal:
        put_a_file(TAKEN)
    assert s3.code_of(refusal.value) in s3.LOST_RACE


@pytest.mark.parametrize(
    "early",
    [
        b"HTTP/1.1 100 Continue\r\n",
        b"HTTP/1.1 100 Continue\r\nConnection: kee",
        b"HTTP/1.1 41",
        first_line(TAKEN)[:-5],
        first_line(TAKEN),
        TAKEN[:-2],
    ],
    ids=repr,
)
def test_a_cut_early_answer_is_none(early: bytes) -> None:
    with pytest.raises(ConnectionClosedError):
        put_a_file(early)


def test_a_proxy_and_tls_have_the_same_check(monkeypatch: pytest.MonkeyPatch) -> None:
    with server_that_answers(lambda method: b"HTTP/1.1 200 OK\r\n") as endpoint:
        monkeypatch.setenv("HTTP_PROXY", endpoint)
        monkeypatch.setenv("NO_PROXY", "")
        with pytest.raises(ConnectionClosedError):
            client_of("http://s3.invalid").list_objects_v2(Bucket="b")
    session = client_of("https://s3.invalid")._endpoint.http_session
    for manager in (session._manager, session._get_proxy_manager("http://proxy.invalid")):
        plain, tls = (
            manager.pool_classes_by_scheme[scheme].ConnectionCls.getresponse.__qualname__
            for scheme in ("http", "https")
        )
        assert plain == tls == "_WholeHeads.getresponse"
