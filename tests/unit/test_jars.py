"""Jars come once, checked; Java is the right one. No download, no JVM here."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_store.errors import BadData
from spark_jobs import jars, java
from spark_jobs.jars import Jar
from spark_jobs.java import MachineNotReady

CONTENT = b"the published file"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
DELTA = Jar("delta", "io.delta", "delta-storage", "4.4.0", "", SHA256)
FAT = Jar("test", "org.gaul", "s3proxy", "4.1.1", "jar-with-dependencies", SHA256)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RMQ_JARS", str(tmp_path / "jars"))
    return tmp_path / "jars"


class Mirror:
    """Serves ``content`` for every jar and remembers what was asked."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content = content
        self.asked: list[str] = []

    def __call__(self, jar: Jar, folder: Path) -> Path:
        self.asked.append(jar.file_name)
        arrived = folder / "arrived.jar"
        arrived.write_bytes(self.content)
        return arrived


def everything_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_fetched_jar_lies_in_the_folder_of_its_group(cache: Path) -> None:
    jars.fetch([DELTA, FAT], Mirror(), lambda _: None)
    assert everything_below(cache) == ["delta/delta-storage-4.4.0.jar", "test/s3proxy-4.1.1-jar-with-dependencies.jar"]
    assert DELTA.path.read_bytes() == CONTENT


def test_a_jar_that_is_there_is_not_fetched_again() -> None:
    mirror = Mirror()
    jars.fetch([DELTA], mirror, lambda _: None)
    jars.fetch([DELTA], mirror, lambda _: None)
    assert mirror.asked == [DELTA.file_name]


def test_a_wrong_sum_is_an_error_that_keeps_nothing(cache: Path) -> None:
    with pytest.raises(BadData, match=rf"delta-storage-4\.4\.0\.jar: SHA-256 is \w{{64}}, jars.lock says {SHA256}"):
        jars.fetch([DELTA], Mirror(b"something else"), lambda _: None)
    assert everything_below(cache) == []


def test_a_jar_that_was_changed_on_disk_is_replaced() -> None:
    DELTA.path.parent.mkdir(parents=True)
    DELTA.path.write_bytes(b"half a fi")
    said: list[str] = []
    jars.fetch([DELTA], Mirror(), said.append)
    assert DELTA.path.read_bytes() == CONTENT
    assert said == [
        "[1/1] delta-storage-4.4.0.jar: removed, its sum was wrong",
        "[1/1] delta-storage-4.4.0.jar: fetching",
    ]


def test_an_interrupted_fetch_goes_on_where_it_stopped(cache: Path) -> None:
    mirror = Mirror()

    def breaks_on_the_second(jar: Jar, folder: Path) -> Path:
        if jar is FAT:
            (folder / "half").write_bytes(b"half")
            raise KeyboardInterrupt
        return mirror(jar, folder)

    with pytest.raises(KeyboardInterrupt):
        jars.fetch([DELTA, FAT], breaks_on_the_second, lambda _: None)
    assert everything_below(cache) == ["delta/delta-storage-4.4.0.jar"]
    jars.fetch([DELTA, FAT], mirror, lambda _: None)
    assert mirror.asked == [DELTA.file_name, FAT.file_name]


def test_a_missing_jar_is_named_with_the_command_that_fetches_it() -> None:
    with pytest.raises(MachineNotReady, match=r"delta-storage-4\.4\.0\.jar.* missing .*--group delta"):
        jars.present_jars("delta")


def test_a_jar_that_was_changed_is_not_used_and_others_are_read_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = DELTA
    monkeypatch.setattr(jars, "locked_jars", lambda: (one,))
    jars.fetch([one], Mirror(), lambda line: None)
    reads: list[Path] = []

    def counted(path: Path) -> str:
        reads.append(path)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    monkeypatch.setattr(jars, "sha256_of", counted)
    assert jars.present_jars(one.group) == jars.present_jars(one.group) == [one.path]
    assert len(reads) == 1
    with one.path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(MachineNotReady, match=f"{one.file_name} in .* is not the published file"):
        jars.present_jars(one.group)


def test_the_lock_names_every_jar_with_a_group_and_a_sum() -> None:
    locked = jars.locked_jars()
    assert {jar.artifact for jar in locked if jar.group == "delta"} == {
        "delta-spark_4.2_2.13",
        "delta-storage",
        "delta-kernel-api",
        "delta-kernel-defaults",
    }
    assert [jar.file_name for jar in locked if jar.group == "test"] == [FAT.file_name]
    assert {jar.group for jar in locked} == {"delta", "test", "s3a"}
    assert "s3a" not in jars.SETUP_GROUPS


@pytest.mark.parametrize(
    "line",
    [
        f"io.delta:delta-storage:4.4.0 {SHA256}",
        f"delta io.delta:delta-storage {SHA256}",
        "delta io.delta:delta-storage:4.4.0 abc",
        f"delta io.delta:delta-storage:4.4.0 {SHA256} more",
    ],
)
def test_a_broken_lock_line_is_refused(line: str) -> None:
    with pytest.raises(BadData, match="is not 'group organisation:artifact"):
        Jar.parse(line)


# --- the user's mirror and proxy ---

SETTINGS = """<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>
  <mirror><id>a</id><mirrorOf>{}</mirrorOf><url>https://mirror.example/maven</url></mirror>
</mirrors></settings>"""


@pytest.mark.parametrize(
    ("mirror_of", "expected"),
    [
        ("*", "https://mirror.example/maven/"),
        ("central", "https://mirror.example/maven/"),
        ("external:*,!other", "https://mirror.example/maven/"),
        ("*,!central", None),
        ("other", None),
    ],
)
def test_a_mirror_of_central_is_taken_from_maven_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror_of: str, expected: str | None
) -> None:
    monkeypatch.delenv("MAVEN_MIRROR_URL", raising=False)
    (tmp_path / "settings.xml").write_text(SETTINGS.format(mirror_of))
    assert jars.maven_mirror(tmp_path / "settings.xml") == expected


def test_the_environment_wins_over_maven_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "settings.xml").write_text(SETTINGS.format("*"))
    monkeypatch.setenv("MAVEN_MIRROR_URL", "https://other.example/m2")
    assert jars.maven_mirror(tmp_path / "settings.xml") == "https://other.example/m2/"


@pytest.mark.parametrize("text", [None, "", "<settings"])
def test_without_usable_settings_there_is_no_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    monkeypatch.delenv("MAVEN_MIRROR_URL", raising=False)
    if text is not None:
        (tmp_path / "settings.xml").write_text(text)
    assert jars.maven_mirror(tmp_path / "settings.xml") is None


def test_proxies_are_told_to_java_in_its_own_words() -> None:
    options = jars.proxy_options({"https_proxy": "http://proxy.example:3128", "HTTP_PROXY": "other.example:8080"})
    assert options == [
        "-Dhttp.proxyHost=other.example",
        "-Dhttp.proxyPort=8080",
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
    ]
    assert jars.proxy_options({}) == []


# --- Java ---


@pytest.fixture
def installed(tmp_path: Path) -> Callable[..., Path]:
    """Makes homes of Javas that answer --list-modules."""

    def install(name: str, version: str, *, vector: bool = True, status: int = 0) -> Path:
        program = tmp_path / name / "bin" / "java"
        program.parent.mkdir(parents=True)
        modules = [f"java.base@{version}", *([f"jdk.incubator.vector@{version}"] if vector else [])]
        program.write_text(f"#!/bin/sh\nprintf '%s\\n' {' '.join(modules)}\nexit {status}\n")
        program.chmod(0o755)
        return tmp_path / name

    return install


def test_java_17_and_21_with_the_vector_module_will_do(installed: Callable[..., Path]) -> None:
    assert java.why_unusable(installed("a", "17.0.15")) is None
    assert java.why_unusable(installed("b", "21")) is None


@pytest.mark.parametrize(
    ("version", "vector", "status", "said"),
    [
        ("11.0.2", True, 0, "is Java 11.0.2"),
        ("25", True, 0, "is Java 25"),
        ("17.0.15", False, 0, "without the module jdk.incubator.vector"),
        ("1.8", True, 1, "failed"),
    ],
)
def test_other_javas_are_refused_with_the_reason(
    installed: Callable[..., Path], version: str, vector: bool, status: int, said: str
) -> None:
    assert said in str(java.why_unusable(installed("a", version, vector=vector, status=status)))


def test_a_usable_java_is_found_behind_an_unusable_java_home(
    installed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = installed("good", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(installed("old", "11.0.2")))
    monkeypatch.setenv("PATH", str(good / "bin"), prepend=":")
    assert java.find_java.__wrapped__() == good


def test_without_a_usable_java_all_that_was_looked_at_is_listed(
    installed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = installed("old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(java, "_USUAL_FOLDERS", ())
    with pytest.raises(MachineNotReady, match=f"{old}: is Java 11.0.2") as caught:
        java.find_java.__wrapped__()
    assert "openjdk-17-jre-headless" in str(caught.value)


def test_looking_for_java_needs_nothing_but_the_standard_library() -> None:
    """Set-up asks before anything is installed."""
    run = subprocess.run(
        [sys.executable, "-S", "-c", "import spark_jobs.java, sys; print('ok')"],
        cwd=Path(java.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "ok\n"
