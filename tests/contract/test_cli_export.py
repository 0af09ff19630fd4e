"""``rmq offsets export`` of a real broker's store, before and after its cut-over."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from rmq_store.broker_files.config_files import parse_consumer_offsets, parse_delay_offsets
from rmq_store.lake.broker import export as exporting
from rmq_store.lake.table.shard import Shard
from tests.contract.rmq import ALL_DUE, Rmq, lines_of

EXPORT = ("offsets", "export", "--broker", "broker-a")
TRANSACTIONS = "RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS"
CLIENT = "PaymentFlow@gm_cast@broadcast"
"""A key that names no group, as RocketMQ reads it: it is never observed."""


@pytest.fixture
def config(broker_store: Callable[[str], Path], tmp_path: Path) -> Path:
    """The broker's config folder, to be written to."""
    return Path(shutil.copytree(broker_store("market-clean") / "config", tmp_path / "config"))


def offsets_in(file: Path) -> Mapping[str, Mapping[int, int]]:
    return parse_consumer_offsets(file.read_text()).offset_table


def test_every_group_of_the_broker_is_exported_although_one_of_them_consumed_here(imported: Rmq, config: Path) -> None:
    before = offsets_in(config / "consumerOffset.json")
    imported("consume", "-g", "orders")
    imported(*EXPORT, "out.json")
    consumed = {"OrderEvents@orders": dict.fromkeys(range(8), 525)}
    observed = {key: queues for key, queues in before.items() if key != CLIENT}
    assert TRANSACTIONS in observed
    assert offsets_in(imported.folder / "out.json") == observed | consumed


def test_the_brokers_own_file_keeps_all_of_its_keys_in_a_merge(imported: Rmq, config: Path) -> None:
    file = config / "consumerOffset.json"
    text, before = file.read_text(), offsets_in(file)
    assert lines_of(imported(*EXPORT, "--merge", str(file)).out)["status"] == "done"
    assert (file.read_text(), offsets_in(file)) == (text, before)
    imported("reset", "-g", "gm_back", "-t", "OrderEvents", "--to-offset", "7", "--reason", "again")
    imported("reset", "-g", "gm_online", "-t", "OrderEvents", "--to-max", "--reason", "again")
    dry = imported.json(*EXPORT, "--merge", str(file), "--dry-run")
    assert (dry["status"], dry["changed"], file.read_text()) == ("dry_run", True, text)
    assert dry["changes"] == [
        {
            "file": "consumerOffset.json",
            "key": "OrderEvents@gm_back",
            "queue_id": queue_id,
            "from_offset": 518 - queue_id,
            "to_offset": 7,
        }
        for queue_id in range(8)
    ]
    assert "OrderEvents@gm_back" in imported(*EXPORT, "--merge", str(file), "--dry-run").out
    done = imported.json(*EXPORT, "--merge", str(file))
    assert (done["status"], done["changes"]) == ("done", dry["changes"])
    assert offsets_in(file) == dict(before) | {"OrderEvents@gm_back": dict.fromkeys(range(8), 7)}
    assert len(offsets_in(file)) == len(before) == 39
    assert file.with_name("consumerOffset.json.bak").read_text() == text


def test_the_brokers_own_file_is_not_written_over_unless_told(imported: Rmq, config: Path) -> None:
    file = config / "consumerOffset.json"
    text = file.read_text()
    refused = imported(*EXPORT, str(file))
    assert (refused.exit_code, file.read_text()) == (2, text)
    assert f"{file} knows more than the export: {CLIENT} queue 0 at 225 (not known here)" in refused.err
    assert imported.json(*EXPORT, str(file), "--overwrite")["changed"] is True
    assert len(offsets_in(file)) == 38


def test_a_deleted_group_stays_the_brokers_until_its_cut_over(imported: Rmq, config: Path) -> None:
    file, key = config / "consumerOffset.json", "PaymentFlow@gm_ack"
    imported("delete-group", "-g", "gm_ack", "--reason", "moved")
    imported(*EXPORT, "--merge", str(file))
    assert key in offsets_in(file)
    imported("cutover", "-b", "broker-a", "--reason", "it was switched off")
    imported(*EXPORT, "--merge", str(file))
    assert key not in offsets_in(file)
    assert CLIENT in offsets_in(file)


OBSERVED_LEVELS = {1: 56, 2: 6, 3: 432, 4: 154, 5: 127, 6: 3, 7: 3, 17: 0, 18: 0}


def levels_in(folder: Path, name: str = "delayOffset.json") -> Mapping[int, int]:
    return parse_delay_offsets((folder / name).read_text())


def test_before_the_cut_over_the_delay_levels_stand_where_the_broker_had_them(imported: Rmq, config: Path) -> None:
    text = (config / "delayOffset.json").read_text()
    done = imported.json(*EXPORT, "out.json")
    assert done["delay_file"] == "delayOffset-out.json"
    levels = levels_in(imported.folder, "delayOffset-out.json")
    assert (levels, done["waiting_levels"], done["waiting_retries"]) == (OBSERVED_LEVELS, 162, {})
    merged = imported.json(*EXPORT, "--merge", str(config / "consumerOffset.json"))
    assert (merged["changed"], (config / "delayOffset.json").read_text()) == (False, text)


def test_after_the_cut_over_the_delay_levels_stand_where_the_lake_delivered_them(imported: Rmq, config: Path) -> None:
    file, text = config / "consumerOffset.json", (config / "delayOffset.json").read_text()
    imported("cutover", "-b", "broker-a", "--reason", "it was switched off")
    done = imported.json(*EXPORT, "--merge", str(file))
    assert (done["waiting_levels"], levels_in(config)) == (162, OBSERVED_LEVELS)
    assert imported("deliver", "--now", ALL_DUE).exit_code == 0
    dry = imported.json(*EXPORT, "--merge", str(file), "--dry-run")
    assert [(c["file"], c["queue_id"], c["from_offset"], c["to_offset"]) for c in dry["changes"]] == [
        ("delayOffset.json", 16, 0, 147),
        ("delayOffset.json", 17, 0, 15),
    ]
    assert (config / "delayOffset.json").read_text() == text
    answer = imported(*EXPORT, "--merge", str(file))
    assert levels_in(config) == OBSERVED_LEVELS | {17: 147, 18: 15}
    assert (config / "delayOffset.json.bak").read_text() == text
    assert "group gm_waiting: 138 retries still wait in this store" in answer.err
    assert "LaterBox@gm_drain: 24 messages still wait in this store" in answer.err
    assert "delay levels" not in answer.err


def test_what_waits_here_for_no_group_is_told_by_its_topic(imported: Rmq) -> None:
    imported("delete-group", "-g", "gm_drain", "--reason", "not used any more")
    imported("cutover", "-b", "broker-a", "--reason", "it was switched off")
    assert imported("deliver", "--now", ALL_DUE).exit_code == 0
    for number in range(2):
        imported("send", "--topic", "Letters", "--create", f"number {number}")
    imported("send", "--topic", "Letters", "--delay-level", "18", "later")
    waiting = imported.json(*EXPORT, "out.json")["waiting_messages"]
    assert waiting == {"LaterBox": 24, "Letters": 2, "SCHEDULE_TOPIC_XXXX": 1}
    assert "Letters: 2 messages still wait in this store, consumed by no group" in imported(*EXPORT).err


def test_a_merge_keeps_what_a_broker_that_ran_on_has_delivered_and_tells_lowered_offsets(
    imported: Rmq, config: Path
) -> None:
    file = config / "consumerOffset.json"
    imported("cutover", "-b", "broker-a", "--reason", "it was switched off")
    imported("reset", "-g", "gm_back", "-t", "OrderEvents", "--to-offset", "7", "--reason", "again")
    text = (config / "delayOffset.json").read_text()
    (config / "delayOffset.json").write_text(text.replace("3:432", "3:511"))
    assert imported.json(*EXPORT, "--merge", str(file), "--dry-run")["lowered"] == 8
    dry = imported(*EXPORT, "--merge", str(file), "--dry-run")
    for said in (
        "8 offsets are lowered",
        "OrderEvents@gm_back queue 0 at 518 (7 here)",
        "level 3 is delivered up to 511",
    ):
        assert said in dry.err
    assert imported.json(*EXPORT, "--merge", str(file))["lowered"] == 8
    assert levels_in(config) == OBSERVED_LEVELS | {3: 511}


def test_neither_file_is_written_when_the_delay_levels_of_the_broker_know_more(imported: Rmq, config: Path) -> None:
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (config / name).unlink()
    (config / "delayOffset.json").write_text('{"offsetTable":{3:433}}')
    refused = imported(*EXPORT, str(config / "consumerOffset.json"))
    assert (refused.exit_code, (config / "consumerOffset.json").exists()) == (2, False)
    assert "delayOffset.json knows more than the export: SCHEDULE_TOPIC_XXXX queue 2 at 433 (432 here)" in refused.err


def test_a_merge_into_a_missing_file_goes_on_from_its_bak(imported: Rmq, config: Path) -> None:
    file = config / "consumerOffset.json"
    before, text = offsets_in(file), file.read_text()
    file.rename(file.with_name("consumerOffset.json.bak"))
    refused = imported(*EXPORT, str(file))
    assert (refused.exit_code, file.exists()) == (2, False)
    merged = imported(*EXPORT, "--merge", str(file))
    assert f"{file} is missing: {file}.bak is used, as RocketMQ would" in merged.err
    assert (offsets_in(file), file.with_name("consumerOffset.json.bak").read_text()) == (before, text)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--dry-run",), "need a file"),
        (("out.json", "--merge", "in.json"), "give no other FILE"),
        (("--merge", "in.json", "--overwrite"), "no --overwrite"),
        (("--merge", "in.json"), "there is no file in.json to merge into"),
        (("delayOffset.json",), "is the file of the delay levels"),
        (("none/out.json",), "cannot be written: there is no folder"),
    ],
)
def test_an_export_that_cannot_be_meant_is_refused(imported: Rmq, options: tuple[str, ...], says: str) -> None:
    refused = imported(*EXPORT, *options)
    assert (refused.exit_code, says in refused.err) == (2, True)


def test_one_export_to_a_file_at_a_time_and_a_dry_run_does_not_wait(
    imported: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one begins when the first has read the store, and would write newer offsets first."""
    imported.json(*EXPORT, "out.json")
    before = (imported.folder / "out.json").read_text()
    answers = []
    read = exporting.export_offsets

    def slow(shard: Shard, broker_name: str) -> exporting.OffsetsExport:
        exported = read(shard, broker_name)
        monkeypatch.setattr(exporting, "export_offsets", read)
        imported("consume", "-g", "orders")
        for more in (["--merge", "out.json"], ["--merge", "out.json", "--dry-run"], ["other.json"], []):
            answers.append(imported(*EXPORT, *more))
        return exported

    monkeypatch.setattr(exporting, "export_offsets", slow)
    assert imported.json(*EXPORT, "--merge", "out.json")["changed"] is False
    assert [answer.exit_code for answer in answers] == [3, 0, 0, 0]
    assert "another export to out.json runs: wait until it has ended, and export again" in answers[0].err
    assert (imported.folder / "out.json").read_text() == before
    assert sorted(path.name for path in imported.folder.glob(".*lock*")) == []
    assert imported.json(*EXPORT, "--merge", "out.json")["changed"] is True
