"""What ``pip install rocketmq-lakehouse`` gives: the wheel alone, in an environment without Spark and Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.python_page import program_and_output

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("rmq_store", "spark_jobs")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")

LISTENER = """
def consume_message(msgs, context):
    return "CONSUME_SUCCESS"
"""
SETTINGS = """
[[group]]
name = "orders"
listener = "listener:consume_message"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
[[group.subscription]]
topic = "Orders"
"""


def run(*command: str | Path, cwd: Path = CHECKOUT, code: int = 0) -> str:
    """What it prints; nothing of the checkout can be imported by it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RMQ_", "SPARK_"))}
    answer = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert answer.returncode == code, f"{command}: code {answer.returncode}\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout if code == 0 else answer.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and the core's requirements, in the versions of constraints.txt. As in
    scripts/setup.py with uv, and with pip where pip has an index that uv does not know."""
    env = tmp_path_factory.mktemp("env")
    venv.EnvBuilder(symlinks=True).create(env)
    python = env / "bin" / "python"
    uv = (Path(sys.executable).with_name("uv"), "--cache-dir", CHECKOUT / ".cache" / "uv", "pip", "install")
    if "index-url" in run(*PIP, "config", "list"):
        installer: tuple[str | Path, ...] = (*PIP, "--python", python, "install")
    else:
        installer = (*uv, "--python", python)
    run(*installer, "--quiet", "--constraint", CHECKOUT / "constraints.txt", wheel)
    return env / "bin"


def test_the_wheel_has_every_file_of_its_packages_and_no_other(wheel: Path) -> None:
    paths = (path for package in PACKAGES for path in (CHECKOUT / package).rglob("*") if path.is_file())
    files_of_packages = {str(path.relative_to(CHECKOUT)) for path in paths if path.parent.name != "__pycache__"}
    with ZipFile(wheel) as files:
        packed = [name for name in files.namelist() if ".dist-info/" not in name]
    assert sorted(packed) == sorted(files_of_packages)
    assert {"rmq_store/py.typed", "spark_jobs/py.typed", "rmq_store/lake/sql/views/audit.sql"} <= set(packed)


def test_the_core_sends_consumes_and_answers_without_spark_and_airflow(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "listener.py").write_text(LISTENER)
    (tmp_path / "consumers.toml").write_text(SETTINGS)

    def rmq(*words: str, code: int = 0) -> str:
        return run(installed / "rmq", *words, cwd=tmp_path, code=code)

    for extra in ("pyspark", "airflow"):
        assert "No module named" in run(installed / "python", "-c", f"import {extra}", cwd=tmp_path, code=1)
    rmq("init")
    rmq("send", "--topic", "Orders", "--create", "the first order")
    assert "pip install 'rocketmq-lakehouse[spark]'" in rmq("consume", "--group", "orders", "--engine", "spark", code=1)
    assert json.loads(rmq("consume", "--group", "orders", "--json"))["messages"] == 1
    assert json.loads(rmq("sql", "SELECT topic, lag FROM lag WHERE lag IS NOT NULL", "--json"))[0]["topic"] == "Orders"
    assert "skipped Java" in rmq("doctor")


PROVIDERS = """
import json
from importlib.metadata import distribution, entry_points
providers = entry_points(group="apache_airflow_provider")
names = {entry.load()()["package-name"] for entry in providers}
plugins = [entry.value for entry in entry_points(group="airflow.plugins")]
print(json.dumps([sorted(names), distribution("rocketmq-lakehouse").metadata["Name"], plugins]))
"""


def test_the_wheel_registers_a_provider_that_airflow_can_read(installed: Path, tmp_path: Path) -> None:
    """Airflow takes a provider only if its description names the distribution that registers it."""
    names, distribution, plugins = json.loads(run(installed / "python", "-c", PROVIDERS, cwd=tmp_path))
    assert names == [distribution]
    assert plugins == ["rmq_store.airflow.run_notes:RmqRunNotes"]


def test_the_python_page_needs_no_more_than_the_core(installed: Path, tmp_path: Path) -> None:
    program, output = program_and_output()
    (tmp_path / "page.py").write_text(program)
    assert run(installed / "python", "page.py", cwd=tmp_path) == output
