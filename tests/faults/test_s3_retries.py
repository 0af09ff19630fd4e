"""Which requests to S3 are tried again, and how often: reading and writing alike, but not what S3 refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from rmq_store.commit.append import PutAnswer
from rmq_store.errors import StoreUnusable
from rmq_store.lake.table import s3
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.request_counter import Kind
from tests.faults.s3_faults import FINAL, Call, Fault, FaultyS3Proxy, short_waits
from tests.s3 import S3Root, S3Server

BUSY = 12
"""So many requests fail: more than the client tries by itself, which is 5."""

Step = Callable[[Root], Any]
STEPS: dict[str, Step] = {
    "read": lambda root: root.read("name"),
    "read a range": lambda root: root.read("name", 2, 5),
    "read to the end": lambda root: root.read("name", 2),
    "read the end": lambda root: root.tail("name", 3),
    "read for the log": lambda root: root.look_at("name")[0],
    "size": lambda root: root.size("name"),
    "age": lambda root: root.modified_ms("name") > 0,
    "list": lambda root: root.list("folder"),
    "list for the log": lambda root: root.names_in("folder")[0],
    "list the top": lambda root: root.names(9),
    "write": lambda root: root.replace("other", b"1"),
    "delete": lambda root: root.delete("folder/1"),
    "delete several": lambda root: root.delete_all(["folder/1", "folder/2"]),
}
READING = {name: step for name, step in STEPS.items() if name.startswith("read")}
every_step = pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[FaultyS3Proxy]:
    with FaultyS3Proxy(s3_server.endpoint) as running:
        yield running


@pytest.fixture(autouse=True)
def _short_waits() -> Iterator[None]:
    with short_waits():
        yield


@pytest.fixture
def root(proxy: FaultyS3Proxy, s3_root: S3Root) -> Root:
    proxy.begin()
    root = Root.parse(s3_root.uri, {**s3_root.env, "AWS_ENDPOINT_URL": proxy.endpoint})
    for name in ("name", "folder/1", "folder/2"):
        root.replace(name, b"0123456789")
    return root


def first(several: int, fault: Fault) -> Callable[[Call], Fault | None]:
    return lambda call: fault if call.number < several else None


@every_step
def test_a_store_that_has_answered_before_is_asked_for_longer(proxy: FaultyS3Proxy, root: Root, step: Step) -> None:
    proxy.begin(first(BUSY, Fault.SLOW_DOWN))
    answer = step(root)
    assert len(proxy.calls) == BUSY + 1
    proxy.begin()
    assert step(root) == answer


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST, Fault.INTERNAL], ids=str)
def test_a_connection_that_breaks_is_as_a_store_that_is_busy(proxy: FaultyS3Proxy, root: Root, fault: Fault) -> None:
    proxy.begin(first(BUSY, fault))
    assert root.read("name") == b"0123456789"
    assert len(proxy.calls) == BUSY + 1


@pytest.mark.parametrize("step", [STEPS["read"], STEPS["write"]])
def test_a_store_that_has_not_answered_yet_is_asked_five_times(
    proxy: FaultyS3Proxy, root: Root, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its address may be wrong."""
    monkeypatch.setattr(s3, "_CLOCKS", {})
    proxy.begin(first(BUSY, Fault.REFUSED))
    with pytest.raises(StoreUnusable, match="Check AWS_ENDPOINT_URL"):
        step(root)
    assert len(proxy.calls) == 5


@pytest.mark.parametrize("step", [STEPS["read for the log"], STEPS["list"], STEPS["write"]])
@pytest.mark.parametrize("fault", FINAL, ids=str)
def test_what_s3_refuses_is_not_tried_again(proxy: FaultyS3Proxy, root: Root, step: Step, fault: Fault) -> None:
    proxy.begin(first(BUSY, fault))
    with pytest.raises(StoreUnusable, match=str(fault)):
        step(root)
    assert len(proxy.calls) == 1


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.SILENT], ids=str)
def test_a_body_that_breaks_off_is_requested_again(proxy: FaultyS3Proxy, root: Root, fault: Fault) -> None:
    proxy.begin(first(2, fault))
    with short_waits(read_timeout_s=1):
        assert root.read("name") == b"0123456789"
    assert len(proxy.calls) >= 3


@pytest.mark.parametrize("step", READING.values(), ids=READING)
def test_a_body_that_is_too_short_is_requested_again(proxy: FaultyS3Proxy, root: Root, step: Step) -> None:
    """Its checksum says so, or the range that the answer says it has."""
    proxy.begin(first(3, Fault.SHORT))
    answer = step(root)
    assert len(proxy.calls) == 4
    proxy.begin()
    assert step(root) == answer


def test_a_range_beyond_the_end_is_no_short_body(proxy: FaultyS3Proxy, root: Root) -> None:
    proxy.begin()
    assert (root.read("name", 8, 99), root.read("name", 99, 120)) == (b"89", b"")
    assert root.tail("name", 99) == (b"0123456789", 10)
    assert len(proxy.calls) == 3


def test_a_body_that_stays_too_short_is_an_error_of_the_network(proxy: FaultyS3Proxy, root: Root) -> None:
    proxy.begin(lambda call: Fault.SHORT)
    with pytest.raises(StoreUnusable, match="Check AWS_ENDPOINT_URL and the network"):
        root.read("name", 2, 6)
    assert len(proxy.calls) == 20


@pytest.mark.parametrize("fault", [Fault.SLOW_DOWN, Fault.LOST, Fault.PARTIAL], ids=str)
def test_an_entry_of_a_log_is_put_by_one_request(proxy: FaultyS3Proxy, root: Root, fault: Fault) -> None:
    """Only so an answer is an answer to it."""
    proxy.begin(first(BUSY, fault))
    assert root.put_once("entry", b"1").answer is PutAnswer.SILENT
    assert len(proxy.calls) == 1


def test_a_data_file_of_which_a_part_is_lost_appears_as_a_whole(proxy: FaultyS3Proxy, root: Root) -> None:
    content = bytes(range(256)) * 100_000
    proxy.begin(lambda call: Fault.PARTIAL if call.number == 2 else None)
    root.write_file("large", pa.py_buffer(content))
    assert {str(call.kind) for call in proxy.calls} == {"POST", "PUT"}
    assert root.read("large") == content


# --- answers that contradict each other ------------------------------------------------------------------------------


def is_put(call: Call) -> bool:
    return call.kind is Kind.PUT


def test_an_object_that_is_taken_and_absent_is_created_again(proxy: FaultyS3Proxy, root: Root) -> None:
    proxy.begin(lambda call: Fault.TAKEN if call.number == 0 else None)
    assert root.create_exclusively("new", b"1") is True
    assert [call.kind for call in proxy.calls] == [Kind.PUT, Kind.HEAD, Kind.PUT]
    assert root.read("new") == b"1"


def test_a_store_that_says_taken_of_an_absent_object_cannot_be_used(proxy: FaultyS3Proxy, root: Root) -> None:
    proxy.begin(lambda call: Fault.TAKEN if is_put(call) else None)
    with pytest.raises(StoreUnusable, match="new is there, and then that it is not"):
        root.create_exclusively("new", b"1")
    assert [call.kind for call in proxy.calls] == [Kind.PUT, Kind.HEAD] * 2
    assert not root.exists("new")
