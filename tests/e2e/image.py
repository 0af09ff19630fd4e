"""An image without a container engine: builds a Dockerfile line by line in a folder that stands for ``/``.

Copies, commands and settings are real, by Docker's rules. What needs root or the network is only recorded (packages of
apt, users, owners). What takes minutes is compared instead: the pinned packages must be those of this test's Python. What
root owns in the image is read-only here, and processes run without root's capabilities, so that they can write no more
than the image's user.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distribution, version
from pathlib import Path

from packaging.requirements import Requirement

from spark_jobs.jars import jar_folder
from spark_jobs.java import find_java

ORDINARY = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
_OUR_PATH = re.compile(r"(?<![\w/:.-])(?=/(?:opt|home)/)")


class BuildFailed(Exception):
    """As ``docker build`` would fail: the instruction, and why."""


# --- the context ---


@dataclass(frozen=True, slots=True)
class Ignored:
    """``.dockerignore``: the last pattern that matches a path or a folder above it decides."""

    lines: Sequence[str]

    def __contains__(self, path: str) -> bool:
        places = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
        ignored = False
        for line in self.lines:
            pattern = _pattern(line.removeprefix("!").strip("/"))
            if any(pattern.fullmatch(place) for place in places):
                ignored = not line.startswith("!")
        return ignored

    def leads_back(self, folder: str) -> bool:
        """Whether an exception may take something in that lies in an ignored folder."""
        return any(line.startswith(f"!{folder}/") for line in self.lines)


def _pattern(text: str) -> re.Pattern[str]:
    pieces = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(pieces.get(piece) or re.escape(piece) for piece in re.split(r"(\*\*/|\*\*|\*|\?)", text)))


def context_of(checkout: Path) -> dict[str, Path]:
    """The files that the build may copy, by their path in the context."""
    lines = (checkout / ".dockerignore").read_text().splitlines()
    ignored = Ignored([line.strip() for line in lines if line.strip() and not line.startswith("#")])

    def below(folder: Path) -> Iterator[Path]:
        for entry in sorted(folder.iterdir()):
            path = str(entry.relative_to(checkout))
            if entry.is_dir() and not entry.is_symlink():
                if path not in ignored or ignored.leads_back(path):
                    yield from below(entry)
            elif path not in ignored:
                yield entry

    return {str(file.relative_to(checkout)): file for file in below(checkout)}


# --- the image ---


def instructions(dockerfile: str) -> Iterator[tuple[str, str]]:
    """Each instruction with the rest of its line; comments are gone and continued lines joined."""
    lines = [line for line in dockerfile.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        name, _, rest = line.partition(" ")
        yield name, rest.strip()


@dataclass(slots=True)
class Image:
    """``folder`` stands for ``/``. ``owned``: the folders that belong to a user; all others belong to root."""

    folder: Path
    context: Mapping[str, Path]
    args: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str = "root"
    entrypoint: tuple[str, ...] = ()
    homes: dict[str, str] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    owned: set[Path] = field(default_factory=set)

    @classmethod
    def build(cls, checkout: Path, folder: Path) -> Image:
        """Raises BuildFailed."""
        image = cls(folder, context_of(checkout))
        for name, rest in instructions((checkout / "Dockerfile").read_text()):
            follow = getattr(image, f"_{name.lower()}", None)
            if follow is None:
                raise BuildFailed(f"{name} {rest}: tests/e2e/image.py does not know this instruction")
            follow(rest)
        return image

    def place(self, path: str) -> Path:
        """Where a path of the image is here; one that is not absolute counts from WORKDIR."""
        return self.folder / os.path.normpath(os.path.join(self.workdir, path)).lstrip("/")

    def translate(self, text: str) -> str:
        """A text whose paths of the image are translated to paths on this host."""
        return _OUR_PATH.sub(str(self.folder), text)

    def environment(self) -> dict[str, str]:
        """The environment of a process in the image: nothing of the test's own environment."""
        own = {
            "PATH": f"{self.folder / 'usr/local/bin'}:/usr/bin:/bin",
            "HOME": self.translate(self.homes.get(self.user, "/root")),
            "JAVA_HOME": str(find_java()),
            "LANG": "C.UTF-8",
        }
        return own | {name: self.translate(value) for name, value in self.env.items()}

    def mount(self, volume: str) -> None:
        """A fresh named volume: it takes over the folder of the image, or is root's where the image has none."""
        self.place(volume).mkdir(parents=True, exist_ok=True)

    def bind(self, target: str, folder: Path) -> None:
        """A folder of the host, mounted read-only."""
        place = self.place(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.is_symlink():
            place.symlink_to(folder, target_is_directory=True)

    def seal(self) -> None:
        """From now on only what the user owns can be written to."""
        for folder, _, _ in os.walk(self.folder):
            if Path(folder) not in self.owned:
                os.chmod(folder, 0o555)

    # --- instructions ---

    def _from(self, rest: str) -> None:
        if not (match := re.match(r"python:(3\.\d+)", rest)):
            raise BuildFailed(f"FROM {rest}: not an image of Python")
        requires = re.search(r'requires-python = "(.*)"', self.context["pyproject.toml"].read_text())
        if requires is None or not Requirement(f"x{requires[1]}").specifier.contains(match[1]):
            raise BuildFailed(f"FROM {rest}: pyproject.toml wants Python {requires and requires[1]}")
        venv.EnvBuilder(symlinks=True).create(self.folder / "usr/local")

    def _env(self, rest: str) -> None:
        self.env |= dict(word.split("=", 1) for word in shlex.split(rest))

    def _arg(self, rest: str) -> None:
        name, _, default = rest.partition("=")
        self.args.setdefault(name, default)

    def _workdir(self, rest: str) -> None:
        self.workdir = rest
        self.place(rest).mkdir(parents=True, exist_ok=True)

    def _user(self, rest: str) -> None:
        if rest not in self.homes:
            raise BuildFailed(f"USER {rest}: no such user")
        self.user = rest

    def _entrypoint(self, rest: str) -> None:
        self.entrypoint = tuple(json.loads(rest))

    def _cmd(self, rest: str) -> None:
        json.loads(rest)

    def _copy(self, rest: str) -> None:
        *sources, target = rest.split()
        for source in sources:
            files = [path for path in self.context if path == source or path.startswith(f"{source}/")]
            if not files:
                raise BuildFailed(f'COPY {rest}: "/{source}": not found in the context')
            for path in files:
                inside = path.removeprefix(source).lstrip("/") or Path(source).name
                is_file_name = path == source and not target.endswith("/")
                aim = self.place(target) if is_file_name else self.place(target) / inside
                aim.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.context[path], aim)

    def _run(self, rest: str) -> None:
        for command in rest.split(" && "):
            match shlex.split(command):
                case ["apt-get", "install", *words]:
                    self.packages |= {word for word in words if not word.startswith("-")}
                case ["apt-get", "update"] | ["rm", "-rf", "/var/lib/apt/lists/*"]:
                    pass
                case ["useradd", "--create-home", "--uid", _, name]:
                    self.homes[name] = f"/home/{name}"
                    self.place(f"/home/{name}").mkdir(parents=True)
                    self.owned.add(self.place(f"/home/{name}"))
                case ["install", "-d", "-o", owner, "-g", _, *folders]:
                    self._install_folders(owner, folders)
                case ["pip", "install", *_, "-r", pins]:
                    self._provide_pinned(self.place(pins))
                case ["pip", *words]:
                    self._run_here("python", "-m", "pip", "--disable-pip-version-check", *words)
                case ["for", "group", "in", "$JAR_GROUPS;", *words]:
                    if " ".join(words) != "do python -m spark_jobs.jars --group $group || exit 1; done":
                        raise BuildFailed(f"RUN {command}: tests/e2e/image.py does not know this loop")
                    for group in self.args["JAR_GROUPS"].split():
                        self._fetch_jars(group)
                case _:
                    raise BuildFailed(f"RUN {command}: tests/e2e/image.py does not know this command")

    def _install_folders(self, owner: str, folders: Sequence[str]) -> None:
        if owner not in self.homes:
            raise BuildFailed(f"install: invalid user: {owner!r}")
        for folder in folders:
            self.place(folder).mkdir(parents=True, exist_ok=True)
            self.owned.add(self.place(folder))

    def _provide_pinned(self, pins: Path) -> None:
        """They are the packages of this test's Python, so they are lent to the image, and no others."""
        names = ["pip"]  # which the base image has
        lines = "\n".join(line.partition("#")[0] for line in pins.read_text().splitlines()).replace("\\\n", "")
        for line in filter(str.strip, lines.splitlines()):
            pin, *sums = line.split(" --hash=sha256:")
            if not sums:
                raise BuildFailed(f"pip install --require-hashes: {pin} has no hash")
            requirement = Requirement(pin)
            if requirement.marker is not None and not requirement.marker.evaluate():
                continue
            names.append(requirement.name)
            if not requirement.specifier.contains(version(requirement.name)):
                raise BuildFailed(f"pip install: {requirement} is pinned, but {version(requirement.name)} is installed")
        site_packages = Path(sysconfig.get_path("purelib"))
        here = self.folder / "usr/local" / site_packages.relative_to(sys.prefix)
        for name in names:
            for top in {file.parts[0] for file in distribution(name).files or () if file.parts[0] != ".."}:
                if not (here / top).exists() and top != "__pycache__":
                    (here / top).symlink_to(site_packages / top)
        script = (Path(sys.prefix) / "bin/airflow").read_text().partition("\n")[2]
        program = self.folder / "usr/local/bin/airflow"
        program.write_text(f"#!{program.with_name('python')}\n{script}")
        program.chmod(0o755)

    def _fetch_jars(self, group: str) -> None:
        """Really run, but the files are there already."""
        shutil.copytree(jar_folder(group), self.place(f".cache/jars/{group}"))
        self._run_here("python", "-m", "spark_jobs.jars", "--group", group)

    def _run_here(self, *words: str) -> None:
        command = [self.translate(word) for word in words]
        process = subprocess.run(
            ["env", *command],  # which looks it up in the PATH of the image
            cwd=self.place("."),
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if process.returncode != 0:
            raise BuildFailed(f"RUN {shlex.join(words)}: code {process.returncode}\n{process.stdout[-3000:]}")
