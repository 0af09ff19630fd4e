"""The Delta library as a second reader of a table's log.

This project reads what it needs of an entry. The library reads all of it, and compares paths as they are written. Where the two
differ an engine reads other rows than ``rmq``, and a checkpoint, which the library makes, would put its state in the place of
the entries.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pyarrow as pa

from rmq_store.errors import LogDamaged
from rmq_store.lake.table.delta_entry import encoded
from rmq_store.lake.table.delta_log import LAST_CHECKPOINT, LOG_FOLDER
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.utils.daemon_call import in_daemon
from rmq_store.utils.suggestions import listed

T = TypeVar("T")

_SHOWN = 3
_ADVICE = (
    "No checkpoint is made of it. Run 'rmq audit --full', and restore what it names of this table's log from a backup under "
    "the same name, else the shard; 'rmq dispatch --rebuild' writes a derived table again."
)
_MOST_S = 600
_MOST_S_AFTER_SIGNAL = 10
_late: set[Future[Any]] = set()
"""Calls of the library that had not ended in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondReading:
    """What the Delta library makes of a log. Where this ends in a checkpoint it makes no other."""

    files: pa.Table
    """A row for each add action of a live file."""
    checkpoint: bytes = b""
    """Of the newest entry."""
    hint: Mapping[str, Any] = field(default_factory=dict)
    """The content of ``_last_checkpoint``."""


def second_reading(log: Mapping[str, bytes], where: str) -> SecondReading:
    """What the Delta library reads in a copy of a log. ``log``: its files by name, from entry 0 or a checkpoint on. ``where``:
    the table's address, for errors.

    Raises LogDamaged when the library cannot read them, and OSError when it does not answer.
    """
    with TemporaryDirectory() as folder:
        copy = Path(folder, LOG_FOLDER)
        copy.mkdir()
        for name, content in log.items():
            copy.joinpath(name).write_bytes(content)
        with _cannot_read(where):
            return in_time(lambda: _of_library(copy))


def _of_library(log: Path) -> SecondReading:
    from deltalake import DeltaTable  # 60 ms, needed once in CHECKPOINT_EVERY commits

    delta = DeltaTable(log.parent)
    files = pa.table(delta.get_add_actions(flatten=True))
    delta.create_checkpoint()  # it reads more than the files, such as the positions
    if not log.joinpath(LAST_CHECKPOINT).exists():
        return SecondReading(files=files)
    hint = json.loads(log.joinpath(LAST_CHECKPOINT).read_bytes())
    checkpoint = log.joinpath(f"{hint['version']:020d}.checkpoint.parquet").read_bytes()
    return SecondReading(files=files, checkpoint=checkpoint, hint=hint)


def in_time(call: Callable[[], T], most_s: float = _MOST_S) -> T:
    """What ``call`` returns or raises. Raises OSError when it has not ended after ``most_s``, when one before it still has not
    ended, and for a panic of native code.

    The Delta library waits for a thread of its own that may never come, where the system refuses one, and no signal ends this.
    A window has committed by then, so it must not wait with it.
    """
    if not all(earlier.done() for earlier in _late):
        raise OSError("the Delta library is not called again in this process: an earlier call has not ended")
    answer: Future[T] = Future()
    try:
        in_daemon(call, "delta-library", answer)
        wait([answer], most_s)
    except RuntimeError as error:  # there is no thread
        raise OSError(f"the Delta library was not called: {error}") from error
    except BaseException:  # a signal; the interpreter must not end while native code is about to return to it
        wait([answer], _MOST_S_AFTER_SIGNAL)
        raise
    if not answer.done():
        _late.add(answer)
        raise OSError(f"the Delta library has not answered for {most_s} s")
    try:
        return answer.result()
    except Exception:
        raise
    except BaseException as error:  # a panic
        raise OSError(f"the Delta library has failed: {error}") from error


@contextmanager
def _cannot_read(where: str) -> Iterator[None]:
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, pa.ArrowException, LookupError) as error:  # also of a column that its answer lacks
        reason, *_ = str(error).splitlines()  # a native stack follows
        raise LogDamaged(f"the Delta library cannot read the log of {where} ({reason})", _ADVICE) from error


def check_files(table: LakeTable, files: pa.Table, log: Mapping[str, bytes]) -> None:
    """Raises LogDamaged when the Delta library has other live files than the table's handle, or another size or other partition
    values of one: names some, and the entries with their names. ``files``: those of a SecondReading. ``log``: what the library
    has read, up to the same version."""
    columns = ["path", "size_bytes", *(f"partition.{name}" for name in table.layout.partition_by)]
    ours, where = table.files().select(columns), table.root.uri_of(table.path)
    with _cannot_read(where):
        theirs = files.select(columns).cast(ours.schema)
    if ours.sort_by("path").equals(theirs.sort_by("path")):
        return
    by_us = Counter((encoded(row.pop("path")), *row.values()) for row in ours.to_pylist())
    by_it = Counter((row.pop("path"), *row.values()) for row in theirs.to_pylist())
    paths = sorted({path for path, *_ in [*(by_us - by_it), *(by_it - by_us)]})
    if not paths:
        return
    ends = [path.rpartition("/")[2].encode() for path in paths[:_SHOWN]]
    # A checkpoint has its names compressed.
    entries = [name for name, content in log.items() if any(end in content for end in ends)] or [min(log)]
    raise LogDamaged(
        f"by the log of {where} the Delta library has other files than rmq, or other values of them: "
        f"{listed(paths, _SHOWN)}, in {', '.join(entries)}",
        _ADVICE,
    )
