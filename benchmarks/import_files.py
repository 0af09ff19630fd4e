"""Import of a broker's files with CRC check, next to the minimum that any reader must do; one large file on all cores; and
an import after many others."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.bench import ACTOR, BROKER, DAY, SLOTS, Bench, Lake, check, check_imported, cpu_ms, seconds
from benchmarks.broker_log import RECORD_BYTES, BrokerLog
from benchmarks.table import Measurement, Target
from rmq_store.lake.broker.import_request import ImportReport, ImportRequest
from rmq_store.lake.broker.import_store import import_store
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import Engine, LocalEngine
from rmq_store.log.commit_log import walk
from rmq_store.log.record import Record

TITLE = "import of a broker's files, CRC on"
FILE_BYTES = 128 << 20
MOST_MESSAGES = 2_000_000
DECODED_BYTES = 20_000_000
ONE_FILE_BYTES = 1 << 30
ONE_FILE_MESSAGES = ONE_FILE_BYTES // RECORD_BYTES - 1
IMPORTS = 150
MESSAGES_AN_IMPORT = 100
ENDS = 50
"""How many of the first and of the last imports are samples: about as many as there are between two checkpoints, since opening
a log costs more with every entry."""
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
    yield from _one_file(bench)
    yield from _many(bench)


def _one_file(bench: Bench) -> Iterator[Measurement]:
    """One commit log file: by tasks on all cores, and task after task."""
    messages = min(bench.messages, ONE_FILE_MESSAGES)
    folder, log = bench.broker(messages, ONE_FILE_BYTES if messages == ONE_FILE_MESSAGES else 16 << 20)
    megabytes = log.stored_bytes / MB
    one_core = replace(bench.engine, planned=1)
    samples = bench.in_turns(
        {
            "one file": lambda: megabytes / _import(bench, folder, log, bench.engine),
            "one file, one core": lambda: megabytes / _import(bench, folder, log, one_core),
        }
    )
    what = f"one file of {megabytes:,.0f} MB, Spark"
    peers = ("import.one_core",)
    yield Measurement("import.one_file", f"{what}, {SLOTS} cores", "MB/s", samples["one file"], peers=peers)
    yield Measurement(
        "import.one_core",
        f"{what}, task after task",
        "MB/s",
        samples["one file, one core"],
        is_peer=True,
        short="one core",
    )


def _many(bench: Bench) -> Iterator[Measurement]:
    """Imports of a log that grows: the last ones cost what the first ones do."""
    imports = IMPORTS // 10 if bench.quick else IMPORTS
    whole, log = bench.broker(IMPORTS * MESSAGES_AN_IMPORT, 16 << 20)
    data = next((whole / "commitlog").iterdir()).read_bytes()
    source, folder = bench.new_folder("growing"), bench.new_folder("many")
    (source / "commitlog").mkdir(parents=True)
    store, _ = LakeStore.init(Root.parse(str(folder)))

    def cpu_of_import(number: int) -> float:
        end = number * MESSAGES_AN_IMPORT * RECORD_BYTES
        (source / "commitlog" / f"{0:020}").write_bytes(data[:end].ljust(log.file_bytes, b"\0"))
        request = ImportRequest(broker_name=BROKER, shard_name=BROKER, request_id=f"{DAY}-{number}", actor=ACTOR)
        reports: list[ImportReport] = []

        def load() -> None:
            reports.append(import_store(store, Root.parse(str(source)), request, bench.host, LocalEngine(bench.host)))

        cpu = cpu_ms(load)
        check("imported messages", reports[0].messages, MESSAGES_AN_IMPORT)
        return cpu

    samples = tuple(cpu_of_import(number) for number in range(1, imports + 1))
    ends = min(ENDS, imports // 2)
    first, last = samples[1 : 1 + ends], samples[-ends:]  # the very first makes the tables
    what = f"import of {MESSAGES_AN_IMPORT} messages, CPU"
    peers = ("import.first",)
    yield Measurement("import.last", f"{what}, after {imports} imports", "ms", last, peers=peers, more_is_better=False)
    yield Measurement(
        "import.first", f"{what}, among the first", "ms", first, is_peer=True, short="first", more_is_better=False
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
