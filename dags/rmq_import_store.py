"""Import a broker's files: new messages of its store directory go into the commit log.

**What it does.** Reads the files from the end of the last import on, checks every record, and commits messages, queues
and the broker's own data about its groups, in parts of 1 to 4 GiB of its log, each all or nothing. The broker may be
running. A damaged record stops the import, with an error that names the file and the position; with `salvage` it is
skipped and recorded. A body that is larger than `max_body_bytes` after decompression also stops the import, even with
`salvage`: the message is not damaged, so it must not be lost. So do `max_config_bytes` and `max_queues`.

**Running it again.** A second import of the same files changes nothing. After an error it continues behind the last part
that was committed.

**When not to use it.** After the broker's cut-over: its import is closed until `rmq hand-back`.

Never scheduled: a person triggers it, or the job that copied the files. The source must be inside one of `$RMQ_IMPORT_ROOTS`.
"""

from __future__ import annotations

from airflow.sdk import Param

from rmq_store.airflow.dags import LONGEST_RUN, needed, optional, rmq_dag, switch
from rmq_store.airflow.operators.import_store import RmqImportStoreOperator

PARAMS = {
    "source": needed("Source", "The broker's store directory: a folder, or s3://bucket/prefix."),
    "broker_name": needed("Broker", "The broker's name (brokerName)."),
    "shard": optional("Shard", "The shard to import into. Default: the broker's name."),
    "salvage": switch("Salvage", "Skip damaged records, and record what was skipped."),
    "max_body_bytes": optional(
        "Largest body", "In bytes, after decompression. Default: 64 MiB.", kind="integer", minimum=1
    ),
    "max_config_bytes": optional(
        "Largest config file", "In bytes, of each of the broker's. Default: 64 MiB.", kind="integer", minimum=1
    ),
    "max_queues": optional("Most queues", "Of a topic. Default: 65,536.", kind="integer", minimum=1),
    "engine": Param(
        None,
        type=["null", "string"],
        enum=["auto", "local", "spark", None],
        title="Engine",
        description="Default: as the connection says, else auto: in this process if there are less than 512 MiB to read.",
    ),
}


@rmq_dag(__doc__, "import", params=PARAMS)
def rmq_import_store() -> None:
    check = RmqImportStoreOperator(task_id="check", check_only=True, use_run_params=True)
    import_new = RmqImportStoreOperator(task_id="import_new", use_run_params=True, execution_timeout=LONGEST_RUN)
    check >> import_new


rmq_import_store()
