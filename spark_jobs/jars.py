"""Fetch the pinned jars once, check their SHA-256 sums, and give their paths.

    python -m spark_jobs.jars                 the groups that set-up needs: delta and test
    python -m spark_jobs.jars --group s3a     about 690 MB, only for Spark SQL over s3:// roots (``spark_jobs.s3a``)

``jars.lock`` beside this file holds group, coordinate and sum of every jar; a jar that is not in it is never used.
The jars come through the Ivy that pyspark ships, from the mirror that the user's Maven settings name, or else from
Maven Central. A jar gets its name only after its sum was checked, so an interrupted run can simply be repeated.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from rmq_store.errors import BadData
from rmq_store.settings.environment import Environment
from spark_jobs.java import MachineNotReady, find_java

LOCK_FILE = Path(__file__).with_name("jars.lock")
SETUP_GROUPS = ("delta", "test")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of ``jars.lock``."""

    group: str
    organisation: str
    artifact: str
    version: str
    classifier: str
    """"" for a plain jar."""
    sha256: str
    """Lower-case hexadecimal."""

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}{'-' + self.classifier if self.classifier else ''}.jar"

    @property
    def path(self) -> Path:
        return jar_folder(self.group) / self.file_name

    @classmethod
    def parse(cls, line: str) -> Jar:
        fields = line.split()
        coordinate = fields[1].split(":") if len(fields) == 3 else []
        if len(coordinate) not in (3, 4) or not _SHA256.fullmatch(fields[2]):
            raise BadData(f"jars.lock: {line!r} is not 'group organisation:artifact:version[:classifier] sha256'")
        organisation, artifact, version, classifier = (*coordinate, "")[:4]
        return cls(
            group=fields[0],
            organisation=organisation,
            artifact=artifact,
            version=version,
            classifier=classifier,
            sha256=fields[2],
        )


def locked_jars(lock_file: Path = LOCK_FILE) -> tuple[Jar, ...]:
    """All jars of the lock file, in its order."""
    lines = (line.partition("#")[0].strip() for line in lock_file.read_text().splitlines())
    return tuple(Jar.parse(line) for line in lines if line)


def jar_folder(group: str) -> Path:
    """Folder of a group's jars: ``$RMQ_JARS/<group>``, by default ``.cache/jars/<group>`` in the checkout."""
    base = Environment.read().jars
    return (Path(base) if base else Path(__file__).resolve().parents[1] / ".cache" / "jars") / group


def present_jars(group: str) -> list[Path]:
    """The group's jars, for a class path, each with the sum of ``jars.lock``.

    Raises MachineNotReady when one is missing, or is not the published file any more.
    """
    of_group = [jar for jar in locked_jars() if jar.group == group]
    paths = [jar.path for jar in of_group]
    missing = [path.name for path in paths if not path.is_file()]
    if missing or not paths:
        raise MachineNotReady(
            f"{', '.join(missing) or f'every jar of group {group!r}'} missing in {jar_folder(group)}. "
            f"Run: python -m spark_jobs.jars --group {group} (or 'make jars')."
        )
    if changed := [jar.path.name for jar in of_group if checked_sum(jar.path) != jar.sha256]:
        raise MachineNotReady(
            f"{', '.join(changed)} in {jar_folder(group)} is not the published file: its SHA-256 is not that of jars.lock, so "
            f"it is not used. Find out who changed it; python -m spark_jobs.jars --group {group} fetches it again."
        )
    return paths


def are_fetched(group: str) -> bool:
    """Whether all jars of the group are there; ``present_jars`` checks their sums."""
    return all(jar.path.is_file() for jar in locked_jars() if jar.group == group)


def checked_sum(path: Path) -> str:
    """``sha256_of``, computed once in this process for a file that does not change."""
    status = path.stat()
    return _sum_of_version(path, status.st_size, status.st_mtime_ns, status.st_ino)


@functools.cache
def _sum_of_version(path: Path, size: int, modified_ns: int, inode: int) -> str:
    return sha256_of(path)


def fetch(jars: Iterable[Jar], retrieve: Callable[[Jar, Path], Path], say: Callable[[str], None]) -> None:
    """Fetch each missing jar, check its sum, and move it to its place.

    ``retrieve(jar, folder)`` downloads one jar into an empty folder and returns the file. Raises BadData when a sum
    is wrong (the file is removed), MachineNotReady when a jar cannot be fetched.
    """
    queue = list(jars)
    for number, jar in enumerate(queue, start=1):
        progress = f"[{number}/{len(queue)}] {jar.file_name}"
        if jar.path.is_file():
            if sha256_of(jar.path) == jar.sha256:
                say(f"{progress}: already there")
                continue
            jar.path.unlink()
            say(f"{progress}: removed, its sum was wrong")
        say(f"{progress}: fetching")
        jar.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=jar.path.parent, prefix=".fetch-") as folder:
            file = retrieve(jar, Path(folder))
            actual = sha256_of(file)
            if actual != jar.sha256:
                raise BadData(
                    f"{jar.file_name}: SHA-256 is {actual}, jars.lock says {jar.sha256}. The download was removed. "
                    "Try again; if the sum stays wrong, the mirror does not serve the published file."
                )
            file.replace(jar.path)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def retrieve_by_ivy(jar: Jar, folder: Path) -> Path:
    """Download one jar with Ivy into ``folder``, without its dependencies."""
    classifier = f" m:classifier={quoteattr(jar.classifier)}" if jar.classifier else ""
    (folder / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="rmq" module="jars"/><dependencies>'
        f"<dependency org={quoteattr(jar.organisation)} name={quoteattr(jar.artifact)} rev={quoteattr(jar.version)} "
        f'transitive="false"><artifact name={quoteattr(jar.artifact)} type="jar" ext="jar"{classifier}/></dependency>'
        "</dependencies></ivy-module>"
    )
    root = maven_mirror()
    (folder / "ivysettings.xml").write_text(
        '<ivysettings><settings defaultResolver="central"/><resolvers><ibiblio name="central" m2compatible="true" '
        f'usepoms="false"{f" root={quoteattr(root)}" if root else ""}/></resolvers></ivysettings>'
    )
    run = subprocess.run(
        [
            find_java() / "bin" / "java",
            *proxy_options(os.environ),
            f"-Divy.default.ivy.user.dir={folder / 'ivy'}",
            *("-jar", _bundled_ivy()),
            *("-settings", folder / "ivysettings.xml"),
            *("-ivy", folder / "ivy.xml"),
            *("-types", "jar"),
            *("-retrieve", folder / "arrived" / "[artifact].[ext]"),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    file = folder / "arrived" / f"{jar.artifact}.jar"
    if run.returncode != 0 or not file.is_file():
        output = "\n".join((run.stdout + run.stderr).strip().splitlines()[-12:])
        raise MachineNotReady(
            f"cannot fetch {jar.organisation}:{jar.artifact}:{jar.version} from {root or 'Maven Central'}. "
            "Check the network. A mirror is taken from MAVEN_MIRROR_URL or ~/.m2/settings.xml, a proxy from "
            f"HTTPS_PROXY. Ivy wrote:\n{output}"
        )
    return file


def maven_mirror(settings: Path | None = None) -> str | None:
    """The user's mirror of Maven Central: ``$MAVEN_MIRROR_URL``, else the one in Maven's settings, else None."""
    if url := os.environ.get("MAVEN_MIRROR_URL"):
        return url.rstrip("/") + "/"
    path = settings or Path.home() / ".m2" / "settings.xml"
    try:
        tree = ElementTree.parse(path)
    except (OSError, ElementTree.ParseError):
        return None
    for mirror in tree.iterfind(".//{*}mirror"):
        covered = {part.strip() for part in mirror.findtext("{*}mirrorOf", "").split(",")}
        url = mirror.findtext("{*}url", "").strip()
        if url and covered & {"*", "external:*", "central"} and "!central" not in covered:
            return url.rstrip("/") + "/"
    return None


def proxy_options(environment: Mapping[str, str]) -> list[str]:
    """HTTP_PROXY and HTTPS_PROXY as system properties: Java does not read the variables."""
    options: list[str] = []
    for scheme in ("http", "https"):
        value = environment.get(f"{scheme}_proxy") or environment.get(f"{scheme.upper()}_PROXY") or ""
        proxy = urllib.parse.urlsplit(value if "//" in value else f"//{value}")
        if proxy.hostname:
            options += [f"-D{scheme}.proxyHost={proxy.hostname}", f"-D{scheme}.proxyPort={proxy.port or 80}"]
    return options


@functools.cache
def _bundled_ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")
    ivy_jars = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not ivy_jars:
        raise MachineNotReady("pyspark with its jars is not installed in this Python. Run 'make setup'.")
    return ivy_jars[-1]


def main(arguments: Sequence[str] | None = None) -> int:
    jars = locked_jars()
    groups = sorted({jar.group for jar in jars})
    parser = argparse.ArgumentParser(prog="python -m spark_jobs.jars", description="Fetch and check the pinned jars.")
    parser.add_argument("--group", action="append", choices=groups, help=f"default: {' and '.join(SETUP_GROUPS)}")
    selected = parser.parse_args(arguments).group or SETUP_GROUPS
    try:
        fetch([jar for jar in jars if jar.group in selected], retrieve_by_ivy, lambda line: print(line, flush=True))
    except (BadData, MachineNotReady) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
