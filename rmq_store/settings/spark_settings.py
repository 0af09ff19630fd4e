"""Where Spark runs the tasks: the table ``[spark]`` of ``consumers.toml``, options of a command, and the environment.

    [spark]
    master = "spark://spark-master:7077"
    py_files = ["shop_models.whl"]

    [spark.conf]
    spark.cores.max = 32

``docs/cluster.md`` says what each key does, and what the workers of a cluster need.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rmq_store.errors import WrongUse
from rmq_store.settings.environment import Environment
from rmq_store.utils.suggestions import did_you_mean

SHIP = "spark.rmq.ship"
"""Whether the session sends the code to the workers: ``true`` or ``false``. By default it does to those of a cluster."""
_KEYS = ("master", "py_files", "conf")
_LOCAL = re.compile(r"local(?:\[[^\]]+\])?")
_MASTER = re.compile(r"local(?:\[[^\]]+\])?|local-cluster\[[^\]]+\]|spark://\S+|k8s://\S+|yarn")
_ELSEWHERE = {
    "spark.master": "it has a place of its own: master, --master or RMQ_SPARK_MASTER",
    "spark.remote": "a Spark Connect server is named by SPARK_REMOTE",
    "spark.submit.pyFiles": "name the files in py_files, or with --py-files",
    "spark.submit.deployMode": "the driver runs beside its caller, which ends it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """Where a session runs and what it gets. Raises WrongUse with all its problems."""

    master: str | None = None
    """``local[2]``, ``spark://host:port``, ``k8s://...``, ``yarn``. None: ``local[*,4]``."""
    remote: str | None = None
    """A running Spark Connect server, ``sc://host:port``, instead of a master."""
    submit: tuple[str, ...] | None = None
    """The options with which spark-submit starts Spark, as ``submit_options`` returns them. None: this process starts it."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Spark's own settings, ``spark.*``."""
    py_files: tuple[str, ...] = ()
    """Paths of ``.py``, ``.zip``, ``.egg`` and ``.whl`` files and of folders that the workers import from."""

    def __post_init__(self) -> None:
        if problems := [*_master_problems(self.master), *_conf_problems(self.conf)]:
            raise WrongUse(f"Spark: {'; '.join(problems)}")

    @property
    def ships(self) -> bool | None:
        """Whether ``spark.rmq.ship`` says to send the code to the workers; None: it says nothing."""
        value = self.conf.get(SHIP)
        return None if value is None else value == "true"


def is_local_master(master: str) -> bool:
    """Whether the workers are threads of the driver's JVM, on this host: ``local``, ``local[4]``, ``local[*]``."""
    return _LOCAL.fullmatch(master) is not None


def spark_table(table: Any) -> tuple[SparkSettings, list[str]]:
    """The settings of a table ``[spark]``, and its problems; None is a file without one."""
    if not isinstance(table, dict | None):
        return SparkSettings(), ["spark must be a table [spark]"]
    table = table or {}
    problems = [f"[spark] has an unknown key {key!r}{did_you_mean(key, _KEYS)}" for key in table if key not in _KEYS]
    master, py_files = table.get("master"), table.get("py_files", [])
    if not isinstance(master, str | None):
        problems.append(f"[spark] master must be text, it is {master!r}")
        master = None
    if not isinstance(py_files, list) or not all(isinstance(file, str) for file in py_files):
        problems.append(f"[spark] py_files must be a list of paths, it is {py_files!r}")
        py_files = []
    conf: dict[str, str] = {}
    if not isinstance(table.get("conf", {}), dict):
        problems.append("[spark] conf must be a table [spark.conf]")
        table = {}
    for key, value in _flat(table.get("conf", {})):
        if isinstance(value, str | int | float):
            conf[key] = str(value).lower() if isinstance(value, bool) else str(value)
        else:
            problems.append(f"[spark.conf] {key} must be text, a number or true or false, it is {value!r}")
    problems += [f"[spark] {problem}" for problem in [*_master_problems(master), *_conf_problems(conf)]]
    return (
        SparkSettings() if problems else SparkSettings(master=master, conf=conf, py_files=tuple(py_files))
    ), problems


def spark_target(file: SparkSettings, options: SparkSettings, environment: Environment) -> SparkSettings:
    """Where a command runs: its options come before the environment, and that before the settings file.

    Raises WrongUse for a Connect server beside a master, on the same level or by an option, or beside spark-submit.
    """
    remote, submit = environment.spark_remote, environment.spark_submit
    if remote and (options.master or environment.spark_master):
        named = "--master" if options.master else "RMQ_SPARK_MASTER"
        raise WrongUse(f"{named} and SPARK_REMOTE exclude each other: a Connect server has its own master. Omit one")
    if remote and submit:
        raise WrongUse("RMQ_SPARK_SUBMIT and SPARK_REMOTE exclude each other: a Connect server runs already. Omit one")
    # A server was started with settings of its own, which a client cannot change.
    of_file = {key: value for key, value in file.conf.items() if remote is None or key == SHIP}
    return SparkSettings(
        master=None if remote else options.master or environment.spark_master or file.master,
        remote=remote,
        submit=None if submit is None else submit_options(submit),
        conf={**of_file, **options.conf},
        py_files=(*file.py_files, *options.py_files),
    )


_SWITCHES = ("--verbose", "-v")
"""Options of spark-submit without a value."""
_NOT_SUBMITTED = {
    "--master": "it has a place of its own: RMQ_SPARK_MASTER, or the connection's Spark master",
    "--remote": "a Spark Connect server is named by SPARK_REMOTE, or the connection's Spark Connect server",
    "--deploy-mode": "the driver runs beside the task, which ends it",
    "--class": "the program is this project's",
    "--name": "the program has a name",
    "--py-files": "name the files in py_files of [spark]",
}


def submit_options(text: str) -> tuple[str, ...]:
    """The options of ``spark-submit --queue etl --conf spark.executor.memory=4g``, in the notation of a shell.

    Raises WrongUse for another program, for an option with a place of its own, and for what is no option.
    """
    try:
        program, *options = shlex.split(text) or [""]
    except ValueError as error:
        raise WrongUse(f"the command of spark-submit cannot be read: {error}") from None
    if program != "spark-submit":
        raise WrongUse(f"the command must begin with spark-submit, it begins with {program!r}")
    words = iter(options)
    for word in words:
        name, is_whole, value = word.partition("=")
        if why := _NOT_SUBMITTED.get(name):
            raise WrongUse(f"spark-submit gets no {name} here: {why}")
        if not name.startswith("-"):
            raise WrongUse(f"spark-submit gets only options here, {word!r} is none")
        if word in _SWITCHES:
            continue
        if not is_whole and (value := next(words, "")) == "":
            raise WrongUse(f"{name} of spark-submit has no value")
        if name in ("--conf", "-c") and (problems := _conf_problems(conf_of([value]))):
            raise WrongUse(f"spark-submit: {'; '.join(problems)}")
    return tuple(options)


def conf_of(texts: Iterable[str]) -> dict[str, str]:
    """The settings of ``KEY=VALUE`` texts; of a repeated key the last one. Raises WrongUse for a text without a sign."""
    conf = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise WrongUse(f"{text!r} is not a Spark setting: write KEY=VALUE, for example spark.executor.memory=2g")
        conf[key.strip()] = value
    return conf


def _flat(conf: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """The values with their whole keys: TOML reads ``spark.cores.max = 2`` as tables within tables."""
    for key, value in conf.items():
        name = f"{prefix}.{key}" if prefix else key
        yield from _flat(value, name) if isinstance(value, dict) else [(name, value)]


def _master_problems(master: str | None) -> list[str]:
    if master is None or _MASTER.fullmatch(master):
        return []
    if master.startswith("sc://"):
        return [f"{master.partition('/;')[0]} is a Spark Connect server, not a master: set SPARK_REMOTE to it"]
    return [f"{master!r} is not a master: expected local[N], spark://host:port, k8s://https://host:port or yarn"]


def _conf_problems(conf: Mapping[str, str]) -> list[str]:
    problems = [f"{key!r} is not a Spark setting, whose names begin with spark." for key in conf if key[:6] != "spark."]
    problems += [f"{key} is not set here: {why}" for key, why in _ELSEWHERE.items() if key in conf]
    ours = [key for key in conf if key.startswith("spark.rmq.") and key != SHIP]
    problems += [f"unknown setting {key}{did_you_mean(key, [SHIP])}" for key in ours]
    if (value := conf.get(SHIP)) not in (None, "true", "false"):
        problems.append(f"{SHIP} must be true or false, it is {value!r}")
    return problems
