"""The programs that ``make e2e`` needs besides those of ``make setup``: Chromium and PostgreSQL.

On Debian, as root, missing ones are installed with apt-get; else the error names the package.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CHECKOUT))

from scripts.setup import apt_installs  # noqa: E402


def has_chromium() -> bool:
    return shutil.which("chromium") is not None


def has_postgresql() -> bool:
    return any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


PACKAGES: Mapping[str, Callable[[], bool]] = {"chromium": has_chromium, "postgresql": has_postgresql}
"""Debian's packages, and whether their programs are here."""


def main() -> int:
    missing = [package for package, is_here in PACKAGES.items() if not is_here() and not apt_installs(package)]
    for package in missing:
        print(
            f"error: make e2e needs the program of Debian's package {package}: apt-get install {package}",
            file=sys.stderr,
        )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
