"""Find a Java that Spark 4.2 runs on. Standard library only: set-up asks before anything is installed.

``python3 -m spark_jobs.java`` prints the home of the Java that would be used, or why there is none.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rmq_store.errors import RmqError

SUPPORTED_VERSIONS = (17, 21)
NEEDED_MODULE = "jdk.incubator.vector"
_USUAL_FOLDERS = ("/usr/lib/jvm/*", "/opt/java/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home")


class MachineNotReady(RmqError):
    """A part that set-up installs is missing; the message says how to get it."""


@functools.cache
def find_java() -> Path:
    """Home of the first usable Java: ``$JAVA_HOME``, then ``java`` of the PATH, then the usual folders.

    Raises MachineNotReady, which names every Java that was found and why Spark cannot run on it.
    """
    refused: list[str] = []
    for home in dict.fromkeys(_candidates()):
        problem = why_unusable(home)
        if problem is None:
            return home
        refused.append(f"{home}: {problem}")
    candidates = "; ".join(refused) or "there is no Java"
    raise MachineNotReady(
        f"no usable Java found. Spark needs Java {' or '.join(map(str, SUPPORTED_VERSIONS))} with the module "
        f"{NEEDED_MODULE}, which any full JDK and any distribution's JRE has. Install one (on Debian: apt-get install "
        f"openjdk-17-jre-headless), or set JAVA_HOME to it. Found: {candidates}."
    )


def why_unusable(home: Path) -> str | None:
    """Why Spark cannot run on the Java at ``home``; None when it can."""
    try:
        listing = subprocess.run(
            [home / "bin" / "java", "--list-modules"], capture_output=True, text=True, timeout=600, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"'java --list-modules' failed ({type(error).__name__})"
    modules = dict(line.strip().partition("@")[::2] for line in listing.splitlines())
    version = modules.get("java.base", "")
    if version.partition(".")[0] not in map(str, SUPPORTED_VERSIONS):
        return f"is Java {version or 'of unknown version'}"
    if NEEDED_MODULE not in modules:
        return f"is Java {version} without the module {NEEDED_MODULE}"
    return None


def _candidates() -> Iterator[Path]:
    if java_home := os.environ.get("JAVA_HOME"):
        yield Path(java_home)
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve().parent.parent
    for pattern in _USUAL_FOLDERS:
        for java in sorted(Path("/").glob(f"{pattern[1:]}/bin/java")):
            yield java.parent.parent.resolve()


if __name__ == "__main__":
    try:
        print(find_java())
    except MachineNotReady as error:
        sys.exit(str(error))
