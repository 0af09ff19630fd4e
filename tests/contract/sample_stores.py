"""Small stores of real brokers below ``tests/data``, and their import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from demo.archives import unpack
from rmq_store.commit.ctl import Actor
from rmq_store.lake.broker.import_request import ImportReport, ImportRequest
from rmq_store.lake.broker.import_store import import_store
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.utils.host import Host

BROKER = "broker-a"


def unpacked(data: Path, folder: Path) -> Path:
    """The store directory of the archive in ``data``, below ``folder``."""
    return unpack(data / "store.tar.gz", folder) / "store"


def load(store: LakeStore, broker: Path, **options: Any) -> ImportReport:
    """Import the store directory, as a request of its own. ``options``: of the request."""
    request_id = f"2026-11-23-{Host().new_commit_id()}"
    actor = Actor("test", "test")
    request = ImportRequest(broker_name=BROKER, shard_name=BROKER, request_id=request_id, actor=actor, **options)
    return import_store(store, Root.parse(str(broker)), request, Host(), LocalEngine(Host()))
