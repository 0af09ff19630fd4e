"""``docker compose up``, where there is no container engine: the Dockerfile is followed in a fresh folder, then each service's
command is started there, with the environment, the volumes and the user of docker-compose.yaml, until it is healthy."""

from __future__ import annotations

import functools
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy

from scripts.airflow_home import AirflowNotReady, free_port, pause
from scripts.keeper import CHECKOUT, end_kept, members_of, start_kept
from spark_jobs.progress import NoProgress, Signs, signs_of, wait_for_progress
from tests.e2e.compose import Loopback, Service, services_of
from tests.e2e.image import ORDINARY, Image
from tests.s3 import S3Server

STAYS_ON_LOOPBACK = {"scheduler": ["--skip-serve-logs"], "triggerer": ["--skip-serve-logs"]}
"""A container may serve logs to all of its own network; this host's is not ours."""


def secret_of(name: str) -> str:
    return "A" * 43 + "=" if "FERNET" in name else secrets.token_urlsafe(24)


def secrets_of_example() -> dict[str, str]:
    """A value for each variable that ``.env.example`` leaves empty."""
    lines = (CHECKOUT / ".env.example").read_text().splitlines()
    return {name: secret_of(name) for name, _, value in (line.partition("=") for line in lines) if value == ""}


class Started:
    """A service of the image that runs here."""

    def __init__(self, service: Service, image: Image, loopback: Loopback, more: Mapping[str, str], logs: Path) -> None:
        variables = {name: loopback.translate(image.translate(value)) for name, value in service.environment.items()}
        self.name = service.name
        self._service = service
        self._env = image.environment() | variables | dict(more)
        self._check = [*ORDINARY, *loopback.translate_all(service.healthcheck)]
        self._folder = image.place(".")
        self.log = logs / f"{service.name}.log"
        command = [*loopback.translate_all(service.command), *STAYS_ON_LOOPBACK.get(service.name, [])]
        with self.log.open("ab") as log:
            self.process = start_kept(
                ["env", "-C", str(self._folder), *ORDINARY, *command],
                log,
                env=self._env,
                patience_s=service.stop_grace_s,
            )

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def is_healthy(self) -> bool:
        check = ["env", *self._check]
        return subprocess.run(check, cwd=self._folder, env=self._env, capture_output=True, check=False).returncode == 0

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        def done_or_ended() -> bool:
            return is_done() or self.has_ended()

        signs = functools.partial(signs_of, [self.process.pid], [self.log])
        wait_for_progress(done_or_ended, signs, f"{self.name} is still starting", print)
        assert is_done(), f"{self.name} ended with code {self.process.returncode}:\n{self.end_of_log()}"

    def end_of_log(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def members(self) -> list[psutil.Process]:
        """The processes of the service, without this test's keeper."""
        return [process for process in members_of({self.process.pid}) if process.pid != self.process.pid]

    def stacks(self) -> str:
        """What the threads of each of its processes do. It ends them: SIGABRT makes Python write that, also where all wait."""
        for process in self.members():
            process.send_signal(signal.SIGABRT)
        self.process.wait()
        return self.log.read_text(errors="replace")[-40_000:]

    def kill(self) -> None:
        """``kill -9`` of its first process: the container ends, and with it, as suddenly, all of its processes."""
        for process in sorted(self.members(), key=lambda process: process.create_time(), reverse=True):
            process.kill()
        self.process.wait()

    def stop(self) -> int:
        """``docker stop``: SIGTERM; returns the exit code of its keeper, after all its processes have ended."""
        began = {process.pid for process in self.members()}
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait()
        assert not [pid for pid in began if psutil.pid_exists(pid) and _is_alive(pid)], f"{self.name} left processes"
        return code

    def run(self, *command: str, given: str = "") -> str:
        """What a command in this service's container writes to its standard output. ``given``: its standard input."""
        process = subprocess.run(
            ["env", *ORDINARY, *command],
            cwd=self._folder,
            env=self._env,
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout


def _is_alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


FIRST_ASKED = ("apiserver", "scheduler", "spark")
"""Their health costs little to ask; for the others a whole Airflow starts."""


class Platform:
    """All services that run our image, with PostgreSQL and an S3 server of the tests in place of the other two."""

    def __init__(
        self,
        folder: Path,
        database: str,
        s3_server: S3Server,
        given: Mapping[str, str],
        variables: Mapping[str, str],
    ) -> None:
        """``given``: what a user writes into ``.env``, besides the secrets. ``variables``: more variables of the services."""
        self.database = database
        self.logs = folder / "logs"
        self.logs.mkdir()
        given = {**secrets_of_example(), "RMQ_METRICS_TOKEN": secrets.token_urlsafe(24), **given}
        given["S3_ACCESS_KEY"] = s3_server.env["AWS_ACCESS_KEY_ID"]
        given["S3_SECRET_KEY"] = s3_server.env["AWS_SECRET_ACCESS_KEY"]
        self.given: Mapping[str, str] = given
        self.services = services_of(CHECKOUT / "docker-compose.yaml", given)
        self.image = Image.build(CHECKOUT, folder / "image")
        for service in self.services.values():
            for volume in service.volumes:
                self.image.mount(volume)
            for target, source in service.folders.items():
                self.image.bind(target, CHECKOUT / source)
        self.image.seal()
        ports = {port: str(free_port()) for port in ("8080", "8974", "15002")}
        self._loopback = Loopback(ports | {"apiserver": "127.0.0.1", "http://s3:7070": s3_server.endpoint})
        self._more = {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_HOST": "127.0.0.1",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_SERVER_PORT": ports["8974"],
            "JAVA_TOOL_OPTIONS": os.environ["JAVA_TOOL_OPTIONS"],
            "PYTHONFAULTHANDLER": "1",
            **variables,
        }
        self.url = f"http://127.0.0.1:{ports['8080']}"
        self.password = given["AIRFLOW_ADMIN_PASSWORD"]
        self.folder = self.image.place("/opt/rmq/airflow")
        """AIRFLOW_HOME."""
        self.running: dict[str, Started] = {}

    def start(self, name: str) -> Started:
        self.running[name] = Started(self.services[name], self.image, self._loopback, self._more, self.logs)
        return self.running[name]

    def start_all(self) -> None:
        """As ``docker compose up --wait``."""
        init = self.start("init")
        init.wait_until(init.has_ended)
        assert init.process.returncode == 0, init.end_of_log()
        del self.running["init"]
        late = [name for name, service in self.services.items() if service.after & set(self.services)]
        for name in self.services:
            if name not in ("init", *late):
                self.start(name)
        for name in late:
            for other in self.services[name].after & set(self.services):
                self.running[other].wait_until(self.running[other].is_healthy)
            self.start(name)
        for name in (*FIRST_ASKED, *(name for name in self.running if name not in FIRST_ASKED)):
            self.running[name].wait_until(self.running[name].is_healthy)

    def end(self) -> None:
        """End what still runs."""
        end_kept([service.process for service in self.running.values()])

    # --- as an AirflowHome and an Airflow, for demo.airflow_api ---

    def wait_for(self, is_done: Callable[[], bool], what: str) -> None:
        """Wait as long as the services make progress. Raises AirflowNotReady, at once when one has ended."""

        def done_and_alive() -> bool:
            for service in self.running.values():
                if service.has_ended():
                    raise AirflowNotReady(f"{service.name} has ended:\n{service.end_of_log()}")
            return is_done()

        try:
            wait_for_progress(done_and_alive, self._signs, what, print, pause=pause)
        except NoProgress as error:
            raise AirflowNotReady(f"{what}: {error}. Logs: {self.logs}") from error

    def _signs(self) -> Signs:
        services = self.running.values()
        return signs_of([one.process.pid for one in services], [one.log for one in services])

    def column(self, question: str) -> list[Any]:
        """The first column of a query on Airflow's database."""
        engine = sqlalchemy.create_engine(self.database, poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            return list(connection.execute(sqlalchemy.text(question)).scalars())


def words_of(process: psutil.Process) -> Sequence[str]:
    """The command line of a process; empty when it has ended."""
    with suppress(psutil.NoSuchProcess):
        return list(process.cmdline())
    return ()
