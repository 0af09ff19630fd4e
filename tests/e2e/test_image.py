"""``docker compose up``, where there is no container engine: the Dockerfile is followed in a fresh folder, then each service's
command is started there, with the environment, the volumes and the user of docker-compose.yaml, until it is healthy."""

from __future__ import annotations

import functools
import os
import secrets
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from scripts.airflow_home import free_port
from scripts.keeper import CHECKOUT, end_kept, start_kept
from spark_jobs.progress import signs_of, wait_for_progress
from tests.e2e.compose import Loopback, Service, services_of
from tests.e2e.image import ORDINARY, BuildFailed, Ignored, Image
from tests.s3 import S3Server

STAYS_ON_LOOPBACK = {"scheduler": ["--skip-serve-logs"], "triggerer": ["--skip-serve-logs"]}
"""A container may serve logs to all of its own network; this host's is not ours."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return Image.build(CHECKOUT, tmp_path_factory.mktemp("image"))


def secret_of(name: str) -> str:
    return "A" * 43 + "=" if "FERNET" in name else secrets.token_urlsafe(24)


@pytest.fixture(scope="module")
def services(s3_server: S3Server) -> dict[str, Service]:
    lines = (CHECKOUT / ".env.example").read_text().splitlines()
    given = {name: secret_of(name) for name, _, value in (line.partition("=") for line in lines) if value == ""}
    given["S3_ACCESS_KEY"] = s3_server.env["AWS_ACCESS_KEY_ID"]
    given["S3_SECRET_KEY"] = s3_server.env["AWS_SECRET_ACCESS_KEY"]
    return services_of(CHECKOUT / "docker-compose.yaml", given)


class Started:
    """A service of the image that runs here."""

    def __init__(self, service: Service, image: Image, loopback: Loopback, more: dict[str, str], logs: Path) -> None:
        variables = {name: loopback.translate(image.translate(value)) for name, value in service.environment.items()}
        self.name = service.name
        self._env = image.environment() | variables | more
        self._check = [*ORDINARY, *loopback.translate_all(service.healthcheck)]
        self._folder = image.place(".")
        self._log = logs / f"{service.name}.log"
        command = [*loopback.translate_all(service.command), *STAYS_ON_LOOPBACK.get(service.name, [])]
        with self._log.open("wb") as log:
            self.process = start_kept(["env", "-C", str(self._folder), *ORDINARY, *command], log, env=self._env)

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def is_healthy(self) -> bool:
        check = ["env", *self._check]
        return subprocess.run(check, cwd=self._folder, env=self._env, capture_output=True, check=False).returncode == 0

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        def done_or_ended() -> bool:
            return is_done() or self.has_ended()

        signs = functools.partial(signs_of, [self.process.pid], [self._log])
        wait_for_progress(done_or_ended, signs, f"{self.name} is still starting", print)
        assert is_done(), f"{self.name} ended with code {self.process.returncode}:\n{self.end_of_log()}"

    def end_of_log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def run(self, *command: str, **more: str) -> str:
        """What a command of this service's container says."""
        process = subprocess.run(
            ["env", *ORDINARY, *command],
            cwd=self._folder,
            env=self._env | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stdout
        return process.stdout


CHEAP_TO_ASK, DEAR_TO_ASK = ("apiserver", "scheduler", "spark"), ("dag-processor", "triggerer")
EXPORTS = """
from rmq_deployment import Deployment
folder = Deployment.from_env().export_folder / "broker-a"
folder.mkdir(parents=True)
print(folder)
"""


def column(database: str, question: str) -> list[Any]:
    with sqlalchemy.create_engine(database, poolclass=sqlalchemy.NullPool).connect() as connection:
        return list(connection.execute(sqlalchemy.text(question)).scalars())


@pytest.mark.timeout(3600)
def test_every_service_of_the_compose_file_starts_in_the_image_and_is_healthy(
    image: Image, services: dict[str, Service], airflow_database: str, s3_server: S3Server, tmp_path: Path
) -> None:
    assert image.entrypoint[0] in image.packages
    assert image.user != "root"
    assert {name for name, service in services.items() if not service.healthcheck} == {"init"}
    for service in services.values():
        for volume in service.volumes:
            image.mount(volume)
    image.seal()
    ports = {port: str(free_port()) for port in ("8080", "8974", "15002")}
    loopback = Loopback(ports | {"apiserver": "127.0.0.1", "http://s3:7070": s3_server.endpoint})
    more = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": airflow_database,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_HOST": "127.0.0.1",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": ports["8974"],
        "JAVA_TOOL_OPTIONS": os.environ["JAVA_TOOL_OPTIONS"],
    }
    with ExitStack() as at_the_end:

        def start(name: str) -> Started:
            started = Started(services[name], image, loopback, more, tmp_path)
            at_the_end.callback(end_kept, [started.process])
            return started

        init = start("init")
        init.wait_until(init.has_ended)
        assert init.process.returncode == 0, init.end_of_log()
        running = {name: start(name) for name in services if name != "init"}
        assert set(running) == {*CHEAP_TO_ASK, *DEAR_TO_ASK}
        for name in (*CHEAP_TO_ASK, *DEAR_TO_ASK):
            running[name].wait_until(running[name].is_healthy)
        reader = running["dag-processor"]
        reader.wait_until(lambda: "rmq_persist_offsets" in column(airflow_database, "SELECT dag_id FROM dag"))
        assert column(airflow_database, "SELECT stacktrace FROM import_error") == []
        exports = running["scheduler"].run("python", "-c", EXPORTS, PYTHONPATH=str(image.place("plugins"))).strip()
        assert any(Path(exports).is_relative_to(image.place(place)) for place in services["scheduler"].volumes)
        assert [name for name, service in running.items() if service.has_ended()] == []


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        ("README.md", False),
        ("var/x", True),
        ("scripts/keeper.py", True),
        ("scripts/compose_init.py", False),
        ("rmq_store/lake/sql/sql.py", False),
        ("rmq_store/__pycache__/a.pyc", True),
        ("__pycache__/a.pyc", True),
    ],
)
def test_the_last_pattern_that_matches_decides_what_is_ignored(path: str, ignored: bool) -> None:
    lines = ["*", "!README.md", "!rmq_store", "!scripts/compose_init.py", "**/__pycache__"]
    assert (path in Ignored(lines)) == ignored


def test_what_the_context_lacks_cannot_be_copied(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("COPY a.txt secret.txt ./\n")
    (tmp_path / ".dockerignore").write_text("secret*\n")
    for name in ("a.txt", "secret.txt"):
        (tmp_path / name).write_text(name)
    with pytest.raises(BuildFailed, match=r'"/secret\.txt": not found'):
        Image.build(tmp_path, tmp_path / "image")
