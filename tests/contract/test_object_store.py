"""What a root promises, on a folder and on S3 alike."""

from __future__ import annotations

import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from rmq_store.commit.append import PutAnswer
from rmq_store.commit.ctl import Action, Actor, Ctl
from rmq_store.errors import BadData, CommitOutcomeUnknown, MissingFile, StoreUnusable, WrongUse
from rmq_store.lake.broker.root_file_source import file_source
from rmq_store.lake.table import s3
from rmq_store.lake.table.delta_entry import entry_name
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.stage import stage_ctl
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.table.store_errors import is_refused
from rmq_store.utils.host import Host
from tests.s3 import S3Root, S3Server

MIB = 1 << 20


# --- create_exclusively ---


@pytest.mark.parametrize("size", [7, MIB])
def test_of_sixteen_racing_creates_one_wins_and_its_body_is_stored(root: Root, size: int) -> None:
    bodies = [bytes([number]) * size for number in range(16)]
    start = threading.Barrier(len(bodies))

    def create(body: bytes) -> bool:
        start.wait(600)
        return root.create_exclusively("a/b/name.json", body)

    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(create, bodies))
    assert answers.count(True) == 1
    assert root.read("a/b/name.json") == bodies[answers.index(True)]


def test_a_later_create_leaves_the_first_body(root: Root) -> None:
    assert root.create_exclusively("name", b"first")
    assert not root.create_exclusively("name", b"second")
    assert root.read("name") == b"first"


def test_creating_leaves_nothing_beside_the_object(root: Root) -> None:
    root.create_exclusively("folder/name", b"x")
    root.create_exclusively("folder/name", b"y")
    assert root.list() == [("folder/name", 1)]


def test_the_self_check_passes_and_leaves_nothing(root: Root) -> None:
    root.check_exclusive_create()
    assert root.list() == []


# --- reading ---


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, None, b"0123456789"),
        (0, 4, b"0123"),
        (4, None, b"456789"),
        (3, 7, b"3456"),
        (8, 99, b"89"),
        (10, 20, b""),
        (99, None, b""),
        (5, 5, b""),
    ],
)
def test_a_ranged_read_is_half_open_and_ends_with_the_object(
    root: Root, begin: int, end: int | None, expected: bytes
) -> None:
    root.create_exclusively("digits", b"0123456789")
    assert root.read("digits", begin, end) == expected


def test_what_is_missing_is_file_not_found(root: Root) -> None:
    root.create_exclusively("there", b"x")
    with pytest.raises(FileNotFoundError):
        root.read("missing")
    with pytest.raises(FileNotFoundError):
        root.read("missing", 3, 9)
    with pytest.raises(FileNotFoundError):
        root.size("missing")
    assert not root.exists("missing")
    assert root.exists("there")
    assert root.size("there") == 1


def test_list_gives_names_below_the_root_sorted_with_sizes(root: Root) -> None:
    for name, content in [("b/2", b"22"), ("b/1", b"1"), ("bb/3", b"333"), ("a", b""), ("b/c/d e%20é", b"4444")]:
        assert root.create_exclusively(name, content)
    assert root.list() == [("a", 0), ("b/1", 1), ("b/2", 2), ("b/c/d e%20é", 4), ("bb/3", 3)]
    assert root.list("b") == root.list("b/") == [("b/1", 1), ("b/2", 2), ("b/c/d e%20é", 4)]
    assert root.list("nowhere") == []


def test_list_pages_through_more_than_a_thousand_names(root: Root) -> None:
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda number: root.create_exclusively(f"many/{number:04}", b""), range(1005)))
    assert all(created)
    assert [name for name, _ in root.list("many")] == [f"many/{number:04}" for number in range(1005)]


def test_delete_removes_and_forgives_what_is_not_there(root: Root) -> None:
    root.create_exclusively("name", b"x")
    root.delete("name")
    root.delete("name")
    assert not root.exists("name")


# --- a value that other libraries can use ---


def test_a_root_survives_the_trip_to_a_worker(root: Root) -> None:
    root.create_exclusively("name", b"x")
    copy = pickle.loads(pickle.dumps(root))
    assert copy == root
    assert hash(copy) == hash(root)
    assert copy.read("name") == b"x"


def test_delta_rs_and_pyarrow_see_the_same_files(root: Root) -> None:
    write_deltalake(root.uri_of("shard/table"), pa.table({"n": [1, 2]}), storage_options=root.storage_options)
    table = DeltaTable(root.uri_of("shard/table"), storage_options=root.storage_options)
    [path] = pa.table(table.get_add_actions())["path"].to_pylist()
    filesystem, base = root.filesystem()
    with filesystem.open_input_file(f"{base}/shard/table/{path}") as file:
        assert file.read() == root.read(f"shard/table/{path}")
    assert "shard/table/_delta_log/00000000000000000000.json" in [name for name, _ in root.list("shard")]


def test_the_store_tells_its_time(root: Root) -> None:
    root.create_exclusively("name", b"x")
    assert abs(root.server_time_ms(Host()) - time.time() * 1000) < 5_000


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/etc/name"])
def test_a_name_cannot_leave_the_root(root: Root, name: str) -> None:
    with pytest.raises(ValueError, match="not a name below a root"):
        root.read(name)


# --- the files of an import ---


def test_an_import_reads_a_folder_and_s3_alike(s3_root: S3Root, tmp_path: Path) -> None:
    folder = str(tmp_path / "broker")
    for root in (Root.parse(folder), s3_root.root):
        root.create_exclusively("commitlog/00000000000000000000", b"0123456789")
        root.create_exclusively("config/topics.json", b"{}")
    for root, where in ((Root.parse(folder), folder), (s3_root.root, s3_root.uri)):
        source = file_source(root)
        assert str(source) == where
        assert source.list("") == [("commitlog/00000000000000000000", 10), ("config/topics.json", 2)]
        assert source.list("commitlog") == [("commitlog/00000000000000000000", 10)]
        assert source.names() == ["commitlog", "config"]
        assert (source.whole("config/topics.json"), source.whole("config/none.json")) == (b"{}", None)
        assert source.read("commitlog/00000000000000000000", 4, 7) == b"456"
        with pytest.raises(BadData, match=f"{where} has no file commitlog/1"):
            source.read("commitlog/1", 0, 4)


def test_an_import_from_nowhere_is_refused(s3_server: S3Server, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="is not a folder"):
        file_source(Root.parse(str(tmp_path / "missing")))
    with pytest.raises(StoreUnusable, match="create the bucket"):
        file_source(Root.parse("s3://no-such-bucket-here/store", s3_server.env))


# --- settings ---


def test_no_store_is_made_over_the_tables_of_one_in_s3(s3_root: S3Root) -> None:
    """As where the first backup was broken off: its target has tables, and no description yet."""
    s3_root.root.create_exclusively(f"local/commitlog/_delta_log/{entry_name(1)}", b"{}")
    for use in (LakeStore.init, LakeStore.open):
        with pytest.raises(StoreUnusable, match="a backup that was broken off, run that backup again"):
            use(s3_root.root)


def test_secrets_are_not_in_the_text_form_of_a_root(s3_root: S3Root) -> None:
    assert s3_root.env["AWS_SECRET_ACCESS_KEY"] not in repr(s3_root.root)
    assert s3_root.env["AWS_SECRET_ACCESS_KEY"] not in str(s3_root.root)


def test_plain_http_is_allowed_only_for_an_http_endpoint() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "eu-west-1"}
    plain = Root.parse("s3://b/p", keys | {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}).storage_options
    sealed = Root.parse("s3://b/p", keys | {"AWS_ENDPOINT_URL": "https://127.0.0.1:1"}).storage_options
    assert plain["AWS_ALLOW_HTTP"] == "true"
    assert "AWS_ALLOW_HTTP" not in sealed
    assert sealed["AWS_REGION"] == "eu-west-1"


def test_a_folder_needs_no_settings(tmp_path: Path) -> None:
    root = Root.parse(f"{tmp_path}/./store/", {})
    assert root.location == str(tmp_path / "store")
    assert root.storage_options == {}
    assert root.is_local
    assert root.uri_of("shard/commitlog") == f"{tmp_path}/store/shard/commitlog"
    assert root.uri_of("") == f"{tmp_path}/store"


@pytest.mark.parametrize("text", ["", "s3://", "s3:///prefix", "hdfs://host/x", "s3a://bucket/x", "~nobody-here/x"])
def test_other_roots_are_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="root"):
        Root.parse(text, {"AWS_REGION": "us-east-1"})


# --- roots that cannot be used ---


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    root = Root.parse(str(tmp_path))
    for name, words in (("fifo", "it is a FIFO, not a file"), ("folder", "it is a folder, not a file")):
        for read in (
            root.read,
            root.open_file,
            root.look_at,
            lambda name: root.tail(name, 10),
            lambda name: root.check_files([name]),
        ):
            with pytest.raises(MissingFile, match=rf"{words}\. Remove it, and restore the file from a backup"):
                read(name)
    root.check_files(["no-such-file"])


def test_a_root_below_a_file_is_unusable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    root = Root.parse(str(tmp_path / "file" / "store"))
    with pytest.raises(StoreUnusable, match=r"cannot create .* Check that this user may read and write"):
        root.check_exclusive_create()
    with pytest.raises(StoreUnusable, match="is a file, not a folder"):
        Root.parse(str(tmp_path / "file")).check_reachable()


def test_a_folder_that_cannot_be_made_is_unusable() -> None:
    with pytest.raises(StoreUnusable, match="cannot create"):
        Root.parse("/proc/no-such-place/store").check_exclusive_create()
    for path in ("/proc/no-such-place", "/proc/no-such-place/store"):
        with pytest.raises(StoreUnusable, match="cannot create the folder"):
            Root.parse(path).make_private()


def server_time(root: Root) -> int:
    """Of a process that has no answer of the server yet: a recent one, also a refusal, says its time."""
    s3._CLOCKS.clear()
    return root.server_time_ms(Host())


def every_call(root: Root) -> dict[str, Callable[[], object]]:
    return {
        "read": lambda: root.read("x"),
        "list": root.list,
        "create": lambda: root.create_exclusively("x", b""),
        "delete": lambda: root.delete("x"),
        "time": lambda: server_time(root),
        "check": root.check_reachable,
        "self-check": root.check_exclusive_create,
    }


@pytest.mark.parametrize("call", list(every_call(Root("/"))))
@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong" * 8, "AWS_SECRET_ACCESS_KEY"),
        ("AWS_ACCESS_KEY_ID", "nobody", "AWS_ACCESS_KEY_ID"),
    ],
)
def test_wrong_credentials_are_named(s3_root: S3Root, call: str, variable: str, value: str, said: str) -> None:
    root = Root.parse(s3_root.uri, {**s3_root.env, variable: value})
    with pytest.raises(StoreUnusable, match=f"403.*{said}") as caught:
        every_call(root)[call]()
    assert s3_root.uri in str(caught.value)


@pytest.mark.parametrize("call", ["read", "list", "create", "time", "check", "self-check"])
def test_a_missing_bucket_is_named(s3_server: S3Server, call: str) -> None:
    root = Root.parse("s3://no-such-bucket-here/store", s3_server.env)
    with pytest.raises(StoreUnusable, match=r"s3://no-such-bucket-here/store.*create the bucket"):
        every_call(root)[call]()


@pytest.mark.parametrize(
    "wrong",
    [{"AWS_SECRET_ACCESS_KEY": "wrong" * 8}, {"AWS_ACCESS_KEY_ID": "nobody"}, {}],
    ids=["secret", "id", "bucket"],
)
def test_each_librarys_refusal_is_known_as_one(s3_root: S3Root, wrong: dict[str, str]) -> None:
    """delta-rs and boto3: a commit does not wait for what stays refused."""
    root = Root.parse(s3_root.uri if wrong else "s3://no-such-bucket-here/store", {**s3_root.env, **wrong})
    shard = Shard(root, "s")
    said = Ctl("0" * 32, Action.SEND, Actor("tests", "tests"))
    calls: list[Callable[[], object]] = [
        lambda: shard.commitlog,
        lambda: stage_ctl(root, "s/commitlog", [said], 0),
        lambda: server_time(root),
    ]
    for call in calls:
        with pytest.raises((StoreUnusable, OSError)) as caught:
            call()
        assert is_refused(caught.value), caught.value


@pytest.fixture
def silent_endpoint() -> Iterator[str]:
    """A port that is ours and refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_an_endpoint_that_does_not_answer_is_named(
    s3_root: S3Root, silent_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)
    root = Root.parse(s3_root.uri, {**s3_root.env, "AWS_ENDPOINT_URL": silent_endpoint})
    with pytest.raises(StoreUnusable, match=f"{silent_endpoint}.*Check AWS_ENDPOINT_URL"):
        root.check_reachable()
    with pytest.raises(StoreUnusable) as caught:
        root.server_time_ms(Host())
    assert not is_refused(caught.value)
    with pytest.raises(CommitOutcomeUnknown, match="not known whether the object was created"):
        root.create_exclusively("name", b"x")


@contextmanager
def answers_dated(s3_root: S3Root, date: str | None) -> Iterator[Root]:
    """A process that has no answer yet, of a store whose answers have this header Date; None: none."""
    root = Root.parse(s3_root.uri, s3_root.env)

    def change(parsed: dict[str, Any], **_: object) -> None:
        headers = parsed["ResponseMetadata"]["HTTPHeaders"]
        headers.pop("date", None)
        if date is not None:
            headers["date"] = date

    clients = [s3.client(root._options), s3.client(root._options, 1)]
    s3._CLOCKS.clear()
    for client in clients:
        client.meta.events.register_first("after-call.s3", change)
    try:
        yield root
    finally:
        for client in clients:
            client.meta.events.unregister("after-call.s3", change)


def dated_calls(root: Root) -> dict[str, Callable[[], object]]:
    return {
        "time": lambda: root.server_time_ms(Host()),
        "check": root.check_reachable,
        "look at": lambda: root.look_at("x"),
        "look at none": lambda: root.look_at("none"),
        "names": lambda: root.names_in("folder"),
    }


@pytest.mark.parametrize("call", list(dated_calls(Root("/"))))
@pytest.mark.parametrize(
    ("date", "said"),
    [
        (None, "has no header Date"),
        ("", "has no header Date"),
        ("garbage", "has the header Date 'garbage', which is no time"),
        ("2026-11-26T17:10:00Z", "which is no time"),
        ("Thu, 26 Nov 2026 25:61:00 GMT", "which is no time"),
    ],
)
def test_a_store_that_does_not_say_its_time_is_unusable(
    s3_root: S3Root, call: str, date: str | None, said: str
) -> None:
    Root.parse(s3_root.uri, s3_root.env).create_exclusively("x", b"text")
    with answers_dated(s3_root, date) as root:
        assert root.read("x") == b"text"  # it needs no time
        with pytest.raises(StoreUnusable, match=rf"{said}.*proxy") as caught:
            dated_calls(root)[call]()
        assert type(caught.value) is StoreUnusable


def test_a_put_whose_answer_has_no_time_has_an_unknown_outcome(s3_root: S3Root) -> None:
    """It was made: nothing may say that nothing was written."""
    with answers_dated(s3_root, None) as root:
        put = root.put_once("x", b"text")
        assert (put.answer, type(put.error)) == (PutAnswer.SILENT, StoreUnusable)
        again = root.put_once("x", b"text")
        assert (again.answer, type(again.error)) == (PutAnswer.SILENT, StoreUnusable)
        assert root.read("x") == b"text"


def test_a_date_without_a_zone_is_utc(s3_root: S3Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        with answers_dated(s3_root, "Thu, 26 Nov 2026 17:10:00") as root:
            assert root.look_at("none")[1] == 1_795_713_000_000
    finally:
        monkeypatch.undo()
        time.tzset()


# --- lost answers ---


class LosesAnswers:
    """Between client and server: forwards each request, and for the first ``losses`` PUTs drops the answer."""

    def __init__(self, upstream: tuple[str, int], losses: int) -> None:
        self.losses = losses
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, socket.create_connection(self._upstream) as server:
                self._relay(client, server)

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        """One request per connection: read it whole (by its length), pass it on, pass the answer back or not."""
        request = _read_message(client)
        server.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        answer = b"".join(iter(lambda: server.recv(65536), b""))
        if request.startswith(b"PUT") and self.losses > 0:
            self.losses -= 1
            return
        client.sendall(answer)


def _read_message(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
        if b"100-continue" in data.lower() and data.endswith(b"\r\n\r\n"):
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    wanted = int(lengths[0]) if lengths else 0
    while len(body) < wanted:
        body += connection.recv(65536)
    head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:"))
    return head + b"\r\n\r\n" + body


@pytest.fixture
def lossy(s3_server: S3Server) -> Iterator[LosesAnswers]:
    host, port = s3_server.endpoint.removeprefix("http://").split(":")
    proxy = LosesAnswers((host, int(port)), losses=0)
    yield proxy
    proxy.close()


def test_a_create_whose_answer_was_lost_still_says_that_it_won(
    s3_root: S3Root, lossy: LosesAnswers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)

    root = Root.parse(s3_root.uri, {**s3_root.env, "AWS_ENDPOINT_URL": lossy.endpoint})
    lossy.losses = 1
    assert root.create_exclusively("name", b"mine")
    lossy.losses = 1
    assert not root.create_exclusively("name", b"other")
    lossy.losses = 4
    assert root.create_exclusively("all answers lost", b"mine")
    assert s3_root.root.read("name") == b"mine"
    assert s3_root.root.read("all answers lost") == b"mine"


def test_the_environment_is_used_when_none_is_given(s3_root: S3Root, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_root.env.items():
        monkeypatch.setenv(name, value)
    assert Root.parse(s3_root.uri) == s3_root.root
