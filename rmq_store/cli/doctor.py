"""The checks of ``rmq doctor``, including those of Java, jars and Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmq_store.cli.common import root_of, settings_path
from rmq_store.cli.engines import listener_folders, spark_module
from rmq_store.cli.options import SettingsOptions
from rmq_store.cli.output import s3_requests
from rmq_store.errors import StoreUnusable
from rmq_store.lake.table.request_counter import Kind
from rmq_store.settings.environment import Environment
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from rmq_store.lake.admin.doctor import Check
    from rmq_store.settings.spark_settings import SparkSettings


def all_checks(options: SettingsOptions, spark: Callable[[], SparkSettings] | None) -> Iterator[Check]:
    """In the order in which to fix them. ``spark``: also start Spark, with these settings."""
    from rmq_store.lake.admin.doctor import Check, CheckSkipped, machine_checks, store_checks
    from rmq_store.lake.admin.doctor_settings import listeners_check, settings_check, subscriptions_check

    environment = Environment.read()

    def spark_session() -> str:
        if spark is None:
            raise CheckSkipped("run with --spark to check it")
        target = spark()
        with spark_module("engine").opened_session("rmq doctor", target, delta=False) as session:
            spark_module("session").warm_up(session)
            where = "the server of SPARK_REMOTE" if target.remote else "a session of this process"
            where += f" on {target.master}" if target.master else ""
            return f"Spark {session.version} answered in {where}"

    def java_home() -> Path:
        need_spark()
        return Path(spark_module("java").find_java())

    def delta_jars() -> str:
        need_spark()
        return _delta_jars()

    def need_spark() -> None:
        if find_spec("pyspark") is None:
            raise CheckSkipped("Spark is not installed: pip install 'rocketmq-lakehouse[spark]'")

    yield from machine_checks(java_home, delta_jars)
    yield from store_checks(lambda: root_of(options.root), Host())
    path = settings_path(options.settings)
    yield settings_check(path, required=options.settings is not None or "RMQ_SETTINGS" in environment.chosen)
    yield subscriptions_check(path, lambda: root_of(options.root))
    yield listeners_check(path, lambda: listener_folders(()), Host())
    yield Check(
        "Spark", spark_session, "fix Java and jars first; if SPARK_REMOTE is set, start that server or unset it"
    )
    if requests := s3_requests():
        yield Check("requests", lambda: _requests_text(requests), "")


def _requests_text(requests: Mapping[str, Any]) -> str:
    kinds = ", ".join(f"{requests[kind]} {kind}" for kind in Kind if kind in requests)
    return (
        f"{requests['total']} to S3 by these checks ({kinds}), {requests['serial']} one after the other, "
        f"US$ {requests['usd']:.7f} at list price"
    )


def _delta_jars() -> str:
    """Raises StoreUnusable, which names every jar that is missing or whose checksum is not that of jars.lock."""
    jars = spark_module("jars")
    locked = [jar for jar in jars.locked_jars() if jar.group == "delta"]
    missing = [f"{jar.file_name} is missing" for jar in locked if not jar.path.is_file()]
    changed = [
        f"{jar.file_name} has a wrong checksum"
        for jar in locked
        if jar.path.is_file() and jars.sha256_of(jar.path) != jar.sha256
    ]
    if missing or changed:
        raise StoreUnusable(f"in {jars.jar_folder('delta')}: {'; '.join(missing + changed)}")
    return f"{len(locked)} Delta jars with the right checksums in {jars.jar_folder('delta')}"
