"""Import a broker's files: what is new in its store directory goes into the commit log.

**What it does.** Reads what lies behind the last import, checks every record, and commits messages, queues and what the
broker knew of its groups, all or nothing. The broker may be alive. A damaged record stops it with file and position
named; with `salvage` it is skipped and recorded. A body larger than `max_body_bytes` when it is decompressed stops it too,
also with `salvage`: it is sound, so nothing of it may be lost.

**Again.** A second import of the same files changes nothing.

**When not to use it.** After the broker's cut-over: its import is closed for good.

Triggered by a person or by whatever copied the files. The source must lie below `$RMQ_IMPORT_ROOTS`.
"""

from __future__ import annotations

from airflow.sdk import Param, task
from rmq_dags import LONGEST_RUN, needed, optional, rmq_dag
from rmq_operators import Answer, check_import, import_files

PARAMS = {
    "source": needed("Source", "A folder, or s3://bucket/prefix."),
    "broker_name": needed("Broker"),
    "shard": optional("Shard", "Empty: the broker's name."),
    "salvage": Param(False, type="boolean", title="Salvage", description="Skip what is damaged, and record it."),
    "max_body_bytes": optional(
        "Largest body", "In bytes, when it is decompressed; empty: 64 MiB.", kind="integer", minimum=1
    ),
    "engine": Param("spark", type="string", enum=["spark", "local"], title="Engine"),
}


@rmq_dag(__doc__, "import", params=PARAMS)
def rmq_import_store() -> None:
    @task
    def check() -> str:
        return check_import()

    @task(execution_timeout=LONGEST_RUN)
    def import_new() -> Answer:
        return import_files()

    check() >> import_new()


rmq_import_store()
