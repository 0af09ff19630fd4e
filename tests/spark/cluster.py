"""A real Spark cluster on loopback whose workers know nothing of this checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from benchmarks import spark_cluster
from benchmarks.spark_cluster import Cluster

_PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
_PACKAGES = sysconfig.get_paths()["purelib"]


@contextmanager
def running_cluster(folder: Path, *, workers: int) -> Iterator[tuple[Cluster, Path]]:
    """The cluster, and the Python of its workers."""
    python = worker_python(folder / "python")
    with spark_cluster.running_cluster(folder, workers=workers) as cluster:
        yield cluster, python


def worker_python(folder: Path) -> Path:
    """A Python with the packages that ``docs/cluster.md`` names for the workers and those that they need, and no others."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", folder], check=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    for path in {
        Path(_PACKAGES, top) for name in with_requirements(packages_of_the_page()) for top in top_levels(name)
    }:
        (site_packages / path.name).symlink_to(path)
    python = folder / "bin" / "python"
    words = [str(python), "-c", "import pyarrow, numpy; import rmq_store"]
    run = subprocess.run(words, cwd=folder, capture_output=True, check=False)
    assert b"No module named 'rmq_store'" in run.stderr, run.stderr
    return python


def packages_of_the_page() -> list[str]:
    command = re.search(r"^pip install -c constraints.txt (.*)$", _PAGE.read_text(), re.MULTILINE)
    assert command
    return command[1].split()


def with_requirements(names: list[str]) -> list[str]:
    """The packages and all that they require, without extras."""
    names = list(names)
    for name in names:  # it grows
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if needed and requirement.name not in names:
                names.append(requirement.name)
    return names


def top_levels(name: str) -> set[str]:
    """The files and folders that a package has in site-packages."""
    return {file.parts[0] for file in metadata.files(name) or () if file.parts[0] not in ("..", "__pycache__")}
