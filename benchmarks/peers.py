"""Other ways to process the same rows in the same session: what a team would write without this project.

All of them read the same Parquet files, and write zstd as this project does. ``docs/speed.md`` says what each does more or
less than a window.
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
from benchmarks.broker_log import queue_ends
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


def consuming_streams(bench: Bench, lake: Lake) -> list[Peer]:
    """The closest to a window: a stream with the same listener that stores its progress and what failed."""

    def peer(key: str, what: str, listener: listeners.Named) -> Peer:
        return Peer(
            f"peer.consume-{key}",
            f"Delta stream: AvailableNow, mapInArrow, appends what failed; {what}",
            "consuming stream",
            lambda: _consumed(bench, lake, listener),
        )

    return [
        peer("named", "3 columns, 0 % fail", listeners.Named()),
        peer("named-83", "3 columns, 1.2 % fail", listeners.NamedFails83()),
        peer("named-10", "3 columns, 10 % fail", listeners.NamedFails10()),
        peer("all-83", "all columns, 1.2 % fail", listeners.EverythingFails83()),
    ]


def peers(bench: Bench, lake: Lake) -> list[Peer]:
    """All peers."""
    return [
        *consuming_streams(bench, lake),
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

    rows = bench.spark.readStream.format("delta").load(lake.commitlog).where("kind = 'msg'").select(*MESSAGE_COLUMNS)
    _run(bench, rows, target)


def _run(bench: Bench, rows: DataFrame, target: Path) -> None:
    """Run the stream to the end of what is there, and append its rows to a Delta table."""

    def write(batch: DataFrame, number: int) -> None:
        writer = batch.write.format("delta").mode("append").option("txnAppId", "benchmarks")
        writer.option("txnVersion", number).save(str(target))

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


def _consumed(bench: Bench, lake: Lake, listener: listeners.Named) -> float:
    """The failures go to a table of their own, each micro-batch once, by txnAppId and txnVersion."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(pc.invert(listener.consume_batch(batch)))

    target = bench.new_folder("failures")
    columns = MESSAGE_COLUMNS if listener.columns is None else list(listener.columns)
    started = time.perf_counter()
    rows = bench.spark.readStream.format("delta").load(lake.commitlog).where("kind = 'msg'").select(*columns)
    _run(bench, rows.mapInArrow(stage, rows.schema), target)
    took = time.perf_counter() - started
    ends = queue_ends(lake.messages)
    failed = [offset for end in ends for offset in listeners.failing(end, listener.every)]
    sums = column_sums(_files(target), ["queue_offset"]) if failed else {"rows": 0, "queue_offset": 0}
    check("what failed", sums, {"rows": len(failed), "queue_offset": sum(failed)})
    shutil.rmtree(target)
    return took
