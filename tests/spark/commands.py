"""Commands of ``rmq`` in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def command(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """``rmq`` with the words, started in the folder. It uses no Spark Connect server but one that ``env`` names."""
    rmq = [str(Path(sys.executable).with_name("rmq")), *words, "--json"]
    environment = {name: text for name, text in os.environ.items() if name != "SPARK_REMOTE"} | dict(env or {})
    return subprocess.Popen(rmq, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer_of(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate()
    assert process.returncode == 0, err[-4000:]
    return json.loads(out)


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait for the condition while the command runs."""
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
