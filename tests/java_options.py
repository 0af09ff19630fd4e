"""The options of every JVM that a test starts."""

from __future__ import annotations

from pathlib import Path

OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
"""A test's JVM lives for seconds, so optimizing its code costs more than it saves. Its warnings are left out, such as that an
archive of classes cannot be used: tests read what a JVM prints."""

ARCHIVE = Path(__file__).resolve().parents[1] / ".cache" / "spark-classes.jsa"
"""Of the classes that Spark loads (``spark/class_archive.py``)."""


def java_options() -> str:
    """With the archive if there is one."""
    return f"{OPTIONS} -XX:SharedArchiveFile={ARCHIVE} -Xshare:auto" if ARCHIVE.is_file() else OPTIONS
