"""What a user may start, each as one command line, on a store that has something to do for all of them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

from demo.archives import unpack
from rmq_store.cli import main
from rmq_store.commit.ctl import SCHEDULE_GROUP, Action
from rmq_store.lake.commit.dispatch import dispatch
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.host import Host, day_of
from tests.faults.stores import BROKER, GROUP, SHARD, TOPIC, write_broker
from tests.oracle.projection import Projection, projection

ARCHIVE = Path(__file__).parents[1] / "data" / "store-format-1.tar.gz"
TODAY = day_of(Host().now_ms())
ALL_DUE = "2200-01-01T00:00:00Z"
REQUEST = f"{TODAY}-again"
PLACE = "PLACE"
WHY = ("--reason", "a test says so")
SINCE = ("--from", "2025-01-01T00:00:00Z")

CONSUMERS = f"""
[[group]]
name = "{GROUP}"
listener = "tests.faults.listeners:fail_some"
listener_process = false
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
max_reconsume_times = 2
retry_queue_nums = 2
engine = "local"
[[group.subscription]]
topic = "{TOPIC}"
expression = "A || B"

[[group]]
name = "shipping"
listener = "tests.faults.listeners:fail_others"
listener_process = false
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"
[[group.subscription]]
topic = "{TOPIC}"

[[group]]
name = "reset-before"
listener = "tests.faults.listeners:fail_others"
listener_process = false
engine = "local"
[[group.subscription]]
topic = "{TOPIC}"
"""

BESIDE = frozenset({Action.CLAIM, Action.RENEW, Action.RELEASE, Action.VACUUM})
"""What a run commits beside its own commit. A vacuum that was stopped announces its deletions again."""


@dataclass(frozen=True, slots=True)
class Answer:
    exit_code: int
    document: Mapping[str, Any]
    err: str

    @property
    def error(self) -> str:
        return str(self.document.get("error", ""))

    @property
    def message(self) -> str:
        return str(self.document.get("message", ""))


def run(root: str, *words: str) -> Answer:
    """A command in this process."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*words, "--root", root, "--json"])
    try:
        document = json.loads(out.getvalue())
    except ValueError:
        document = {"text": out.getvalue()}
    return Answer(code, document if isinstance(document, dict) else {"rows": document}, err.getvalue())


@dataclass(frozen=True)
class World:
    """``place`` has a ``store``, the files of its ``broker``, and an ``old`` store of format 1. Change only copies of it."""

    place: Path
    settings: Path


def made_world(folder: Path) -> World:
    """A store with unread messages, waiting retries, dead letters, a replay, and messages that are not imported yet."""
    world = World(folder / "place", folder / "consumers.toml")
    world.settings.write_text(CONSUMERS)
    broker = world.place / "broker"
    settings = ("--settings", str(world.settings))
    load = ("import-store", str(broker), "--broker", BROKER, "--shard", SHARD, "--engine", "local")

    def do(*words: str) -> None:
        answer = run(str(world.place / "store"), *words)
        assert answer.exit_code == 0, (words, answer)

    do("init")
    write_broker(broker)
    do(*load)
    for _ in range(3):
        do("consume", "--group", GROUP, *settings)
        do("deliver", "--now", ALL_DUE)
    do("replay", "--group", GROUP, "--topic", TOPIC, *SINCE, *settings, "--request", f"{TODAY}-replay")
    do("send", "--topic", "Pay", "--create", "1")
    # A query does not read a file of more than 64 KiB as a whole.
    do("send", "--topic", "Pay", Random(1).randbytes(100_000).hex())
    write_broker(broker, 45)
    do(*load)
    do("consume", "--group", GROUP, "--max-messages", "6", *settings)
    do("clone", "--from", GROUP, "--to", "reset-before", *WHY, *settings)
    do("reset", "--group", "reset-before", "--topic", TOPIC, "--to-min", *WHY, *settings)
    write_broker(broker, 60)
    unpack(ARCHIVE, folder)
    (folder / "store").rename(world.place / "old")
    return world


@dataclass(frozen=True, slots=True)
class Operation:
    """``words``: the command line; PLACE stands for the folder or bucket of the store."""

    name: str
    words: Sequence[str]
    writes: bool = True
    has_id: bool = True
    """Whether it is a request with an id."""
    has_settings: bool = False
    prepare: Callable[[Path], None] = lambda place: None
    """What happens to the files of the place before."""
    store: str = "store"

    def run(self, place: str, world: World) -> Answer:
        words = [word.replace(PLACE, place) for word in self.words]
        words += ["--settings", str(world.settings)] if self.has_settings else []
        words += ["--request", REQUEST] if self.has_id else []
        return run(f"{place}/{self.store}", *words)


def _change(name: str, *words: str, settings: bool = False) -> Operation:
    return Operation(name, words, has_settings=settings)


def _upkeep(
    name: str, *words: str, prepare: Callable[[Path], None] = lambda place: None, store: str = "store"
) -> Operation:
    return Operation(name, words, has_id=False, prepare=prepare, store=store)


def _aged(place: Path) -> None:
    """The files of the store are three days old, and one of them was never committed."""
    orphan = place / "store" / SHARD / "commitlog" / "kind=msg" / "orphan.parquet"
    orphan.write_bytes(b"of a window that was killed")
    at_s = Host().now_ms() / 1000 - 3 * 86_400
    for file in (place / "store").rglob("*"):
        os.utime(file, (at_s, at_s))


def _damaged(place: Path) -> None:
    """A derived table has lost its files."""
    for file in (place / "store" / SHARD / "offsets").glob("*.parquet"):
        file.unlink()


def _reader(name: str, *words: str, settings: bool = False) -> Operation:
    return Operation(name, words, writes=False, has_id=False, has_settings=settings)


OPERATIONS = [
    _change("import", "import-store", f"{PLACE}/broker", "--broker", BROKER, "--shard", SHARD, "--engine", "local"),
    _change("send", "send", "--topic", "New", "--create", "hello"),
    _change("consume", "consume", "--group", GROUP, settings=True),
    _change("consume all", "consume", "--all", "--threads", "1", settings=True),
    _change("replay", "replay", "--group", "shipping", "--topic", TOPIC, *SINCE, settings=True),
    _change("deliver", "deliver", "--now", ALL_DUE),
    _change("redrive", "redrive", "--group", GROUP, "--all", *WHY, settings=True),
    _change("reset", "reset", "--group", GROUP, "--topic", TOPIC, "--to-offset", "3", *WHY, settings=True),
    _change("skip", "skip", "--group", GROUP, "--topic", TOPIC, *WHY, settings=True),
    _change("clone", "clone", "--from", GROUP, "--to", "shipping", *WHY, settings=True),
    _change("undo", "undo", "--group", "reset-before", *WHY, settings=True),
    _change("delete", "delete-group", "--group", GROUP, *WHY, settings=True),
    _change("cutover", "cutover", "--broker", BROKER, *WHY),
    _upkeep("maintain", "maintain", prepare=_aged),
    _upkeep("backup", "backup", f"{PLACE}/backup"),
    _upkeep("dispatch", "dispatch"),
    _upkeep("rebuild", "dispatch", "--rebuild", prepare=_damaged),
    _upkeep("upgrade", "upgrade", store="old"),
    _upkeep("init", "init"),
    _reader("dry run", "consume", "--group", GROUP, "--dry-run", settings=True),
    _reader("doctor", "doctor", settings=True),
    _reader("lag", "lag", settings=True),
    _reader("progress", "progress", "--group", GROUP, settings=True),
    _reader("groups", "groups"),
    _reader("topics", "topics"),
    _reader("audit", "audit"),
    _reader("sql", "sql", "SELECT * FROM outcomes ORDER BY ALL"),
    _reader("sql of a large file", "sql", "SELECT topic, queue_offset, md5(body) FROM messages ORDER BY ALL"),
    _reader("export", "offsets", "export", "--broker", BROKER),
    _reader("messages", "messages", "--topic", TOPIC, "--key", "k4"),
    _reader("print", "print", "--topic", TOPIC),
    _reader("track", "track", f"{4:032X}"),
]


@dataclass(frozen=True, slots=True)
class State:
    """What a store holds, without what may differ between two correct runs."""

    commits: Mapping[tuple[str, str], int]
    """How many commits each request made of each kind."""
    projections: Sequence[Projection]
    positions: Mapping[str, int]


def state_of(root: Root) -> State:
    shard = LakeStore.open(root).shards(SHARD)[0]
    shard.commitlog.refresh()
    ctls = [ctl for ctl in shard.ctls_since(0) if ctl.action not in BESIDE]
    groups = sorted({ctl.group for ctl in ctls if ctl.group} | {SCHEDULE_GROUP})
    return State(
        Counter((str(ctl.action), ctl.request_id if ctl.request_id == REQUEST else "") for ctl in ctls),
        [projection(shard, group) for group in groups],
        {name: value for name, (value, _) in shard.positions().items() if not name.startswith("own/")},
    )


def problems(root: Root) -> list[dict[str, Any]]:
    """What the audit finds, also with derived tables that are up to date."""
    store = LakeStore.open(root)
    rows: list[dict[str, Any]] = query(store, "SELECT * FROM audit").to_pylist()
    for shard in store.shards():
        dispatch(shard, Host())
    rows += query(store, "SELECT * FROM audit").to_pylist()
    return rows
