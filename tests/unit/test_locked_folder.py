"""Temporary folders of processes that were killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.locked_folder import locked_folder

HOLDER = """
from spark_jobs.locked_folder import locked_folder
folder, lock = locked_folder("ship")
print(folder, flush=True)
input()
"""


def test_the_folder_of_a_process_that_was_killed_goes_and_that_of_another_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "rmq-of-a-user").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        first = Path(holder.stdout.readline().strip())
        (first / "package.zip").write_bytes(b"code")
        second, lock = locked_folder("connect-server")
        with lock:
            assert {path.name for path in tmp_path.iterdir()} == {"rmq-of-a-user", first.name, second.name}
            holder.kill()
            holder.wait()
            third, another = locked_folder("ship")
            another.close()
            assert {path.name for path in tmp_path.iterdir()} == {"rmq-of-a-user", second.name, third.name}
