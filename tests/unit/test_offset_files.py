"""A file of offsets that somebody brings: which of RocketMQ's two kinds it is, and what it says of a group."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store.broker_files.local_offsets import local_offsets_text
from rmq_store.broker_files.offset_files import read_offsets
from rmq_store.errors import BadData, WrongUse
from rmq_store.message.message import MessageQueue

BEHAVIOUR = Path(__file__).parents[1] / "data" / "rocketmq" / "behaviour"
CLIENT = {MessageQueue("Orders", "broker-a", 0): 17, MessageQueue("Orders", "broker-b", 1): 4}
BROKER = '{"offsetTable": {"Orders@billing": {0:17,1:4}, "%RETRY%billing@billing": {0:2}, "Orders@audit": {0:1}}}'
BAD = '{"offsetTable": '


def write(folder: Path, text: str, name: str = "offsets.json") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_clients_file_names_its_queues(tmp_path: Path) -> None:
    file = write(tmp_path, local_offsets_text(CLIENT))
    found = read_offsets(file, "audit@a", None)
    assert (found.offsets, found.used, found.note) == (CLIENT, file, "")
    assert read_offsets(file, "audit@a", "broker-b").offsets == {MessageQueue("Orders", "broker-b", 1): 4}


def test_the_file_of_a_real_client_is_read() -> None:
    found = read_offsets(BEHAVIOUR / "market-clean.broadcast-offsets.json", "audit@a", None)
    assert found.offsets == {MessageQueue("PaymentFlow", "broker-a", queue_id): 225 for queue_id in range(4)}


def test_a_brokers_file_says_the_offsets_of_a_group_also_of_its_retry_topic(tmp_path: Path) -> None:
    file = write(tmp_path, BROKER, "consumerOffset.json")
    assert read_offsets(file, "billing", "broker-a").offsets == {
        MessageQueue("Orders", "broker-a", 0): 17,
        MessageQueue("Orders", "broker-a", 1): 4,
        MessageQueue("%RETRY%billing", "broker-a", 0): 2,
    }
    assert read_offsets(file, "nobody", "broker-a").offsets == {}


@pytest.mark.parametrize("text", ["", " \n", BAD, None])
def test_a_file_that_cannot_be_read_gives_way_to_its_bak_and_that_is_said(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "offsets.json" if text is None else write(tmp_path, text)
    bak = write(tmp_path, local_offsets_text(CLIENT), "offsets.json.bak")
    found = read_offsets(file, "audit@a", None)
    assert (found.offsets, found.used) == (CLIENT, bak)
    assert found.note.startswith(str(file))
    assert found.note.endswith("so offsets.json.bak is used")


@pytest.mark.parametrize(
    ("text", "group", "error", "says"),
    [
        (local_offsets_text(CLIENT), "audit", WrongUse, "give the client as the group, audit@CLIENT"),
        (BROKER, "billing", WrongUse, "give the name with --broker"),
        (BAD, "billing", BadData, r"offsets.json cannot be read .*offsets.json.bak: No such file"),
        ('{"offsetTable": {"Orders@billing": {"0": "1_7"}}}', "billing", BadData, "not a 64-bit number"),
        ("[1]", "billing", BadData, "cannot be read"),
    ],
)
def test_a_file_for_somebody_else_or_without_offsets_is_refused(
    tmp_path: Path, text: str, group: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        read_offsets(write(tmp_path, text), group, "broker-a" if error is BadData else None)


def test_a_name_that_is_no_file_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(WrongUse, match=r"none: No such file.*none.bak: No such file.*Give a client's offsets.json"):
        read_offsets(tmp_path / "none", "billing", "broker-a")
    with pytest.raises(WrongUse, match=r"folder: it is a folder"):
        read_offsets(tmp_path / "folder", "billing", "broker-a")
    write(tmp_path, BAD, "none.bak")
    with pytest.raises(BadData, match=r"none: No such file.*none.bak cannot be read"):
        read_offsets(tmp_path / "none", "billing", "broker-a")
