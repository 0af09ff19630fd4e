"""Which queues of a broker are newer than a moment, by the imports that brought their messages."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.lake.table import tables
from rmq_store.lake.table.ctl_index import IS_CTL
from rmq_store.lake.table.import_parameters import IMPORTS
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message import MessageQueue

_QUEUE = ["topic", "broker_name", "queue_id"]
_OF_IMPORTS = IS_CTL & (pc.field("max.action") >= min(IMPORTS)) & (pc.field("min.action") <= max(IMPORTS))
"""The files that may have commits of these actions."""


def appeared_after(shard: Shard, queues: Iterable[MessageQueue], ms: int) -> set[MessageQueue]:
    """Those of the queues of which an import after ``ms`` (UTC ms, by the store's clock) brought the first message. Older
    imports are read only where a later one has messages of such a queue.

    Raises as ``LakeTable.read``.
    """
    timestamp = pc.field("store_timestamp")
    newer = set(queues) & _imported(shard, pc.field("max.store_timestamp") > ms, timestamp > ms)
    return newer and newer - _imported(shard, pc.field("min.store_timestamp") <= ms, timestamp <= ms)


def _imported(shard: Shard, of_files: pc.Expression, of_rows: pc.Expression) -> set[MessageQueue]:
    """The queues of which the imports among some commits brought messages."""
    paths = shard.commitlog.files(_OF_IMPORTS & of_files).column("path").to_pylist()
    commits = shard.commitlog.read(paths, ["action", "store_timestamp", "produced"])
    imports = commits.filter(pc.field("action").isin([*IMPORTS]) & of_rows)
    produced = imports.column("produced").combine_chunks().flatten()
    segments = pa.table({name: pc.struct_field(produced, name) for name in _QUEUE})
    return {tables.queue_of_row(row) for row in segments.group_by(_QUEUE).aggregate([]).to_pylist()}
