"""The environment variables of the command line, the jobs and the DAGs, with their defaults.

Nothing else reads them. Variables of other software (``AWS_*``, ``JAVA_HOME``, ``NO_COLOR``) are not here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the variables say. An empty variable counts as not set, except for the schedules."""

    root: str
    """``RMQ_ROOT``: the store, a folder or ``s3://bucket/prefix``."""
    settings: str
    """``RMQ_SETTINGS``: the file with the consumer groups."""
    spark_remote: str | None
    """``SPARK_REMOTE``: a Spark Connect server, ``sc://host:port``. None: a Spark session of this process."""
    spark_master: str | None
    """``RMQ_SPARK_MASTER``: the master of a Spark session of this process. None: that of the settings file."""
    spark_submit: str | None
    """``RMQ_SPARK_SUBMIT``: ``spark-submit`` with its options, which starts Spark. None: this process does."""
    debug: bool
    """``RMQ_DEBUG=1``: the command line prints the traceback of an error."""
    import_roots: tuple[str, ...]
    """``RMQ_IMPORT_ROOTS``: folders and ``s3://`` prefixes that the DAGs may import from, separated by commas."""
    listener_packages: tuple[str, ...]
    """``RMQ_LISTENER_PACKAGES``: the packages and modules that listeners may be in, separated by commas. Empty: all."""
    listener_path: tuple[str, ...]
    """``RMQ_LISTENER_PATH``: folders with listener modules, separated by commas, as those of ``--listener-path``."""
    redaction: str | None
    """``RMQ_REDACTION``: ``module:function``, which gets each text of a listener's error and returns the text to store."""
    export_folder: str
    """``RMQ_EXPORT_FOLDER``: where the DAGs export offsets to, a folder or ``s3://bucket/prefix``."""
    deliver_schedule: str | None
    """``RMQ_DELIVER_SCHEDULE``: a cron expression in UTC. Empty: None, the DAG runs only when it is triggered."""
    deliver_poll: str
    """``RMQ_DELIVER_POLL``: how long the watcher of ``rmq_deliver_delayed`` may sleep between two looks at the store, such as
    ``5s``; ``0s``: there is no watcher, only the schedule."""
    persist_schedule: str | None
    """``RMQ_PERSIST_SCHEDULE``: likewise."""
    maintain_schedule: str | None
    """``RMQ_MAINTAIN_SCHEDULE``: likewise."""
    jars: str | None
    """``RMQ_JARS``: the folder of the pinned jars. None: in the checkout."""
    spark_driver_memory: str
    """``RMQ_SPARK_DRIVER_MEMORY``: the memory of a local Spark driver, in Spark's notation."""
    sql_timeout: str
    """``RMQ_SQL_TIMEOUT``: how long a query may take, such as ``90s``; ``0s`` is no limit."""
    sql_memory: str | None
    """``RMQ_SQL_MEMORY``: its memory, such as ``2GiB``. None: half of the machine's, at most 4 GiB."""
    sql_spill: str
    """``RMQ_SQL_SPILL``: what it may write to ``TMPDIR``, such as ``10GiB``."""
    umask: str
    """``RMQ_UMASK``: the permissions that new files and folders do not get, three or four octal digits."""
    run_notes: bool
    """``RMQ_RUN_NOTES=0``: Airflow gets no listener that writes the notes of runs."""
    metrics_token: str | None = field(repr=False)
    """``RMQ_METRICS_TOKEN``: the bearer token of the console's metrics for Prometheus. None: there are no metrics."""
    chosen: frozenset[str]
    """The names of the variables that are set and not empty. The fields of the others have their defaults."""

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> Environment:
        """``variables``: by default those of this process, as they are now."""
        env = os.environ if variables is None else variables
        import_roots = (root.strip() for root in env.get("RMQ_IMPORT_ROOTS", "").split(","))
        listener_path = (folder.strip() for folder in env.get("RMQ_LISTENER_PATH", "").split(","))
        packages = (package.strip() for package in env.get("RMQ_LISTENER_PACKAGES", "").split(","))
        return cls(
            root=env.get("RMQ_ROOT") or "var/store",
            settings=env.get("RMQ_SETTINGS") or "consumers.toml",
            spark_remote=env.get("SPARK_REMOTE") or None,
            spark_master=env.get("RMQ_SPARK_MASTER") or None,
            spark_submit=env.get("RMQ_SPARK_SUBMIT") or None,
            debug=env.get("RMQ_DEBUG") == "1",
            import_roots=tuple(root for root in import_roots if root),
            listener_packages=tuple(package for package in packages if package),
            listener_path=tuple(folder for folder in listener_path if folder),
            redaction=env.get("RMQ_REDACTION") or None,
            export_folder=env.get("RMQ_EXPORT_FOLDER") or "var/exports",
            deliver_schedule=env.get("RMQ_DELIVER_SCHEDULE", "* * * * *") or None,
            deliver_poll=env.get("RMQ_DELIVER_POLL") or "5s",
            persist_schedule=env.get("RMQ_PERSIST_SCHEDULE", "*/5 * * * *") or None,
            maintain_schedule=env.get("RMQ_MAINTAIN_SCHEDULE", "30 3 * * *") or None,
            jars=env.get("RMQ_JARS") or None,
            spark_driver_memory=env.get("RMQ_SPARK_DRIVER_MEMORY", "2g"),
            sql_timeout=env.get("RMQ_SQL_TIMEOUT") or "10m",
            sql_memory=env.get("RMQ_SQL_MEMORY") or None,
            sql_spill=env.get("RMQ_SQL_SPILL") or "16GiB",
            umask=env.get("RMQ_UMASK") or "077",
            run_notes=env.get("RMQ_RUN_NOTES") != "0",
            metrics_token=env.get("RMQ_METRICS_TOKEN") or None,
            chosen=frozenset(name for name, value in env.items() if value),
        )
