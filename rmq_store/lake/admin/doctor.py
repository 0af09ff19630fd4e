"""The checks of ``rmq doctor``: what the platform needs on this machine and in the store, and how to fix it.

A check returns what it found, or raises. Checks of Java, jars and Spark get a function from the caller, since this package
does not know ``spark_jobs``; those of the settings are in ``doctor_settings.py``. Nothing is changed except for a probe object,
which is created and deleted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TypeVar

from rmq_store.commit.ctl import is_born_here
from rmq_store.commit.decide import MAX_SKEW_MS
from rmq_store.commit.positions import max_id
from rmq_store.errors import BadData, DerivedTableDamaged, RmqError, StoreUnusable
from rmq_store.lake.commit.cursor import refuse_other_history
from rmq_store.lake.commit.derived_tables import KINDS, Derived
from rmq_store.lake.commit.dispatch import behind
from rmq_store.lake.commit.histories import entries_of_another
from rmq_store.lake.table.checkpoint import entries_since_checkpoint
from rmq_store.lake.table.delta_log import NoTable
from rmq_store.lake.table.delta_table import LakeTable
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.shard_entry import DescriptionDamaged, ShardOfAnother, entry_path, refuse_damaged_entry
from rmq_store.lake.table.store import LakeStore, refuse_unnamed_shards, stray_files
from rmq_store.maintain.request import MOST_ENTRIES, MOST_FILES, due_for_maintenance
from rmq_store.utils.host import Host, random_name
from rmq_store.utils.redaction import cleaned
from rmq_store.utils.times import format_time

PROJECT = "rocketmq-lakehouse"
RACERS = 8
MOST_BEHIND = 1_000
"""So many commits wait for a dispatch only if it fails each time, or never runs."""
_RANGE = re.compile(r"(?P<name>[\w.-]+)(\[[^\]]*\])?<(?P<next>[\d.]+),>=(?P<oldest>[\d.]+)(?P<extra>;.*)?")
"""A requirement as hatchling writes those of pyproject.toml into the package's metadata."""
T = TypeVar("T")
_RELEASE = re.compile(r"\d+(\.\d+)*")


class CheckSkipped(Exception):
    """The check does not apply; the text says why."""


class OtherMend(Exception):
    """The check failed in a way that its usual ``mend`` does not fix."""

    def __init__(self, text: str, mend: str) -> None:
        super().__init__(text)
        self.mend = mend


class CheckImpossible(OtherMend):
    """What the check reads cannot be read, so that it says nothing about damage."""

    def __init__(self, text: str) -> None:
        super().__init__(
            text, "let this user read the files of the store, see that its storage answers, and run 'rmq doctor' again"
        )


class _AnotherHistory(BadData):
    """A commit log has entries of another history."""


class CheckStatus(StrEnum):
    """How a check ended."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    check: str
    status: CheckStatus
    found: str
    """What the check found, or the error."""
    mend: str = ""
    """How to fix it, "" unless it failed."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str
    look: Callable[[], str]
    """Returns what it found; an error that it raises is the problem."""
    mend: str
    """How to fix it."""

    def examine(self) -> Finding:
        try:
            return Finding(self.name, CheckStatus.OK, self.look())
        except CheckSkipped as reason:
            return Finding(self.name, CheckStatus.SKIPPED, str(reason))
        except OtherMend as error:
            return Finding(self.name, CheckStatus.FAILED, cleaned(str(error)), error.mend)
        except Exception as error:  # the other checks still run
            return Finding(self.name, CheckStatus.FAILED, cleaned(str(error)) or type(error).__name__, self.mend)


# --- the machine -----------------------------------------------------------------------------------------------------


def machine_checks(find_java: Callable[[], Path], check_jars: Callable[[], str]) -> Iterator[Check]:
    """``find_java``: returns the home of a usable Java. ``check_jars``: returns which jars have the right checksums."""
    make_setup = "run 'make setup'"
    yield Check("Python", python_found, "use Python 3.11, 3.12 or 3.13: make setup PYTHON=...")
    install = "or 'pip install' with the constraints.txt of this release"
    yield Check("packages", packages_found, f"{make_setup}, {install}: both install the versions that were tested")
    yield Check(
        "Java",
        lambda: java_found(find_java()),
        "install a JDK or a distribution's JRE of version 17 or 21 (on Debian: apt-get install "
        "openjdk-17-jre-headless), or point JAVA_HOME to one",
    )
    yield Check("jars", check_jars, "run 'make jars': it fetches them again and checks their checksums")


def python_found() -> str:
    running = ".".join(map(str, sys.version_info[:3]))
    if not (3, 11) <= sys.version_info[:2] < (3, 14):
        raise StoreUnusable(f"this is Python {running}")
    return f"{running} ({sys.executable})"


def packages_found() -> str:
    """Raises StoreUnusable naming every package that is missing, or whose version is outside the range of this release.
    A package of an extra may be missing. Also raises it when the metadata of this project is of another release, and so
    names no ranges."""
    versions: dict[str, str] = {}
    wrong: set[str] = set()
    for match in filter(None, (_RANGE.fullmatch(text.replace(" ", "")) for text in requires(PROJECT) or ())):
        name, oldest, next_, extra = match["name"], match["oldest"], match["next"], match["extra"]
        if not (installed := _installed(name)) and extra:
            continue
        versions[name] = installed
        if not _release(oldest) <= _release(installed) < _release(next_):
            wrong.add(f"{name} is {installed or 'not installed'}, not >={oldest},<{next_}")
    if not versions:
        raise StoreUnusable(f"the installed metadata of {PROJECT} names no ranges: it is of another release")
    if client := _installed("pyspark-client"):
        wrong.add(f"pyspark-client {client} is installed beside pyspark, and both write the same files")
    if wrong:
        raise StoreUnusable("; ".join(sorted(wrong)))
    return f"{len(versions)} packages, all in the ranges of this release"


def _release(text: str) -> tuple[int, ...]:
    """The numbers of a version, without zeros at the end; () where it has none. A pre-release counts as its release."""
    match = _RELEASE.match(text)
    return tuple(map(int, re.sub(r"(\.0+)+$", "", match[0]).split("."))) if match else ()


def _installed(name: str) -> str:
    """Its version, "" where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def java_found(home: Path) -> str:
    release = home / "release"
    text = release.read_text(encoding="utf-8") if release.is_file() else ""
    match = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    return f"{match[1] if match else 'of a supported version'} at {home}, with the module that Spark needs"


# --- the store -------------------------------------------------------------------------------------------------------


def store_checks(root: Callable[[], Root], host: Host) -> Iterator[Check]:
    """``root``: returns the store's root, or raises when its name is wrong."""
    yield Check(
        "store", lambda: store_found(root()), "make one with 'rmq init', or name another one with --root or RMQ_ROOT"
    )
    yield Check(
        "exclusive create",
        lambda: one_winner(root()),
        "every commit needs it: let this user write there, and use a file system or an S3 server that supports "
        "'create only if absent' (If-None-Match)",
    )
    yield Check("clock", lambda: clock_found(root(), host), "set this machine's clock (NTP), or the store's")
    yield Check(
        "commit log",
        lambda: commit_logs_found(root()),
        "stop what writes to the store, restore the commit log that is named from a backup, then run 'rmq dispatch --rebuild'",
    )
    yield Check("derived tables", lambda: derived_tables_found(root()), "run 'rmq dispatch --rebuild'")
    yield Check(
        "maintenance",
        lambda: maintenance_found(root()),
        "run 'rmq dispatch' and 'rmq maintain', and 'rmq maintain' every day (the DAG rmq_maintain)",
    )


def store_found(root: Root) -> str:
    try:
        store = LakeStore.open(root)
        refuse_unnamed_shards(root)
        shards = store.shard_names()
        for name in shards:
            refuse_damaged_entry(root, name)
    except DescriptionDamaged as error:
        raise OtherMend(str(error), f"restore {error.file} from a backup") from error
    named = ", ".join(shards) or "none yet"
    strays = "".join(f"; {name} is no entry of a shard, and is not read" for name in stray_files(root))
    return (
        f"{store.store_id} at {root.location}, delay levels {store.levels.text}, {len(shards)} shards: {named}{strays}"
    )


def one_winner(root: Root) -> str:
    """Checks that of several creates of one name, one after another and at the same time, exactly one succeeds."""
    if root.is_local and not Path(root.location).is_dir():
        raise CheckSkipped(f"{root.location} does not exist")
    root.check_exclusive_create()
    probe = f"_probe/{random_name()}"
    contents = [str(number).encode() for number in range(RACERS)]
    with ThreadPoolExecutor(RACERS) as racers:
        won = list(racers.map(lambda content: root.create_exclusively(probe, content), contents))
    stored = root.read(probe)
    root.delete(probe)
    if [content for content, first in zip(contents, won, strict=True) if first] != [stored]:
        raise StoreUnusable(f"{sum(won)} of {RACERS} simultaneous creates of one name succeeded, instead of 1")
    return f"1 of {RACERS} simultaneous creates of one name succeeded"


def clock_found(root: Root, host: Host) -> str:
    _check_newest(root, host.now_ms())
    if root.is_local:
        return "the store is on this machine"
    before_ms = host.now_ms()
    skew_ms = root.server_time_ms(host) - (before_ms + host.now_ms()) // 2
    if abs(skew_ms) > MAX_SKEW_MS:
        raise StoreUnusable(
            f"the store's clock is {skew_ms / 1000:+.1f} s from this one's; commits allow {MAX_SKEW_MS} ms"
        )
    return f"the store's clock is {skew_ms / 1000:+.1f} s from this one's"


def _check_newest(root: Root, now_ms: int) -> None:
    """Raises StoreUnusable for a queue with a message from so far ahead that none can be added."""
    try:
        tails = [(shard, shard.positions()) for shard in LakeStore.open(root).named_shards()]
    except RmqError:
        return  # other checks say so
    ahead = [
        f"{queue} in shard {shard.name} until {format_time(at_ms)}"
        for shard, positions in tails
        for queue in positions.all_queues()
        if is_born_here(queue.broker_name) and (at_ms := positions.updated_ms(max_id(queue))) > now_ms + MAX_SKEW_MS
    ]
    if ahead:
        raise StoreUnusable(
            f"{len(ahead)} queues have messages from the future, so that no message can be added to them yet, the first one "
            f"{ahead[0]}: a host with a wrong clock wrote them, or this host's clock is behind (docs/limits.md, 'Clocks')"
        )


def commit_logs_found(root: Root) -> str:
    """Raises OtherMend with every commit log that is in the folder of another shard, or else has another history, else BadData
    with the damage of every one, or of every one that has not come as far as the tables that were made from it, and
    CheckImpossible."""

    def newest(shard: Shard) -> str:
        version = shard.commitlog.version
        if others := [name for name in shard.named_by_queues() if name != shard.name]:
            raise ShardOfAnother(
                f"the folder {shard.name} has queues that were born in shard {', '.join(others)}: give each folder the name of "
                "its shard again; 'rmq audit' names all that were renamed",
                entry_path(shard.name),
            )
        if others := [f"{shard.name}/{file}: {fact}" for file, fact in entries_of_another(shard)]:
            raise _AnotherHistory("; ".join(others))
        for kind in KINDS:
            if table := _opened(shard, kind):
                refuse_other_history(shard, table)
        return f"{shard.name} at version {version}"

    return ", ".join(_each([partial(newest, shard) for shard in _shards(root)])) or "no shards yet"


def derived_tables_found(root: Root) -> str:
    """Raises BadData with the damage of every derived table's log, and CheckImpossible. Their files are not read."""
    _each([partial(kind.table, shard) for shard in _shards(root) for kind in KINDS])
    return "their logs can be read; 'rmq dispatch --check' compares every row with the commit log"


def maintenance_found(root: Root) -> str:
    """Raises StoreUnusable, which names every table that should be maintained and every shard whose commits are not
    dispatched."""
    due: list[str] = []
    for shard in _shards(root):
        try:
            commits = behind(shard)
            for table in (shard.commitlog, *(kind.table(shard) for kind in KINDS)):
                if reason := due_for_maintenance(len(table.files()), entries_since_checkpoint(table)):
                    due.append(f"{table.path} has {reason}")
        except RmqError as error:
            raise CheckSkipped("it needs tables that can be read") from error
        if commits > MOST_BEHIND:
            due.append(f"{commits:,} commits of shard {shard.name} are not dispatched (more than {MOST_BEHIND:,})")
    if due:
        raise StoreUnusable("; ".join(due))
    return f"no table has more than {MOST_FILES:,} data files, or {MOST_ENTRIES:,} log entries since its checkpoint"


def _each(looks: Iterable[Callable[[], T]]) -> list[T]:
    """What they return. Raises OtherMend with the shards that are not in their folders, else with those that have another
    history, else BadData with the damage that they met, else CheckImpossible with what they could not read."""
    answers: list[T] = []
    elsewhere: list[str] = []
    histories: list[str] = []
    damage: list[str] = []
    unreadable: list[str] = []
    for look in looks:
        try:
            answers.append(look())
        except NoTable as error:
            damage.append(str(error))
        except ShardOfAnother as error:
            elsewhere.append(str(error))
        except _AnotherHistory as error:
            histories.append(str(error))
        except DerivedTableDamaged as error:
            (histories if error.other_history else damage).append(str(error))
        except StoreUnusable as error:
            unreadable.append(str(error))
        except RmqError as error:
            damage.append(str(error))
    if elsewhere:
        raise OtherMend(
            "; ".join(elsewhere), "stop what writes to the store, put the folders right as it says, then 'rmq audit'"
        )
    if histories:
        raise OtherMend(
            "; ".join(histories),
            "stop what writes to the store, and restore it from a backup; a rebuild of the derived tables would only hide it",
        )
    if damage:
        raise BadData("; ".join(damage))
    if unreadable:
        raise CheckImpossible("; ".join(unreadable))
    return answers


def _shards(root: Root) -> list[Shard]:
    """All shards with an entry, with which their commit logs are compared."""
    try:
        store = LakeStore.open(root)
        return [Shard(root, name, store.store_id) for name in store.shard_names()]
    except RmqError as error:
        raise CheckSkipped("it needs a store that can be read") from error


def _opened(shard: Shard, kind: Derived) -> LakeTable | None:
    """A derived table; None when it cannot be read, which is no fault of the commit log."""
    try:
        return kind.table(shard)
    except RmqError:
        return None
