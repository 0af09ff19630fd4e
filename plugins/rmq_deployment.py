"""The store, the settings and the folders of this deployment: from the environment of Airflow's processes, never from a run's
parameters."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rmq_store.errors import WrongUse
from rmq_store.settings.environment import Environment
from rmq_store.settings.listener_folders import add_listener_folders
from rmq_store.settings.retention_settings import RetentionRule
from rmq_store.settings.settings import Settings, read_settings
from rmq_store.settings.spark_settings import SparkSettings, spark_target
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from rmq_store.lake.table.store import LakeStore
    from rmq_store.lake.window.engine import Engine, Engines


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The variables of ``Environment`` that a deployment uses. Its paths are absolute; relative ones start at the checkout."""

    root: str
    settings: str
    environment: Environment
    import_roots: tuple[str, ...]
    export_folder: str
    deliver_schedule: str | None
    persist_schedule: str | None
    maintain_schedule: str | None

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Deployment:
        """``env``: by default the variables of this process."""
        environment = Environment.read(env)
        return cls(
            root=_absolute(environment.root),
            settings=_absolute(environment.settings),
            environment=environment,
            import_roots=tuple(map(_absolute, environment.import_roots)),
            export_folder=_absolute(environment.export_folder),
            deliver_schedule=environment.deliver_schedule,
            persist_schedule=environment.persist_schedule,
            maintain_schedule=environment.maintain_schedule,
        )

    def open_store(self) -> LakeStore:
        from rmq_store.lake.table.object_store import Root
        from rmq_store.lake.table.store import LakeStore

        return LakeStore.open(Root.parse(self.root))

    def engines(self, choice: str | None, listeners: Sequence[str] = ()) -> Engines:
        """``listeners``: ``module:attribute``, to send them to the workers of a cluster."""
        from rmq_store.lake.window.engine import Engines
        from spark_jobs.engine import opened_engine

        folders = add_listener_folders(environment=self.environment)

        def open_spark() -> AbstractContextManager[Engine]:
            settings = self._settings()
            spark = spark_target(settings.spark if settings else SparkSettings(), SparkSettings(), self.environment)
            return opened_engine("rmq", spark, python_path=folders, listeners=listeners)

        return Engines(choice, Host(), open_spark)

    def retention(self) -> tuple[RetentionRule, ...]:
        """The rules of the settings; none where there is no file."""
        settings = self._settings()
        return settings.retention if settings else ()

    def _settings(self) -> Settings | None:
        return read_settings(self.settings) if os.path.exists(self.settings) else None

    def allowed_source(self, source: str) -> str:
        """The resolved source of an import. Raises WrongUse when it is outside ``RMQ_IMPORT_ROOTS``."""
        place = _resolved(source)
        if not self.import_roots:
            raise WrongUse(
                "RMQ_IMPORT_ROOTS is not set: set it to the folders and s3:// prefixes that may be imported from"
            )
        if not any(place == root or place.startswith(f"{root}/") for root in map(_resolved, self.import_roots)):
            raise WrongUse(f"{source} is outside RMQ_IMPORT_ROOTS ({', '.join(self.import_roots)})")
        return place


def _absolute(text: str) -> str:
    """A path from the checkout; an address as it is."""
    return text if "://" in text else str(Path(__file__).resolve().parents[1] / text)


def _resolved(place: str) -> str:
    """Without links and '..', so that a comparison of prefixes is safe."""
    if "://" in place:
        if ".." in place.split("/"):
            raise WrongUse(f"{place}: an address must not contain '..'")
        return place.rstrip("/")
    return os.path.realpath(_absolute(place))
