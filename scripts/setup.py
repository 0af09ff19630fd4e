"""Set up the checkout: Java, a ``.venv`` from requirements-dev.txt with the project in it, the jars. ``make setup`` runs it.

Runs on the machine's own Python, so it uses the standard library only. It can be repeated at any time: what exists
stays. Outside the checkout it changes nothing, with one exception, which it announces: on Debian, as root, it installs
Java (and Python's venv module) with apt-get where they are missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
import venv
from itertools import takewhile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from spark_jobs.java import MachineNotReady, find_java  # noqa: E402

VENV = CHECKOUT / ".venv"
PYTHON = VENV / "bin" / "python"
READY = VENV / ".ready"
REQUIREMENTS = CHECKOUT / "requirements-dev.txt"
OLDEST, TOO_NEW = (3, 11), (3, 14)
JAVA_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")


def main() -> int:
    started = time.monotonic()
    READY.unlink(missing_ok=True)
    try:
        check_python()
        provide_java()
        provide_venv()
        provide_packages()
        say("fetching the jars")
        run(PYTHON, "-m", "spark_jobs.jars")
    except MachineNotReady as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    READY.touch()
    say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


def check_python() -> None:
    if not OLDEST <= sys.version_info[:2] < TOO_NEW:
        raise MachineNotReady(f"Python 3.11, 3.12 or 3.13 is needed, not {sys.version.split()[0]} ({sys.executable})")


def provide_java() -> None:
    try:
        find_java()
    except MachineNotReady:
        if not any(apt_installs(package) for package in JAVA_PACKAGES):
            raise
    say(f"Java: {find_java()}")


def provide_venv() -> None:
    if works(PYTHON):
        return
    if importlib.util.find_spec("ensurepip") is None:
        package = f"python3.{sys.version_info.minor}-venv"
        if not apt_installs(package):
            raise MachineNotReady(f"this Python cannot make virtual environments. On Debian: apt-get install {package}")
    say(f"making .venv with Python {sys.version.split()[0]}")
    venv.EnvBuilder(clear=True, symlinks=True).create(VENV)
    # In a new process: this one does not see an ensurepip that was installed a moment ago.
    run(PYTHON, "-m", "ensurepip", "--default-pip", quiet=True)


def provide_packages() -> None:
    """With uv, in half of pip's time; with pip where uv fails, or where pip has an index that uv does not know."""
    pip = (PYTHON, "-m", "pip", "--disable-pip-version-check")
    if "index-url" in run(*pip, "config", "list", quiet=True):
        install(pip, ("install", "--progress-bar", "off"))
        return
    only_uv = VENV / "uv.txt"
    only_uv.write_text(requirement_of("uv"))
    run(*pip, "install", "--quiet", "--no-deps", "--require-hashes", "-r", only_uv, quiet=True)
    cache = VENV / ".uv-cache"  # beside the target, so that files are linked and not copied
    uv = (VENV / "bin" / "uv", "--cache-dir", cache, "pip")
    try:
        install(uv, ("install", "--python", PYTHON))
    except MachineNotReady:
        say("uv failed; trying pip")
        install(pip, ("install", "--progress-bar", "off"))
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def install(installer: tuple[str | Path, ...], verb: tuple[str | Path, ...]) -> None:
    """The set of requirements-dev.txt as it is, each file with its sum, then this project; ``pip check`` proves that the set is
    within the project's ranges, and complete."""
    say("installing the pinned packages (1.1 GiB; the first time takes a minute or more)")
    run(*installer, *verb, "--no-deps", "--require-hashes", "-r", REQUIREMENTS)
    run(*installer, *verb, "--quiet", "--no-deps", "--no-build-isolation", "-e", CHECKOUT)
    run(PYTHON, "-m", "pip", "check", quiet=True)


def requirement_of(package: str) -> str:
    """The line of a package in requirements-dev.txt, with the lines of its sums."""
    lines = iter(REQUIREMENTS.read_text().splitlines(keepends=True))
    first = next(line for line in lines if line.startswith(f"{package}=="))
    return first + "".join(takewhile(lambda line: line.lstrip().startswith("--hash"), lines))


# --- the machine ---


def apt_installs(package: str) -> bool:
    """Install a Debian package, where this is Debian and the user is root; whether it was installed."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return False
    say(f"installing {package} with apt-get")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in ("update", f"install -y --no-install-recommends {package}"):
        command = ["apt-get", "-qq", *words.split()]
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment, check=False
        )
    return process.returncode == 0


def works(python: Path) -> bool:
    """Whether this is a usable virtual environment of a supported Python."""
    check = f"import pip, sys; sys.exit(not {OLDEST} <= sys.version_info[:2] < {TOO_NEW})"
    try:
        return subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def run(*command: str | Path, quiet: bool = False) -> str:
    """Run a command in the checkout. ``quiet``: return its output, do not show it. Raises MachineNotReady."""
    process = subprocess.run(
        command,
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        check=False,
    )
    if process.returncode != 0:
        output = f". Its output:\n{process.stdout.strip()}" if quiet else ""
        raise MachineNotReady(f"'{' '.join(map(str, command))}' failed{output}")
    return process.stdout or ""


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
