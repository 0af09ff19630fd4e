"""The live data files of a Delta table with their statistics: an index that grows by what is read, and is never rebuilt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.errors import LogDamaged
from rmq_store.lake.table.delta_entry import Entry, LiveFile, entry_name, twice
from rmq_store.lake.table.table_layout import TableLayout

_WRONG_TYPES = (pa.ArrowException, AttributeError, OverflowError)
_BOUNDS = {"min": "minValues", "max": "maxValues", "null_count": "nullCount"}


def widest_bounds(type_: pa.DataType) -> tuple[Any, Any]:
    """Between these are all values of a type. (None, None) for other types than whole numbers and texts, for whose bounds no
    reader asks."""
    if pa.types.is_integer(type_):
        most = (1 << type_.bit_width - 1) - 1
        return -most - 1, most
    return ("", "\U0010ffff") if pa.types.is_string(type_) else (None, None)


class LiveFiles:
    """The files of one version. ``table`` has a row for each: path, size_bytes, num_records, partition.*, min.*, max.*,
    null_count.*, where * are the partition columns and the columns with statistics.

    A bound that the log does not say, as another tool may leave it, is the widest one, so that an expression over bounds keeps
    the file. It is null only where all values are null.
    """

    def __init__(self, layout: TableLayout, log: str) -> None:
        """``log``: the log's address, for errors."""
        self._log = log
        self._columns = columns = layout.schema
        self._partition_by = layout.partition_by
        self._stats = layout.stats
        self.schema = pa.schema(
            [
                ("path", pa.string()),
                ("size_bytes", pa.int64()),
                ("num_records", pa.int64()),
                *((f"partition.{name}", columns.field(name).type) for name in self._partition_by),
                *((f"min.{name}", columns.field(name).type) for name in self._stats),
                *((f"max.{name}", columns.field(name).type) for name in self._stats),
                *((f"null_count.{name}", pa.int64()) for name in self._stats),
            ]
        )
        self._levels: list[pa.Table] = []  # each more than twice as large as the next, so that few are joined
        self._new: list[LiveFile] = []
        self._paths: set[str] = set()
        self.removals = 0
        """How many entries have removed files, or added some again."""
        self.recent: list[LiveFile] = []
        """The files that entries added since the view was opened, in commit order, also if they were removed since."""
        self.hidden: list[str] = []
        """Those of them with ``dataChange`` false in an entry that removed no file: their rows came with it, and what follows
        the changes of the table leaves them out."""

    @property
    def table(self) -> pa.Table:
        """Raises LogDamaged when an entry has statistics or partition values of another type than the columns."""
        if self._new:
            try:
                added = self._table_of(self._new)
            except _WRONG_TYPES:
                for file in self._new:
                    self._check(file)
                raise
            self._push(added if all(map(self._has_bounds, self._new)) else self._bounded(added))
            self._new = []
        if not self._levels:
            return self.schema.empty_table()
        return self._levels[0] if len(self._levels) == 1 else pa.concat_tables(self._levels)

    def __contains__(self, path: object) -> bool:
        return path in self._paths

    def __len__(self) -> int:
        return len(self._paths)

    def apply(self, entry: Entry) -> None:
        """Add and remove what the entry adds and removes. A live file that it adds again has the values of this ``add``, as
        Delta's protocol says: other tools write statistics so."""
        added = [file for file in entry.added if file.path not in self._paths]
        again = {file.path for file in entry.added} & self._paths
        if entry.removed or again:
            self._remove({*entry.removed, *again})
        self._new += entry.added
        self.recent += added
        self.hidden += [file.path for file in added if not (file.data_change or entry.removed)]
        self._paths.update(file.path for file in entry.added)

    def load(self, adds: pa.StructArray) -> None:
        """The files of a checkpoint: its column ``add``, without nulls. Raises ValueError when it has one twice."""
        if not len(adds):
            return
        paths = adds.field("path")
        if pc.any(pc.match_substring(paths, "%")).as_py():
            paths = pa.array([unquote(path) for path in paths.to_pylist()], pa.string())
        if path := twice(paths.to_pylist()):
            raise ValueError(f"it adds the file {path} twice")
        partition, stats = adds.field("partitionValues"), self._parsed(adds.field("stats"))
        columns = [paths.cast(pa.string()), adds.field("size").cast(pa.int64()), stats["num_records"]]
        for name in self._partition_by:
            values = pc.map_lookup(partition, pa.scalar(name, partition.type.key_type), "first")
            columns.append(values.cast(self._columns.field(name).type))
        columns += [stats[field.name] for field in self.schema if field.name in stats and field.name != "num_records"]
        self._push(self._bounded(pa.table(columns, schema=self.schema)))
        self._paths.update(paths.to_pylist())

    def _parsed(self, texts: pa.Array) -> dict[str, pa.Array]:
        """The statistics (JSON) of many files, a column for each value."""
        import pyarrow.json as pj  # only a process that reads a checkpoint needs it

        typed = pa.struct([self._columns.field(name) for name in self._stats])
        counts = pa.struct([(name, pa.int64()) for name in self._stats])
        schema = pa.schema(
            [("numRecords", pa.int64()), ("minValues", typed), ("maxValues", typed), ("nullCount", counts)]
        )
        lines = "\n".join(text or "{}" for text in texts.to_pylist()) + "\n"
        parse = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        # A block must hold a line, and all of a small text is parsed at once.
        read = pj.ReadOptions(use_threads=False, block_size=max(1 << 20, len(lines) // 8))
        parsed = pj.read_json(BytesIO(lines.encode()), read, parse).combine_chunks()
        columns: dict[str, pa.Array] = {"num_records": _chunk(parsed.column("numRecords"))}
        for prefix, bound in _BOUNDS.items():
            struct = _chunk(parsed.column(bound))
            columns |= {f"{prefix}.{name}": pc.struct_field(struct, name) for name in self._stats}
        return columns

    def _table_of(self, files: Sequence[LiveFile]) -> pa.Table:
        columns: list[list[Any]] = [
            [file.path for file in files],
            [file.size for file in files],
            [file.stats.get("numRecords") for file in files],
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=False)]
        for name in self._partition_by:
            texts = pa.array([file.partition.get(name) for file in files], pa.string())
            arrays.append(texts.cast(self._columns.field(name).type))
        for prefix, bound in _BOUNDS.items():
            of_bound: list[Mapping[str, Any]] = [file.stats[bound] for file in files]
            for name in self._stats:
                type_ = self.schema.field(f"{prefix}.{name}").type
                arrays.append(pa.array([values.get(name) for values in of_bound], type_))
        return pa.table(arrays, schema=self.schema)

    def _check(self, file: LiveFile) -> None:
        try:
            self._table_of([file])
        except _WRONG_TYPES as error:
            raise LogDamaged(
                f"{self._log}/{entry_name(file.version)} is damaged: what it says of {file.path} does not fit the columns "
                f"({error})"
            ) from error

    def _has_bounds(self, file: LiveFile) -> bool:
        """Whether the log says all bounds of a file, as it does of each that this product writes: ``_bounded`` would change
        nothing, and takes longer than the rest of a refresh."""
        stats = file.stats
        rows, least, most, nulls = stats.get("numRecords"), stats["minValues"], stats["maxValues"], stats["nullCount"]
        return rows is not None and all(
            nulls.get(name) == rows or (least.get(name) is not None and most.get(name) is not None)
            for name in self._stats
        )

    def _bounded(self, table: pa.Table) -> pa.Table:
        """With the widest bounds where values are there, and the log does not say which."""
        for name in self._stats:
            has_values = None
            for prefix, widest in zip(("min", "max"), widest_bounds(self._columns.field(name).type), strict=True):
                at = self.schema.get_field_index(f"{prefix}.{name}")
                bounds = table.column(at)
                if not bounds.null_count:
                    continue
                if has_values is None:
                    same = pc.equal(table.column(f"null_count.{name}"), table.column("num_records"))
                    has_values = pc.invert(pc.fill_null(same, False))
                bounds = pc.if_else(has_values, pc.coalesce(bounds, pa.scalar(widest, bounds.type)), bounds)
                table = table.set_column(at, self.schema.field(at), bounds)
        return table

    def _push(self, table: pa.Table) -> None:
        self._levels.append(table)
        while len(self._levels) > 1 and self._levels[-2].num_rows <= 2 * self._levels[-1].num_rows:
            last = self._levels.pop()
            self._levels[-1] = pa.concat_tables([self._levels[-1], last]).combine_chunks()

    def _remove(self, paths: set[str]) -> None:
        self.removals += 1
        for path in paths:
            self._paths.discard(path)
        gone = pa.array(sorted(paths), pa.string())
        self._levels = [level.filter(pc.invert(pc.is_in(level.column("path"), gone))) for level in self._levels]
        self._new = [file for file in self._new if file.path not in paths]


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
