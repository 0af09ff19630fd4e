"""Everything that RocketMQ itself said is held against our code, file by file (``python -m tests.conformance``)."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rmq_store.consumer.delay import DelayLevels
from rmq_store.message.message_const import SCHEDULE_TOPIC
from tests.conformance import runner
from tests.conformance.__main__ import main
from tests.conformance.broker_store import BrokerStore
from tests.conformance.chains import check_chains, sent_as_new
from tests.conformance.checks import passed, read_lines
from tests.conformance.groups import same_place
from tests.conformance.rerun import (
    Hop,
    Life,
    check_local_offsets,
    check_local_offsets_before,
    life_of,
    up_to,
)
from tests.conformance.runner import Conformance

DATA = Path(__file__).parents[1] / "data" / "rocketmq"
MORE = DATA.with_name("rocketmq-more")


@pytest.fixture(scope="module")
def conformance(tmp_path_factory: pytest.TempPathFactory) -> Conformance:
    return Conformance(DATA, tmp_path_factory.mktemp("conformance"))


@pytest.mark.parametrize("name", Conformance(DATA, Path()).names())
def test_our_code_does_what_a_file_says(conformance: Conformance, name: str) -> None:
    report = conformance.report(name)
    assert (report.failed, report.failures, report.unknown) == (0, [], False)
    assert report.passed or report.note
    assert report.not_checked == {}


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Conformance:
    return Conformance(MORE, tmp_path_factory.mktemp("more"))


@pytest.mark.parametrize("name", Conformance(MORE, Path()).names())
def test_our_code_does_what_a_file_of_another_set_says(more: Conformance, name: str) -> None:
    report = more.report(name)
    assert (report.failed, report.failures, report.unknown) == (0, [], False)
    assert report.passed or report.note
    assert report.not_checked == {}


# --- a wrong answer is noticed ----------------------------------------------------------------------------------------

A_VALUE_OF = {
    "vectors/allocation": ("answers", 0, 0),
    "vectors/allocation-order": ("queues", 0, 2),
    "vectors/concurrent-result": ("committed",),
    "vectors/damaged": ("hex",),
    "vectors/delays": ("maxDelayLevel",),
    "vectors/ids": ("decodedOffset",),
    "vectors/local-offset-store": ("steps", 0, 3),
    "vectors/names": ("retryTopic",),
    "vectors/offset-files": ("table", "%RETRY%gA@oOHO", "19"),
    "vectors/orderly-result": ("committed",),
    "vectors/process-queue": ("steps", 0, "count"),
    "vectors/properties": ("properties", "TAGS"),
    "vectors/records": ("hex",),
    "vectors/retry-policies": ("delays", 3, 1),
    "vectors/sql92": ("values", 0),
    "vectors/start-offsets": ("start",),
    "vectors/tags": ("tagsCode",),
    "expected/market-killed.acknowledged": (0,),
    "expected/market-clean.admin": ("result", 0, "offset"),
    "expected/market-killed.commitlog": ("queueOffset",),
    "expected/market-killed.get": ("next",),
    "expected/market-killed.keys": ("commitLogOffsets", 0),
    "expected/market-killed.messages": ("storeTimestamp",),
    "expected/market-clean.pull": ("delivered", 7),
    "expected/market-killed.queues": ("maxOffset",),
    "expected/market-killed.recovery": ("queues", 0, "readable"),
    "expected/market-killed.timesearch": ("lower",),
    "behaviour/market-clean.chains": ("copies", 0, "properties", "KEYS"),
    "behaviour/market-clean.groups": ("topic",),
    "behaviour/market-clean.sent": (2,),
    "behaviour/market-clean.trace": ("messages", 0, "reconsumeTimes"),
    "behaviour/market-requests": ("answer", "properties", "REAL_TOPIC"),
}
"""Of each kind of file a place in its first line that has it."""


def value_at(line: Any, path: Sequence[str | int]) -> Any:
    """:raises LookupError: the line has no such place. :raises TypeError: nor the way to it."""
    for step in path:
        line = line[step]
    return line


def changed(line: Any, path: Sequence[str | int]) -> Any:
    """The same with another value there."""
    copy = deepcopy(line)
    value = value_at(line, path)
    value_at(copy, path[:-1])[path[-1]] = other(value)
    return copy


def other(value: Any) -> Any:
    """Of the same kind."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}7"
    raise AssertionError(f"choose another place than that of {value!r}")


def has(line: Any, path: Sequence[str | int]) -> bool:
    try:
        return value_at(line, path) is not None
    except (LookupError, TypeError):
        return False


def test_every_kind_of_file_is_damaged_once() -> None:
    kinds = {name.rpartition(".")[2] if "." in name else name.rpartition("/")[2] for name in A_VALUE_OF}
    assert kinds == {*runner.VECTORS, *runner.EXPECTED, *runner.BEHAVIOUR, "market-requests"}


@pytest.mark.parametrize(("name", "path"), A_VALUE_OF.items(), ids=str)
def test_one_changed_value_is_noticed(conformance: Conformance, name: str, path: Sequence[str | int]) -> None:
    check, lines, *store = conformance.parts(name)
    number = next(number for number, line in enumerate(lines) if has(line, path))
    lines[number] = changed(lines[number], path)
    outcomes = without_errors(check(lines, *store))
    assert next(outcome for outcome in outcomes if outcome is not None)


@pytest.mark.parametrize("bak", ["", ".bak"])
def test_one_changed_offset_of_a_broadcasting_client_is_noticed(conformance: Conformance, bak: str) -> None:
    name = f"behaviour/market-clean.broadcast-offsets{bak}.json"
    store = conformance.parts("behaviour/market-clean.groups")[2]
    text = (DATA / name).read_text(encoding="utf-8")
    check = check_local_offsets_before if bak else check_local_offsets
    assert passed(check(text, store))
    assert [outcome for outcome in check(text.replace(":225", ":226", 1), store) if outcome is not None]


def without_errors(outcomes: Iterator[str | None]) -> Iterator[str | None]:
    """What the runner makes of a check that stops: its last failure."""
    try:
        yield from outcomes
    except Exception as error:
        yield repr(error)


def test_a_message_that_was_delivered_but_not_consumed_ends_in_the_retry_topic(conformance: Conformance) -> None:
    _, chains, store = conformance.parts("behaviour/market-clean.chains")
    whole = next(chain for chain in chains if len(chain["copies"]) > 3 and len(chain["deliveries"]) > 2)
    cut = whole | {"deliveries": whole["deliveries"][:2], "copies": whole["copies"][:4], "final": "retry topic"}
    assert passed(check_chains([cut], store))
    for final in ("acked", "waiting", "dead"):
        assert [text for text in check_chains([cut | {"final": final}], store) if text is not None]
    went_on = life_of(whole)
    assert up_to(life_of(cut), went_on, store.levels, span_ms=0) == life_of(cut)
    assert up_to(life_of(whole), went_on, store.levels, span_ms=0) == went_on


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (("messages", 0, "reconsumeTimes"), "call of CID-pairOrdered13"),
        (("client",), "in no group"),
        (("messages", 0, "queueOffset"), "there is no message|message 0 of a call"),
    ],
)
def test_a_changed_call_of_an_orderly_pair_is_noticed(more: Conformance, path: Sequence[str | int], part: str) -> None:
    check, lines, store = more.parts("behaviour/quarry-run.trace")
    number = next(number for number, line in enumerate(lines) if line["group"] == "CID-pairOrdered13")
    lines[number] = changed(lines[number], path)
    assert [text for text in without_errors(check(lines, store)) if text and re.search(part, text)]


def test_an_offset_stands_anywhere_before_the_message_that_is_next_for_the_group(more: Conformance) -> None:
    _, lines, store = more.parts("behaviour/quarry-run.groups")
    group = next(line for line in lines if line["group"] == "CID-orderedTag5")
    queue = ("Tailings", 0)
    tags = {row["queue_offset"]: row["properties"].get("TAGS") for row in store.by_queue[queue]}
    wanted = [offset for offset, tag in tags.items() if tag in ("TagB", "Aa", "тег-1", "BB", "z")]
    before, after = next((one, two) for one, two in pairwise(wanted) if two > one + 1)
    place = partial(same_place, "it", group, store)
    assert place({queue: before + 1}, {queue: after}) is None
    assert place({queue: None}, {queue: wanted[0]}) is None
    assert place({queue: before}, {queue: before + 1}) is not None
    assert place({queue: after}, {queue: after + 1}) is not None
    assert place({queue: None}, {queue: wanted[0] + 1}) is not None


def test_what_a_client_could_not_send_back_is_compared_as_a_new_message(more: Conformance) -> None:
    _, chains, store = more.parts("behaviour/quarry-run.chains")
    chain = next(chain for chain in chains if chain["group"] == "q|pairFails12" and [*sent_as_new(chain, store)])
    assert passed(check_chains([chain], store))
    number = next(n for n, copy in enumerate(chain["copies"]) if "RECONSUME_TIME" in copy["properties"])
    for name in ("RECONSUME_TIME", "MAX_RECONSUME_TIMES", "ORIGIN_MESSAGE_ID", "DELAY", "plan"):
        wrong = changed(chain, ("copies", number, "properties", name))
        assert [text for text in check_chains([wrong], store) if text is not None]


def test_a_wait_that_ends_within_the_time_of_the_run_is_compared_up_to_there() -> None:
    levels = DelayLevels("1s 10s")
    first, second = Hop(SCHEDULE_TOPIC, 1, 1), Hop(SCHEDULE_TOPIC, 2, 2)
    waits, went_on = Life((first,), "waiting"), Life((first, second), "waiting")
    assert up_to(waits, went_on, levels, span_ms=1000) == waits
    assert up_to(waits, went_on, levels, span_ms=999) == went_on


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


def test_a_failure_with_half_a_character_is_shown(small: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_lines(small / "vectors" / "tags.jsonl.gz", [{"kind": "code", "tag": "\ud83d", "tagsCode": 1}])
    assert main([str(small), "--only", "vectors/tags"]) == 1
    assert "\\ud83d: found 55357" in capfd.readouterr().out


def test_only_the_first_failures_are_shown(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_lines(small / "vectors" / "delays.jsonl.gz", [{"kind": "levels"}] * 9)
    assert main([str(small), "--only", "vectors/*"]) == 1
    _, *failures, more, _ = capsys.readouterr().out.splitlines()
    assert len(failures) == 5
    assert (failures[0], more) == ("    line 1: KeyError: \"'parsed'\"", "    and 4 more")


def test_files_may_be_unpacked(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in [*small.rglob("*.gz")]:
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert main([str(small)]) == 0
    *files, _ = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in files] == ["expected/shop-1.queues", "stores/shop-1", "vectors/delays"]


def test_a_line_that_is_no_json_is_named(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = small / "vectors" / "delays.jsonl.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-5]))
    assert main([str(small), "--only", "vectors/*"]) == 1
    assert f"line {len(gzip.decompress(path.read_bytes()).splitlines())} of" in capsys.readouterr().out


def test_what_consumers_did_needs_to_be_said_how_they_were_set_up(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small / "behaviour").mkdir()
    write_lines(small / "behaviour" / "shop-1.chains.jsonl.gz", [{"group": "g", "copies": [], "deliveries": []}])
    assert main([str(small), "--only", "behaviour/*"]) == 1
    assert "there is no behaviour/shop-1.groups.jsonl.gz" in capsys.readouterr().out


def test_requests_that_do_not_say_of_what_broker_fail_with_that(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in read_lines(DATA / "behaviour" / "market-requests.jsonl.gz") if "TIMER" in line["what"]]
    (small / "behaviour").mkdir()
    write_lines(small / "behaviour" / "any-requests.jsonl.gz", lines)
    assert main([str(small), "--only", "behaviour/*"]) == 1
    assert "line 1: NotTold: 'the copies of what was sent back come from 0 topics" in capsys.readouterr().out


def test_a_request_that_no_rule_knows_is_not_checked_and_is_no_success(
    small: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small / "behaviour").mkdir()
    write_lines(small / "behaviour" / "any-requests.jsonl.gz", [{"what": "sing", "input": None, "answer": None}])
    assert main([str(small), "--only", "behaviour/*"]) == 1
    assert "not checked yet: no rule: sing" in capsys.readouterr().out


def test_a_store_shows_how_many_delay_levels_its_broker_has(tmp_path: Path) -> None:
    store = BrokerStore("shop", tmp_path, tmp_path)
    store.on_disk, store.made = {}, {(SCHEDULE_TOPIC, 0): {}, (SCHEDULE_TOPIC, 2): {}, ("Orders", 9): {}}
    assert store.levels.text == "1s 5s 10s"


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
