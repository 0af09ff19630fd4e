"""A provider package for Airflow: connection, hook, operators. ``docs/airflow.md`` shows a DAG with them.

Only this package of ``rmq_store`` knows Airflow, and only DAGs and plugins import it. Airflow reads DAG files every few
seconds, so everything heavy is imported when a task runs.
"""
