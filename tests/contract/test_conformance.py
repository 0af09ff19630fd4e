"""Everything that RocketMQ itself said is held against our code, file by file (``python -m tests.conformance``)."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import runner
from tests.conformance.__main__ import main
from tests.conformance.checks import read_lines
from tests.conformance.runner import Conformance

DATA = Path(__file__).parents[1] / "data" / "rocketmq"


@pytest.fixture(scope="module")
def conformance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conformance]:
    return Conformance(DATA, tmp_path_factory.mktemp("conformance"))


@pytest.mark.parametrize("name", Conformance(DATA, Path()).names())
def test_our_code_does_what_a_file_says(conformance: Conformance, name: str) -> None:
    report = conformance.report(name)
    assert (report.failed, report.failures, report.unknown) == (0, [], False)
    assert report.passed or report.note
    assert report.not_checked == {}


# --- the runner itself ------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A set of one store, under another name than it had, and two files."""
    for folder in ("vectors", "stores", "expected"):
        (tmp_path / folder).mkdir()
    shutil.copy(DATA / "vectors" / "delays.jsonl.gz", tmp_path / "vectors")
    shutil.copy(DATA / "stores" / "market-killed.tar.gz", tmp_path / "stores" / "shop-1.tar.gz")
    shutil.copy(DATA / "expected" / "market-killed.queues.jsonl.gz", tmp_path / "expected" / "shop-1.queues.jsonl.gz")
    return tmp_path


def write_lines(path: Path, lines: list[Any]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_a_set_that_passes_exits_with_zero_whatever_its_stores_are_called(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(small)]) == 0
    *files, total = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in files] == ["expected/shop-1.queues", "stores/shop-1", "vectors/delays"]
    assert all(line.endswith(" passed, 0 failed") for line in files)
    assert total.startswith("3 files: ")


def test_a_wrong_line_is_a_failure_that_says_which(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = small / "vectors" / "delays.jsonl.gz"
    lines = read_lines(path)
    lines[2]["maxDelayLevel"] += 1
    write_lines(path, [*lines, {"kind": "new"}])
    assert main([str(small), "--only", "vectors/*"]) == 1
    first, *failures, _ = capsys.readouterr().out.splitlines()
    assert first.endswith(" passed, 2 failed")
    assert failures[0].startswith("    line 3: levels of ")
    assert failures[1] == f"    line {len(lines) + 1}: unknown kind of line 'new'"


def test_only_the_first_failures_are_shown(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(small / "vectors" / "delays.jsonl.gz", [{"kind": "levels"}] * 9)
    assert main([str(small), "--only", "vectors/*"]) == 1
    _, *failures, more, _ = capsys.readouterr().out.splitlines()
    assert len(failures) == 5
    assert (failures[0], more) == ("    line 1: KeyError: \"'parsed'\"", "    and 4 more")


@pytest.mark.parametrize(
    "name", ["vectors/colours.jsonl.gz", "expected/shop-1.colours.jsonl.gz", "notes.txt", "vectors/delays.txt"]
)
def test_an_unknown_file_is_named_and_is_no_success(small: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (small / name).write_bytes(b"")
    shown = name.removesuffix(".jsonl.gz")
    assert main([str(small), "--only", shown]) == 1
    assert capsys.readouterr().out.splitlines()[0] == f"{shown}: unknown file"


def test_an_expectation_without_its_store_fails(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (small / "stores" / "shop-1.tar.gz").unlink()
    assert main([str(small), "--only", "expected/*"]) == 1
    assert "there is no stores/shop-1.tar.gz" in capsys.readouterr().out


def test_an_empty_file_is_no_success(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(small / "vectors" / "delays.jsonl.gz", [])
    assert main([str(small), "--only", "vectors/*"]) == 1
    assert "nothing in it to check" in capsys.readouterr().out


def test_a_kind_without_a_rule_is_not_checked_and_is_no_success(
    small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(runner.VECTORS, "delays", "no_such_module:check")
    assert main([str(small), "--only", "vectors/*"]) == 1
    assert capsys.readouterr().out.splitlines()[0].startswith("vectors/delays: not checked yet: no rule")


def test_the_same_as_json(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(small), "--only", "vectors/*", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["failed"], [file["name"] for file in said["files"]]) == (True, 0, ["vectors/delays"])
    assert said["passed"] == said["files"][0]["passed"] == 586


@pytest.mark.parametrize("arguments", [["no-such-folder"], [str(DATA), "--only", "nothing/*"], []])
def test_wrong_use_exits_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
