"""The store in Spark SQL: the views of ``rmq_store/lake/sql/views`` in a session, classic or Connect.

They are the same files that DuckDB runs (``rmq_store/lake/sql/sql.py``). The tables are read as Parquet, by the exact
list of live files of a snapshot, so the session needs no Delta and all relations are of one version.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from rmq_store.errors import WrongUse
from rmq_store.lake.sql.relations import (
    BASE_SQL,
    FILE_RELATIONS,
    SMALL_RELATIONS,
    LiveFiles,
    Snapshot,
    base_needs,
    sql_type,
)
from rmq_store.lake.sql.sql_functions import FUNCTIONS
from rmq_store.lake.sql.views import views, with_needs, words_of
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.host import Host
from spark_jobs.query_check import check_query
from spark_jobs.s3a import s3a_explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_KNOWN = {*views(), *BASE_SQL, *FILE_RELATIONS, *SMALL_RELATIONS}


def query(session: SparkSession, store: LakeStore, text: str) -> pa.Table:
    """The result of a query on a snapshot taken now, in a classic session.

    Raises WrongUse, with Spark's message, for SQL that is wrong, for anything but a query over the views and the relations
    below them, and for a session of Spark Connect (``spark_jobs.query_check``).
    """
    from pyspark.errors import AnalysisException

    check_query(session, text, _KNOWN)
    register_views(session, store, words_of(text) & _KNOWN or None)
    try:
        with s3a_explained():
            return session.sql(text).toArrow()
    except AnalysisException as error:  # its subclass ParseException too
        raise WrongUse(f"SQL: {error}") from error


def register_views(session: SparkSession, store: LakeStore, mentioned: Collection[str] | None = None) -> list[str]:
    """Create the views as temporary views of the session, on a snapshot taken now; returns their names.

    ``mentioned``: only the relations among these words, with those that they read; None: all. A second call replaces
    them by a newer snapshot, or by another store's. Raises StoreUnusable for an ``s3://`` root when the session has no S3A.
    """
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # missing in the types of pyspark 4.2

    names = base_needs(with_needs(_KNOWN if mentioned is None else set(mentioned) & _KNOWN))
    for name, (function, _) in FUNCTIONS.items():
        session.udf.register(name, arrow_udf(function, "bigint"))
    snapshot = Snapshot(store, names, Host())
    for name in sorted(names & set(SMALL_RELATIONS)):
        _frame(session, snapshot.small(name)).createOrReplaceTempView(name)
    for name in sorted(names & set(FILE_RELATIONS)):
        with s3a_explained():
            _live_files(session, store, name, snapshot.files(name)).createOrReplaceTempView(name)
    for name, base in BASE_SQL.items():
        if name in names:
            session.sql(base.sql.format(explode="explode", series="sequence")).createOrReplaceTempView(name)
    selected = [view for view in views().values() if view.name in names]
    for view in selected:
        session.sql(view.sql).createOrReplaceTempView(view.name)
    return [view.name for view in selected]


def _frame(session: SparkSession, table: pa.Table) -> DataFrame:
    return session.createDataFrame(table, _ddl(table.schema))


def _live_files(session: SparkSession, store: LakeStore, name: str, shards: list[LiveFiles]) -> DataFrame:
    """The rows of the files, each with its shard."""
    from pyspark.sql import functions as F

    schema = FILE_RELATIONS[name].schema
    scheme = "" if store.root.is_local else "s3a://"
    frames = [
        session.read.schema(_ddl(schema.remove(0)))
        .parquet(*(scheme + path for path in files.paths()))
        .select(F.lit(files.shard).alias("shard"), "*")
        for files in shards
        if files.index.num_rows
    ]
    return reduce(lambda one, other: one.unionAll(other), frames) if frames else _frame(session, schema.empty_table())


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"`{field.name}` {sql_type(field.type)}" for field in schema)
