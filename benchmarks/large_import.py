"""The first import of a large log with many queues: its memory, and what is done again after it was killed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.bench import BROKER, Bench, check
from benchmarks.table import Measurement, Target
from rmq_store.commit.positions import import_id
from rmq_store.errors import RmqError
from rmq_store.lake.broker.record_columns import HEAD
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.log.consume_queue import UNIT_BYTES
from rmq_store.log.record import BLANK_MAGIC
from rmq_store.log.record_encoder import encode, new_record

TITLE = "first import of a large log with many queues, one process"
TOPIC = "Sparse"
BODY_BYTES = 16 << 10
FIRST_STORED_MS = 1_732_089_600_000
KILLED_AT = 0.8
_REQUEST = "2026-01-01-large-import"
_QUEUE_FILE_ENTRIES = 300_000
_BATCH = 1 << 12


@dataclass(frozen=True, slots=True)
class LargeLog:
    """Files of ``file_bytes``; message ``i`` is in queue ``i % queues``. All bodies are the same."""

    files: int
    file_bytes: int
    queues: int

    @property
    def size(self) -> int:
        """Bytes of the commit log."""
        return self.files * self.file_bytes

    def write(self, folder: Path) -> int:
        """Write the directories ``commitlog`` and ``consumequeue``. Returns how many messages they have."""
        template = np.frombuffer(self._record(), np.uint8)
        per_file = (self.file_bytes - 8) // len(template)
        (folder / "commitlog").mkdir(parents=True)
        for number in range(self.files):
            self._write_file(folder, number, template, per_file)
        self._write_queues(folder, len(template), per_file)
        return self.files * per_file

    def _record(self) -> bytes:
        body = (b"0123456789abcdef" * (BODY_BYTES // 16))[:BODY_BYTES]
        return encode(
            new_record(
                topic=TOPIC,
                queue_id=0,
                queue_offset=0,
                commit_log_offset=0,
                stored_body=body,
                properties={"KEYS": "sparse"},
                born_timestamp=FIRST_STORED_MS,
                store_timestamp=FIRST_STORED_MS,
            )
        )

    def _write_file(self, folder: Path, number: int, template: npt.NDArray[np.uint8], per_file: int) -> None:
        start = number * self.file_bytes
        with (folder / "commitlog" / f"{start:020}").open("wb") as file:
            for first in range(0, per_file, _BATCH):
                rows = np.arange(first, min(first + _BATCH, per_file))
                records = np.tile(template, (len(rows), 1))
                heads = np.ascontiguousarray(records[:, : HEAD.itemsize]).view(HEAD)[:, 0]
                messages = number * per_file + rows
                heads["queue_id"], heads["queue_offset"] = messages % self.queues, messages // self.queues
                heads["commit_log_offset"] = start + rows * len(template)
                records[:, : HEAD.itemsize] = heads.view(np.uint8).reshape(len(rows), HEAD.itemsize)
                file.write(records.data)
            blank = self.file_bytes - file.tell()
            file.write(blank.to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big", signed=True))
            file.truncate(self.file_bytes)

    def _write_queues(self, folder: Path, record_bytes: int, per_file: int) -> None:
        messages = np.arange(self.files * per_file)
        offsets = messages // per_file * self.file_bytes + messages % per_file * record_bytes
        for queue_id in range(self.queues):
            entries = np.zeros(
                len(offsets[queue_id :: self.queues]), dtype=[("offset", ">i8"), ("size", ">i4"), ("code", ">i8")]
            )
            entries["offset"], entries["size"] = offsets[queue_id :: self.queues], record_bytes
            path = folder / "consumequeue" / TOPIC / str(queue_id)
            path.mkdir(parents=True)
            with (path / f"{0:020}").open("wb") as file:
                file.write(entries.tobytes())
                file.truncate(_QUEUE_FILE_ENTRIES * UNIT_BYTES)  # sparse, as a broker's are


def measure(bench: Bench) -> Iterator[Measurement]:
    log = LargeLog(4, 16 << 20, 100) if bench.quick else LargeLog(10, 1 << 30, 10_000)
    source, root = bench.new_folder("broker"), bench.new_folder("imported")
    bench.say(f"writing {log.size / 2**30:.3g} GiB of a log with {log.queues:,} queues")
    messages = log.write(source)
    store, _ = LakeStore.init(Root.parse(str(root)))
    first, committed = _Import(source, root), 0
    while first.runs() and committed < KILLED_AT * log.size:
        time.sleep(0.05)
        committed = _committed(store)
    first.kill()
    bench.say(f"killed when {committed / log.size:.0%} were committed")
    second = _Import(source, root)
    while second.runs():
        time.sleep(0.05)
    check("exit code", second.exit_code(), 0)
    positions = store.shards(BROKER)[0].positions()
    check("messages", sum(positions.max_offset(queue) for queue in positions.all_queues()), messages)
    what, peak = f"{log.size / 2**30:.3g} GiB, {log.queues:,} queues", max(first.peak_bytes, second.peak_bytes)
    yield Measurement(
        "large.memory", f"{what}: most memory", "MiB", (peak / 2**20,), target=Target("<=", 2048), more_is_better=False
    )
    yield Measurement("large.parts", f"{what}: commits", "commits", (len(_parts(store)),))
    largest = max(_parts(store)) / log.size
    name = f"{what}: the most that is done again after a kill, its largest part"
    yield Measurement("large.again", name, "times", (largest,), target=Target("<=", 0.15), more_is_better=False)
    shutil.rmtree(source)
    shutil.rmtree(root)


def _committed(store: LakeStore) -> int:
    """Up to which byte the log is imported."""
    try:
        shards = store.shards()
        return shards[0].positions().get(import_id(BROKER)) or 0 if shards else 0
    except RmqError:  # its tables are being made
        return 0


def _parts(store: LakeStore) -> list[int]:
    """The bytes of the log that each commit took."""
    ctls = store.shards(BROKER)[0].ctls_since(0, action="import")
    return [end - begin for begin, end in (ctl.parameter("range") for ctl in ctls)]


class _Import:
    """``rmq import-store`` in a process of its own, always as the same request: a rerun need not wait for the claim of a
    killed one."""

    def __init__(self, source: Path, root: Path) -> None:
        words = ["import-store", str(source), "--broker", BROKER, "--engine", "local", "--root", str(root)]
        words += ["--request", _REQUEST]
        rmq = str(Path(sys.executable).with_name("rmq"))
        self._process = psutil.Popen([rmq, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.peak_bytes = 0

    def runs(self) -> bool:
        """Whether it has not ended yet. Notes how much memory it has now."""
        with suppress(psutil.Error):
            self.peak_bytes = max(self.peak_bytes, self._process.memory_info().rss)
        return self._process.poll() is None

    def kill(self) -> None:
        with suppress(psutil.NoSuchProcess):  # it was faster
            self._process.kill()
            self._process.wait()

    def exit_code(self) -> int | None:
        code: int | None = self._process.poll()
        return code
