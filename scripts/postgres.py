"""A PostgreSQL server of its own on loopback, from the programs of this machine, with its files in one folder."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.airflow_home import free_port
from scripts.keeper import end_kept, start_kept
from spark_jobs.progress import signs_of, wait_for_progress

_NOBODY = 65534
_IS_ROOT = os.geteuid() == 0
_USER: Mapping[str, Any] = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if _IS_ROOT else {}
"""PostgreSQL refuses to be root's."""
_AS_USER = (f"setpriv --reuid={_NOBODY} --regid={_NOBODY} --clear-groups".split()) if _IS_ROOT else []
NAME = "airflow"
"""Of the user and of the database."""


class NoPostgres(Exception):
    """There is no PostgreSQL here, or it cannot run in this folder; the message says why."""


def programs() -> Path:
    """The folder with ``postgres`` and ``initdb``. Raises NoPostgres."""
    of_debian = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/initdb")))  # not on the PATH
    candidates = [*filter(None, [shutil.which("initdb")]), *of_debian]
    if not candidates:
        raise NoPostgres("PostgreSQL is not installed (on Debian: apt-get install postgresql)")
    return Path(os.path.realpath(candidates[0])).parent


class Postgres:
    """A server with its cluster in ``folder``, which is made by the first start; it ends with the process that started it."""

    def __init__(self, folder: Path, *options: str, keep_open: Collection[int] = ()) -> None:
        """``options``: more words for ``postgres``. ``keep_open``: descriptors that are held until it has ended."""
        self._folder = folder
        self._data = folder / "data"
        self._options = options
        self._keep_open = keep_open
        self._keeper: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """Of its database, for SQLAlchemy, with the password."""
        password = (self._folder / "password").read_text()
        return f"postgresql+psycopg2://{NAME}:{password}@127.0.0.1:{self._port}/{NAME}"

    def start(self, say: Callable[[str], None] = lambda text: None) -> bool:
        """Start the server and wait until it answers; returns whether the database is new. Raises NoPostgres."""
        tools = programs()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._check_folder()
        is_new = not (self._folder / "made").exists()
        if is_new:
            self._make_cluster(tools)
        self._port = free_port()
        words = ["-D", str(self._data), "-h", "127.0.0.1", "-p", str(self._port), "-k", "", *self._options]
        log_file = self._folder / "log"
        with log_file.open("wb") as log:
            self._keeper = start_kept(
                [*_AS_USER, str(tools / "postgres"), *words], log, env=os.environ, keep_open=self._keep_open
            )

        def answers() -> bool:
            self.check_alive()
            return self._client(tools / "pg_isready").returncode == 0

        pids = [self._keeper.pid]
        wait_for_progress(answers, lambda: signs_of(pids, [log_file]), "PostgreSQL is still starting", say)
        if is_new:
            made = self._client(tools / "createdb", NAME)
            if made.returncode != 0:
                raise NoPostgres(f"PostgreSQL made no database: {made.stderr}")
            (self._folder / "made").touch()
        return is_new

    def check_alive(self) -> None:
        """Raise NoPostgres, with the end of its log, when it was started and has ended."""
        if self._keeper is not None and self._keeper.poll() is not None:
            raise NoPostgres(f"PostgreSQL has ended:\n{(self._folder / 'log').read_text()[-2000:]}")

    def stop(self) -> None:
        """Stop the server; its files stay. Safe to call twice, and when it was never started."""
        if self._keeper is not None:
            end_kept([self._keeper])

    def _make_cluster(self, tools: Path) -> None:
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir(mode=0o700)
        password_file = self._folder / "password"
        password_file.unlink(missing_ok=True)
        password_file.touch(mode=0o600)
        password_file.write_text(secrets.token_urlsafe(24))
        if _IS_ROOT:
            for place in (self._data, password_file):
                os.chown(place, _NOBODY, _NOBODY)
        words = ["-U", NAME, "--auth=scram-sha-256", f"--pwfile={password_file}", "--no-sync", "--encoding=UTF8"]
        process = subprocess.run(
            [tools / "initdb", "-D", self._data, *words],
            **_USER,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        if process.returncode != 0:
            raise NoPostgres(f"PostgreSQL made no cluster: {process.stderr}")

    def _check_folder(self) -> None:
        """As root: the server's user must be able to pass through the folders above its own as long as it runs, since each
        checkpoint opens a file by its whole path. They are made passable where they are below the current folder.
        Raises NoPostgres."""
        if not _IS_ROOT:
            return
        for folder in [self._folder, *self._folder.parents]:
            mode = folder.stat().st_mode
            if not mode & 0o001 and folder.is_relative_to(Path.cwd()) and folder != Path.cwd():
                folder.chmod(mode | 0o011)
            elif not mode & 0o001:
                raise NoPostgres(f"PostgreSQL does not run as root, and another user cannot pass through {folder}")

    def _client(self, program: Path, *words: str) -> subprocess.CompletedProcess[str]:
        where: Sequence[str] = ["-h", "127.0.0.1", "-p", str(self._port), "-U", NAME]
        environment = {**os.environ, "PGPASSWORD": (self._folder / "password").read_text()}
        return subprocess.run([program, *where, *words], env=environment, capture_output=True, text=True, check=False)
