"""The store of a broker with ``enableLmq=true``: all offsets of its groups are in ``lmqConsumerOffset.json``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq_store.broker_files.config_files import parse_lmq_offsets
from tests.contract.rmq import Rmq
from tests.contract.test_diverged_log import LISTENER, SETTINGS, configs_of, in_t
from tests.contract.test_import_store import store_of

BROKER = ("--broker", "broker-a")
LMQ, PLAIN = "lmqConsumerOffset.json", "consumerOffset.json"
QUEUES = {"%LMQ%aa@%LMQ%client": 7}
MESSAGES = [in_t("c000", 0), in_t("c001", 1), in_t("c002", 2)]


def files_of(folder: Path, offset: int, end: str = "") -> Path:
    """The broker's store with the offset of group g in queue 0 of T. ``end``: that of the file's name, such as ``.bak``."""
    shutil.rmtree(folder, ignore_errors=True)
    config = configs_of(store_of(folder, *MESSAGES), offset, 0) / "config"
    text = {"lmqOffsetTable": QUEUES, "offsetTable": {"T@g": {"0": offset}}, "pullOffsetTable": {"T@g": {"0": 3}}}
    (config / f"{LMQ}{end}").write_text(json.dumps(text))
    (config / PLAIN).unlink()
    return folder


@pytest.fixture
def rmq_of_lmq(rmq: Rmq) -> Rmq:
    (rmq.folder / "consumers.toml").write_text(SETTINGS)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    rmq.json("init")
    return rmq


def imported(rmq: Rmq, offset: int = 2, end: str = "") -> Path:
    files = files_of(rmq.folder / "broker", offset, end)
    rmq.json("import-store", str(files), *BROKER)
    return files / "config"


@pytest.mark.parametrize("end", ["", ".bak"])
def test_its_groups_go_on_where_the_broker_has_them(rmq_of_lmq: Rmq, end: str) -> None:
    imported(rmq_of_lmq, 2, end)
    assert rmq_of_lmq.json("cutover", *BROKER, "--reason", "switched off")["groups"] == 1
    rmq_of_lmq.json("consume", "--group", "g")
    assert (rmq_of_lmq.folder / "bodies.txt").read_text().split() == ["c002"]
    rows = rmq_of_lmq.json("sql", "SELECT DISTINCT group_name FROM consumer_offsets")
    assert {row["group_name"] for row in rows} == {"g", "CID_RMQ_SYS_SCHEDULE"}


@pytest.mark.parametrize("beside", [PLAIN, f"{PLAIN}.bak"])
def test_files_of_both_kinds_stop_the_import_as_it_is_not_known_which_the_broker_reads(
    rmq_of_lmq: Rmq, beside: str
) -> None:
    files = files_of(rmq_of_lmq.folder / "broker", 2)
    (files / "config" / beside).write_text('{"offsetTable":{"T@g":{"0":1}}}')
    answer = rmq_of_lmq("import-store", str(files), *BROKER)
    assert answer.exit_code == 1
    assert f"config/{PLAIN} and config/{LMQ}" in answer.err
    assert "without the one that it does not read" in answer.err


def test_the_way_back_is_the_file_that_the_broker_reads(rmq_of_lmq: Rmq) -> None:
    config = imported(rmq_of_lmq)
    rmq_of_lmq.json("cutover", *BROKER, "--reason", "switched off")
    rmq_of_lmq.json("consume", "--group", "g")
    for target in ([str(config / PLAIN)], ["--merge", str(config / PLAIN)]):
        (config / f"{PLAIN}.bak").write_text("{}")
        refused = rmq_of_lmq("offsets", "export", *BROKER, *target)
        assert (refused.exit_code, f"in {LMQ}" in refused.err, (config / PLAIN).exists()) == (2, True, False)
    rmq_of_lmq.json("offsets", "export", *BROKER, "--merge", str(config / LMQ))
    text = (config / LMQ).read_text()
    assert parse_lmq_offsets(text).offset_table == {"T@g": {0: 3}}
    assert parse_lmq_offsets(text).lmq_table == QUEUES
    assert (config / "delayOffset.json").exists()


def test_a_file_of_another_name_has_the_shape_that_the_broker_reads(rmq_of_lmq: Rmq) -> None:
    imported(rmq_of_lmq)
    rmq_of_lmq.json("offsets", "export", *BROKER, "out.json")
    text = json_of(rmq_of_lmq.folder / "out.json")
    assert "lmqOffsetTable" in text
    assert '"lmqOffsetTable"' in rmq_of_lmq.json("offsets", "export", *BROKER)["text"]


def test_a_file_that_a_broker_without_lmq_would_not_read_is_not_written(rmq_of_lmq: Rmq) -> None:
    files = configs_of(store_of(rmq_of_lmq.folder / "broker", *MESSAGES), 1, 0)
    rmq_of_lmq.json("import-store", str(files), *BROKER)
    refused = rmq_of_lmq("offsets", "export", *BROKER, LMQ)
    assert (refused.exit_code, f"in {PLAIN}" in refused.err) == (2, True)


def test_a_broker_that_was_switched_to_lmq_is_exported_as_its_newest_import_says(rmq_of_lmq: Rmq) -> None:
    files = configs_of(store_of(rmq_of_lmq.folder / "broker", *MESSAGES), 2, 0)
    rmq_of_lmq.json("import-store", str(files), *BROKER)
    imported(rmq_of_lmq)
    rmq_of_lmq.json("cutover", *BROKER, "--reason", "switched off")
    rmq_of_lmq.json("hand-back", *BROKER, "--reason", "it runs again")
    rmq_of_lmq.json("offsets", "export", *BROKER, LMQ)
    assert (rmq_of_lmq.folder / LMQ).exists()


@pytest.mark.parametrize("name", [LMQ, PLAIN])
def test_a_copy_without_the_file_changes_no_offset_of_before(rmq_of_lmq: Rmq, name: str) -> None:
    folder = rmq_of_lmq.folder / "broker"
    files = files_of(folder, 2) if name == LMQ else configs_of(store_of(folder, *MESSAGES), 2, 0)
    rmq_of_lmq.json("import-store", str(files), *BROKER)
    for lost in (name, "delayOffset.json"):
        (files / "config" / lost).unlink()
    answer = rmq_of_lmq("import-store", str(files), *BROKER)
    notes = [line for line in answer.err.splitlines() if "what the import before recorded of it stays" in line]
    assert ["consumerOffset.json" in notes[0], "delayOffset.json" in notes[1]] == [True, True]
    assert rmq_of_lmq.json("cutover", *BROKER, "--reason", "switched off")["groups"] == 1
    rmq_of_lmq.json("consume", "--group", "g")
    assert (rmq_of_lmq.folder / "bodies.txt").read_text().split() == ["c002"]
    rmq_of_lmq.json("offsets", "export", *BROKER, name)


def json_of(file: Path) -> dict[str, Any]:
    from rmq_store.broker_files.broker_json import object_of, parse

    return object_of(parse(file.read_text()))
