"""What a listener does to its process ends no window: the message fails, the others go on, and the audit is empty."""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import pytest

import rmq_store
from rmq_store.errors import ListenerNotStarted
from rmq_store.lake.listener import pool, processes
from tests.contract import deadly_listeners

MESSAGES, POISON_AT = 8, 5
CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> rmq_store.Store:
    store = rmq_store.create_store(tmp_path_factory.mktemp("deadly") / "store")
    bodies = [b"poison" if number == POISON_AT else b"%d" % number for number in range(MESSAGES)]
    store.send([rmq_store.Message("Orders", body) for body in bodies], create_queues=1)
    return store


@pytest.fixture(scope="module", autouse=True)
def nothing_stays(store: rmq_store.Store) -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))
    yield
    assert store.audit().num_rows == 0
    pool.close()
    assert set(psutil.Process().children(recursive=True)) <= before


Result = tuple[dict[str, int], list[dict[str, Any]]]


def consumed(store: rmq_store.Store, *listeners: str, **settings: Any) -> list[Result]:
    """For each listener a new group's window: its outcomes that are not 0, and the errors of its failed messages."""
    usual = {"consume_from_where": "CONSUME_FROM_FIRST_OFFSET", "listener_process": True, "engine": "local"}
    groups = [
        rmq_store.consumer_group(
            f"{listener}-{os.urandom(4).hex()}",
            f"tests.contract.deadly_listeners:{listener}",
            {"Orders": "*"},
            **(usual | settings),
        )
        for listener in listeners
    ]
    reports = {report.group: report for report in store.consume_all(groups).groups}
    for report in reports.values():
        if report.error is not None:
            raise report.error
    view = "blocked" if settings.get("mode") == "orderly" else "outcomes"
    errors = store.query(
        f"SELECT group_name, begin_offset, end_offset, error_type, error_text FROM {view} "
        "WHERE error_type IS NOT NULL ORDER BY begin_offset"
    ).to_pylist()
    return [
        (
            {str(outcome): count for outcome, count in reports[group.name].outcomes.items() if count},
            [error for error in errors if error["group_name"] == group.name],
        )
        for group in groups
    ]


FAILED = {"acked": MESSAGES - 1, "retried": 1}
KILLED = {
    "abort": "its process was ended by signal 6 (Aborted)",
    "kill": "its process was ended by signal 9 (Killed)",
    "crash": "its process was ended by signal 11 (Segmentation fault)",
    "exit_in_c": "its process ended with exit code 0",
    "another_program": "its process ended with exit code 0",
    "garbage": "its process has written into the pipe of its answers",
}
RAISES = {
    "exit": "SystemExit",
    "endless": "MemoryError",
    "allocate": "MemoryError",
    "long_text": "ValueError",
    "interrupt": "KeyboardInterrupt",
    "sigint": "KeyboardInterrupt",
    "airflow_stop": "AirflowTaskTimeout",
}
FINE = ("fork_sleepers", "fork_and_return", "print_garbage", "thread_left", "at_exit")
LATE = ("sleep", "stop")
LIMITED = ("spin", "close_all")
OF_STARTERS = ("kill_starter", "kill_starter_once", "stop_starter")


def test_the_table_has_every_way() -> None:
    assert sorted(deadly_listeners.WAYS) == sorted([*KILLED, *RAISES, *FINE, *LATE, *LIMITED, *OF_STARTERS])


def test_a_window_says_which_version_of_its_listener_ran(store: rmq_store.Store) -> None:
    consumed(store, "at_exit")
    rows = store.query("SELECT listener_version FROM windows ORDER BY read_version DESC LIMIT 1").to_pylist()
    digest = sha256(Path(deadly_listeners.__file__).read_bytes()).hexdigest()
    assert rows == [{"listener_version": f"sha256:{digest[:32]}"}]


@pytest.mark.parametrize("form", ["", "_arrow", "_in_order"])
def test_a_process_that_dies_fails_its_message_alone(store: rmq_store.Store, form: str) -> None:
    batch = {"consume_message_batch_max_size": 4} if form == "" else {}
    mode = {"mode": "orderly"} if form == "_in_order" else {}
    results = consumed(store, *(way + form for way in KILLED), **batch, **mode)
    for text, (outcomes, errors) in zip(KILLED.values(), results, strict=True):
        assert outcomes == ({"acked": POISON_AT} if mode else FAILED)
        (error,) = errors
        assert (error["begin_offset"], error["end_offset"]) == (POISON_AT, POISON_AT + 1)
        assert (error["error_type"], error["error_text"]) == ("ListenerKilled", text)


@pytest.mark.parametrize("form", ["", "_arrow", "_in_order"])
def test_no_message_fails_when_the_starter_of_its_process_is_killed(
    store: rmq_store.Store, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener of another group may have killed it."""
    monkeypatch.chdir(tmp_path)
    mode = {"mode": "orderly"} if form == "_in_order" else {}
    assert consumed(store, f"kill_starter_once{form}", max_reconsume_times=0, **mode) == [({"acked": MESSAGES}, [])]
    assert (tmp_path / "killed").exists()
    with pytest.raises(ListenerNotStarted, match=r"ended 3 times in a row in a call of listener .*kill_starter"):
        consumed(store, f"kill_starter{form}", max_reconsume_times=0, **mode)
    groups = store.query("SELECT group_name FROM windows WHERE group_name LIKE 'kill_starter_-%'").to_pylist()
    assert groups == []


@pytest.mark.slow
def test_a_starter_that_is_stopped_is_killed(store: rmq_store.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_STATUS_MS", 500)
    with pytest.raises(ListenerNotStarted, match="ended 3 times in a row"):
        consumed(store, "stop_starter", listener_timeout=1)


@pytest.mark.slow
def test_a_starter_that_was_killed_leaves_no_file_open(store: rmq_store.Store) -> None:
    def windows() -> int:
        for _ in range(3):
            consumed(store, "at_exit")
            assert processes._server is not None
            processes._server._process.kill()
        pool.close()
        return int(psutil.Process().num_fds())

    gc.collect()  # what tests before this one have left open
    assert windows() == windows()


def test_what_is_an_exception_in_the_listener_is_one_as_before(store: rmq_store.Store) -> None:
    results = consumed(store, *RAISES, listener_memory=256)
    for kind, (outcomes, errors) in zip(RAISES.values(), results, strict=True):
        assert (outcomes, [error["error_type"] for error in errors]) == (FAILED, [kind])
        assert len(errors[0]["error_text"]) <= 4096


@pytest.mark.parametrize("form", ["", "_arrow", "_in_order"])
def test_what_stops_a_window_is_an_exception_like_others_in_the_process_of_a_listener(
    store: rmq_store.Store, form: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C and the end of a task are for the process of the window, which then ends this one."""
    mode = {"mode": "orderly"} if form == "_in_order" else {}
    failed = {"": FAILED, "_arrow": {"retried": MESSAGES}, "_in_order": {"acked": POISON_AT}}[form]
    results = consumed(store, f"interrupt{form}", f"airflow_stop{form}", **mode)
    for kind, (outcomes, errors) in zip(("KeyboardInterrupt", "AirflowTaskTimeout"), results, strict=True):
        assert (outcomes, {error["error_type"] for error in errors}) == (failed, {kind})
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("form", ["", "_arrow", "_in_order"])
def test_what_a_listener_leaves_behind_changes_nothing(store: rmq_store.Store, form: str) -> None:
    mode = {"mode": "orderly"} if form == "_in_order" else {}
    for result in consumed(store, *(way + form for way in FINE), **mode):
        assert result == ({"acked": MESSAGES}, [])


@pytest.mark.slow
def test_a_call_that_does_not_end_is_ended(store: rmq_store.Store) -> None:
    for outcomes, errors in consumed(store, *LATE, listener_timeout=3):
        assert outcomes == FAILED
        assert [(error["begin_offset"], error["error_type"]) for error in errors] == [(POISON_AT, "ListenerTimeout")]
        assert errors[0]["error_text"] == "the call took longer than the limit, 3 s"


@pytest.mark.slow
def test_a_call_may_use_so_much_cpu_time(store: rmq_store.Store) -> None:
    [(outcomes, errors)] = consumed(store, "spin", listener_cpu=1)
    assert outcomes == FAILED
    assert errors[0]["error_text"] == "the call used more CPU time than the limit, 1 s"


def test_answers_that_are_known_count_when_the_process_cannot_say_that_it_is_ready(store: rmq_store.Store) -> None:
    assert consumed(store, "close_all", "close_all_arrow") == [({"acked": MESSAGES}, [])] * 2
    assert consumed(store, "close_all_in_order", mode="orderly") == [({"acked": MESSAGES}, [])]


def test_a_poison_message_ends_as_a_dead_letter(store: rmq_store.Store) -> None:
    [(outcomes, _)] = consumed(store, "kill", max_reconsume_times=0)
    assert outcomes == {"acked": MESSAGES - 1, "dead": 1}
    letters = store.query("SELECT cause, error_type FROM dead_letters WHERE cause = 'killed'").to_pylist()
    assert letters == [{"cause": "killed", "error_type": "ListenerKilled"}]


@pytest.mark.parametrize("batch", [1, 3])
def test_in_order_the_answers_are_those_of_a_listener_in_this_process(tmp_path: Path, batch: int) -> None:
    """Although its process goes on to messages that were not asked for yet."""
    queue = rmq_store.create_store(tmp_path / "queue")
    queue.send([rmq_store.Message("Orders", b"1")] * 20, create_queues=1)
    queue.send([rmq_store.Message("Orders", b"2")] * 30, create_queues=1)
    settings: dict[str, Any] = {"mode": "orderly", "consume_message_batch_max_size": batch, "max_reconsume_times": 20}
    results = []
    for process in (True, False):
        group = rmq_store.consumer_group(
            f"group-{process}", "tests.contract.deadly_listeners:uneven", {"Orders": "*"}, listener_process=process,
            consume_from_where="CONSUME_FROM_FIRST_OFFSET", engine="local", **settings,
        )  # fmt: skip
        counts = [queue.consume(group).outcomes for _ in range(8)]
        blocked = queue.query(
            "SELECT begin_offset, end_offset, attempts, status, error_type, error_text FROM blocked "
            f"WHERE group_name = '{group.name}'"
        )
        results.append((counts, blocked.to_pylist()))
    assert results[0] == results[1]
    assert sum(results[0][0][0].values()) > 0


def test_a_listener_that_dies_at_every_message_ends_the_run(tmp_path: Path) -> None:
    many = rmq_store.create_store(tmp_path / "many")
    many.send([rmq_store.Message("Orders", b"1")] * 20, create_queues=1)
    with pytest.raises(rmq_store.ListenerError, match=r"always ended its process at 10 messages in a row"):
        consumed(many, "always")
    many.send([rmq_store.Message("Spread", b"1")] * 10, create_queues=5)  # two for each task
    spread = rmq_store.consumer_group(
        "spread", "tests.contract.deadly_listeners:always", {"Spread": "*"}, listener_process=True, consumers=5,
        consume_from_where="CONSUME_FROM_FIRST_OFFSET", engine="local",
    )  # fmt: skip
    with pytest.raises(rmq_store.ListenerError, match=r"always ended its process at each of 10 messages, in 5 tasks"):
        many.consume(spread)
    assert many.query("SELECT * FROM message_rows WHERE group_name IS NOT NULL").num_rows == 0


def test_a_listener_that_dies_or_fails_when_it_is_loaded_is_an_error_in_words(store: rmq_store.Store) -> None:
    with pytest.raises(rmq_store.ListenerError, match="has no attribute nothing"):
        consumed(store, "nothing")
    group = rmq_store.consumer_group(
        "loading", "tests.contract.dies_when_imported:listener", {"Orders": "*"}, listener_process=True, engine="local",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
    )  # fmt: skip
    with pytest.raises(rmq_store.ListenerError, match="cannot be loaded: its process ended with exit code 7"):
        store.consume(group)


def kill_starters(patch: pytest.MonkeyPatch, most: int, when: str) -> list[int]:
    """Kill the first ``most`` processes that start those of listeners: before they read that they are to start one, or behind
    it. The answer has those that were asked."""
    spawn, send_fds, asked = processes._Server.spawn, socket.send_fds, list[int]()

    def spawned(server: processes._Server, channel: int, board: int) -> tuple[int, int]:
        process = server._process
        asked.append(process.pid)
        is_killed = len(set(asked)) <= most

        def sent(*request: Any) -> int:
            process.send_signal(signal.SIGSTOP)
            count = send_fds(*request)
            process.kill()
            process.wait()
            return count

        with pytest.MonkeyPatch.context() as inner:
            if is_killed and when == "before":
                inner.setattr(socket, "send_fds", sent)
            answer = spawn(server, channel, board)
        if is_killed and when == "behind":
            process.kill()
            process.wait()
        return answer

    patch.setattr(processes._Server, "spawn", spawned)
    return asked


@pytest.mark.parametrize("when", ["before", "behind"])
def test_a_starter_that_is_killed_is_started_again_once(
    store: rmq_store.Store, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    for most, reason in ((1, ""), (2, "the process that starts those of listeners has ended twice")):
        pool.close()
        with (
            monkeypatch.context() as patch,
            pytest.raises(ListenerNotStarted, match=reason) if reason else nullcontext(),
        ):
            asked = kill_starters(patch, most, when)
            assert consumed(store, "at_exit")[0][0] == {"acked": MESSAGES}
        assert len(set(asked)) == 2


def test_a_listener_gets_the_variables_that_it_needs_and_no_secret(
    store: rmq_store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-for-listeners")
    monkeypatch.setenv("SHOP_URL", "http://shop")
    [(_, errors)] = consumed(store, "variables")
    names = errors[0]["error_text"].split()
    assert {"PATH", "HOME"} & set(names)
    assert not {"AWS_SECRET_ACCESS_KEY", "SHOP_URL"} & set(names)
    [(_, errors)] = consumed(store, "variables", listener_environment=["SHOP_URL"])
    assert "SHOP_URL" in errors[0]["error_text"].split()


def test_the_next_window_uses_the_same_process(store: rmq_store.Store) -> None:
    """A listener may keep state in its module."""
    runs = [[error["error_text"].split() for error in consumed(store, "counting")[0][1]] for _ in range(2)]
    assert len({pid for run in runs for pid, _ in run}) == 1
    assert [int(number) for run in runs for _, number in run] == list(range(1, 2 * MESSAGES + 1))


def test_a_signal_to_the_group_of_the_window_is_for_the_window_alone(store: rmq_store.Store) -> None:
    """Else a process that is just being started dies of it first, and the window ends with an error that is not retried."""
    pool.close()
    before = set(psutil.Process().children())
    consumed(store, "counting")
    (server,) = set(psutil.Process().children()) - before
    assert {os.getpgid(one.pid) for one in (server, *server.children())}.isdisjoint({os.getpgid(0)})


def test_the_current_folder_is_that_of_the_window(
    store: rmq_store.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener may read and write files beside the settings, also when the program goes to another folder."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        [(_, errors)] = consumed(store, "current_folder")
        assert {error["error_text"] for error in errors} == {str(tmp_path / name)}


@pytest.mark.slow
def test_a_process_that_ended_leaves_no_file_open(store: rmq_store.Store) -> None:
    consumed(store, "kill", "kill_arrow")
    pool.close()
    before = psutil.Process().num_fds()
    for _ in range(3):
        consumed(store, "kill", "kill_arrow", "fork_and_return")
        pool.close()
    assert psutil.Process().num_fds() <= before


HANGS = """
import sys
from tests.contract.test_listener_process import consumed
import rmq_store
consumed(rmq_store.open_store(sys.argv[1]), "sleep")
"""


@pytest.mark.slow
def test_no_process_stays_when_that_of_the_window_is_killed(store: rmq_store.Store) -> None:
    with subprocess.Popen([sys.executable, "-c", HANGS, store.root], cwd=CHECKOUT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"sleeps\n"
        started = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert len(started) == 2  # what starts the others, and the listener's own
    _, alive = psutil.wait_procs(started, timeout=60)
    assert alive == []


def test_a_limit_of_the_size_of_files_is_named_when_it_refuses_the_memory(store: rmq_store.Store) -> None:
    pool.close()  # an idle process has its memory already
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with pytest.raises(rmq_store.ListenerError, match=r"are refused: File too large\. Raise .*ulimit -f"):
            consumed(store, "abort")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
