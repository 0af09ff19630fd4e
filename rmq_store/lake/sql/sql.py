"""The store in DuckDB: ``rmq sql``, the views of docs/sql.md in this process, without a JVM.

Only registered relations can be read: no file, no network, no extension, and the configuration is locked. The database is
in memory and cannot write to the store, so a query changes nothing. Big relations are Arrow datasets over exactly the live
files of a snapshot. Each file has the bounds of its statistics, so filters on key columns rule out files; a column without
complete statistics has no bounds, otherwise rows would be lost silently.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, TypedDict, Unpack

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from rmq_store.errors import MissingFile, RmqError, StoreUnusable, WrongUse
from rmq_store.lake.sql.duckdb_instance import INTERRUPTED, Connected, connected
from rmq_store.lake.sql.query_limits import QueryLimits
from rmq_store.lake.sql.relations import BASE_SQL, FILE_RELATIONS, SMALL_RELATIONS, LiveFiles, Snapshot, base_needs
from rmq_store.lake.sql.statement import reading_statement
from rmq_store.lake.sql.views import views, with_needs, words_of
from rmq_store.lake.table import s3
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import TAIL_BYTES, Root
from rmq_store.lake.table.range_file import RangeFile
from rmq_store.lake.table.request_counter import note_uncounted
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import did_you_mean, listed

_HOST = Host()

_STREAM_FAILED = "reading the stream registered as"
"""How DuckDB's message begins when an Arrow dataset raises; the exception has no type of its own."""
_KIND = re.compile(r"([A-Za-z -]+?) Error: ")
"""How each of DuckDB's messages begins."""
_OF_THE_STORE = ("IO", "FATAL", "INTERNAL")
_TRACEBACK = " Detail: Python exception:"
"""How Arrow's message goes on when a file is read in Python; what comes before has the error's own text."""
_UNDECODED = re.compile(
    r"deserialize thrift|magic bytes not found|file size is \d+ bytes|corrupt|end of (?:stream|file)|decompress|page header",
    re.IGNORECASE,
)
"""What Arrow says of bytes that are no Parquet. To its own client of S3 an answer that ends within its head has no bytes, and
what it then decodes are those that the memory had before."""
_FILE = re.compile(r"([^/\s'\"]+)/(commitlog|consumequeue|offsets|commits)/([^\s'\"]+\.parquet)")
"""How an error names a file: its shard, table and path."""
_SET = re.compile(r' Use "SET [^"\n]*" to [^.\n]*\.')
"""Advice of DuckDB to change one of its settings, which are locked."""
_NO_TABLE = re.compile(r'Table with name "?(.+?)"? does not exist')
"""How DuckDB names an unknown relation. Its own suggestions come from its catalogue, which lacks most of the views."""

_INTERRUPT_AGAIN_S = 0.1

# The questions of this project itself have small answers. ``execute`` copies them once more, and warns of it; ``sql`` binds the
# statement a second time, which takes a quarter of the time of most of them.
warnings.filterwarnings("ignore", "Arrow output on a DB-API result", UserWarning)

RowGroups = Callable[[Root, str, pa.Table], Sequence[Sequence[int] | None]]
"""The row groups that a query has to read of each file, None for all: called with the store's root, a table's folder in it
and the table's files, as ``LakeTable.files`` returns them."""

Values = Mapping[str, object]
"""The values of the parameters of SELECTs, which name them ``$name``. So no text of a user becomes a part of SQL."""


def query(
    store: LakeStore,
    text: str,
    *,
    values: Values | None = None,
    group: str | None = None,
    host: Host = _HOST,
    of_messages: RowGroups | None = None,
    limits: QueryLimits | None = None,
) -> pa.Table:
    """The answer to one SELECT (or DESCRIBE, SHOW, SUMMARIZE, or EXPLAIN of one), over a snapshot taken now.

    ``values``: those of its parameters, among others; ``group``: the positions of other groups are left out, for a query that
    needs one group's only. ``host``: its clock is
    the time of the views. ``of_messages``: the row groups of message files in which the answer is. ``limits``: for the query
    of a user; None: only DuckDB's own.

    Raises WrongUse with DuckDB's message for SQL that is wrong or does anything but read, and for a query over its limits;
    MissingFile, BadData and DerivedTableDamaged, as ``LakeTable.read``, when a file is gone or damaged, StoreUnusable when the
    store's files cannot be read.
    """
    (answer,) = queries(store, [text], values=values, group=group, host=host, of_messages=of_messages, limits=limits)
    return answer


class QueryOptions(TypedDict, total=False):
    """What ``query`` takes besides the statement and its values; see there."""

    group: str | None
    host: Host
    of_messages: RowGroups | None
    limits: QueryLimits | None
    reread: Collection[str]
    """Of ``BASE_SQL``, those that many of the SELECTs read: DuckDB gets their rows once, where they are few, and plans each
    SELECT in less time."""


def queries(
    store: LakeStore, texts: Sequence[str], *, values: Values | None = None, **options: Unpack[QueryOptions]
) -> list[pa.Table]:
    """The answers to several of them, over one snapshot. As ``query``."""
    with snapshot_of(store, texts, values=values, **options) as ask:
        return ask(texts)


Ask = Callable[[Sequence[str]], list[pa.Table]]
"""The answers to some SELECTs. Raises as ``query``."""


@contextmanager
def snapshot_of(
    store: LakeStore, texts: Sequence[str], *, values: Values | None = None, **options: Unpack[QueryOptions]
) -> Iterator[Ask]:
    """Answers SELECTs among ``texts``, all over one snapshot. As ``query``."""
    mentioned = words_of(" ".join(texts)) & _KNOWN or None
    with _connected_to(store, mentioned, **options) as kept:
        yield lambda some: [_answer(store, kept, text, values or {}) for text in some]


def _answer(store: LakeStore, kept: Connected, text: str, values: Values) -> pa.Table:
    limits = kept.limits
    try:
        statement = reading_statement(kept.connection, text, of_user=limits is not None)
        named = {name: values[name] for name in statement.named_parameters if name in values}
        return _rows(kept, statement, named)
    except (duckdb.Error, OSError) as error:
        raise _in_words(error, store, limits) from error
    except MemoryError as error:
        if limits is None:
            raise
        raise _too_much_memory(limits) from error


def _rows(kept: Connected, statement: duckdb.Statement, values: Values) -> pa.Table:
    """The rows. Errors of DuckDB are OSErrors, with the same text, once the first rows were read."""
    limits = kept.limits
    if limits is None:
        return kept.connection.execute(statement, values or None).to_arrow_table()
    batches, size = [], 0
    with (
        interrupted_after(limits.timeout_ms, kept.interrupt),
        kept.connection.sql(statement, params=values or None).to_arrow_reader() as reader,
    ):
        for batch in reader:
            batches.append(batch)
            size += batch.nbytes
            if size > limits.memory_bytes:
                raise WrongUse(
                    f"SQL: the answer has more than {limits.memory_bytes >> 20:,} MiB: select fewer rows, or raise the "
                    "limit (--memory, RMQ_SQL_MEMORY)"
                )
        return pa.Table.from_batches(batches, reader.schema)


@contextmanager
def interrupted_after(timeout_ms: int, interrupt: Callable[[], object]) -> Iterator[None]:
    """Calls ``interrupt`` when the body takes longer, again and again until it ends; 0: never. DuckDB forgets an interrupt that
    comes before a statement has begun to run."""
    is_over = threading.Event()

    def watch() -> None:
        wait_s = timeout_ms / 1000
        while not is_over.wait(wait_s):
            interrupt()
            wait_s = _INTERRUPT_AGAIN_S

    watcher = threading.Thread(target=watch, daemon=True)
    if timeout_ms:
        watcher.start()
    try:
        yield
    finally:
        is_over.set()
        if timeout_ms:
            watcher.join()  # it holds the connection, which must be gone before the process ends


def _in_words(error: Exception, store: LakeStore, limits: QueryLimits | None) -> RmqError:
    if _is_of_the_store(error):
        return _unreadable(error, store)
    if limits is None:
        return WrongUse(f"SQL: {_message(error)}")
    text = str(error)
    match "INTERRUPT" if INTERRUPTED in text else _kind_of(text):
        case "INTERRUPT":
            seconds = limits.timeout_ms / 1000
            return WrongUse(
                f"SQL: the query took more than {seconds:g} s: read less, or raise the limit (--timeout, RMQ_SQL_TIMEOUT)"
            )
        case "Out of Memory" if "max_temp_directory_size" in text:
            return WrongUse(
                f"SQL: the query needs more than {limits.spill_bytes >> 20:,} MiB in the folder for temporary files: read "
                "less, or raise the limit (--spill, RMQ_SQL_SPILL)"
            )
        case "Out of Memory":
            return _too_much_memory(limits)
    return WrongUse(f"SQL: {_message(error)}")


def _too_much_memory(limits: QueryLimits) -> WrongUse:
    return WrongUse(
        f"SQL: the query needs more than {limits.memory_bytes >> 20:,} MiB of memory: read less, or raise the limit (--memory, "
        "RMQ_SQL_MEMORY)"
    )


def as_texts(column: pa.Array) -> list[str | None]:
    """The values as DuckDB writes them: for intervals, and for values that Python lacks, such as the date ``infinity``."""
    with duckdb.connect(":memory:") as connection:
        texts = connection.from_arrow(pa.table({"v": column})).project("CAST(v AS VARCHAR)")
        return [text for (text,) in texts.fetchall()]


def _message(error: Exception) -> str:
    """DuckDB's message; for an unknown relation, with the views that there are."""
    unknown = _NO_TABLE.search(str(error))
    if unknown is None:
        return _SET.sub("", str(error))
    name = unknown[1].lower().rpartition(".")[2]
    near = did_you_mean(name, sorted(views())) or did_you_mean(name, sorted(_KNOWN))
    return f"{unknown[0]}{near}; views: {listed(sorted(views()))} ('SHOW TABLES' also lists the relations below them)"


@contextmanager
def open_duckdb(
    store: LakeStore, mentioned: Collection[str] | None = None, **options: Unpack[QueryOptions]
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection with the views, over a snapshot taken now. Inside ``with`` a query raises DuckDB's errors, and those of
    ``query`` leave it when the store's files cannot be read.

    ``mentioned``: only the relations among these words, with what they need, are there, which opens less of the store;
    None: all. The options: see ``query``.
    """
    with _connected_to(store, mentioned, **options) as kept:
        yield kept.connection


@contextmanager
def _connected_to(
    store: LakeStore,
    mentioned: Collection[str] | None,
    *,
    group: str | None = None,
    host: Host = _HOST,
    of_messages: RowGroups | None = None,
    limits: QueryLimits | None = None,
    reread: Collection[str] = (),
) -> Iterator[Connected]:
    """As ``open_duckdb``."""
    names = base_needs(with_needs(_KNOWN if mentioned is None else set(mentioned) & _KNOWN))
    with connected(limits) as kept:
        snapshot = Snapshot(store, names, host, group)
        _register(kept, store, snapshot, names, of_messages)
        try:
            _create(kept, names, {name for name in reread if _bytes_below(snapshot, name) <= _MOST_BYTES_REREAD})
            yield kept
        except duckdb.Error as error:
            if not _is_of_the_store(error):
                raise
            raise _unreadable(error, store) from error


def _is_of_the_store(error: Exception) -> bool:
    """Whether the store's files cannot be read, and the query is not to blame."""
    text = str(error)
    kind = _kind_of(text)
    return _STREAM_FAILED in text or kind in _OF_THE_STORE or (not kind and isinstance(error, OSError))


def _kind_of(text: str) -> str:
    match = _KIND.match(text)
    return match[1] if match else ""


def _unreadable(error: Exception, store: LakeStore) -> RmqError:
    """What the store's own reader says of the file that the error names, as it knows its table; else the error itself."""
    text = str(error).partition(_TRACEBACK)[0]
    if named := _FILE.search(text):
        shard, table_name, path = named.groups()
        try:
            table: LakeTable = getattr(Shard(store.root, shard), table_name)
            table.read([path], columns=())
        except RmqError as reason:
            return reason
    if not store.root.is_local and _UNDECODED.search(text):
        return StoreUnusable(
            f"{store.root.location} cannot be read: S3's answer to a read of a large file cannot be decoded. It may have ended "
            "too early: run the query again. If it fails each time, 'rmq audit --full' reads all files"
        )
    return StoreUnusable(f"{store.root.location} cannot be read: {s3.with_remedy(text)}")


def _register(
    kept: Connected,
    store: LakeStore,
    snapshot: Snapshot,
    names: set[str],
    of_messages: RowGroups | None,
) -> None:
    for name in sorted(names & set(SMALL_RELATIONS)):
        kept.register(name, snapshot.small(name))
    for name in sorted(names & set(FILE_RELATIONS)):
        kept.register(name, _dataset(store, name, snapshot.files(name), of_messages if name in _MESSAGES else None))


def _create(kept: Connected, names: set[str], as_tables: set[str]) -> None:
    """The views among ``names``, each after those that it needs; some of them as tables."""
    for name, text in _view_texts().items():
        if name in names:
            (kept.create_table if name in as_tables else kept.create_view)(name, text)


def _bytes_below(snapshot: Snapshot, name: str) -> int:
    """The size of the files whose rows a relation has."""
    files = [files for below in sorted(base_needs({name}) & set(FILE_RELATIONS)) for files in snapshot.files(below)]
    return sum(pc.sum(one.index.column("size_bytes")).as_py() or 0 for one in files)


_MOST_BYTES_REREAD = 1 << 20
"""Of Parquet files, about 30,000 commits: to read them takes 0.2 s, and 40 MB of memory."""


@cache
def _view_texts() -> Mapping[str, str]:
    """The SQL of each view of DuckDB by name, each after the views that it needs."""
    of_base = {name: base.sql.format(explode="unnest", series="generate_series") for name, base in BASE_SQL.items()}
    return of_base | {view.name: view.sql for view in views().values()}


_MESSAGES = ("msg", "archived")
_KNOWN = {*views(), *BASE_SQL, *FILE_RELATIONS, *SMALL_RELATIONS}


# --- live files as a dataset -----------------------------------------------------------------------------------------

_PROMISING = (
    "commit_id",
    "action",
    "group_name",
    "topic",
    "broker_name",
    "queue_id",
    "queue_offset",
    "store_timestamp",
)
"""Columns whose bounds are checked before a file is opened; each costs some microseconds per file."""


_SMALL_FILES = 512
"""So many small files of a relation are kept while a query runs, as it may read them several times."""


FILES_AT_ONCE = 512
"""Of more files than that, a scan opens so many at once: an open file keeps its footer, about 80 KB of a message file."""


@dataclass(frozen=True, slots=True)
class _Scan:
    """What DuckDB asks for rows. Arrow's own reader of a Scanner keeps the GIL while it begins to read, and waits there for a
    lock: that of a thread which waits for the GIL, as to read a Python file or to free what it has read."""

    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())


class _Dataset(ds.FileSystemDataset):
    """Reads little ahead: a scan ends only when its requested files have arrived, and often the first rows are enough."""

    files_ahead = 2
    sources: Mapping[str, Mapping[str, Any]] | None = None
    """Where there are many files: for each path the arguments to open it. The dataset itself then reads none."""

    def scanner(self, **options: Any) -> _Scan:
        options |= {"batch_readahead": 4, "fragment_readahead": self.files_ahead}
        whole = super().scanner(**options)
        if self.sources is None:
            return _Scan(whole.projected_schema, whole.to_batches)
        return _Scan(whole.projected_schema, partial(self._batches, self.sources, options))

    def _batches(
        self, sources: Mapping[str, Mapping[str, Any]], options: Mapping[str, Any]
    ) -> Iterator[pa.RecordBatch]:
        files = list(self.get_fragments(options.get("filter")))
        for begin in range(0, len(files), FILES_AT_ONCE):
            opened = [
                self.format.make_fragment(**sources[file.path], partition_expression=file.partition_expression)
                for file in files[begin : begin + FILES_AT_ONCE]
            ]
            part = ds.FileSystemDataset(opened, self.schema, self.format, self.filesystem)
            yield from part.scanner(**options).to_batches()


def _dataset(store: LakeStore, name: str, of_shards: list[LiveFiles], row_groups: RowGroups | None) -> ds.Dataset:
    schema = FILE_RELATIONS[name].schema
    root, format_ = store.root, ds.ParquetFileFormat()
    root.check_utf8()
    filesystem, base = root.filesystem()
    try:
        root.check_files(path.removeprefix(f"{base}/") for files in of_shards for path in files.paths())
    except MissingFile as error:
        raise _unreadable(error, store) from error
    whole = lru_cache(_SMALL_FILES)(root.read)
    sources: dict[str, dict[str, Any]] = {}
    promised: list[pc.Expression] = []
    for files in of_shards:
        sizes = files.index.column("size_bytes").to_pylist()
        groups: Sequence[Sequence[int] | None] = [None] * len(sizes)
        if row_groups:
            groups = row_groups(root, files.folder.removeprefix(f"{base}/"), files.index)
        for path, size, of_rows, of_file in zip(files.paths(), sizes, promises(files, schema), groups, strict=True):
            if of_file is not None and not of_file:
                continue
            source: dict[str, Any] = {"file": path, "filesystem": filesystem, "file_size": size}
            if size <= TAIL_BYTES and not root.is_local:
                source = {"file": _small_file(whole, path.removeprefix(f"{base}/"), size)}
            sources[path] = source | {"row_groups": of_file}
            promised.append(of_rows)
    is_many = len(sources) > FILES_AT_ONCE
    fragments = [
        format_.make_fragment(path, filesystem, of_rows)
        if is_many
        else format_.make_fragment(**source, partition_expression=of_rows)
        for (path, source), of_rows in zip(sources.items(), promised, strict=True)
    ]
    dataset = _Dataset(fragments, schema, format_, filesystem)
    if is_many:
        dataset.sources = sources
    if not root.is_local:
        dataset.files_ahead = 8
        if any(max(files.index.column("size_bytes").to_pylist(), default=0) > TAIL_BYTES for files in of_shards):
            note_uncounted(f"reads of data files larger than {TAIL_BYTES >> 10} KiB by a query")
    return dataset


def _small_file(whole: Callable[[str], bytes], path: str, size: int) -> pa.PythonFile:
    """A file in S3 that is read by one request, at its first read."""
    return pa.PythonFile(RangeFile(lambda begin, end: whole(path)[begin:end], size), mode="r")


def promises(files: LiveFiles, schema: pa.Schema) -> Iterator[pc.Expression]:
    """For each file an expression that is true for all its rows: the shard, and the bounds of columns with complete
    statistics."""
    of_shard = pc.field("shard") == files.shard
    there = set(files.index.column_names)
    bounds = [
        (
            pc.field(name),
            schema.field(name).type,
            *(files.index.column(f"{what}.{name}").to_pylist() for what in ("min", "max", "null_count")),
        )
        for name in _PROMISING
        if name in schema.names and {f"{what}.{name}" for what in ("min", "max", "null_count")} <= there
    ]
    counts = files.index.column("num_records").to_pylist() if bounds else [None] * files.index.num_rows
    for row, count in enumerate(counts):
        promised = of_shard
        for column, type_, least, most, nulls in bounds:
            bounded = _bounded(column, type_, (least[row], most[row]), nulls[row], count)
            if bounded is not None:
                promised &= bounded
        yield promised


def _bounded(
    column: pc.Expression, type_: pa.DataType, bounds: tuple[Any, Any], nulls: int | None, count: int | None
) -> pc.Expression | None:
    """What the statistics of a column in one file prove: ``bounds`` (least and greatest value), its nulls and rows.

    A single value is given as equality: then the column is not even read. (Text that was cut never looks like a single
    value: its upper bound is longer.)
    """
    least, most = bounds
    if nulls is None or count is None:
        return None
    if nulls == count:
        return column.is_null()
    if least is None or most is None:
        return None
    if least == most and nulls == 0:
        return column == pa.scalar(least, type_)
    within = (column >= pa.scalar(least, type_)) & (column <= pa.scalar(most, type_))
    return within | column.is_null() if nulls else within
