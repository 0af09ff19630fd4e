"""The store, the settings and the folders of a deployment: from a connection and the environment of Airflow's processes, never
from a run's parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmq_store.errors import WrongUse
from rmq_store.settings.environment import Environment
from rmq_store.settings.listener_folders import add_listener_folders, has_module
from rmq_store.settings.retention_settings import RetentionRule
from rmq_store.settings.settings import Settings, read_settings
from rmq_store.settings.settings_values import ENGINES
from rmq_store.settings.spark_settings import SparkSettings, spark_target, submit_options
from rmq_store.utils.host import Host
from rmq_store.utils.suggestions import did_you_mean, listed

if TYPE_CHECKING:
    from rmq_store.lake.table.object_store import Root
    from rmq_store.lake.table.store import LakeStore
    from rmq_store.lake.window.engine import Engine, Engines
    from rmq_store.utils.progress import Progress

CONN_TYPE = "rmq"
"""Airflow's name for the type of our connections."""

VARIABLES = {
    "root": "RMQ_ROOT",
    "settings": "RMQ_SETTINGS",
    "import_roots": "RMQ_IMPORT_ROOTS",
    "export_folder": "RMQ_EXPORT_FOLDER",
    "spark_remote": "SPARK_REMOTE",
    "spark_master": "RMQ_SPARK_MASTER",
    "spark_submit": "RMQ_SPARK_SUBMIT",
    "endpoint_url": "AWS_ENDPOINT_URL_S3",
    "region_name": "AWS_REGION",
    "aws_session_token": "AWS_SESSION_TOKEN",
}
"""The fields of a connection's ``extra``, and the variables that they replace. There is one more, ``engine``."""

_TOGETHER = (
    ("SPARK_REMOTE", "RMQ_SPARK_MASTER", "RMQ_SPARK_SUBMIT"),
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
)
"""Variables of one choice: where a connection has one of them, those of the environment do not count."""


def variables_of(login: str | None, password: str | None, extra: Mapping[str, Any]) -> dict[str, str]:
    """What a connection says, as the environment variables that it replaces; "" for those that it takes away.

    ``login`` and ``password`` are the keys of S3. Raises WrongUse for unknown fields, since a misspelt ``root`` would be
    another store, for values that are not text, and for U+0000, which no variable has.
    """
    known = [*VARIABLES, "engine"]
    if unknown := [f"{name!r}{did_you_mean(name, known)}" for name in extra if name not in known]:
        raise WrongUse(f"the connection has unknown fields in extra: {'; '.join(unknown)}; known: {listed(known)}")
    if wrong := [name for name, value in extra.items() if not isinstance(value, str | None)]:
        raise WrongUse(f"the connection's field {wrong[0]} must be text, it is {extra[wrong[0]]!r}")
    if wrong := [name for name, value in extra.items() if value and "\0" in value]:
        raise WrongUse(f"the connection's field {wrong[0]} has the character U+0000, which no path has")
    values = {variable: extra.get(name) for name, variable in VARIABLES.items()}
    values |= {"AWS_ACCESS_KEY_ID": login, "AWS_SECRET_ACCESS_KEY": password}
    variables = {name: value.strip() for name, value in values.items() if value and value.strip()}
    for names in _TOGETHER:
        if not variables.keys().isdisjoint(names):
            variables |= {name: "" for name in names if name not in variables}
    return variables


def check_connection(conn_type: str | None, host: str | None, schema: str | None, port: int | None) -> None:
    """Raise WrongUse for a connection of another type, whose login and password would become keys of S3, and for one with
    fields that say nothing here: who fills them in means another store."""
    if conn_type != CONN_TYPE:
        raise WrongUse(f"the connection is of the type {conn_type!r}: a connection of the type {CONN_TYPE!r} is needed")
    given = {"host": host, "schema": schema, "port": port}
    if used := [name for name, value in given.items() if value]:
        raise WrongUse(
            f"the connection has a value in {', '.join(used)}, which says nothing here: leave it empty, and give the store as "
            "root in extra"
        )


class SettingsUnusable(WrongUse):
    """The settings as a whole, as while an editor writes the file. Looking again later may help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The variables of ``Environment`` that a deployment uses. Its paths are absolute; relative ones start at the folder that
    Airflow's folder of DAGs is in: the checkout, or AIRFLOW_HOME."""

    root: str
    settings_file: str
    environment: Environment
    import_roots: tuple[str, ...]
    export_folder: str
    engine: str | None = None
    """Where work runs: one of ``settings_values.ENGINES``. None: a window as its group says, an import ``auto``."""
    variables: Mapping[str, str] = field(repr=False)
    """The environment, with the keys of S3."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None, engine: str | None = None) -> Deployment:
        """``env``: by default the variables of this process. Raises WrongUse for an unknown engine, and for wrong options of
        spark-submit."""
        if engine and engine not in ENGINES:
            raise WrongUse(f"the connection's engine is {engine!r}: expected one of {', '.join(ENGINES)}")
        environment = Environment.read(env)
        if environment.spark_submit is not None:
            submit_options(environment.spark_submit)
        return cls(
            root=_absolute(environment.root),
            settings_file=_absolute(environment.settings),
            environment=environment,
            import_roots=tuple(map(_absolute, environment.import_roots)),
            export_folder=_absolute(environment.export_folder),
            engine=engine or None,
            variables=dict(os.environ if env is None else env),
        )

    def place(self, location: str) -> Root:
        """A folder or ``s3://bucket/prefix``, with the deployment's keys."""
        from rmq_store.lake.table.object_store import Root

        return Root.parse(location, self.variables)

    def open_store(self) -> LakeStore:
        """Raises StoreUnusable where there is none."""
        from rmq_store.lake.table.store import LakeStore

        return LakeStore.open(self.place(self.root))

    def find_listeners(self) -> list[Path]:
        """Make listeners importable from the folders of ``RMQ_LISTENER_PATH``, before one is loaded: to consume, and to plan.
        Returns the folders. Raises WrongUse for one that does not exist."""
        return add_listener_folders(environment=self.environment)

    def engines(
        self, choice: str | None = None, listeners: Sequence[str] = (), progress: Progress | None = None
    ) -> Engines:
        """``choice``: None is the deployment's. ``listeners``: ``module:attribute``, to send them to the workers of a
        cluster. ``progress``: of the tasks in this process."""
        from rmq_store.cli.engines import spark_module
        from rmq_store.lake.window.engine import Engines

        folders = self.find_listeners()

        def open_spark() -> AbstractContextManager[Engine]:
            settings = self.optional_settings()
            file = settings.spark if settings else SparkSettings()
            target = spark_target(file, SparkSettings(), self.environment)
            opened: AbstractContextManager[Engine] = spark_module("engine").opened_engine(
                "rmq", target, python_path=folders, listeners=listeners
            )
            return opened

        return Engines(choice or self.engine, Host(), open_spark, progress)

    def settings(self) -> Settings:
        """The consumer groups. Raises SettingsUnusable for a file that is missing or no TOML."""
        try:
            return read_settings(self.settings_file)
        except WrongUse as error:
            raise SettingsUnusable(str(error)) from error

    def optional_settings(self) -> Settings | None:
        """The settings; None where there is no file. Raises SettingsUnusable for one that is no TOML."""
        return self.settings() if os.path.exists(self.settings_file) else None

    def groups_that_consume_retries(self) -> list[str]:
        """The groups with ``consume_retries``; none where there is no file. As ``optional_settings``."""
        settings = self.optional_settings()
        return [group.name for group in settings.groups if group.consume_retries] if settings else []

    def listener_warning(self, listener: str) -> str:
        """What a user should know of a group's listener, ``module:attribute``, before a window calls it; "" if its module is on
        this machine. Spark's workers may have modules that this machine lacks."""
        if has_module(listener, self.environment):
            return ""
        return (
            f"the module of listener {listener} is not on this machine: install it, or add its folder to RMQ_LISTENER_PATH. "
            "'rmq doctor' imports all listeners and says what is wrong"
        )

    def retention(self) -> tuple[RetentionRule, ...]:
        """The rules of the settings; none where there is no file."""
        settings = self.optional_settings()
        return settings.retention if settings else ()

    def allowed_source(self, source: str) -> str:
        """The resolved source of an import. Raises WrongUse when it is outside ``RMQ_IMPORT_ROOTS``."""
        place = _resolved(source)
        if not self.import_roots:
            raise WrongUse(
                "RMQ_IMPORT_ROOTS is not set: set it, or import_roots of the connection, to the folders and s3:// prefixes "
                "that may be imported from"
            )
        if not any(place == root or place.startswith(f"{root}/") for root in map(_resolved, self.import_roots)):
            raise WrongUse(f"{source} is outside RMQ_IMPORT_ROOTS ({', '.join(self.import_roots)})")
        return place


def _absolute(text: str) -> str:
    """A path from the folder above the DAGs; an address as it is."""
    if "://" in text or os.path.isabs(text):
        return text
    from airflow.sdk.configuration import conf

    return str(Path(str(conf.get("core", "dags_folder"))).absolute().parent / text)


def _resolved(place: str) -> str:
    """Without links and '..', so that a comparison of prefixes is safe."""
    if "://" in place:
        if ".." in place.split("/"):
            raise WrongUse(f"{place}: an address must not contain '..'")
        return place.rstrip("/")
    return os.path.realpath(_absolute(place))
