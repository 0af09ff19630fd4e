"""The fuzz itself: its cases are the same for a seed, it counts what is wrong, and it makes a failure smaller.

``make fuzz`` runs it for as long as one likes; here it has a few cases, so that it cannot rot.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_store.errors import error_answer
from tests.faults.fuzz.__main__ import REPORT
from tests.faults.fuzz.cases import KINDS, Case, case_from, case_of, document_of, name_of
from tests.faults.fuzz.command_line import Answer, run_command
from tests.faults.fuzz.command_lines import GOOD, command_line, commands
from tests.faults.fuzz.judge import Failure, entries, failure_of, moved_offset, store_failure
from tests.faults.fuzz.run_case import Result, run_case
from tests.faults.fuzz.smallest import smallest
from tests.faults.fuzz.starts import begin, make_starts
from tests.faults.fuzz.tally import Tally, section, shown
from tests.faults.fuzz.worker import Workers
from tests.faults.reports import PAGE, with_section

# --- cases ------------------------------------------------------------------------------------------------------------


def test_a_name_makes_the_same_case_and_every_kind_has_some() -> None:
    names = [name_of("1", number) for number in range(100)]
    assert [case_of(name) for name in names] == [case_of(name) for name in names]
    assert {case_of(name).kind for name in names} == set(KINDS)
    assert name_of("2", 5) != name_of("1", 5)
    with pytest.raises(ValueError, match="no case"):
        case_of("unknown:1-2")


def test_a_case_is_the_same_after_its_file_was_read() -> None:
    for number in range(300):
        case = case_of(name_of("file", number))
        assert case_from(json.dumps(document_of(case))) == case


def test_every_command_and_every_option_is_tried() -> None:
    for words, parameters in commands().items():
        lines = [command_line(random.Random(number), words) for number in range(400)]
        given = {word for line in lines for word in line}
        missing = [one.opts for one in parameters if one.param_type_name == "option" and not given & set(one.opts)]
        assert missing == []
    metavars = {one.metavar for parameters in commands().values() for one in parameters if one.metavar}
    assert metavars == set(GOOD)
    assert {words for words in commands() if words[0] == "offsets"} == {("offsets", "export"), ("offsets", "import")}


def test_no_path_leads_out_of_the_folder() -> None:
    for number in range(20_000):
        for word in command_line(random.Random(number)):
            assert not word.startswith(("/", "~")) or word.startswith("/dev/null")
            assert "../.." not in word


# --- what is wrong ----------------------------------------------------------------------------------------------------


def answered(
    code: int, kind: str = "", message: str = "", out: str = "", line: tuple[str, ...] = ("topics",)
) -> Answer:
    return Answer(line, code, out.encode(), message.encode(), error_answer(kind, message, code) if kind else {})


def test_only_answers_and_errors_of_the_project_are_right() -> None:
    assert failure_of(answered(0)) is None
    assert failure_of(answered(2, "WrongUse", "no")) is None
    assert failure_of(answered(1, "DamagedRecord", "no")) is None
    assert failure_of(answered(1, line=("audit",))) is None
    wrong = {
        "a failure without an error": answered(1),
        "a defect": answered(1, "KeyError", "KeyError: 1 - this is a defect"),
        "an unknown error": answered(1, "KeyError", "1"),
        "a traceback": answered(0, out="Traceback (most recent call last):\n"),
        "no memory": answered(1, "MemoryError", "out of memory (x): give the process more memory"),
        "an exit code": answered(7, "WrongUse", "no"),
        "no JSON": answered(0, out="{} {}", line=("topics", "--json")),
        "NaN": answered(0, out='{"a": NaN}', line=("topics", "--json")),
        "a terminal's sequence": answered(0, out="\x1b]0;x\x07"),
        "raised": replace(answered(0), raised="main raised: KeyError"),
    }
    assert [name for name, answer in wrong.items() if failure_of(answer) is None] == []


def test_a_failed_command_that_moved_an_offset_is_a_failure(tmp_path: Path) -> None:
    log = tmp_path / "store" / "a" / "commitlog" / "_delta_log"
    log.mkdir(parents=True)
    before = entries(tmp_path)
    (log / "1.json").write_text('{"txn":{"appId":"own/g/T/a/0","version":1}}\n')
    claimed = entries(tmp_path)
    refused = answered(2, "WrongUse", "no")
    assert moved_offset(refused, before, claimed) is None
    (log / "2.json").write_text('{"txn":{"appId":"off/g/T/a/0","version":1}}\n')
    after = entries(tmp_path)
    assert moved_offset(answered(0), claimed, after) is None
    assert moved_offset(refused, claimed, after) is not None
    reported = replace(refused, error={**refused.error, "windows": [1]})
    assert moved_offset(reported, claimed, after) is None


# --- a case is run ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "starts"
    make_starts(folder)
    return folder


@pytest.mark.slow
def test_a_case_runs_on_its_own_store_and_leaves_nothing(starts: Path, tmp_path: Path) -> None:
    lines = (("topics",), ("send", "--topic", "New", "--create", "x"), ("sql", "SELECT"), ("--unknown",))
    result = run_case(Case("options:x-1", "empty", lines), starts, tmp_path / "case")
    assert result.failure is None
    assert (result.succeeded, result.refused, result.audits) == (2, Counter({"WrongUse": 2}), 1)
    assert list(tmp_path.iterdir()) == []


def test_no_command_starts_spark(tmp_path: Path) -> None:
    answer = run_command(tmp_path, ("doctor", "--spark", "--json", "--master", "yarn"))
    assert "there is no Spark" in answer.out.decode()


@pytest.mark.slow
def test_a_store_that_is_half_written_is_a_failure(starts: Path, tmp_path: Path) -> None:
    begin(starts, "used", tmp_path / "case", {}, has_broker=True)
    assert store_failure(tmp_path / "case") is None
    next((tmp_path / "case" / "store" / "broker-a" / "commitlog" / "kind=msg").glob("*.parquet")).unlink()
    assert store_failure(tmp_path / "case") is not None


def test_a_process_that_ends_or_hangs_is_a_failure_of_its_case_alone(
    starts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = b"import os, signal\ndef answer(msgs, context):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    cases = [
        Case("listener:x-1", "imported", (("consume", "--group", "g"),), {"fuzz_listener.py": ends}),
        Case("options:x-2", "imported", (("groups",),)),
    ]
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "starts").symlink_to(starts)
    workers = Workers(folder, 1)
    try:
        results = list(workers.results(cases))
    finally:
        workers.stop()
    assert [result.failure and result.failure.what for result in results] == ["exit -9 of the process", None]
    assert results[1].succeeded == 1


def test_a_failing_case_becomes_small() -> None:
    lines = (("topics",), ("sql", "--json", "--timeout", "2s", "a long text that needs only its bad part"), ("lag",))
    case = Case("sql:x-1", "used", lines, {"a": b"1", "b": b"one\ntwo\nthree\nfour"}, stdin=b"x")

    def fails(smaller: Case) -> bool:
        in_command = any("bad" in word for line in smaller.commands if line[0] == "sql" for word in line)
        return in_command and b"three" in smaller.files.get("b", b"")

    small = smallest(case, fails, 300)
    assert fails(small)
    (line,) = small.commands
    assert line[0] == "sql"
    assert len(line) == 2
    assert len(line[1]) < 8
    assert small.files == {"b": b"three"}
    assert small.stdin == b""


# --- the report -------------------------------------------------------------------------------------------------------


def test_the_report_counts_by_kind_and_names_each_failure_once() -> None:
    tally = Tally()
    case = Case("sql:1-1", "used", ())
    assert not tally.add(Result(case, succeeded=2, refused=Counter(WrongUse=1), audits=1))
    assert tally.add(Result(case, failure=Failure("defect: KeyError", "rmq sql", "text")))
    assert not tally.add(Result(case, failure=Failure("defect: KeyError", "rmq sql", "text")))
    document = tally.document()
    assert document["kinds"]["sql"] == {
        "tried": 3,
        "commands": 3,
        "succeeded": 2,
        "refused": 1,
        "audits": 1,
        "defects": 2,
    }
    assert document["refused"] == {"WrongUse": 1}
    assert [failure["times"] for failure in document["failures"]] == [2]
    assert "FAILURE, 2 times: defect: KeyError" in shown(document)


def test_the_page_has_the_table_of_the_committed_report() -> None:
    report = json.loads(REPORT.read_text("utf-8"))
    page = PAGE.read_text("utf-8")
    assert with_section(page, section(report)) == page
    assert [run["failures"] for run in report["runs"]] == [[] for _ in report["runs"]]


def test_a_section_of_the_page_is_replaced_and_the_others_stay() -> None:
    page = "# T\n\n## A\n\nold\n\n## B\n\nkept\n"
    assert with_section(page, "## A\n\nnew\n") == "# T\n\n## A\n\nnew\n\n## B\n\nkept\n"
    assert with_section(page, "## B\n\nnew\n") == "# T\n\n## A\n\nold\n\n## B\n\nnew\n"
    with pytest.raises(ValueError, match="no section"):
        with_section(page, "## C\n")
