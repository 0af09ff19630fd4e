"""Where a command runs its tasks: in this process or in Spark, which starts only when there is work.

Only this module uses ``spark_jobs``, and it imports it by name: the command line works without a JVM.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmq_store.cli.common import optional_settings
from rmq_store.settings.environment import Environment
from rmq_store.settings.listener_folders import add_listener_folders
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from rmq_store.cli.options import SparkOptions
    from rmq_store.lake.window.engine import Engine, Engines
    from rmq_store.settings.spark_settings import SparkSettings


def engines_of(
    command: str,
    choice: str | None,
    host: Host,
    spark: Callable[[], SparkSettings],
    python_path: Sequence[Path] = (),
    listeners: Sequence[str] = (),
) -> Engines:
    """The engines of one command; ``choice``: None is that of each group, ``spark``: that of ``spark_of``, ``python_path``:
    where Spark's workers find the ``listeners`` (``module:attribute``)."""
    from rmq_store.lake.window.engine import Engines

    def open_spark() -> AbstractContextManager[Engine]:
        opened: AbstractContextManager[Engine] = spark_module("engine").opened_engine(
            f"rmq {command}", spark(), python_path=python_path, listeners=listeners
        )
        return opened

    return Engines(choice, host, open_spark)


def spark_of(options: SparkOptions, settings: str | None) -> Callable[[], SparkSettings]:
    """Where Spark runs, by the options, the environment and the settings file, which is read when Spark is opened.

    Raises WrongUse for the options and the environment; the function raises it for the file."""
    from rmq_store.settings.spark_settings import SparkSettings, spark_target

    chosen, environment = options.settings(), Environment.read()
    spark_target(SparkSettings(), chosen, environment)

    def target() -> SparkSettings:
        file = optional_settings(settings)
        return spark_target(SparkSettings() if file is None else file.spark, chosen, environment)

    return target


def spark_module(name: str) -> Any:
    """A module of ``spark_jobs``. Raises StoreUnusable when it, or what it needs, is not installed."""
    try:
        return importlib.import_module(f"spark_jobs.{name}")
    except ImportError as error:
        from rmq_store.lake.window.engine import spark_missing

        raise spark_missing(error) from error


def listener_folders(paths: Sequence[str]) -> list[Path]:
    """Make listeners importable from these folders, those of ``RMQ_LISTENER_PATH`` and the current one; returns the folders,
    for Spark's workers.

    The current folder comes last: a file there does not replace a module of the same name, such as ``pandas.py``. It is left
    out if it was deleted.
    Raises WrongUse for a folder that does not exist."""
    folders = add_listener_folders(paths)
    try:
        current = Path.cwd()
    except FileNotFoundError:
        return folders
    if str(current) not in sys.path:
        sys.path.append(str(current))
    return [*folders, current]
