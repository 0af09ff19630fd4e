"""How much an import has to read, before it begins."""

from __future__ import annotations

from rmq_store.commit.positions import import_id
from rmq_store.lake.broker.import_request import ImportRequest
from rmq_store.lake.broker.root_file_source import file_source
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.numbers import whole_number


def bytes_to_read(store: LakeStore, files: Root, request: ImportRequest) -> int:
    """About how many bytes an import has to read: the files after the position of the last import."""
    begin = 0
    if request.shard_name in store.shard_names():
        (shard,) = store.shards(request.shard_name)
        names = (request.broker_name, *([request.continues.broker_name] if request.continues else []))
        begin = max(shard.positions().get(import_id(name)) or 0 for name in names)
    logs = [(name.rpartition("/")[2], size) for name, size in file_source(files).list("commitlog")]
    return sum(size for name, size in logs if (start := whole_number(name)) is not None and start + size > begin)
