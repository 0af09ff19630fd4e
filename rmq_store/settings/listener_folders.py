"""The folders that listeners are imported from: those of ``--listener-path``, then those of ``RMQ_LISTENER_PATH``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rmq_store.errors import WrongUse
from rmq_store.settings.environment import Environment


def add_listener_folders(options: Sequence[str] = (), environment: Environment | None = None) -> list[Path]:
    """Put the folders at the start of ``sys.path``, and return them, absolute, for the workers of Spark.

    ``options``: those of ``--listener-path``. Raises WrongUse for a folder that does not exist.
    """
    environment = environment or Environment.read()
    named = {"--listener-path": options, "RMQ_LISTENER_PATH": environment.listener_path}
    for name, paths in named.items():
        if missing := [path for path in paths if not Path(path).is_dir()]:
            raise WrongUse(f"{name} {missing[0]} is not a folder")
    folders = list(dict.fromkeys(Path(path).resolve() for paths in named.values() for path in paths))
    sys.path[:0] = [str(folder) for folder in folders if str(folder) not in sys.path]
    return folders
