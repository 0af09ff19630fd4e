"""The Delta library as a second reader of a table's log.

This project reads what it needs of an entry. The library reads all of it, and compares paths as they are written. Where the two
differ an engine reads other rows than ``rmq``, and a checkpoint, which the library makes, would put its state in the place of
the entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa

from rmq_store.errors import LogDamaged
from rmq_store.lake.table.delta_entry import encoded
from rmq_store.lake.table.delta_log import LOG_FOLDER
from rmq_store.lake.table.delta_table import LakeTable

if TYPE_CHECKING:
    from deltalake import DeltaTable

_SHOWN = 3
_ADVICE = (
    "No checkpoint was written. Run 'rmq audit --full', and restore what it names of this table's log from a backup under the "
    "same name, else the shard."
)


@contextmanager
def second_reader(log: Mapping[str, bytes], where: str) -> Iterator[tuple[DeltaTable, Path]]:
    """The table as the Delta library reads it in a copy of its log, and the folder of this copy. ``log``: its files by name,
    from entry 0 or a checkpoint on. ``where``: the table's address, for errors.

    Raises LogDamaged when the library cannot read them, also within the block.
    """
    from deltalake import DeltaTable  # 60 ms, needed once in CHECKPOINT_EVERY commits
    from deltalake.exceptions import DeltaError

    with TemporaryDirectory() as folder:
        copy = Path(folder, LOG_FOLDER)
        copy.mkdir()
        for name, content in log.items():
            copy.joinpath(name).write_bytes(content)
        try:
            yield DeltaTable(folder), copy
        except (DeltaError, pa.ArrowException, LookupError) as error:  # also of a column that its answer lacks
            reason, *_ = str(error).splitlines()  # a native stack follows
            raise LogDamaged(f"the Delta library cannot read the log of {where} ({reason})", _ADVICE) from error


def check_files(table: LakeTable, delta: DeltaTable, log: Mapping[str, bytes]) -> None:
    """Raises LogDamaged when the Delta library has other live files than the table's handle, or another size or other partition
    values of one: names some, and the entries with their names. ``log``: what the library has read, up to the same version."""
    columns = ["path", "size_bytes", *(f"partition.{name}" for name in table.layout.partition_by)]
    ours = table.files().select(columns)
    theirs = pa.table(delta.get_add_actions(flatten=True)).select(columns).cast(ours.schema)
    if ours.sort_by("path").equals(theirs.sort_by("path")):
        return
    by_us = Counter((encoded(row.pop("path")), *row.values()) for row in ours.to_pylist())
    by_it = Counter((row.pop("path"), *row.values()) for row in theirs.to_pylist())
    paths = sorted({path for path, *_ in [*(by_us - by_it), *(by_it - by_us)]})
    if not paths:
        return
    shown = paths[:_SHOWN]
    ends = [path.rpartition("/")[2].encode() for path in shown]
    # A checkpoint has its names compressed.
    entries = [name for name, content in log.items() if any(end in content for end in ends)] or [min(log)]
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    raise LogDamaged(
        f"by the log of {table.root.uri_of(table.path)} the Delta library has other files than rmq, or other values of them: "
        f"{', '.join(shown)}{more}, in {', '.join(entries)}",
        _ADVICE,
    )
