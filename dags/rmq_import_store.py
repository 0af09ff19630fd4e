"""Import a broker's files: what is new in its store directory goes into the commit log.

**What it does.** Reads what lies behind the last import, checks every record, and commits messages, queues and what the
broker knew of its groups, all or nothing. The broker may be alive. A damaged record stops it with file and position
named; with `salvage` it is skipped and recorded.

**Again.** A second import of the same files changes nothing.

**When not to use it.** After the broker's cut-over: its import is closed for good.

Triggered by a person or by whatever copied the files. The source must lie below `$RMQ_IMPORT_ROOTS`.
"""

from __future__ import annotations

from airflow.sdk import Param, dag, task
from rmq_operators import DEFAULTS, FIRST_DAY, LONGEST_RUN, Answer, check_import, import_files, translated

PARAMS = {
    "source": Param("", type="string", minLength=1, title="Source", description="A folder, or s3://bucket/prefix."),
    "broker_name": Param("", type="string", minLength=1, title="Broker"),
    "shard": Param(None, type=["null", "string"], title="Shard", description="Empty: the broker's name."),
    "salvage": Param(False, type="boolean", title="Salvage", description="Skip what is damaged, and record it."),
    "engine": Param("spark", type="string", enum=["spark", "local"], title="Engine"),
}


@dag(
    dag_id="rmq_import_store",
    schedule=None,
    start_date=FIRST_DAY,
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
    params=PARAMS,
    doc_md=__doc__,
    tags=["rmq", "import"],
)
def rmq_import_store() -> None:
    @task
    @translated
    def check() -> str:
        return check_import()

    @task(execution_timeout=LONGEST_RUN)
    @translated
    def import_new() -> Answer:
        return import_files()

    check() >> import_new()


rmq_import_store()
