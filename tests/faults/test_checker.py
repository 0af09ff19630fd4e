"""The independent checker finds every kind of damage, each planted in a small store, and nothing in a sound one."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rmq_store
from rmq_store.consumer.duplicates import AbsorbRule
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.lake.table.checkpoint import write_checkpoint
from rmq_store.producer.producer import Message
from rmq_store.settings.settings import GroupSettings
from tests.faults.independent.checker import Report, check
from tests.faults.independent.history import Sent, Written, append
from tests.faults.independent.problems import Kind
from tests.faults.soak.listeners import ATTEMPT, CALLS, REQUEST
from tests.faults.stores import BROKER, HOUR_MS, MESSAGES, QUEUES, SHARD, TOPIC, Lake, copied, group_named, write_broker

GROUP = group_named(listener="tests.faults.soak.listeners:consume_each", max_reconsume_times=1)
ABSORBING = group_named(
    "absorbing",
    listener=GROUP.listener,
    subscriptions=(build_subscription_data("Doubles", "*"),),
    absorb_duplicates=AbsorbRule("KEYS", 7 * 24 * HOUR_MS),
)
ROWS = list[dict[str, Any]]


class World:
    """A store, and what was seen outside of it."""

    def __init__(self, folder: Path) -> None:
        self.lake, self.history = Lake(folder / "lake"), folder / "history"

    def check(self) -> Report:
        return check(self.lake.folder, self.history)

    def consume(self, request: str, attempt: str = "first", group: GroupSettings = GROUP) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(CALLS, str(self.history / "calls"))
            patch.setenv(REQUEST, request)
            patch.setenv(ATTEMPT, attempt)
            self.lake.consume(request, group)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two windows, retries, delivered ones, dead letters, some of them redriven. Never changed: copy it."""
    folder = tmp_path_factory.mktemp("checker")
    world = World(folder)
    for name in ("calls", "sent", "written"):
        (world.history / name).mkdir(parents=True)
    world.lake.load(write_broker(folder / "broker"))
    written = [Written(TOPIC, BROKER, n % QUEUES, n // QUEUES, f"k{n}") for n in range(MESSAGES)]
    append(world.history / "written" / "broker.jsonl", written)
    world.consume("2026-01-01-r1")
    world.lake.deliver()
    world.consume("2026-01-01-r2")
    world.lake.redrive()
    store = rmq_store.open_store(world.lake.folder)
    messages = [Message("Doubles", b"first", keys=("double",)), Message("Doubles", b"second", keys=("double",))]
    append(world.history / "sent" / "sent.jsonl", [Sent("2026-01-01-twins", "Doubles", ["double", "double"])])
    store.send(messages, create_queues=1, shard=SHARD, request_id="2026-01-01-twins")
    world.consume("2026-01-01-r3", group=ABSORBING)
    return world


@pytest.fixture
def world(sound: World, tmp_path: Path) -> World:
    world = World(tmp_path)
    copied(sound.lake, world.lake.folder)
    shutil.copytree(sound.history, world.history)
    return world


# --- planting --------------------------------------------------------------------------------------------------------


def live(world: World, kind: str) -> Iterator[Path]:
    for entry in sorted((log_of(world)).glob("*.json")):
        for line in entry.read_text().splitlines():
            add = json.loads(line).get("add")
            if add and add["partitionValues"]["kind"] == kind:
                yield world.lake.folder / SHARD / "commitlog" / add["path"]


def log_of(world: World) -> Path:
    return world.lake.folder / SHARD / "commitlog" / "_delta_log"


def change_rows(world: World, kind: str, change: Callable[[ROWS], ROWS]) -> None:
    """Rewrite the data files in place, so that the log still names them."""
    for path in live(world, kind):
        table = pq.read_table(path, partitioning=None)
        pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), schema=table.schema), path)


def change_position(world: World, app_id: str, number: int) -> None:
    """Add an entry that moves a position, and nothing that says why."""
    newest = max(log_of(world).glob("*.json"))
    entry = log_of(world) / f"{int(newest.stem) + 1:020}.json"
    entry.write_text(json.dumps({"txn": {"appId": app_id, "version": number}}) + "\n")


def change_calls(world: World, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    for path in (world.history / "calls").glob("*.jsonl"):
        lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines if line))


def kinds(world: World) -> set[Kind]:
    return {problem.kind for problem in world.check().problems}


def texts(world: World) -> str:
    return "\n".join(map(str, world.check().problems))


# --- a sound store ---------------------------------------------------------------------------------------------------


def test_a_sound_store_has_no_problem(world: World) -> None:
    report = world.check()
    assert report.problems == ()
    assert report.windows == 3
    assert report.consumed > MESSAGES
    assert report.calls > 0
    assert report.repeated_calls == 0
    rows = [row for path in live(world, "msg") for row in pq.read_table(path, partitioning=None).to_pylist()]
    assert {row["cause"] for row in rows} > {None, "deliver", "redrive"}, "the planted faults need copies of each kind"


def test_a_call_that_is_repeated_is_counted_and_is_no_problem(world: World) -> None:
    path = next((world.history / "calls").glob("*.jsonl"))
    first = json.loads(path.read_text().splitlines()[0])
    path.with_name("killed.jsonl").write_text(json.dumps(first | {"attempt": "killed"}) + "\n")
    report = world.check()
    assert report.problems == ()
    assert report.repeated_calls == 1


def test_a_line_that_a_kill_has_cut_is_left_out(world: World) -> None:
    (world.history / "calls" / "cut.jsonl").write_text('{"request": "2026-01')
    assert world.check().problems == ()


def test_the_checkpoint_and_the_entries_behind_it_are_the_same_store(world: World) -> None:
    shard = world.lake.shard

    write_checkpoint(shard.commitlog)
    newest = int(max(log_of(world).glob("*.json")).stem)
    for entry in log_of(world).glob("*.json"):
        if int(entry.stem) <= newest:
            entry.unlink()
    assert world.check().problems == ()
    assert world.check().windows == 3


# --- lost ------------------------------------------------------------------------------------------------------------


def test_an_acked_message_that_the_listener_never_saw(world: World) -> None:
    change_calls(world, lambda call: None if call["queue"] == 1 and call["outcome"] == "success" else call)
    assert "lost" in texts(world)
    assert "the listener was not called" in texts(world)


def test_a_message_with_a_subscribed_tag_that_was_never_called(world: World) -> None:
    change_calls(world, lambda call: None if call["outcome"] == "success" else call)
    assert "its tag is subscribed, but the listener was never called" in texts(world)


def test_a_message_row_that_is_gone(world: World) -> None:
    change_rows(world, "msg", lambda rows: [row for row in rows if row["queue_offset"] != 2])
    assert "offsets without a message" in texts(world)
    assert "the broker wrote" in texts(world)


def test_a_retry_that_was_passed_and_not_delivered(world: World) -> None:
    change_rows(world, "msg", lambda rows: [row for row in rows if row["cause"] != "deliver"])
    assert "passed, but not delivered" in texts(world)
    assert kinds(world) >= {Kind.LOST, Kind.RETRY_WITHOUT_COPY}


def test_a_send_that_is_not_stored(world: World) -> None:
    append(world.history / "sent" / "1.jsonl", [Sent("2026-01-01-send", TOPIC, ["a", "b"])])
    assert "stored 0" in texts(world)
    assert kinds(world) == {Kind.LOST}


def test_a_message_that_was_absorbed_without_an_ack_of_its_key(world: World) -> None:
    change_rows(
        world, "msg", lambda rows: [row | {"keys": "other"} if row["keys"] == "double" else row for row in rows]
    )
    assert "absorbed, but key other was never acked" in texts(world)
    assert "messages ['double'] ... of topic Doubles are not stored" in texts(world)


def test_an_entry_of_the_log_that_is_gone(world: World) -> None:
    sorted(log_of(world).glob("*.json"))[2].unlink()
    assert "but no entry 2" in texts(world)


# --- doubled ---------------------------------------------------------------------------------------------------------


def test_an_acked_message_whose_call_failed(world: World) -> None:
    change_calls(world, lambda call: call | {"outcome": "failure"} if call["offset"] == 0 else call)
    assert "consumed, but the listener failed" in texts(world)
    assert Kind.DOUBLED in kinds(world)


def test_a_retried_message_whose_call_succeeded(world: World) -> None:
    change_calls(world, lambda call: call | {"outcome": "success"})
    assert "the listener did not fail" in texts(world)


def twice(rows: ROWS, cause: str | None) -> ROWS:
    return [*rows, *(row for row in rows if row["cause"] == cause and row["group_name"])]


def test_a_retry_that_was_delivered_twice(world: World) -> None:
    change_rows(world, "msg", lambda rows: twice(rows, "deliver"))
    assert "a waiting message was delivered 2 times" in texts(world)


def test_a_dead_letter_that_was_redriven_twice(world: World) -> None:
    change_rows(world, "msg", lambda rows: twice(rows, "redrive"))
    assert "a dead letter was redriven 2 times" in texts(world)


def test_a_key_that_was_acked_twice(world: World) -> None:
    absorbed = next(
        row for path in live(world, "outcome") for row in pq.read_table(path, partitioning=None).to_pylist()
    )
    change_rows(world, "outcome", lambda rows: [])
    path = next((world.history / "calls").glob("*.jsonl"))
    last = json.loads(path.read_text().splitlines()[-1])
    assert last["key"] == "double"
    second = last | {"offset": absorbed["begin_offset"]}
    path.with_name("second.jsonl").write_text(json.dumps(second) + "\n")
    assert "key double was acked before" in texts(world)


def test_a_send_that_was_stored_twice(world: World) -> None:
    def once(sent: dict[str, Any]) -> dict[str, Any]:
        return sent | {"keys": sent["keys"][:1]}

    path = world.history / "sent" / "sent.jsonl"
    path.write_text(json.dumps(once(json.loads(path.read_text()))) + "\n")
    assert "send 2026-01-01-twins of 1, stored 2" in texts(world)
    assert kinds(world) == {Kind.DOUBLED}


def test_more_messages_than_the_broker_wrote(world: World) -> None:
    path = world.history / "written" / "broker.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert "more messages than the broker wrote" in texts(world)


def test_a_message_that_was_delivered_and_not_passed(world: World) -> None:
    change_position(world, f"off/CID_RMQ_SYS_SCHEDULE/SCHEDULE_TOPIC_XXXX/lake-{SHARD}~{GROUP.name}/2", 0)
    assert "delivered, but not passed" in texts(world)


def test_two_messages_with_one_offset(world: World) -> None:
    change_rows(world, "msg", lambda rows: [*rows, *rows[:1]])
    assert "two messages with one offset" in texts(world)


def test_two_outcomes_of_one_offset(world: World) -> None:
    def dead_too(rows: ROWS) -> ROWS:
        copies = [row for row in rows if row["topic"] == "SCHEDULE_TOPIC_XXXX"]
        return [*rows, *(row | {"topic": f"%DLQ%{GROUP.name}", "queue_offset": 99} for row in copies)]

    change_rows(world, "msg", dead_too)
    assert "both retried and dead" in texts(world)


def test_a_range_that_is_committed_twice_in_one_pass(world: World) -> None:
    def shifted(rows: ROWS) -> ROWS:
        for row in rows:
            if row["request_id"] == "2026-01-01-r2":
                row["consumed"] += [range_ | {"end_offset": range_["begin_offset"] + 1} for range_ in row["consumed"]]
        return rows

    change_rows(world, "ctl", shifted)
    assert "committed twice in pass 0" in texts(world)
    assert kinds(world) >= {Kind.DOUBLED, Kind.JUMP, Kind.HALF_WINDOW}


# --- half windows, copies, jumps ----------------------------------------------------------------------------------------


def test_a_window_without_its_copies(world: World) -> None:
    change_rows(world, "msg", lambda rows: [row for row in rows if row["topic"] != "SCHEDULE_TOPIC_XXXX"])
    assert Kind.RETRY_WITHOUT_COPY in kinds(world)


def test_copies_without_their_commit(world: World) -> None:
    change_rows(world, "ctl", lambda rows: [row for row in rows if row["request_id"] != "2026-01-01-r1"])
    assert "message rows of a commit that has no ctl row" in texts(world)
    assert "names a commit without a ctl row" in texts(world)
    assert kinds(world) >= {Kind.HALF_WINDOW, Kind.COPY_WITHOUT_ORIGIN, Kind.JUMP}


def test_a_copy_of_a_message_that_is_not_there(world: World) -> None:
    change_rows(
        world,
        "msg",
        lambda rows: [
            row | ({"origin_queue_offset": 10_000} if row["cause"] not in (None, "deliver") else {}) for row in rows
        ],
    )
    assert "the message that it is a copy of is not there" in texts(world)


def test_evidence_that_does_not_add_up(world: World) -> None:
    def one_more(rows: ROWS) -> ROWS:
        for row in rows:
            row["consumed"] = [range_ | {"acked": range_["acked"] + 1} for range_ in row["consumed"] or ()]
        return rows

    change_rows(world, "ctl", one_more)
    assert "its outcomes are" in texts(world)
    assert Kind.HALF_WINDOW in kinds(world)


def test_an_offset_that_jumps_without_an_action(world: World) -> None:
    change_position(world, f"off/{GROUP.name}/{TOPIC}/{BROKER}/1", 3)
    assert "moves the offset to 3 without an action" in texts(world)
    assert "the position is 3, the history ends at 10" in texts(world)
    assert kinds(world) == {Kind.JUMP}


# --- the independence of the checker ---------------------------------------------------------------------------------


def test_the_checker_imports_the_standard_library_and_pyarrow_only() -> None:
    files = sorted((Path(__file__).parent / "independent").glob("*.py"))
    assert files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                allowed = name.split(".")[0] in sys.stdlib_module_names or name.startswith("tests.faults.independent")
                assert allowed or name == "pyarrow.parquet", f"{path.name} imports {name}"
