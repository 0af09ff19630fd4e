"""Other ways to process the same rows in the same session: what a team would write without this project.

All of them read the message columns of the same Parquet files, and write zstd as this project does. The copies commit
all rows; ``mapInArrow`` runs the same listener and stores nothing, which is less than a window does.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable, WriterProperties, write_deltalake

from benchmarks import listeners
from benchmarks.bench import Bench, Lake, check, column_sums
from rmq_store.lake.read.slice_reader import MESSAGE_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SUMMED = ["queue_offset", "commit_log_offset", "store_timestamp"]


@dataclass(frozen=True, slots=True)
class Peer:
    """Another way to do the same work."""

    key: str
    what: str
    short: str
    """Its name beside a ratio."""
    seconds: Callable[[], float]
    """Do the work once, check and remove its result; returns the duration of the work."""


def peers(bench: Bench, lake: Lake) -> list[Peer]:
    """All peers."""
    return [
        Peer("peer.parquet", "Spark: read, write Parquet", "Parquet", lambda: _copied(bench, lake, _spark_parquet)),
        Peer("peer.append", "Spark: read, append to Delta", "append", lambda: _copied(bench, lake, _delta_append)),
        Peer(
            "peer.stream",
            "Delta stream: AvailableNow, foreachBatch with txnAppId",
            "stream",
            lambda: _copied(bench, lake, _available_now),
        ),
        Peer("peer.delta-rs", "delta-rs: a loop over the files", "delta-rs", lambda: _copied(bench, lake, _delta_rs)),
        Peer(
            "peer.map-named",
            "Spark: read, mapInArrow, 3 columns",
            "mapInArrow",
            lambda: _mapped(bench, lake, listeners.NAMED, listeners.Named()),
        ),
        Peer(
            "peer.map-all",
            "Spark: read, mapInArrow, all columns",
            "mapInArrow",
            lambda: _mapped(bench, lake, MESSAGE_COLUMNS, listeners.Everything()),
        ),
    ]


def _copied(bench: Bench, lake: Lake, copy: Callable[[Bench, Lake, Path], None]) -> float:
    target = bench.new_folder("copied")
    started = time.perf_counter()
    copy(bench, lake, target)
    took = time.perf_counter() - started
    check("the copy", column_sums(_files(target), _SUMMED), column_sums(lake.files, _SUMMED))
    shutil.rmtree(target)
    return took


def _files(target: Path) -> list[str]:
    if (target / "_delta_log").exists():
        return [f"{target}/{path}" for path in DeltaTable(str(target)).get_add_actions().column("path").to_pylist()]
    return [str(path) for path in target.glob("*.parquet")]


# --- copies ----------------------------------------------------------------------------------------------------------


def _messages(bench: Bench, lake: Lake) -> DataFrame:
    return bench.spark.read.parquet(*lake.files).select(*MESSAGE_COLUMNS)


def _spark_parquet(bench: Bench, lake: Lake, target: Path) -> None:
    _messages(bench, lake).write.parquet(str(target))


def _delta_append(bench: Bench, lake: Lake, target: Path) -> None:
    _messages(bench, lake).write.format("delta").mode("append").save(str(target))


def _available_now(bench: Bench, lake: Lake, target: Path) -> None:
    """Exactly-once as Delta's documentation shows it: a micro-batch writes with its own number as txnVersion."""

    def write(batch: DataFrame, number: int) -> None:
        writer = batch.write.format("delta").mode("append").option("txnAppId", "benchmarks")
        writer.option("txnVersion", number).save(str(target))

    rows = bench.spark.readStream.format("delta").load(lake.commitlog).where("kind = 'msg'").select(*MESSAGE_COLUMNS)
    checkpoint = bench.new_folder("checkpoint")
    stream = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    stream.trigger(availableNow=True).start().awaitTermination()
    shutil.rmtree(checkpoint)


def _delta_rs(bench: Bench, lake: Lake, target: Path) -> None:
    zstd = WriterProperties(compression="ZSTD")
    for file in lake.files:
        rows = ds.dataset(file, format="parquet").scanner(columns=MESSAGE_COLUMNS).to_reader()
        write_deltalake(str(target), rows, mode="append", writer_properties=zstd)


# --- the same listener -----------------------------------------------------------------------------------------------


def _mapped(bench: Bench, lake: Lake, columns: Sequence[str], listener: listeners.Named) -> float:
    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts = [(batch.num_rows, pc.sum(listener.consume_batch(batch)).as_py()) for batch in batches]
        rows, acked = (sum(values) for values in zip(*counts, strict=True)) if counts else (0, 0)
        yield pa.RecordBatch.from_pydict({"rows": [rows], "acked": [acked]})

    started = time.perf_counter()
    frame = bench.spark.read.parquet(*lake.files).select(*columns)
    result = frame.mapInArrow(stage, "rows long, acked long").toArrow()
    took = time.perf_counter() - started
    totals = {name: pc.sum(result.column(name)).as_py() for name in ("rows", "acked")}
    check("mapInArrow", totals, {"rows": lake.messages, "acked": lake.messages})
    return took
