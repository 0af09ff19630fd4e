"""Import of a broker's files with CRC check, next to the minimum that any reader must do."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.bench import ACTOR, BROKER, DAY, Bench, Lake, check, check_imported, seconds
from benchmarks.broker_log import BrokerLog
from benchmarks.table import Measurement, Target
from rmq_store.lake.broker.import_store import ImportRequest, import_store
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import Engine, LocalEngine
from rmq_store.log.commit_log import walk
from rmq_store.log.record import Record

TITLE = "import of a broker's files, CRC on"
FILE_BYTES = 128 << 20
MOST_MESSAGES = 2_000_000
DECODED_BYTES = 20_000_000
MB = 1_000_000


def measure(bench: Bench) -> Iterator[Measurement]:
    messages = min(bench.messages, MOST_MESSAGES)
    folder, log = bench.broker(messages, FILE_BYTES if messages == MOST_MESSAGES else 16 << 20)
    megabytes = log.stored_bytes / MB
    cases: dict[str, Callable[[], float]] = {
        "spark": lambda: megabytes / _import(bench, folder, log, bench.engine),
        "local": lambda: megabytes / _import(bench, folder, log, LocalEngine(bench.host)),
        "read": lambda: megabytes / seconds(lambda: _read(folder)),
        "decode": lambda: _decoded_megabytes_a_second(folder, log),
    }
    samples = bench.in_turns(cases)
    of = f"{megabytes:,.0f} MB"
    peers = ("import.decode",)
    yield Measurement("import.spark", f"{of}, Spark", "MB/s", samples["spark"], target=Target(">=", 120), peers=peers)
    yield Measurement("import.local", f"{of}, this process", "MB/s", samples["local"], peers=peers)
    yield Measurement("import.read", "read the bytes, do nothing", "MB/s", samples["read"], is_peer=True)
    yield Measurement(
        "import.decode",
        "decode record by record in Python",
        "MB/s",
        samples["decode"],
        is_peer=True,
        short="plain Python",
    )


def _import(bench: Bench, source: Path, log: BrokerLog, engine: Engine) -> float:
    folder = bench.new_folder("imported")
    store, _ = LakeStore.init(Root.parse(str(folder)))
    started = time.perf_counter()
    request = ImportRequest(broker_name=BROKER, shard_name=BROKER, request_id=f"{DAY}-i", actor=ACTOR)
    report = import_store(store, Root.parse(str(source)), request, bench.host, engine)
    took = time.perf_counter() - started
    check("imported messages", report.messages, log.messages)
    check_imported(Lake(folder, log.messages), log)
    shutil.rmtree(folder)
    return took


def _read(folder: Path) -> None:
    for path in sorted((folder / "commitlog").iterdir()):
        with path.open("rb") as file:
            while file.read(8 << 20):
                pass


def _decoded_megabytes_a_second(folder: Path, log: BrokerLog) -> float:
    """Decoding with ``record.py`` and its CRC check, at the beginning of the log; nothing is kept or written."""
    first = min((folder / "commitlog").iterdir())
    with first.open("rb") as file:
        data = file.read(DECODED_BYTES)
    decoded = 0
    started = time.perf_counter()
    for item in walk(data, 0, log.file_bytes):
        if isinstance(item, Record):
            decoded += item.store_size
    return decoded / MB / (time.perf_counter() - started)
