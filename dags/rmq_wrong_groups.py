"""Report invalid groups of `$RMQ_SETTINGS`, and those whose DAG Airflow refuses: an import error that names every such group,
with its problems.

It declares no DAG. Airflow shows import errors per file, and runs no DAG of a file that has one. As the error is raised
in this file, the DAGs of the valid groups, which `rmq_consume.py` declares, keep running. An invalid group has no DAG
until its settings are fixed; its past runs are kept.
"""

from __future__ import annotations

from dataclasses import replace

from rmq_store.airflow.dags import refused_groups
from rmq_store.airflow.deployment import Deployment
from rmq_store.errors import WrongUse

try:
    settings = Deployment.from_env().settings()
except WrongUse:
    pass  # rmq_consume.py reports it: without settings there are no DAGs of groups
else:
    refused = {name: [f"Airflow refuses its DAG: {why}"] for name, why in refused_groups(settings.groups).items()}
    replace(settings, wrong={**settings.wrong, **refused}).check()
