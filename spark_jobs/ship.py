"""Sends the code to the workers of a cluster: this package, the listeners' packages, and the files of ``py_files``.

They become zip files that Spark distributes, in a classic session by ``addPyFile`` and through Connect by ``addArtifacts``.
What needs compiled code (pyarrow, numpy, ...) cannot be sent: ``docs/cluster.md`` says what has to be on the workers.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from rmq_store.errors import WrongUse
from rmq_store.settings.spark_settings import SHIP, SparkSettings, is_local_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as ConnectSession

MOST_BYTES = 64 << 20
"""Of the files of one folder: more is no code, but data that lies beside it."""
_PACKAGE = "rmq_store"
_ARCHIVES = (".zip", ".egg", ".whl")
_COMPILED = (".so", ".pyd", ".dylib")
_HINT = f"install it on the workers and set {SHIP}=false, or see docs/cluster.md"


def ship(
    session: SparkSession | ConnectSession,
    settings: SparkSettings,
    listeners: Iterable[str],
    folders: Sequence[Path],
    scratch: Path,
) -> None:
    """Send the code that the tasks need, if the session's workers are on a cluster or ``spark.rmq.ship`` is true.

    ``listeners``: names ``module:attribute``. ``folders``: with listener modules; of the current folder, which may hold
    anything, only the listeners' packages are sent. ``scratch``: an empty folder that stays until the session ends, as
    executors that start later get the files from it. Raises WrongUse for code that cannot be sent.
    """
    entries = files_of(settings.py_files)
    if ships(settings.ships, lambda key: _setting(session, key)):
        named = [folder for folder in folders if folder.resolve() != Path.cwd()]
        entries |= files_of(named)
        entries |= files_of(packages_of([_PACKAGE, *listeners], named), whole=False)
    paths = []
    for name, content in entries.items():
        paths.append(scratch / name)
        paths[-1].write_bytes(content)
    if paths:
        _send(session, paths)


def ships(chosen: bool | None, setting: Callable[[str], str | None]) -> bool:
    """Whether the code is sent: as ``spark.rmq.ship`` says, else to the workers of every master that is not local.

    ``chosen``: what this process says. ``setting``: a setting of the session; a Connect server has its own.
    """
    if chosen is not None:
        return chosen
    if (of_session := setting(SHIP)) is not None:
        return of_session == "true"
    master = setting("spark.master")
    return master is not None and not is_local_master(master)


def packages_of(listeners: Iterable[str], folders: Sequence[Path] = ()) -> list[Path]:
    """The top-level packages and modules of the listeners, each once, but for those that are in one of ``folders``.

    Raises WrongUse for ``__main__``, which the workers cannot import.
    """
    paths: dict[Path, None] = {}
    for name in dict.fromkeys(listener.partition(":")[0].partition(".")[0] for listener in listeners):
        if name == "__main__":
            raise WrongUse("a listener in __main__ cannot be sent to the workers: put it into a module of its own")
        spec = find_spec(name)
        if spec is None:  # the listener's own error says so when it is loaded
            continue
        places = [Path(place) for place in spec.submodule_search_locations or [str(spec.origin)]]
        for place in places:
            if not any(place.resolve().is_relative_to(folder.resolve()) for folder in folders):
                paths[place] = None
    return list(paths)


def files_of(paths: Iterable[str | Path], *, whole: bool = True) -> dict[str, bytes]:
    """Names and contents of the files to send: a ``.py`` file and an archive as they are, a folder as a zip file.

    ``whole``: the workers import from the folder; else the folder is itself the package. Each name says its content, so
    that a file with another content has another name. Raises WrongUse for what does not exist or cannot be sent.
    """
    contents: dict[str, bytes] = {}
    for path in map(Path, paths):
        if path.is_dir():
            contents |= _named(path.name, ".zip", zipped(path, path if whole else path.parent))
        elif not path.is_file():
            raise WrongUse(f"{path} cannot be sent to the workers of Spark: there is no such file or folder")
        elif path.suffix in _ARCHIVES:
            contents |= _named(path.stem, ".zip", path.read_bytes())  # a wheel is a zip file
        elif path.suffix == ".py":
            contents[path.name] = path.read_bytes()  # its name is the module's
        else:
            raise WrongUse(f"Spark's workers cannot import {path}: name a folder, or a .py, .zip, .egg or .whl file")
    return contents


def zipped(folder: Path, base: Path) -> bytes:
    """A zip file of the folder's files, with names from ``base``: the same bytes for the same files."""
    size, buffer = 0, io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in _files(folder):
            if file.suffix in _COMPILED:
                raise WrongUse(f"{file} is compiled code, which Python does not import from a zip file: {_HINT}")
            size += file.stat().st_size
            if size > MOST_BYTES:
                raise WrongUse(f"{folder} has more than {MOST_BYTES >> 20} MiB: name a folder that has only code")
            entry = zipfile.ZipInfo(file.relative_to(base).as_posix())  # its time is always the same
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    """The files below a folder in a fixed order, without hidden ones, caches and virtual environments."""
    for at, folders, files in os.walk(folder):
        here = Path(at)
        folders[:] = sorted(
            name
            for name in folders
            if name[0] != "." and name != "__pycache__" and not (here / name / "pyvenv.cfg").exists()
        )
        yield from (here / name for name in sorted(files) if name[0] != "." and not name.endswith(".pyc"))


def _named(stem: str, suffix: str, content: bytes) -> Mapping[str, bytes]:
    return {f"{stem}-{hashlib.sha256(content).hexdigest()[:12]}{suffix}": content}


def _setting(session: SparkSession | ConnectSession, key: str) -> str | None:
    value = session.conf.get(key, None)
    return None if value is None else str(value)


def _send(session: SparkSession | ConnectSession, paths: Sequence[Path]) -> None:
    if hasattr(session, "sparkContext"):
        for path in paths:
            session.sparkContext.addPyFile(str(path))
    else:
        session.addArtifacts(*map(str, paths), pyfile=True)
