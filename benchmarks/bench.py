"""Shared by the scenarios: folders, imported messages, a warm Spark session, and measurements in turns."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks.broker_log import TOPIC, BrokerLog
from rmq_store.commit.ctl import Actor
from rmq_store.consumer.start import ConsumeFromWhere
from rmq_store.filter.subscription import build_subscription_data
from rmq_store.lake.broker.import_request import ImportRequest
from rmq_store.lake.broker.import_store import import_store
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.settings.settings import GroupSettings
from rmq_store.utils.host import Host
from spark_jobs.engine import SparkEngine
from spark_jobs.session import open_session, warm_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BROKER = "broker-a"
SLOTS = 2
DAY = "2024-11-20"
ACTOR = Actor("benchmarks", "benchmarks")
IMPORTED_FILE_BYTES = 64 << 20
"""The size of a broker's commit log file whose messages windows work on."""


class WrongResult(Exception):
    """The work that was measured gave a wrong result."""


def check(what: str, actual: object, expected: object) -> None:
    """Raises WrongResult unless both values are equal."""
    if actual != expected:
        raise WrongResult(f"{what}: {actual}, expected {expected}")


def seconds(work: Callable[[], object]) -> float:
    """The duration of ``work()``, in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def cpu_ms(work: Callable[[], object]) -> float:
    """The CPU time of this process, with all its threads, during ``work()``."""
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1000


@dataclass(frozen=True, slots=True)
class Lake:
    """A store with imported messages that no group has consumed."""

    folder: Path
    """The store itself stays unchanged; windows work on copies of it."""
    messages: int

    @property
    def files(self) -> list[str]:
        """Its data files."""
        return sorted(str(path) for path in (self.folder / BROKER / "commitlog" / "kind=msg").glob("*.parquet"))

    @property
    def commitlog(self) -> str:
        """Its commit log, as a Delta table."""
        return str(self.folder / BROKER / "commitlog")


def column_sums(files: Sequence[str], columns: Sequence[str]) -> dict[str, int]:
    """The number of rows ("rows") and the sums of some columns, by plain pyarrow."""
    dataset = ds.dataset(list(files), format="parquet")
    rows = dataset.to_table(columns=list(columns))
    return {"rows": rows.num_rows} | {name: pc.sum(rows.column(name)).as_py() or 0 for name in columns}


@dataclass(kw_only=True)
class Bench:
    """One run of the benchmarks."""

    folder: Path
    messages: int
    """Messages in a window."""
    rounds: int
    """Rounds that are measured, after one to warm up."""
    windows: int
    """Windows that ``growth`` makes."""
    quick: bool
    """Small sizes: to see that the benchmarks work, not how fast the system is."""
    say: Callable[[str], None]
    """Prints a line about progress."""
    host: Host = field(default_factory=Host)
    _copies: int = 0

    def __post_init__(self) -> None:
        shutil.rmtree(self.folder / "run", ignore_errors=True)  # of a run that was killed

    # --- messages ---

    def broker(self, messages: int, file_bytes: int) -> tuple[Path, BrokerLog]:
        """A broker's store directory, written once."""
        log = BrokerLog(messages, file_bytes)
        folder = self.folder / "data" / f"broker-{messages}-{file_bytes >> 20}m"

        def write(fresh: Path) -> None:
            self.say(f"writing a broker's log of {messages:,} messages")
            log.write(fresh)

        return made_once(folder, write), log

    def lake(self, messages: int) -> Lake:
        """A store with this many messages, imported once from a broker's store directory."""

        def write(fresh: Path) -> None:
            self.import_into(Root.parse(str(fresh)), messages)
            check_imported(Lake(fresh, messages), BrokerLog(messages, IMPORTED_FILE_BYTES))

        return Lake(made_once(self.folder / "data" / f"lake-{messages}", write), messages)

    def import_into(self, root: Root, messages: int) -> LakeStore:
        """A new store at ``root``, with this many messages imported from a broker's store directory."""
        broker, _ = self.broker(messages, IMPORTED_FILE_BYTES)
        self.say(f"importing {messages:,} messages to work on")
        store, _ = LakeStore.init(root)
        request = ImportRequest(broker_name=BROKER, shard_name=BROKER, request_id=f"{DAY}-data", actor=ACTOR)
        import_store(store, Root.parse(str(broker)), request, self.host, LocalEngine(self.host))
        shutil.rmtree(broker)
        return store

    def copy(self, lake: Lake) -> tuple[LakeStore, Shard]:
        """A store with the same files. They are hard links: neither Delta nor this project changes a file."""
        self._copies += 1
        folder = self.folder / "run" / f"store-{self._copies}"
        shutil.copytree(lake.folder, folder, copy_function=os.link)
        store = LakeStore.open(Root.parse(str(folder)))
        return store, store.shards(BROKER)[0]

    def new_folder(self, name: str) -> Path:
        """A path for files that are removed at the end."""
        self._copies += 1
        return self.folder / "run" / f"{name}-{self._copies}"

    # --- Spark ---

    @cached_property
    def spark(self) -> SparkSession:
        self.say("starting Spark")
        conf = {
            "spark.sql.parquet.compression.codec": "zstd",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",  # faster for the peers with a listener
        }
        session = open_session("benchmarks", master=f"local[{SLOTS}]", conf=conf)
        warm_up(session)
        return session

    @cached_property
    def engine(self) -> SparkEngine:
        return SparkEngine.of(self.spark)

    def close(self, *, keep: bool) -> None:
        if "spark" in self.__dict__:
            self.spark.stop()
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- turns ---

    def in_turns(
        self, cases: Mapping[str, Callable[[], float]], *, rounds: int | None = None
    ) -> dict[str, tuple[float, ...]]:
        """The samples of each case. The cases take turns, so that a busy machine affects all; the first round warms
        up and does not count."""
        samples: dict[str, list[float]] = {name: [] for name in cases}
        for number in range((rounds or self.rounds) + 1):
            for name, case in cases.items():
                sample = case()
                self.say(f"{'warm-up' if number == 0 else f'round {number}'}: {name} {sample:,.3g}")
                if number:
                    samples[name].append(sample)
        return {name: tuple(of_case) for name, of_case in samples.items()}


def made_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """``folder``, which is written under another name first, so that it is complete if it exists."""
    if not folder.exists():
        fresh = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        write(fresh)
        fresh.rename(folder)
    return folder


def check_imported(lake: Lake, log: BrokerLog) -> None:
    """Raises WrongResult unless the sums of the rows are those of the broker's log."""
    sums = log.sums()
    check("the imported rows", column_sums(lake.files, list(sums)), {"rows": log.messages} | sums)


def group_of(name: str, listener: str, *, batch: int = 1) -> GroupSettings:
    """A group that reads the topic from its first message, with a listener of ``benchmarks/listeners.py``."""
    return GroupSettings(
        name,
        f"benchmarks.listeners:{listener}",
        (build_subscription_data(TOPIC, "*"),),
        consume_message_batch_max_size=batch,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )


def machine() -> dict[str, object]:
    """The machine of a run. ``day``: UTC."""
    from importlib.metadata import version

    packages = ("pyspark", "delta-spark", "deltalake", "pyarrow", "duckdb", "numpy")
    return {
        "day": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": sys.version.split()[0],
        "versions": {name: version(name) for name in packages},
    }


def json_text(value: Mapping[str, object]) -> str:
    return json.dumps(value, indent=1) + "\n"
