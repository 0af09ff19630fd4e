"""``rmq audit --full``: the Delta library reads the log of each table as ``rmq`` does.

It is the reader that makes checkpoints, and like those of other engines it reads all of an entry. So this finds what
``log_actions.py`` does not know of, also in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator

from rmq_store.errors import LogDamaged, RmqError
from rmq_store.lake.audit.finding import Finding, Problem
from rmq_store.lake.commit.derived_tables import KINDS
from rmq_store.lake.table.checkpoint import check_log
from rmq_store.lake.table.delta_log import LogCleaned
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.store import LakeStore


def second_reader(store: LakeStore) -> Iterator[Finding]:
    """The tables that the Delta library cannot read, or of which it has other files or other values of them."""
    for shard in store.shards():
        for name in ("commitlog", *(kind.name for kind in KINDS)):
            try:
                table: LakeTable = getattr(shard, name)
                table.files()
            except (RmqError, OSError):
                continue  # the audit of its files says so
            try:
                check_log(table)
            except LogCleaned:  # a newer checkpoint has what was read
                continue
            except LogDamaged as error:
                yield Finding(shard=shard.name, problem=Problem.LOG_READ_DIFFERENTLY, file=name, detail=error.facts)
            except (RmqError, OSError) as error:
                yield Finding(shard=shard.name, problem=Problem.NOT_AUDITED, file=name, detail=f"log: {error}")
