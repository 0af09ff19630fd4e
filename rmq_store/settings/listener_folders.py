"""The folders that listeners are imported from: those of ``--listener-path``, then those of ``RMQ_LISTENER_PATH``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
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
        if missing := [path for path in paths if not os.path.isdir(path)]:
            raise WrongUse(f"{name} {missing[0]} is not a folder")
    folders = list(dict.fromkeys(Path(path).resolve() for paths in named.values() for path in paths))
    sys.path[:0] = [str(folder) for folder in folders if str(folder) not in sys.path]
    return folders


def has_module(listener: str, environment: Environment) -> bool:
    """Whether the module of a listener, ``module:attribute``, can be found. Nothing is imported, so an error in it is not
    seen. A folder of ``RMQ_LISTENER_PATH`` that does not exist has no module."""
    module = listener.partition(":")[0]
    if module in sys.modules or module in sys.builtin_module_names:
        return True
    path: Sequence[str] | None = [*(str(Path(folder).resolve()) for folder in environment.listener_path), *sys.path]
    names = module.split(".")
    for count in range(1, len(names) + 1):
        spec = None if path is None else PathFinder.find_spec(".".join(names[:count]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return True
