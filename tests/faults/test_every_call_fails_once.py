"""Each call to the store fails once, in each way, in every operation.

Law: the answer is a success, or an error of the project's own that is no defect, and the log agrees with it (P4). Then the same
request ends as in a run without faults: nothing is doubled, nothing is missing, the audit is empty. In S3 a fault that passes
does not even fail the operation.

``make test`` plays a sample; ``--hypothesis-profile=deep`` all cases. RMQ_FAULT_SEED chooses another sample, RMQ_FAULT_CASES
how many cases of an operation.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from rmq_store import errors
from rmq_store.errors import CommitOutcomeUnknown, RmqError
from rmq_store.lake.audit.finding import Problem
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.s3 import READ_TIMEOUT_S
from tests.faults import folder_faults, s3_faults
from tests.faults.folder_faults import FaultyFolder
from tests.faults.operations import (
    OPERATIONS,
    REQUEST,
    Answer,
    Operation,
    State,
    World,
    made_world,
    problems,
    run,
    state_of,
)
from tests.faults.s3_faults import FINAL, TRANSIENT, Fault, FaultyS3Proxy, short_waits
from tests.s3 import S3Server

UNREADABLE = (Problem.FILE_MISSING, Problem.FILE_UNREADABLE, Problem.NOT_AUDITED)
SEED = os.environ.get("RMQ_FAULT_SEED", "1")
DEEP = settings().max_examples > 1000
CASES = int(os.environ.get("RMQ_FAULT_CASES", "1000000" if DEEP else "1"))
"""At most so many cases of an operation."""
IN_S3 = (
    OPERATIONS if DEEP else [one for one in OPERATIONS if one.name in ("import", "consume", "deliver", "lag", "audit")]
)
"""Each costs a second or more there."""


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return made_world(tmp_path_factory.mktemp("world"))


# --- the law ---------------------------------------------------------------------------------------------------------


def is_own_error(answer: Answer) -> bool:
    """Of the project's own, with its exit code, and no defect."""
    if "failed" in answer.document:  # of several groups, or shards
        parts = answer.document.get("groups") or answer.document["deliveries"]
        failed = [part for part in parts if "error" in part]
        return all(is_own_error(Answer(part["exit_code"], part, "")) for part in failed)
    if answer.document.get("checks"):  # of rmq doctor
        return "defect" not in str(answer.document)
    kind = getattr(errors, answer.error, None)
    is_own = isinstance(kind, type) and issubclass(kind, RmqError) and kind.exit_code == answer.exit_code
    return is_own and "this is a defect" not in answer.message and "Traceback" not in answer.err


def facts(answer: Answer) -> Mapping[str, Any]:
    """What a reader answers, without what it costs, how long ago something was, and the id that a dry run makes up."""
    own = ("requests", "checks", "request_id")
    return {name: value for name, value in answer.document.items() if name not in own}


@dataclass(frozen=True)
class Clean:
    """A run of an operation without faults."""

    answer: Answer
    state: State


def contradictions(answer: Answer, state: State, clean: Clean) -> Iterator[str]:
    """Where an answer and the log do not agree (P4)."""
    commits, expected = (
        {kind: number for (kind, request), number in one.commits.items() if request == REQUEST}
        for one in (state, clean.state)
    )
    if answer.exit_code == 0 and commits != expected:
        yield f"the log has {commits}"
    names_commits = any(answer.document.get(name) for name in ("windows", "groups", "shards", "tables"))
    if answer.exit_code and commits and answer.error != CommitOutcomeUnknown.__name__ and not names_commits:
        yield f"the log has {commits}"


def names_unreadable_files(answer: Answer) -> bool:
    """Whether it is the answer of an audit, which goes on after a file that it cannot read, and names it."""
    return any(finding["problem"] in UNREADABLE for finding in answer.document.get("audit") or ())


def law(operation: Operation, place: Path, world: World, answer: Answer, clean: Clean) -> Iterator[str]:
    """What is wrong after the answer to an operation one of whose calls failed. Runs it again, without faults. ``place``: the
    folder with the files of the place, also of one in S3."""
    root = Root.parse(str(place / operation.store))
    if answer.exit_code and not is_own_error(answer) and not names_unreadable_files(answer):
        yield "it is no error of the project's own"
    if answer.exit_code == 0 and not operation.writes and facts(answer) != facts(clean.answer):
        yield "it is wrong"
    if operation.writes:
        if operation.store == "store":
            yield from contradictions(answer, state_of(root), clean)
        again = operation.run(str(place), world)
        if again.exit_code:
            yield f"then it answers {again.document}"
        else:
            yield from differences(clean.state, state_of(root))


def differences(one: State, other: State) -> Iterator[str]:
    if one.commits != other.commits:
        yield f"it ends with the commits {other.commits}, not {one.commits}"
    if one.positions != other.positions:
        yield f"it ends with other positions {sorted(one.positions.items() ^ other.positions.items())}"
    for mine, theirs in zip(one.projections, other.projections, strict=False):
        if mine != theirs:
            yield f"it ends with another projection of {mine.group}"


def sample(cases: Sequence[Any], operation: Operation) -> list[tuple[int, Any]]:
    most = CASES if operation.writes else (CASES + 1) // 2
    chosen = random.Random(f"{SEED} {operation.name}").sample(range(len(cases)), min(most, len(cases)))
    return [(number, cases[number]) for number in sorted(chosen)]


def text_of(operation: Operation, case: object, answer: Answer, violation: str) -> str:
    document = {name: value for name, value in answer.document.items() if name not in ("requests", "windows")}
    return (
        f"{operation.name}, {case}: {violation}\n    after {answer.exit_code} {str(document)[:1000]} {answer.err[:500]}"
    )


# --- a folder --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FolderCase:
    call: folder_faults.Call
    error: int
    after: bool = False
    forever: bool = False
    """From this change on all fail."""

    def __str__(self) -> str:
        when = "from now on" if self.forever else "after it" if self.after else "before it"
        return f"{self.call} {errno.errorcode[self.error]} {when}"

    def decide(self) -> folder_faults.Decide:
        if self.forever:
            return folder_faults.changes_from(self.call.number, self.error)
        return folder_faults.nth(self.call.number, self.error, after=self.after)


def folder_cases(calls: Sequence[folder_faults.Call]) -> list[FolderCase]:
    """Each change fails in each way; of equal reads the first one."""
    cases, names = [], set()
    for call in calls:
        if call.changes:
            cases += [
                FolderCase(call, errno.ENOSPC),
                FolderCase(call, errno.EIO),
                FolderCase(call, errno.EIO, after=True),
            ]
            cases += [FolderCase(call, error, forever=True) for error in (errno.EROFS, errno.EACCES, errno.ENOSPC)]
        elif (call.name, call.path) not in names:
            names.add((call.name, call.path))
            cases += [FolderCase(call, errno.EIO), FolderCase(call, errno.EACCES)]
    return cases


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_in_a_folder(operation: Operation, world: World, tmp_path: Path) -> None:
    place = tmp_path / "place"
    root = Root.parse(str(place / operation.store))

    def fresh() -> None:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(world.place, place)
        operation.prepare(place)

    fresh()
    counted = FaultyFolder(place)
    with counted.installed():
        answer = operation.run(str(place), world)
    assert answer.exit_code == 0, answer
    clean, violations = Clean(answer, state_of(root)), []
    for number, case in sample(folder_cases(counted.calls), operation):
        fresh()
        faulty = FaultyFolder(place, case.decide())
        with faulty.installed():
            answer = operation.run(str(place), world)
        found = list(law(operation, place, world, answer, clean))
        found += [f"audit: {row}" for row in (problems(root) if number % 16 == 0 else ())]
        violations += [text_of(operation, case, answer, one) for one in found]
    assert not violations, f"seed {SEED}\n" + "\n".join(violations)


# --- S3 --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class S3Case:
    call: s3_faults.Call
    fault: Fault
    forever: bool = False
    """From this call on all fail."""

    def __str__(self) -> str:
        return f"{self.call}: {self.fault}{' from now on' if self.forever else ''}"

    def decide(self) -> s3_faults.Decide:
        return (s3_faults.from_nth if self.forever else s3_faults.nth)(self.call.number, self.fault)


@dataclass(frozen=True, slots=True)
class EachOnce:
    """Each request fails the first time that it is made: a command meets the fault at every LIST, GET, HEAD and PUT."""

    fault: Fault

    def __str__(self) -> str:
        return f"each request: {self.fault}"

    def decide(self) -> s3_faults.Decide:
        return s3_faults.each_once(self.fault)


def s3_cases(calls: Sequence[s3_faults.Call]) -> list[S3Case]:
    """Each request in each way; a part of a body is sent only where there is one."""
    faults = [fault for fault in Fault if fault not in (Fault.TAKEN, Fault.NO_BUCKET)]
    changes = ("PUT", "POST", "DELETE")
    once = [
        S3Case(call, fault)
        for call in calls
        for fault in faults
        if call.kind in changes or fault not in (Fault.PARTIAL, Fault.CONFLICT)
    ]
    return once + [S3Case(call, fault, forever=True) for call in calls for fault in FINAL]


def is_of_arrow(fault: Fault, answer: Answer) -> bool:
    """Whether Arrow's own client met the fault, in a query of a large file. It does not try again after an answer that ended
    within its head."""
    return fault is Fault.HEADLESS and "run the query again" in answer.message


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[FaultyS3Proxy]:
    with FaultyS3Proxy(s3_server.endpoint) as running:
        yield running


@pytest.fixture(scope="module")
def uploaded(s3_server: S3Server, world: World) -> Path:
    """The folder of a bucket with the world's place."""
    bucket = s3_server.new_bucket()
    root, local = Root.parse(f"s3://{bucket}", s3_server.env), Root.parse(str(world.place))
    for name, _ in local.list():
        root.replace(name, local.read(name))
    return s3_server.data / bucket


@pytest.fixture
def _through_the_proxy(s3_server: S3Server, proxy: FaultyS3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (dict(s3_server.env) | {"AWS_ENDPOINT_URL": proxy.endpoint}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("_through_the_proxy")
@pytest.mark.parametrize(
    "words", [("sql", "SELECT * FROM messages"), ("track", f"{4:032X}")], ids=lambda words: words[0]
)
def test_a_query_whose_rows_s3_refuses_says_so_without_a_traceback(
    world: World, uploaded: Path, proxy: FaultyS3Proxy, words: tuple[str, str]
) -> None:
    root = f"s3://{uploaded.name}/store"
    for _ in range(2):  # the second run finds footers that the process has kept
        proxy.begin()
        assert run(root, *words).exit_code == 0
    proxy.begin(s3_faults.from_nth(len(proxy.calls) - 1, Fault.FORBIDDEN))
    answer = run(root, *words)
    assert is_own_error(answer), answer
    assert "check AWS_ACCESS_KEY_ID" in answer.message, "it says what to do, whichever client was refused first"


@pytest.mark.usefixtures("_through_the_proxy")
@pytest.mark.parametrize("operation", IN_S3, ids=lambda operation: operation.name)
def test_in_s3(operation: Operation, world: World, uploaded: Path, proxy: FaultyS3Proxy) -> None:
    def fresh(number: int) -> Path:
        """The folder of a new bucket."""
        bucket = f"{uploaded.name}-{operation.name.replace(' ', '-')}-{number}"
        place = Path(shutil.copytree(uploaded, uploaded.with_name(bucket)))
        operation.prepare(place)
        return place

    place = fresh(-1)
    proxy.begin()
    with short_waits():
        answer = operation.run(f"s3://{place.name}", world)
    assert answer.exit_code == 0, answer
    cases = s3_cases(proxy.calls)
    clean, violations = Clean(answer, state_of(Root.parse(str(place / operation.store)))), []
    for number, case in [*sample(cases, operation), (len(cases), EachOnce(Fault.HEADLESS))]:
        place = fresh(number)
        proxy.begin(case.decide())
        with short_waits(1 if case.fault is Fault.SILENT else READ_TIMEOUT_S):
            answer = operation.run(f"s3://{place.name}", world)
        proxy.begin()
        found = list(law(operation, place, world, answer, clean))
        if answer.exit_code and case.fault in TRANSIENT and not is_of_arrow(case.fault, answer):
            found.append("it fails, although the fault passes")
        root = Root.parse(str(place / operation.store))
        found += [f"audit: {row}" for row in (problems(root) if number % 16 == 0 else ())]
        violations += [text_of(operation, case, answer, one) for one in found]
        shutil.rmtree(place)
    assert not violations, f"seed {SEED}\n" + "\n".join(violations)
