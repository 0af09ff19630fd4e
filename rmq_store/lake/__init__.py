"""The store: Delta, Parquet, object storage, DuckDB."""

from rmq_store.lake.lazy_pandas import start_pyarrow

start_pyarrow()
