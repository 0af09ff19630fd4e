"""What is wrong in `$RMQ_SETTINGS`: an import error that names every group that is wrong, with its problems.

It makes no DAG. Airflow shows import errors per file, and runs no DAG of a file that has one: said here, the DAGs of
the other groups, which `rmq_consume.py` makes, go on. A wrong group has no DAG until it is mended; its runs are kept.
"""

from __future__ import annotations

from rmq_deployment import Deployment

from rmq_store.errors import WrongUse
from rmq_store.settings.settings import read_settings

try:
    settings = read_settings(Deployment.from_env().settings)
except WrongUse:
    pass  # rmq_consume.py says it: without settings there are no DAGs of groups
else:
    settings.check()
