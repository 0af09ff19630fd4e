"""Who may read what the platform writes: by default only the user whose process it is."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rmq_store
from rmq_store.errors import WrongUse
from rmq_store.settings.environment import Environment
from rmq_store.settings.private_files import umask_of
from scripts.airflow_home import AirflowHome


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """The umask of most machines."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> set[tuple[bool, str]]:
    """Whether it is a folder, and the permissions of all below and of itself."""
    paths = [folder, *folder.rglob("*")]
    return {(path.is_dir(), oct(stat.S_IMODE(path.stat().st_mode))) for path in paths}


@pytest.mark.parametrize(("umask", "folders", "files"), [(None, "0o700", "0o600"), ("007", "0o770", "0o660")])
def test_what_a_command_writes_is_private_unless_the_umask_says_otherwise(
    tmp_path: Path, umask: str | None, folders: str, files: str
) -> None:
    environment = os.environ | {"RMQ_ROOT": str(tmp_path / "of" / "store")} | ({"RMQ_UMASK": umask} if umask else {})
    for words in ("init", "send --topic O --create x"):
        code = f"import sys; from rmq_store.cli import main; sys.argv[1:] = {words.split()}; sys.exit(main())"
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.DEVNULL)
    assert modes(tmp_path / "of" / "store") == {(True, folders), (False, files)}


def test_only_the_user_gets_into_a_store_that_a_program_makes(tmp_path: Path) -> None:
    rmq_store.create_store(str(tmp_path / "store"))
    assert oct(stat.S_IMODE((tmp_path / "store").stat().st_mode)) == "0o700"
    (tmp_path / "shared").mkdir(0o755)
    rmq_store.create_store(str(tmp_path / "shared"))
    assert oct(stat.S_IMODE((tmp_path / "shared").stat().st_mode)) == "0o755"


def test_airflows_folder_and_its_logs_are_private(tmp_path: Path) -> None:
    environment = AirflowHome(tmp_path / "airflow", 1, tmp_path / "consumers.toml").environment()
    assert environment["AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FOLDER_PERMISSIONS"] == "0o700"
    assert environment["AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FILE_PERMISSIONS"] == "0o600"


@pytest.mark.parametrize("text", ["7", "0777", "8", "x", "-077", "0o77", "700"])
def test_a_umask_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(WrongUse, match="invalid RMQ_UMASK"):
        umask_of(Environment.read({"RMQ_UMASK": text}))
