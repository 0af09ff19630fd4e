"""A broker that lost the end of its log and wrote on: what the import says of it, and how its groups continue."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rmq_store.broker_files.commit_log_file import list_commit_log
from rmq_store.errors import BadData
from rmq_store.lake.broker import common_log as common
from rmq_store.lake.broker.common_log import CommonLog, common_log
from rmq_store.lake.broker.root_file_source import file_source
from rmq_store.lake.table.object_store import Root
from tests.contract.rmq import Rmq
from tests.contract.test_import_store import BROKER, Lake, store_of

SIZE = 96
"""Bytes of a record of ``store_of`` with a body of four."""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def messages(first: int, last: int, *, of: str = "old") -> list[dict[str, Any]]:
    """Messages [first, last), each third in queue 1, others in queue 0."""
    return [
        {"queue_id": int(n % 3 == 0), "queue_offset": n // 3 if n % 3 == 0 else n - n // 3 - 1, "stored_body": body}
        for n in range(first, last)
        for body in [f"{of[0]}{n:03}".encode()]
    ]


def look(lake: Lake, folder: Path) -> CommonLog | None:
    source = file_source(Root.parse(str(folder)))
    (shard,) = lake.store.shards()
    return common_log(
        lake.store, shard.name, source, list_commit_log(source), BROKER, lake.positions()[f"import/{BROKER}"]
    )


@pytest.mark.parametrize("marks", [1, 3, 4096])
@pytest.mark.parametrize("kept", [1, 2, 7, 19])
def test_the_end_of_the_common_log_is_found_by_bisection(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, marks: int
) -> None:
    monkeypatch.setattr(common, "_MARKS", marks)
    lake.load(store_of(tmp_path / "first", *messages(0, 20)))
    newer = store_of(tmp_path / "newer", *messages(0, kept), *messages(kept, kept + 30, of="new"))
    queues = 2 if kept < 19 else 1
    assert look(lake, newer) == CommonLog(kept * SIZE, True, 20 - kept, queues)
    older = store_of(tmp_path / "older", *messages(0, kept))
    assert look(lake, older) == CommonLog(kept * SIZE, False, 20 - kept, queues)
    assert look(lake, store_of(tmp_path / "other", *messages(0, 30, of="new"))) is None


@pytest.mark.parametrize("salvage", [False, True])
def test_an_import_says_where_the_log_differs_and_changes_nothing(lake: Lake, tmp_path: Path, salvage: bool) -> None:
    lake.load(store_of(tmp_path / "first", *messages(0, 20)))
    before = lake.positions()
    newer = store_of(tmp_path / "newer", *messages(0, 7), *messages(7, 40, of="new"))
    same = rf"not the one that was imported up to {20 * SIZE}: it is the same up to {7 * SIZE}"
    with pytest.raises(BadData, match=rf"{same}, where other records follow, 13 imported messages in 2 queues are not"):
        lake.load(newer, salvage=salvage)
    older = store_of(tmp_path / "older", *messages(0, 7))
    with pytest.raises(BadData, match=rf"{same} and ends there, 13 imported messages .*an older copy"):
        lake.load(older, salvage=salvage)
    assert lake.positions() == before


SETTINGS = """
[[group]]
name = "g"
listener = "cli_listener:keep"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"

[[group.subscription]]
topic = "T"
"""

LISTENER = """
def keep(msgs, context):
    with open("bodies.txt", "a") as file:
        file.writelines(f"{m.body.decode()} " for m in msgs)
    return "CONSUME_SUCCESS"
"""


def test_what_the_page_of_limits_says_to_do_consumes_each_message_once(rmq: Rmq) -> None:
    """Those that the broker kept, those that it lost, and those that it wrote afterwards."""
    (rmq.folder / "consumers.toml").write_text(SETTINGS)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    first = store_of(rmq.folder / "first", *messages(0, 20))
    newer = store_of(rmq.folder / "newer", *messages(0, 7), *messages(7, 40, of="new"))
    rmq.json("init")
    rmq.json("import-store", str(first), "--broker", "broker-a")
    rmq.json("consume", "--group", "g", "--max-messages", "5")
    refused = rmq("import-store", str(newer), "--broker", "broker-a")
    assert refused.exit_code == 1
    (end,) = re.findall(r"commit_log_offset >= (\d+) of", refused.err)

    rmq.json("import-store", str(newer), "--broker", "broker-a-2")
    page = (Path(__file__).parents[2] / "docs" / "limits.md").read_text()
    (select,) = re.findall(r"```sql\n(SELECT topic, queue_id.*?)```", page, re.DOTALL)
    cuts = rmq.json("sql", select.replace("END_OF_THE_COMMON_LOG", end))
    assert [(cut["topic"], cut["queue_id"], cut["cut"]) for cut in cuts] == [("T", 0, 4), ("T", 1, 3)]
    for cut in cuts:
        queue = f"broker-a-2:{cut['queue_id']}"
        move = ["--topic", cut["topic"], "--queue", queue, "--to-offset", str(cut["cut"])]
        rmq.json("reset", "--group", "g", *move, "--reason", "broker-a lost the end of its log")
    rmq.json("consume", "--group", "g")
    bodies = (rmq.folder / "bodies.txt").read_text().split()
    assert sorted(bodies) == sorted([f"o{n:03}" for n in range(20)] + [f"n{n:03}" for n in range(7, 40)])
    lost = rmq.json("sql", f"SELECT body FROM messages WHERE broker_name = 'broker-a' AND commit_log_offset >= {end}")
    assert len(lost) == 13
    assert rmq.json("audit")["audit"] == []
