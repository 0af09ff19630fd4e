"""What ``make up`` starts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts import up
from scripts.airflow_home import Airflow, AirflowHome, AirflowNotReady
from scripts.postgres import NoPostgres, Postgres

GIB = 1 << 30


@pytest.mark.parametrize(
    ("database", "before", "after"),
    [(None, 0o755, 0o700), (None, 0o711, 0o700), ("postgresql://", 0o711, 0o711), ("postgresql://", 0o755, 0o711)],
)
def test_the_folder_is_private_but_its_postgresql_may_pass_through(
    database: str | None, before: int, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of another user opens a file by its whole path at each checkpoint."""
    monkeypatch.setattr(AirflowHome, "_run_to_end", lambda *_: None)
    folder = tmp_path / "airflow"
    folder.mkdir()
    folder.chmod(before)
    AirflowHome(folder, 8080, tmp_path / "consumers.toml", database=database).initialise()
    assert folder.stat().st_mode & 0o777 == after


def test_a_postgresql_that_has_ended_is_named(tmp_path: Path) -> None:
    server = Postgres(tmp_path)
    server.check_alive()
    (tmp_path / "log").write_text("PANIC: could not open file")
    server._keeper = subprocess.Popen([sys.executable, "-c", ""])
    server._keeper.wait()
    with pytest.raises(NoPostgres, match="PostgreSQL has ended:\nPANIC: could not open file"):
        server.check_alive()


@pytest.mark.parametrize(("ran_s", "is_started"), [(60, True), (59, False)])
def test_a_process_that_ends_is_started_again_unless_it_ends_at_once(
    ran_s: int, is_started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def start(home: AirflowHome, command: object, log_file: Path) -> subprocess.Popen[bytes]:
        log_file.parent.mkdir(exist_ok=True)
        log_file.write_text("UniqueViolation")
        code = "import sys; sys.stdin.read(); sys.exit(1)"
        processes.append(subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE))
        return processes[-1]

    now_s, said = [0.0], list[str]()
    monkeypatch.setattr(AirflowHome, "start", start)
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    airflow = Airflow(AirflowHome(tmp_path, 8080, tmp_path / "consumers.toml"), ["scheduler"], say=said.append)
    airflow.start()
    airflow.start_ended_again()
    processes[0].communicate()
    now_s[0] = ran_s
    if is_started:
        airflow.start_ended_again()
        (text,) = said
        assert (len(processes), "scheduler ended with code 1, and is started again" in text) == (2, True)
        processes[1].communicate()
    with pytest.raises(AirflowNotReady, match=r"scheduler ended with code 1. End of its log .*\nUniqueViolation"):
        airflow.start_ended_again()
    assert len(processes) == 1 + is_started


@pytest.mark.parametrize(
    ("option", "free_bytes", "starts"),
    [(None, 6 * GIB, True), (None, 6 * GIB - 1, False), (True, GIB, True), (False, 64 * GIB, False)],
)
def test_a_spark_server_is_started_where_there_is_memory_unless_the_user_says(
    option: bool | None, free_bytes: int, starts: bool
) -> None:
    assert up.wants_spark(option, free_bytes) is starts


class Cluster(Postgres):
    def __init__(self, *, is_new: bool | None) -> None:
        self.is_new = is_new

    def start(self, say: object = None) -> bool:
        if self.is_new is None:
            raise NoPostgres("PostgreSQL is not installed")
        return self.is_new

    @property
    def address(self) -> str:
        return "postgresql+psycopg2://airflow@127.0.0.1/airflow"


@pytest.mark.parametrize("is_new", [True, False])
def test_a_new_database_gets_its_tables(is_new: bool, tmp_path: Path) -> None:
    made = tmp_path / "made.json"
    made.touch()
    assert up.database(Cluster(is_new=is_new), made) == "postgresql+psycopg2://airflow@127.0.0.1/airflow"
    assert made.exists() is not is_new


def test_without_postgresql_a_line_says_what_sqlite_cannot_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up.database(Cluster(is_new=None), tmp_path / "made.json") is None
    said = capsys.readouterr().out
    assert "PostgreSQL is not installed" in said
    assert "backfills (503)" in said
