"""The entry points of spark-submit: arguments in, one JSON line out, exit codes that scripts can trust."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from rmq_store.commit.claim import Wish
from rmq_store.commit.ctl import Actor
from rmq_store.commit.positions import own_queue_id
from rmq_store.lake.commit import dispatch
from rmq_store.lake.commit.claim import claimed
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.host import Host, day_of
from spark_jobs import consume_window, engine, import_store
from spark_jobs.java import find_java

CHECKOUT = Path(__file__).resolve().parents[2]
CONSUMERS = str(CHECKOUT / "demo" / "consumers.toml")
TODAY = day_of(Host().now_ms())


@pytest.fixture
def root(tmp_path: Path, broker_store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> str:
    """A store that the import job has filled in this process."""
    folder = str(tmp_path / "store")
    LakeStore.init(Root.parse(folder))
    source = str(broker_store("market-clean"))
    words = [source, "--root", folder, "--broker", "broker-a", "--engine", "local", "--request", f"{TODAY}/import/1"]
    for status in ("committed", "already_committed"):
        assert import_store.main(words) == 0
        assert answer(capsys)["status"] == status
    return folder


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_spark_submit_consumes_a_window_and_prints_one_line_of_json(root: str) -> None:
    words = ["--root", root, "--settings", CONSUMERS, "--group", "demo-payments", "--request", f"{TODAY}/consume/1"]
    command = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    # spark-submit asks the first python of the PATH where Spark is.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        [*command, str(CHECKOUT / "spark_jobs" / "consume_window.py"), *words],
        cwd=CHECKOUT,
        env=os.environ | {"PATH": path, "JAVA_HOME": str(find_java())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    (line,) = process.stdout.splitlines()
    (shard,) = json.loads(line)["shards"]
    assert (shard["status"], shard["engine"], shard["messages"]) == ("committed", "spark", 5100)
    assert shard["outcomes"] == {"acked": 1752, "filtered": 3320, "retried": 28}


def test_the_same_request_again_is_done_and_says_so(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--root", root, "--settings", CONSUMERS, "--group", "demo-payments", "--request", f"{TODAY}/consume/1"]
    output = []
    for name in ("auto", "spark"):  # the second finds nothing to do, so it starts no JVM
        assert consume_window.main([*words, "--engine", name]) == 0
        output += answer(capsys)["shards"]
    assert [(shard["status"], shard["engine"]) for shard in output] == [
        ("committed", "local"),
        ("already_committed", "none"),
    ]
    assert output[0]["outcomes"] == output[1]["outcomes"]


@pytest.mark.parametrize(
    ("change", "code", "kind", "says"),
    [
        (["--group", "nobody"], 2, "WrongUse", "has no group 'nobody'"),
        (["--until", "yesterday"], 2, "WrongUse", "invalid time"),
        (["--shard", "broker-z"], 2, "WrongUse", "no shard broker-z"),
        (["--request", "once"], 2, "WrongUse", "must begin with its UTC date"),
        (["--request", "2999-01-01/later"], 2, "WrongUse", "a date in the future"),
        (["--root", "/nonexistent/store"], 1, "StoreUnusable", "no store at"),
    ],
)
def test_what_is_wrong_is_said_as_json_with_the_exit_code_of_its_kind(
    root: str, capsys: pytest.CaptureFixture[str], change: list[str], code: int, kind: str, says: str
) -> None:
    words = ["--root", root, "--settings", CONSUMERS, "--group", "demo-payments", "--engine", "local"]
    assert consume_window.main([*words, *change]) == code
    output = answer(capsys)
    assert says in output.pop("message")
    if "--request" not in change:  # with it the id can be run again, also one that was made here
        assert output.pop("request_id").startswith(f"{TODAY}-consume-")
    assert output == {"status": "error", "error": kind, "exit_code": code}


@pytest.mark.parametrize("error", [ZeroDivisionError("no such luck"), SystemExit(0)])
def test_a_defect_is_told_in_the_same_shape(
    root: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(consume_window, "shards_of", broken)
    request = f"{TODAY}/consume/2"
    words = ["--root", root, "--settings", CONSUMERS, "--group", "demo-payments", "--request", request]
    assert consume_window.main(words) == 1
    output = answer(capsys)
    kind = type(error).__name__
    assert output.pop("message").startswith(f"{kind}: {error} - this is a defect")
    assert output == {"status": "error", "error": kind, "exit_code": 1, "request_id": request}


def test_an_error_after_a_window_tells_both(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    (shard,) = LakeStore.open(Root.parse(root)).shards()
    queues = tuple(own_queue_id("demo-payments", queue) for queue in shard.positions().queues_of("OrderEvents"))
    words = ["--root", root, "--settings", CONSUMERS, "--group", "demo-payments", "--engine", "local"]
    assert consume_window.main([*words, "--until", "2000-01-01T00:00:00Z"]) == 0  # a first window needs all its claims
    answer(capsys)
    with claimed(shard, Wish(f"{TODAY}/theirs", Actor("ben", "test"), "demo-payments", queues=queues), Host()):
        assert consume_window.main([*words, "--request", f"{TODAY}/mine"]) == 3
    output = answer(capsys)
    assert [output[name] for name in ("status", "error", "request_id")] == ["error", "HeldByAnother", f"{TODAY}/mine"]
    assert [one["status"] for one in output["windows"]] == ["committed"]
    assert 0 < output["messages"] == sum(one["messages"] for one in output["shards"]) < 5100


def test_what_goes_wrong_after_a_commit_is_a_warning(
    root: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(dispatch, "staged", full)
    assert consume_window.main(
        ["--root", root, "--settings", CONSUMERS, "--group", "demo-payments", "--engine", "local"]
    ) == 0  # fmt: skip
    out, err = capsys.readouterr()
    output = json.loads(out)
    assert (output["status"], len(output["warnings"])) == ("committed", 1)
    assert "warning: shard broker-a: committed, but " in err


def test_an_import_that_was_done_or_is_refused_starts_no_jvm(
    root: str, broker_store: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "open_session", lambda *_, **__: pytest.fail("a session was opened"))
    words = ["--root", root, "--broker", "broker-a", "--request", f"{TODAY}/import/1"]
    assert import_store.main([str(broker_store("market-clean")), *words]) == 0
    assert answer(capsys)["status"] == "already_committed"
    assert import_store.main([root, "--root", root, "--broker", "broker-b"]) == 1
    assert answer(capsys)["error"] == "BadData"
