"""The tables for SQL: views and functions, in DuckDB here and in Spark by ``spark_jobs/query.py``."""
