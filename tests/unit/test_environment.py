"""The environment variables are read in one place, and empty ones count as not set."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from rmq_store.settings.environment import Environment

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDERS = ("rmq_store", "spark_jobs", "plugins", "dags", "scripts", "demo")
THE_PLACE = "rmq_store/settings/environment.py"
VARIABLE = re.compile(r"RMQ_[A-Z_]+|SPARK_REMOTE")


def variables_read(source: str) -> list[str]:
    """The variables of ours that ``source`` reads: ``environ[NAME]`` and ``.get(NAME)``, ``os.getenv(NAME)``."""
    names = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Subscript(
                slice=ast.Constant(value=str(name)), ctx=ast.Load(), value=ast.Attribute(attr="environ")
            ):
                names.append(name)
            case ast.Call(func=ast.Attribute(attr="get" | "getenv"), args=[ast.Constant(value=str(name)), *_]):
                names.append(name)
    return [name for name in names if VARIABLE.fullmatch(name)]


def test_no_other_file_reads_a_variable() -> None:
    files = [path for folder in FOLDERS for path in (CHECKOUT / folder).rglob("*.py")]
    assert files
    reads = {path.relative_to(CHECKOUT).as_posix(): variables_read(path.read_text()) for path in files}
    assert {path: names for path, names in reads.items() if names and path != THE_PLACE} == {}
    assert "SPARK_REMOTE" in reads[THE_PLACE]


def test_the_check_sees_every_way_to_read_a_variable() -> None:
    source = 'os.environ["RMQ_ROOT"]; env.get("RMQ_JARS", ""); os.getenv("SPARK_REMOTE"); os.environ.pop("RMQ_DEBUG")'
    assert variables_read(source) == ["RMQ_ROOT", "RMQ_JARS", "SPARK_REMOTE"]


def test_an_empty_variable_is_not_set_but_an_empty_schedule_is_none() -> None:
    default = Environment.read({})
    assert Environment.read({"RMQ_ROOT": "", "RMQ_SETTINGS": "", "SPARK_REMOTE": "", "RMQ_JARS": ""}) == default
    assert (default.root, default.settings, default.spark_remote) == ("var/store", "consumers.toml", None)
    assert (default.deliver_schedule, default.deliver_poll) == ("* * * * *", "5s")
    assert Environment.read({"RMQ_DELIVER_SCHEDULE": ""}).deliver_schedule is None
    assert (default.run_notes, Environment.read({"RMQ_RUN_NOTES": "0"}).run_notes) == (True, False)
    assert (default.maintain_schedule, Environment.read({"RMQ_MAINTAIN_SCHEDULE": ""}).maintain_schedule) == (
        "30 3 * * *",
        None,
    )


def test_what_is_set_is_taken() -> None:
    environment = Environment.read(
        {"RMQ_ROOT": "s3://b/p", "RMQ_IMPORT_ROOTS": "s3://copies/a, /data,", "RMQ_DEBUG": "1"}
    )
    assert (environment.root, environment.import_roots) == ("s3://b/p", ("s3://copies/a", "/data"))
    assert (environment.debug, Environment.read({"RMQ_DEBUG": "0"}).debug) == (True, False)
    assert environment.chosen == {"RMQ_ROOT", "RMQ_IMPORT_ROOTS", "RMQ_DEBUG"}
