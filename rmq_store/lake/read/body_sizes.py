"""The bytes of the bodies of many messages, as they are stored: the column ``stored_body_size``, which is small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow.compute as pc

from rmq_store.consumer.pull import Slice
from rmq_store.lake.read.open_files import OpenFiles
from rmq_store.lake.read.slice_reader import SliceReader, slices_by_file
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.parallel import in_parallel
from rmq_store.message.message import MessageQueue

SIZE = "stored_body_size"


def bytes_of_slices(root: Root, table: str, slices: Sequence[Slice]) -> Mapping[MessageQueue, int]:
    """The bytes per queue, 0 left out. ``table``: the path of the commit log table. Raises as ``SliceReader``."""

    def of_file(several: Sequence[Slice]) -> list[tuple[MessageQueue, int]]:
        files = OpenFiles(root)
        return [(one.queue, _bytes(SliceReader(root, table, one, files))) for one in several]

    total: dict[MessageQueue, int] = {}
    for of_slices in in_parallel(root, of_file, slices_by_file(slices)):
        for queue, count in of_slices:
            total[queue] = total.get(queue, 0) + count
    return total


def _bytes(reader: SliceReader) -> int:
    return sum(pc.sum(batch.column(SIZE)).as_py() or 0 for _, batch in reader.batches([SIZE]))
